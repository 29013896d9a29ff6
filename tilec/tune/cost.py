"""What a plan will take: a prediction from the numbers of `work`, the rows that the products get,
and the target's speeds.

A block of the user's grid needs the matrix unit for its products, the vector unit for the rest,
and its tiles brought from the L2 cache; between blocks there is the time to get the first tile and
to write the result, hidden or not as the plan has it. All blocks together need the memory bus.
Whole waves count: a multiprocessor that has nothing left waits for the others.

Measured on an H200 (fp16 products): the time of long products follows the waves (8192x8192 with
tiles of 128x192 fills .985 of the last wave, 128x256 .970, and that is their order); of two plans
with equal waves the one that moves fewer bytes per flop is faster where the chip is at its power
limit; ping-pong hides the epilogue; 128 columns per instruction draw more power; 64 or fewer are
bound by reading shared memory."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from tilec.ir.instr import MatrixInstruction
from tilec.ir.schedule import Plan
from tilec.passes.arrange import QUAD
from tilec.passes.utils.orders import START
from tilec.passes.utils.registers import OTHER_REGISTERS, producer_warps
from tilec.target import Speeds, Target
from tilec.tune.plans import GROUP_THREADS
from tilec.tune.work import Numbers

MAINLOOP = 0.94  # of the matrix unit's rate, reached by long loops that wait for nothing
UNSPECIALISED = 0.75  # threads that bring their own tiles
OWN_LOADS = 0.95  # of the memory bus that such threads reach
FEW_STAGES = {1: 0.45, 2: 0.72, 3: 0.985}  # no tile is in flight while the loop waits
IDLE, HIGHEST = 0.9, 1.25  # how much the clock rises as tensor cores of wgmma have nothing to do
PING_PONG = 1.02
NARROW = 0.98  # 128 columns or fewer per instruction: more power per flop
ENERGY = 0.0035  # per byte per kiloflop from the L2 cache, around that of 128x256 tiles
USUAL_BYTES = 11.7  # per kiloflop
# Clocks that an iteration takes at least, and each step of a product in it: barriers, latencies.
ITERATION = {"wgmma": (60, 16), "mma": (80, 30), "mfma": (100, 40)}
MISSES = 0.5  # of what a multiprocessor gets from the L2 cache, where that has to ask the bus
STAGE_START = 256  # bytes that the memory bus could have brought while a stage is asked for
NARROW_ACCESS = 2.4  # clocks of a warp's access of less than 16 bytes for each thread
NARROW_EACH = 8  # more of each of a thread's, which follow one another
# Where they go through registers, clocks of an iteration, of each warp in it, and of each register
# of a thread that waits for one, if no other block hides them.
NARROW_TURN, NARROW_WARP, NARROW_WAIT = 380, 16, 3.5
WAITING = 1.33  # registers that a thread takes for one that waits: guards, masks, addresses
SQUEEZED = 0.75  # of the registers that a thread takes do, where that makes room for another block
HELD = 27.0  # bytes a clock of an operand that a warpgroup brings to registers by itself
# Clocks of an iteration that the matrix unit stands still; in a cluster, if the block has no second
# warpgroup that goes on while neighbours free a slot.
WAIT, WAIT_CLUSTER = 16, 70
SPILLED = 0.008  # how much longer a loop takes for each register that a thread lacks
STORE_LATENCY = 0.6e-6  # seconds from the last product to the end of the block
STAGED_LATENCY = 0.15e-6  # seconds more through shared memory
# Seconds more for each chunk that is half as wide as it could be: a warp has one at a time, and
# waits until TMA has read it.
HALF_CHUNK = 0.05e-6
CHUNK_COLUMNS = 64  # of 16 bits: what one swizzle covers
SETUP = 0.3e-6  # seconds: barriers, registers, tensor maps
TILE_LOOP = 0.1e-6  # seconds: the walk over tiles of a persistent block
BLOCK_START = 0.4e-6  # seconds for the machine to start another block in the place of one
WARP_START = 100  # clocks that a warp issues what it does once, where it brings tiles
# Seconds until blocks that share a sum add up: those of a cluster wait for one another, the last
# one for parts on their way to global memory and the news of them.
SHARED_SUM = 1.8e-6
PARTED = 1.02  # how much longer the whole takes: parts are worth it where they gain more than that
# Clusters up to a size, and the part of the multiprocessors that they can fill: those of a cluster
# are neighbours, and some neighbourhoods are smaller than others.
CLUSTERS_FIT = ((2, 1.0), (4, 0.91), (math.inf, 0.85))
LOCKSTEP = 0.989  # neighbours that load for one another wait for one another
# The more where threads work beside products, which nothing hides then: five kernels of attention
# that wait for no tile took 1.02 to 1.09 times as long in clusters (an H100).
LOCKSTEP_MIXED = 1.05
TOGETHER = 1.15  # how much longer the loops of blocks take that share a sum as a cluster
BESIDE = 1.005  # stores of one group take issue slots from the other's products
IN_FLIGHT = 64  # bytes that a thread has on their way, where no ring holds what comes
DIRECT = 1.6  # how much longer stores from registers take than those by TMA
SCATTERED = 2.6  # the same where a thread has less than 16 bytes of a row at a time
NEARLY = 32  # the exponent of a norm that is nearly the larger of two
CACHE, STORES = "L2 cache", "stores"  # what an estimate may be bound by, among others


@dataclass(frozen=True)
class Estimate:
    """A prediction. `seconds` of one launch; `limit` what it waits for most; `tiles` blocks of the
    user's grid, `sides` the extents of what they make; `waves` how often each multiprocessor is
    given one; `filled` the part of the last wave's places that have work, over all waves; bytes
    from DRAM and from the L2 cache in all; `intensity` flops per byte of DRAM; `shared_bytes` and
    `registers` (of fragments, per thread) of a launched block, and how many registers a thread
    lacks."""

    seconds: float
    limit: str
    flops: float
    tiles: int
    waves: int
    filled: float
    dram_bytes: float
    l2_bytes: float
    shared_bytes: int
    registers: int
    sides: frozenset[int]
    lacking: int = 0

    @property
    def intensity(self) -> float:
        return self.flops / self.dram_bytes if self.dram_bytes else 0.0


@dataclass(frozen=True)
class Products:
    """What some number of threads make of a kernel's products: the row of each (None:
    multiply-adds); bytes of operands that each iteration brings from shared memory to registers
    while no other warpgroup of the group has something to do; whether a thread's results are
    `scattered`: less than 16 bytes of a row at a time; by how many warps the work of one is
    `repeated`, at most; whether operands are read in `narrow_swizzles`, of less than 128 bytes; for
    each product the bytes of operands that its warps `read` from shared memory, where each reads
    its own; registers of a thread for operands of float64, which are two each."""

    instrs: tuple[MatrixInstruction | None, ...]
    held_bytes: int = 0
    scattered: bool = False
    repeated: int = 1
    narrow_swizzles: bool = False
    read: tuple[int, ...] = ()
    doubles: int = 0

    @property
    def wide(self) -> list[int]:
        """The columns of the instructions that several warps execute together."""
        return [row.n for row in self.instrs if row is not None and row.warps > 1]


@dataclass(frozen=True, kw_only=True)
class Realised(Products):
    """What one plan makes of a kernel before its sizes are known: besides its products, registers
    of fragments per thread, bytes of shared memory in all, and of them the ring's; how many stages
    the ring has; accesses by which threads bring the tiles of an iteration, where those are
    narrower than 16 bytes, the registers of a thread for what they bring, and how many it lacks."""

    registers: int
    shared_bytes: int
    ring_bytes: int
    stages: int
    narrow: int = 0
    waiting: int = 0
    lacking: int = 0


def estimate(
    n: Numbers,
    plan: Plan,
    made: Realised,
    threads: int,
    target: Target,
    uneven: float | None = None,
) -> Estimate:
    """The prediction for one launch of `plan` with `threads` threads per group. `uneven`: where
    tiles differ in length, how much more one of as many blocks as run at once has to do than the
    mean."""
    s = target.speeds
    multiprocessors = multiprocessors_for(plan, target)
    clusters = itertools.zip_longest(n.grid, plan.cluster, fillvalue=1)
    blocks = math.prod(-(-e // c) * c for e, c in clusters) * plan.split * plan.parts
    resident = blocks_per_multiprocessor(plan, made, threads, target)
    waves = max(1, math.ceil(blocks / multiprocessors))
    if plan.persistent:
        waves = math.ceil(blocks / (multiprocessors * resident)) * resident
    turns = waves if uneven is None else uneven * blocks / multiprocessors
    loop = _loop(n, plan, made, threads, resident, waves, target)
    busy = _busy(n, plan, made, threads, loop, min(plan.residents, waves), s) / s.clock
    if waves == 1 and made.wide:
        busy /= min(1 + IDLE * (1 - blocks / multiprocessors), HIGHEST)

    stores, ends = _stores(n, plan, made, threads, s), ends_of(n, plan, s)
    first = made.ring_bytes / max(made.stages, 1) / (s.l2 * s.clock)
    start = s.latency + first + SETUP + TILE_LOOP * plan.persistent
    busy *= TOGETHER if plan.split > 1 else 1.0
    if plan.consumer_groups > 1:
        busy *= 1.0 if plan.staged_store else BESIDE
        total = start + turns * max(busy, (busy + stores) / 2) + stores / n.results
    elif plan.persistent:
        total = start + turns * (busy + stores / resident**2)  # so many rounds, which others hide
    else:
        rounds = math.ceil(blocks / (multiprocessors * resident))
        between = (rounds - 1) * (start + stores + ends + BLOCK_START)
        if made.waiting:
            between += waves * WARP_START * threads / target.warp_size / s.clock
        else:
            between /= resident  # others hide it
        total = start + stores + turns * busy + between
    dram = s.dram if _helped(plan, target) else OWN_LOADS * s.dram
    bus = min(dram, min(blocks, multiprocessors) * s.clock * loop.into_block * MISSES)
    gaps = STAGE_START * n.iterations * n.blocks * plan.split / bus
    scattered = n.scattered * n.blocks / (min(n.blocks, multiprocessors) * s.clock)
    memory = start + max(n.dram / bus, scattered) + gaps + STORE_LATENCY
    parted = PARTED if plan.parts > 1 else 1.0
    limit = loop.limit
    if memory > total:
        limit = "DRAM"
    elif turns * busy < 0.5 * total:
        limit = "latency"
    seconds = ends + parted * math.hypot(total**2, memory**2) ** 0.5  # near the longer of the two
    cached = s.latency + SETUP + blocks * _cached(n, plan, made, s) / (multiprocessors * s.clock)
    longer = max(seconds, cached)
    return Estimate(
        # Nearly the longer: plans that are bound alike differ in what they have to do besides.
        s.launch + longer * sum((t / longer) ** NEARLY for t in (seconds, cached)) ** (1 / NEARLY),
        limit if seconds > cached else STORES,
        flops_of(n) * n.blocks,
        n.blocks,
        waves,
        blocks / (waves * multiprocessors),
        n.dram,
        n.loaded_in(plan.cluster)[0] * n.blocks,
        made.shared_bytes,
        made.registers,
        n.sides,
        max(0, made.lacking),
    )


@dataclass(frozen=True)
class _Loop:
    """Clocks that the loops of one block keep the matrix unit, the vector unit and the L2 cache
    busy; bytes a clock that come into the block."""

    compute: float
    vector: float
    from_cache: float
    into_block: float

    @property
    def limit(self) -> str:
        clocks = {"matrix unit": self.compute, "vector unit": self.vector, CACHE: self.from_cache}
        return max(clocks, key=lambda k: clocks[k])


def _loop(
    n: Numbers, plan: Plan, made: Realised, threads: int, resident: int, waves: int, target: Target
) -> _Loop:
    s = target.speeds
    flops, (from_l2, outside) = flops_of(n), n.loaded_in(plan.cluster)
    matrix = sum(
        p.flops * times / _rate(instr, threads * plan.residents, target) * made.repeated
        for (p, times), instr in zip(n.products, made.instrs)
    )
    per_kiloflop = 1000 * from_l2 / flops if flops else 0.0
    unhelped = 1.0 if _helped(plan, target) else UNSPECIALISED
    efficiency = _efficiency(plan, made, resident, waves * n.results, per_kiloflop) * unhelped
    steps = sum(
        times * _least(instr, p.op.shape[2]) for (p, times), instr in zip(n.products, made.instrs)
    )
    beside = threads * plan.consumer_groups * plan.residents
    alone = plan.cluster != (1, 1, 1) and beside <= GROUP_THREADS
    wait = WAIT_CLUSTER if alone else WAIT
    compute = max(matrix / efficiency + wait * n.iterations, steps)
    reads = sum(x * times for x, (_, times) in zip(made.read, n.products)) / s.shared
    if not (made.narrow or n.mixed.waited):  # else threads wait for more than that
        compute = max(compute, reads)
    compute += made.held_bytes / HELD * n.iterations
    if made.narrow:
        turn = NARROW_EACH * made.narrow / threads
        if made.waiting:
            turn = NARROW_TURN + NARROW_WARP * threads / target.warp_size
            turn = (turn + NARROW_WAIT * made.waiting) / min(resident, waves)
        compute += (NARROW_ACCESS * made.narrow / target.warp_size + turn) * n.iterations
        compute *= 1 + SPILLED * max(0, made.lacking)
    asked = max(from_l2 / s.l2, n.loaded / s.fill)
    if plan.cluster == (1, 1, 1) and not n.mixed.waited:
        asked = max(asked, n.loaded_near(plan.raster_group, s.neighbours) / s.port)
    if made.narrow and not plan.specialise:
        asked = 0.0  # the cache keeps up with them
    if plan.specialise:
        asked += outside / s.outside
        # A slot is free one iteration after it was read, and full again a latency later; where
        # threads wait for products, as soon as its own one has read it.
        held = (1 if n.mixed.waited else 2) * compute
        turn = held + asked + s.latency * s.clock * n.iterations
        compute = max(compute, turn / (made.stages * resident))
    # What is in flight arrives after the latency, so that bounds the rate too.
    ring = made.ring_bytes * max(made.stages - 1, 1) / max(made.stages, 1)
    if not made.ring_bytes:  # threads ask for all of an iteration, and wait
        ring = from_l2 / max(n.iterations, 1.0)
    flight = max(ring, threads * IN_FLIGHT)
    into_block = min(s.l2, flight * resident / (s.latency * s.clock)) * unhelped
    vector = n.vector / s.vector + n.special / s.special
    return _Loop(compute, vector, asked * s.l2 / into_block, into_block)


def _busy(
    n: Numbers, plan: Plan, made: Realised, threads: int, loop: _Loop, together: int, s: Speeds
) -> float:
    """Clocks of the loops of a block, so many of which are `together` on a multiprocessor. Groups
    that take turns do so for whole loops: one hides what another does behind its own; blocks of one
    multiprocessor hide it at any time. In a loop where threads wait for products (`Mixed`) a
    warpgroup waits for its own, but for the first and last where iterations overlap; what it does
    then all others of the multiprocessor hide."""
    work = loop.compute
    if n.mixed.waited:
        own = max(n.mixed.issued / s.vector, n.mixed.special / s.special) * made.repeated
        delay = QUAD * n.mixed.folds
        if made.wide:
            delay += START * n.mixed.waited / (max(n.iterations, 1.0) if plan.overlap else 1.0)
        streams = 1 if plan.consumer_groups > 1 else max(1, threads // GROUP_THREADS)
        work = in_turns(loop.compute, own, delay, streams * together)
        work *= LOCKSTEP_MIXED if plan.cluster != (1, 1, 1) else 1.0
        work += DIRECT * n.mixed.stored / s.l2
    if plan.consumer_groups > 1:
        return max(work, loop.vector, loop.from_cache)
    own = work + loop.vector / together
    return max(own, loop.from_cache) / (plan.split * plan.parts)


def in_turns(products: float, others: float, delay: float, streams: int) -> float:
    """Clocks of `products` on the tensor cores and of `others` on the units of threads, shared
    evenly by so many streams of instructions, each of which does one behind the other and waits for
    a `delay` besides: all of them take turns at both. One stream takes the sum, many the larger of
    the two. (Mean value analysis: Reiser and Lavenberg, JACM 27, 1980.)"""
    here = there = rate = 0.0  # streams that are at either, how often one comes round
    for n in range(1, streams + 1):
        first, second = products / streams * (1 + here), others / streams * (1 + there)
        rate = n / (first + second + delay)
        here, there = rate * first, rate * second
    return streams / rate


def _stores(n: Numbers, plan: Plan, made: Realised, threads: int, s: Speeds) -> float:
    """Seconds from a block's last product to the end of its results. What an epilogue reads comes
    at the rate of what its threads ask for: nobody asked ahead of time."""
    stores = (n.stored - n.mixed.stored) / (s.l2 * s.clock)
    if not plan.staged_store:
        stores *= SCATTERED if made.scattered else DIRECT
    latency = STORE_LATENCY
    if plan.staged_store:
        halves = (2 * n // CHUNK_COLUMNS for n in made.wide if n % CHUNK_COLUMNS)
        latency += STAGED_LATENCY + HALF_CHUNK * max(halves, default=0)
    stores += n.results * latency
    fetched = n.fetched * max(s.latency / (threads * IN_FLIGHT), 1 / (s.l2 * s.clock))
    return stores + fetched


def _cached(n: Numbers, plan: Plan, made: Realised, s: Speeds) -> float:
    """Clocks of a block's loads from the L2 cache and stores to it, of which each hinders the
    other: 2048x32000x256 in tiles of 128x192, whose loads take 27 us and whose stores 33, took 61
    (an H200). Warps that hold columns of the result store short pieces of its rows."""
    stored = n.written * (SCATTERED / DIRECT if made.scattered else 1.0)
    return n.loaded_in(plan.cluster)[0] / (plan.split * plan.parts) / s.l2 + stored / s.store


def ends_of(n: Numbers, plan: Plan, s: Speeds) -> float:
    """Seconds that blocks take for what they share: those of a cluster wait for one another, the
    last one of a sum brings in all its parts."""
    ends = s.latency * (plan.cluster != (1, 1, 1))  # barriers at both ends
    sums = sum(4.0 * p.op.c.buffer.size for p, _ in n.products)  # bytes of the accumulators
    if plan.split > 1:
        ends += SHARED_SUM + sums * (plan.split - 1) / (s.l2 * s.clock)
    if plan.parts > 1:
        ends += SHARED_SUM + sums * (plan.parts + 1) / (s.l2 * s.clock)
    return ends


def flops_of(n: Numbers) -> float:
    return sum(p.flops * times for p, times in n.products)


def _helped(plan: Plan, target: Target) -> bool:
    """Whether threads are spared what others can do: bringing tiles."""
    return plan.specialise or not target.has("tma")


def multiprocessors_for(plan: Plan, target: Target) -> int:
    """The multiprocessors that the plan's clusters can fill."""
    together = plan.split * math.prod(plan.cluster)
    fit = next(part for size, part in CLUSTERS_FIT if together <= size)
    return int(target.multiprocessors * fit)


