"""How many blocks a multiprocessor holds at once."""

from __future__ import annotations

from tilec.target import Target

# Per multiprocessor (compute unit): threads, blocks, shared bytes and what a block reserves of
# them, the unit registers are given out in per warp. CUDA C++ Programming Guide, "Compute
# Capabilities"; AMD CDNA3 instruction set, section 3.6.
_LIMITS = {
    "cuda:sm_80": (2048, 32, 167_936, 1024, 256),
    "cuda:sm_90a": (2048, 32, 233_472, 1024, 256),
    "hip:gfx942": (2048, 32, 65_536, 0, 512),
}


def occupancy(target: Target, registers: int | None, shared: int, threads: int) -> int | None:
    """Blocks of `threads` threads that one multiprocessor holds at once; None where `registers`
    is unknown."""
    if registers is None or target.name not in _LIMITS:
        return None
    max_threads, max_blocks, shared_total, reserved, unit = _LIMITS[target.name]
    warps = -(-threads // target.warp_size)
    per_warp = -(-registers * target.warp_size // unit) * unit
    limits = [max_blocks, max_threads // (warps * target.warp_size)]
    limits.append(target.registers // (per_warp * warps) if per_warp else max_blocks)
    limits.append(shared_total // (shared + reserved) if shared + reserved else max_blocks)
    return min(limits)
