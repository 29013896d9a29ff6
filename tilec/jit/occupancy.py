"""How many blocks a multiprocessor holds at once."""

from __future__ import annotations

from tilec.target import Target


def occupancy(target: Target, registers: int | None, shared: int, threads: int) -> int | None:
    """Blocks of `threads` threads that one multiprocessor holds at once; None where `registers`
    is unknown."""
    held = target.residency
    if registers is None or held is None:
        return None
    warps = -(-threads // target.warp_size)
    per_warp = -(-registers * target.warp_size // held.unit) * held.unit
    limits = [held.blocks, held.threads // (warps * target.warp_size)]
    if per_warp:
        limits.append(target.registers // (per_warp * warps))
    if shared + held.reserved:
        limits.append(held.shared_bytes // (shared + held.reserved))
    return min(limits)