def blocks_per_multiprocessor(plan: Plan, made: Realised, threads: int, target: Target) -> int:
    """Launched blocks that one multiprocessor holds at once, at least 1."""
    if plan.persistent:
        return plan.residents
    launched = threads * plan.consumer_groups
    if plan.specialise:
        launched += producer_warps(launched // target.warp_size) * target.warp_size
    taken = made.registers + WAITING * made.waiting + OTHER_REGISTERS
    if made.waiting:
        taken *= SQUEEZED
    registers = min(int(taken), target.max_registers_per_thread)
    by_registers = target.registers // max(1, launched * registers)
    by_registers = max(by_registers, plan.residents)  # its producers leave theirs to the others
    by_shared = (target.shared_bytes + 1024) // max(made.shared_bytes + 1024, 1)
    return max(1, min(by_registers, by_shared, 2048 // launched, 16))


def _efficiency(
    plan: Plan, made: Realised, resident: int, results: float, per_kiloflop: float
) -> float:
    found = MAINLOOP * (1 - ENERGY * (min(per_kiloflop, 60.0) - USUAL_BYTES))
    if plan.consumer_groups > 1:
        found *= PING_PONG if results > 1 else 1.0  # else the other has no tile
    found *= LOCKSTEP if plan.cluster != (1, 1, 1) else 1.0
    if (
        made.narrow_swizzles
    ):  # 354x11496x333 took 15.3 us in tiles of 96 columns, in 128 13.8 (an H200)
        found *= UNSPECIALISED
    if not plan.specialise:
        found *= FEW_STAGES.get(made.stages + resident - 1, 1.0)  # blocks hide each other's waits
    return found * (NARROW if max(made.wide, default=256) <= 128 else 1.0)


def _rate(instr: MatrixInstruction | None, threads: int, target: Target) -> float:
    """Flops per clock of a product. An instruction that reads its operands from shared memory waits
    for that where it is narrow; one that keeps too few warps busy leaves the unit idle."""
    s = target.speeds
    if instr is None:
        return 2 * s.vector
    rate = s.product_rate(instr.feature, instr.a_dtype.bits)
    if instr.warps == 1:
        return rate * min(1.0, threads / (4 * target.warp_size))
    clocks = 2 * instr.m * instr.n * instr.k / rate
    operands = (instr.m * instr.a_k + instr.n * instr.k) * instr.a_dtype.bits / 8
    return rate * min(1.0, s.shared * clocks / operands)


def _least(instr: MatrixInstruction | None, depth: int) -> float:
    """Clocks of a product over `depth` however small its tile is."""
    if instr is None:
        return 0.0
    fixed, step = iteration(instr)
    return fixed + step * depth / instr.k


def iteration(instr: MatrixInstruction) -> tuple[float, float]:
    return ITERATION.get(instr.feature.partition("_")[0], (100, 40))
