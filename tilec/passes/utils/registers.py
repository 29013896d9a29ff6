"""The register file as the passes share it out: numbers only, no IR."""

from __future__ import annotations

from tilec.target import Target

PRODUCER_WARPS = 4  # a whole warpgroup, because registers move between warpgroups
OTHER_REGISTERS = 56  # of a thread in a loop with a product, beside its fragments
MOST_LACKING = 60  # registers of a thread: spilling as many costs less than smaller tiles
FEWEST = 24  # registers that `setmaxnreg` leaves a thread
AMPLE = 56  # of a producer that divides numbers of 64 bits (which tile, which run of iterations)
RESERVED = 24  # of each thread: addresses, loop counters, a few temporaries


def producer_warps(warps: int) -> int:
    """Warps that a specialised kernel adds behind `warps` computing ones."""
    return PRODUCER_WARPS if warps % 4 == 0 else 1


def at_launch(threads: int, target: Target) -> int:
    """Registers each of `threads` threads has when its block starts."""
    return min(target.registers // threads // 8 * 8, target.max_registers_per_thread)


def register_split(
    warps: int, target: Target, producer: int = 0, blocks: int = 1
) -> tuple[int, int]:
    """Registers per thread of consumers and producers, where a multiprocessor has so many `blocks`.
    `producer`: what producers have, if not what they mostly need. The sum over warpgroups may not
    exceed what the block got at launch, or the kernel hangs where it asks for them. (0, 0): leave
    them."""
    groups = (warps + producer_warps(warps)) // 4
    if not target.has("setmaxnreg") or warps % 4 or groups * blocks < 3:
        return 0, 0
    producer = producer or (40 if groups <= 3 else 32)
    launched = at_launch(groups * 128 * blocks, target)
    if producer > launched:
        return 0, 0  # they have none to give
    pool = launched * groups
    return min((pool - producer) // (groups - 1) // 8 * 8, 240), producer


def budget(threads: int, specialised: bool, target: Target, blocks: int = 1) -> int:
    """Registers that one thread's largest fragment may take, where a multiprocessor has so many
    specialised `blocks`."""
    if target.fragment_registers:
        return target.fragment_registers
    warps = threads // target.warp_size
    if not specialised:
        return at_launch(threads, target) - RESERVED
    consumer, _ = register_split(warps, target, blocks=blocks)
    launched = threads + producer_warps(warps) * 32
    return (consumer or at_launch(launched * blocks, target)) - RESERVED


def widest_wgmma(threads: int, specialised: bool, target: Target, blocks: int = 1) -> int:
    """Columns of the widest wgmma: ptxas counts an instruction's accumulators against the registers
    at launch (C7602), whatever `setmaxnreg` gives later."""
    launched = threads + (producer_warps(threads // 32) * 32 if specialised else 0)
    return min(256, 2 * (at_launch(launched * blocks, target) - 26) // 8 * 8)
