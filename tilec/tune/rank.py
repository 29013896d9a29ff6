"""Ranking: every plan of a kernel in TILE form with what it is predicted to take, and why others
cannot run. `Candidate` is one traced form of the kernel; its static part is read once, its numbers
for each problem size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tilec.ir.analysis import Facts, facts_of
from tilec.ir.clusters import SINGLE, threads_of
from tilec.ir.core import Func, Op, Value, walk
from tilec.ir.errors import CompileError, ResourceError
from tilec.ir.instr import MATRIX_INSTRUCTIONS, MatrixInstruction
from tilec.ir.ops import Alloc, For, Gemm, While
from tilec.ir.schedule import Plan
from tilec.passes.arrange import KEPT
from tilec.passes.block_order import can_persist, takes_as_they_come
from tilec.passes.check_registers import held_at_once
from tilec.passes.cluster_split_k import check_shared
from tilec.passes.select_gemm import Selection, check_threads
from tilec.passes.utils.gemm_layouts import SWIZZLES
from tilec.passes.utils.plans import Wanted, is_mixed, shared_of, take_wanted
from tilec.passes.utils.registers import (
    MOST_LACKING,
    OTHER_REGISTERS,
    at_launch,
    budget,
    widest_wgmma,
)
from tilec.passes.utils.role_cut import GROUP_WARPS, LAST_GROUPS, LEAST_STAGES
from tilec.support.rich import html_block
from tilec.target import Target
from tilec.tune import fit
from tilec.tune.balance import unevenness
from tilec.tune.bound import least
from tilec.tune.cost import CACHE, Estimate, Products, Realised, estimate, multiprocessors_for
from tilec.tune.footprint import Footprint, footprint
from tilec.tune.plans import PARTS, has_pipelined_product, may_overlap, plans
from tilec.tune.work import Numbers, Values, Work, read_work

# Registers of a thread that element-wise work on the accumulators takes, and the more of it in a
# cluster; and 16-byte stores. With 192 accumulators each spills, in a cluster with 128.
EPILOGUE, CLUSTERED, DIRECT_STORES = 48, 40, 24
OVERLAPPED = 6  # how much less loads to registers cost where another warpgroup's products go on
QUAD_COLUMNS = 32  # of 16 bits, of which the four lanes that share a row have 16 bytes each
L2_GROUP = 0.6  # of the L2 cache for the tiles that the blocks of a rasterisation group share
EVEN = 0.003  # of the time: wider groups that are more even by less are not worth what they read
AT_ONCE = 3  # blocks of a multiprocessor, about
TRIED_PARTS = 4  # numbers of parts that are tried
ROOMY = 7 / 8  # of the registers, with fragments in which all plans known have room
MOST_ELEMENTS = 64  # of a loop in one thread, without a product whose accumulators need as many


@dataclass(frozen=True)
class Ranked:
    """One configuration: the compile-time arguments chosen for the kernel, the plan, and its
    estimate, or the reason why it cannot run."""

    constants: Mapping[str, Any]
    plan: Plan | None
    estimate: Estimate | None = None
    reason: str = ""

    @property
    def configuration(self) -> str:
        """What is chosen: "BM=128, BN=256: specialised (stages=4)"."""
        given = ", ".join(f"{k}={v}" for k, v in self.constants.items())
        return ": ".join(x for x in (given, self.plan.describe() if self.plan else "") if x)

    def __str__(self) -> str:
        name, e = self.configuration, self.estimate
        if e is None:
            return f"{name}: rejected, {self.reason}"
        return (
            f"{name}: {e.seconds * 1e6:.1f} us, bound by {e.limit}; {e.tiles} tiles in {e.waves} "
            f"waves ({e.filled:.0%} filled), {e.dram_bytes / 1e6:.1f} MB from DRAM, "
            f"{e.l2_bytes / 1e6:.1f} MB from L2, {e.shared_bytes} bytes of shared memory, "
            f"{e.registers} registers in fragments"
        )

    def _repr_html_(self) -> str:
        return html_block(self.configuration, about=str(self).removeprefix(self.configuration))


@dataclass
class Candidate:
    """The kernel for some compile-time arguments."""

    func: Func
    target: Target
    constants: Mapping[str, Any] = field(default_factory=dict)
    _obstacles: dict[tuple[int, int], str] = field(default_factory=dict)

    @cached_property
    def work(self) -> Work:
        return read_work(self.func)

    @cached_property
    def _taken(self) -> tuple[Func, Wanted]:
        func, wanted = take_wanted(self.func)
        threads, size = func.attrs.get("threads"), self.target.warp_size
        if threads and self.target.max_threads > 1:  # as the passes have it: whole warps
            func = func.with_attrs(threads=-(-threads // size) * size)
        return func, wanted

    @cached_property
    def _facts(self) -> Facts:
        return facts_of(self.func)

    @cached_property
    def _selection(self) -> Selection:
        return Selection(self.func, self.target)

    @cached_property
    def _buffers(self) -> frozenset[Value]:
        return frozenset(o.result for o in self.func.body.every(Alloc))

    @cached_property
    def _sums(self) -> dict[Value, int]:
        """The accumulators of products, and how many elements they have."""
        return {p.op.c: p.op.c.buffer.size for p in self.work.products}

    @cached_property
    def _held(self) -> int:
        """Registers of a block for the accumulators that are held at once; in loops in which
        threads compute with what products give, for operands too."""
        words = {
            o.result: -(-o.type.size * o.type.dtype.bits // 32)
            for o in self.func.body.every(Alloc)
            if o.type.space == "fragment"
        }
        sums = {v: n for v, n in words.items() if v in self._sums}
        found = [*sums.values()]
        for loop in walk(self.func.body):
            if isinstance(loop, For | While):
                held = words if isinstance(loop, For) and is_mixed(loop) else sums
                found.append(sum(held[v] for v in held_at_once(self.func, loop, held)))
        return max(found, default=0)

    @cached_property
    def tile_bits(self) -> int:
        """Bits of a block's tiles, in shared memory and in registers."""
        types = (o.type for o in self.func.body.every(Alloc))
        return sum(t.size * t.dtype.bits for t in types)

    @cached_property
    def is_roomy(self) -> bool:
        """Whether two of each of its shared tiles would fit, and all of its fragments."""
        types = [o.type for o in self.func.body.every(Alloc)]
        shared = sum(t.bytes for t in types if t.space == "shared")
        words = sum(t.size * t.dtype.bits for t in types if t.space == "fragment") // 32
        return 2 * shared <= self.target.shared_bytes and words <= ROOMY * self.target.registers

    @property
    def fits(self) -> bool:
        """Whether there is a plan with room for it."""
        return bool(self._static[0])

    @property
    def rejected(self) -> list[Ranked]:
        """The plans that cannot run, with the reasons."""
        return self._static[1]

    def _unshared(self, plan: Plan) -> str:
        """Why blocks cannot share the iterations of a sum as the plan has it; "" if they can."""
        key = min(plan.split, 2), min(plan.parts, 2)
        if key not in self._obstacles:
            self._obstacles[key] = self._obstacle(*key)
        return self._obstacles[key]

    def _obstacle(self, split: int, parts: int) -> str:
        # What blocks share through global memory, those of a cluster can.
        if (split, parts) == (2, 1) and not self._unshared(Plan("", parts=2)):
            return ""
        try:
            check_shared(self._taken[0].with_attrs(split=split, parts=parts), self.target)
        except CompileError as error:
            return error.message
        return ""

    @cached_property
    def _static(self) -> tuple[list[tuple[Plan, Plan, Realised, int]], list[Ranked]]:
        """The plans that may fit, each as it will run (a kernel that walks over blocks by itself is
        launched as it is), with what it makes of the kernel and the threads of a group; and the
        others."""
        func, wanted = self._taken
        kept: list[tuple[Plan, Plan, Realised, int]] = []
        rejected: list[Ranked] = []
        products_of: dict[tuple[int, int], Products] = {}
        space = footprint(func, self.target, self._facts)
        bits = self.work.fragment_bits()
        walks = can_persist(func)
        sums = sum(self._sums.values())
        for plan in plans(func, self.target, wanted, space):
            asked, plan = plan, _counted(plan)
            threads = plan.threads or threads_of(func)
            widest = widest_wgmma(
                threads * plan.consumer_groups, plan.specialise, self.target, plan.residents
            )
            key = threads, widest
            try:
                if key not in products_of:
                    products_of[key] = self._products(threads, widest)
            except CompileError as error:
                rejected.append(Ranked(self.constants, asked, reason=error.message))
                continue
            if plan.split * plan.parts > 1 and self._unshared(plan):
                rejected.append(Ranked(self.constants, asked, reason=self._unshared(plan)))
                continue
            total, ring, stages = space.of(plan, self.target)
            stages = max(stages, LEAST_STAGES) if asked.roles else stages
            products = products_of[key]
            registers = (sum(bits) // 32 + sums * (products.repeated - 1)) // threads
            narrow, waiting = self._narrow(space, plan, threads)
            taken = registers + waiting + OTHER_REGISTERS
            lacking = taken - at_launch(threads, self.target) if waiting else 0
            made = Realised(
                registers=registers, shared_bytes=total, ring_bytes=ring, stages=stages,
                narrow=narrow, waiting=waiting, lacking=lacking, **vars(products),
            )  # fmt: skip
            reason = self._beside(asked, made) or self._brought(plan, space)
            reason = reason or self._reason(
                plan, made, max(bits, default=0) // threads // 32, threads
            )
            if reason:
                rejected.append(Ranked(self.constants, asked, reason=reason))
            else:
                runs = plan if walks else replace(plan, persistent=False)
                kept.append((asked, runs, made, threads))
        return kept, rejected

    def _narrow(self, space: Footprint, plan: Plan, threads: int) -> tuple[int, int]:
        """Narrow accesses of an iteration by which threads bring tiles; the registers of a thread
        for what waits there until shared memory is free."""
        loops = max(len(space.rings), 1)
        narrow = [r.narrow[plan.specialise].by(threads, self.target.warp_size) for r in space.rings]
        waits = max((waiting for _, waiting in narrow), default=0)
        return sum(accesses for accesses, _ in narrow) // loops, waits // threads

    def _beside(self, plan: Plan, made: Realised) -> str:
        """Why no products run beside threads where the plan wants them to; "" if some do."""
        loops: dict[tuple[int, ...], list[bool]] = {}
        for p, instr in zip(self.work.products, made.instrs):
            loops.setdefault(p.loops, []).append(instr is not None and instr.warps > 1)
        if not plan.overlap or any(len(x) > 1 and all(x) for x in loops.values()):
            return ""
        return "no T.Pipelined holds several products by instructions of a warpgroup"

    def _brought(self, plan: Plan, space: Footprint) -> str:
        """Why TMA cannot move the tiles as the plan has it; "" if it can."""
        if not self.target.has("tma") or not (space.rings or space.persists):
            return ""
        why = "rows no whole 16 bytes apart, tiles that begin elsewhere, or a conversion"
        if plan.specialise and not any(r.boxes for r in space.rings):
            return f"TMA can bring no tile of a T.Pipelined ({why})"
        if (plan.consumer_groups > 1 or plan.cluster != SINGLE) and any(
            r.others for r in space.rings
        ):
            return f"TMA can bring only some of the tiles of a T.Pipelined ({why})"
        if plan.cluster != SINGLE and not self.work.shares(plan.cluster):
            shown = "x".join(map(str, plan.cluster))
            return f"no tile is the same for the blocks of a cluster of {shown}"
        if plan.staged_store and "staged_store" not in self._taken[1].fields and not space.leaves:
            return "TMA can take no result to its tensor: rows, or tiles in them, begin anywhere"
        return ""

    def _reason(self, plan: Plan, made: Realised, largest: int, threads: int) -> str:
        if self.target.max_threads == 1:
            return ""
        limit = budget(threads * plan.consumer_groups, plan.specialise, self.target, plan.residents)
        elements = self.work.elements // threads
        if elements > MOST_ELEMENTS and not self.work.products:
            return f"T.Parallel gives {elements} elements to each thread, more than {MOST_ELEMENTS}"
        if largest > limit:
            return f"a fragment takes {largest} registers of each thread, {limit} are left for it"
        sums = self._held // threads
        clustered = plan.cluster != SINGLE
        beside = EPILOGUE + CLUSTERED * clustered if self.work.elements else 0
        beside += DIRECT_STORES if plan.specialise and not plan.staged_store else 0
        # What is done with them in the loop is counted (`_held`), and by `arrange`.
        beside = KEPT if may_overlap(self.func) else beside
        if sums + beside > limit and self.target.has("setmaxnreg"):
            return (
                f"accumulators take {sums} registers of each thread, what is done "
                f"with them about {beside}; {limit} are left for both"
            )
        if made.doubles and made.registers + made.doubles > limit:
            return f"fragments and operands of float64 take more than {limit} registers"
        if made.lacking > MOST_LACKING:
            return (
                f"fragments take {made.registers} registers of each thread, tiles that wait there "
                f"for shared memory about {made.waiting}: {made.lacking} more than there are"
            )
        if made.shared_bytes > (limit := shared_of(plan.residents, self.target)):
            return f"{made.shared_bytes} bytes of shared memory, {self.target} has {limit}"
        if plan.consumer_groups > 1 and len(made.wide) < len(made.instrs):
            return "ping-pong takes turns at instructions of a warpgroup, and a product has none"
        return ""

    def ranked(self, values: Values, grid: Sequence[int] | None = None) -> list[Ranked] | None:
        """The plans best first for these sizes; None if the grid cannot be known."""
        numbers = self.numbers(values, grid)
        return None if numbers is None else self.ranked_at(numbers)

    def numbers(self, values: Values, grid: Sequence[int] | None = None) -> Numbers | None:
        """Those of a launch; None if its grid cannot be known."""
        numbers = self.work.at(values, grid)
        return None if numbers is None or numbers.blocks < 1 else numbers

    def least(self, numbers: Numbers) -> float:
        """Seconds that no plan is predicted to take less than; 0 where the user's schedule asks for
        what no plan of tilec's has."""
        func, wanted = self._taken
        return 0.0 if wanted.fields else least(numbers, threads_of(func), self.target)

    def ranked_at(self, numbers: Numbers) -> list[Ranked]:
        """The plans best first for these numbers."""
        found = []
        for plan, runs, made, threads in self._static[0]:
            plan = self._grouped(plan, made, numbers, runs.persistent)
            uneven = None
            if numbers.growing and len(numbers.grid) > 1 and plan.split * plan.parts == 1:
                uneven = self._uneven(plan, numbers, plan.raster_group, persists=runs.persistent)
            runs = runs.grouped(plan.raster_group)
            best = estimate(numbers, runs, made, threads, self.target, uneven)
            if (group := self._narrower(plan, numbers, best)) != plan.raster_group:
                plan, runs = plan.grouped(group), runs.grouped(group)
                best = estimate(numbers, runs, made, threads, self.target)
            for parts in self._parts(plan, numbers):
                more = replace(plan, parts=parts)
                other = estimate(numbers, more, made, threads, self.target)
                if other.seconds < best.seconds:
                    plan, best = more, other
            found.append(Ranked(self.constants, plan, best))
        if not has_pipelined_product(self.func):
            # Nothing here tells its plans apart: the safe order holds.
            return [replace(r, plan=None) for r in found[:1]]
        return sorted(found, key=lambda r: r.estimate.seconds if r.estimate else 0.0)

    def as_compiled(self, r: Ranked) -> Ranked:
        """`r` with the shared memory and registers that the passes give it in place of those that
        it was ranked by; the reason, if they refuse its plan."""
        if r.estimate is None or self.target.kind == "cpu":
            return r
        try:
            found = fit.resources(self.func, self.target, r.plan)
        except ResourceError as error:
            return replace(r, estimate=None, reason=error.message)
        exact = replace(r.estimate, shared_bytes=found.shared_bytes, registers=found.registers)
        return replace(r, estimate=exact)

    def _parts(self, plan: Plan, numbers: Numbers) -> list[int]:
        """In how many parts the sums of `plan` had better be: about as many as fill the
        multiprocessors once, or twice."""
        if plan.parts == 1 or "split" in self._taken[1].fields:
            return []
        room = multiprocessors_for(plan, self.target) / (numbers.blocks * plan.split)
        most = min(2 * room, numbers.iterations / plan.split)
        return [p for p in PARTS if p <= most][-TRIED_PARTS:]

    def _narrower(self, plan: Plan, numbers: Numbers, found: Estimate) -> int:
        """The width of rasterisation groups, no wider than the plan's, in which neighbours load the
        least, where that bounds the plan: with tall tiles they had better share their rows."""
        bound = found.limit == CACHE and plan.cluster == SINGLE and not numbers.mixed.waited
        if not bound or numbers.growing or "raster_group" in self._taken[1].fields:
            return plan.raster_group
        near = self.target.speeds.neighbours
        widths = [plan.raster_group >> i for i in range(plan.raster_group.bit_length())]
        return min(widths, key=lambda g: numbers.loaded_near(g, near))

    def _grouped(self, plan: Plan, made: Realised, numbers: Numbers, persists: bool) -> Plan:
        """`plan` with rasterisation groups so narrow that what their blocks share stays in the L2
        cache, and such that blocks with longer tiles and shorter ones have the same to do; without
        any where most blocks of threads that bring tiles run at once, and start the sooner."""
        mine = (
            sum(a for along, a in numbers.loads.items() if along == {1}) if plan.persistent else 0
        )
        raster_group = plan.raster_group
        while raster_group > 2 and raster_group * mine > L2_GROUP * self.target.speeds.l2_bytes:
            raster_group //= 2
        if made.waiting and numbers.blocks <= AT_ONCE * self.target.multiprocessors:
            raster_group = 1
        if numbers.growing and len(numbers.grid) > 1:
            if persists and (plan.residents == 1 or plan.overlap):
                raster_group = self._even(plan, numbers, raster_group)
            elif plan.residents > 1:
                # Blocks are given out, or taken, as others end: the more begin with the longest,
                # the better.
                raster_group = max(self._widths(numbers, raster_group))
        return plan if "raster_group" in self._taken[1].fields else plan.grouped(raster_group)

    def _even(self, plan: Plan, numbers: Numbers, narrow: int) -> int:
        """The width of rasterisation groups with which tiles of different length fall most evenly
        to the blocks: `narrow`, or half of that, or more where what the longest tiles of a group
        share fits the L2 cache."""
        widths = (narrow, max(1, narrow // 2), *self._widths(numbers, narrow)[1:])
        # (With `ahead`, 2048 keys get groups of 16 heads instead of 8: no difference was measured.)
        found = {g: self._uneven(plan, numbers, g) for g in widths}
        least = min(found, key=found.__getitem__)
        if not self._as_they_come(plan):
            return least
        # What runs at once is near in the grid as it is: the narrower, the less it reads.
        return min(g for g, n in found.items() if n <= found[least] + EVEN)

    def _as_they_come(self, plan: Plan) -> bool:
        return takes_as_they_come(plan.specialise, plan.consumer_groups, plan.cluster)

    def _uneven(self, plan: Plan, numbers: Numbers, group: int, persists: bool = True) -> float:
        """`unevenness` of the plan's blocks with rasterisation groups of this width."""
        assert numbers.growing is not None
        blocks = multiprocessors_for(plan, self.target) * (plan.residents if persists else 1)
        claimed = self._as_they_come(plan) or not persists
        return unevenness(tuple(numbers.grid), *numbers.growing, blocks, group, claimed)

    def _widths(self, numbers: Numbers, narrow: int) -> list[int]:
        """`narrow`, and wider rasterisation groups of which the L2 cache holds what the longest
        tiles share."""
        assert numbers.growing is not None
        shared = numbers.streamed * numbers.growing[1] / max(numbers.iterations, 1.0)
        most = L2_GROUP * self.target.speeds.l2_bytes / max(shared, 1.0)
        wider = [narrow * n for n in (2, 4) if narrow * n <= min(most, numbers.grid[1])]
        return [narrow, *wider]

    def _products(self, threads: int, widest: int) -> Products:
        """The products for so many threads and a wgmma of `widest` columns at most."""
        if self.target.max_threads == 1:
            return Products((None,) * len(self.work.products))
        check_threads(threads, self.target, self.func.loc)
        instrs: list[MatrixInstruction | None] = []
        read: list[int] = []
        held, scattered, repeated, swizzled, doubles = 0, False, 1, False, 0
        for product in self.work.products:
            chosen = self._selection.of(product.op, threads, widest)
            parts = [chosen] if isinstance(chosen, Op) else chosen
            products = [o for o in parts if isinstance(o, Gemm)]
            instr = MATRIX_INSTRUCTIONS.get(products[0].instr)
            instrs.append(instr if instr is not None and instr.feature else None)
            read.append(sum(map(_read, products)) if instr and instr.warps == 1 else 0)
            for o in products:
                if instr and instr.a_dtype.bits == 64 and self.target.kind == "cuda":
                    lines = sum(n // w for n, w in zip(o.shape, o.warps))
                    doubles = max(doubles, 2 * lines * instr.k // self.target.warp_size)
                swizzled |= o.swizzle < SWIZZLES[0]
                repeated = max(repeated, threads // self.target.warp_size // math.prod(o.warps))
                if instr is not None:
                    scattered |= instr.warps > 1 and (
                        o.operands_swapped or bool(instr.n % QUAD_COLUMNS)
                    )
                    alone = math.prod(o.warps) == instr.warps
                    brought = {o.a.buffer, o.b.buffer} - self._buffers
                    size = sum(v.buffer.bytes for v in brought)
                    held += size // (1 if alone else OVERLAPPED)
        return Products(tuple(instrs), held, scattered, repeated, swizzled, tuple(read), doubles)


def _read(o: Gemm) -> int:
    """Bytes of operands in shared memory that the warps of a product read, each its own part."""
    o = o.swap_operands()
    along_m, along_n = o.warps
    sides = (o.a, along_n), (o.b, along_m)
    return sum(
        math.prod(r.extents[-2:]) * r.buffer.buffer.dtype.bits // 8 * times
        for r, times in sides
        if r.buffer.space == "shared"
    )


def _counted(plan: Plan) -> Plan:
    """The plan that is counted for one: products in roles take what they would if all threads
    behind the cut did them, overlapping, on tiles that others bring."""
    if not plan.roles:
        return plan
    return replace(
        plan, roles=False, specialise=True, overlap=True, threads=32 * GROUP_WARPS * LAST_GROUPS
    )
