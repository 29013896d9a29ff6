"""What a kernel in TILE form has to do, read generically from its ops: products, bytes of each
tensor, arithmetic, and how often each of them happens.

Nothing is assumed of the kernel: the grid is its block of scalar ops, a loop's trips are its bounds
evaluated for the sizes at hand, a tile's bytes are the extents of the copy that moves it. What is
only known on the device (a bound that is loaded) counts as `UNKNOWN_TRIPS`; where it is divided
into tiles, as those of `UNKNOWN_LENGTH`, so that wide tiles have fewer; the least of it and of a
number as that number. Of two numbers between which it decides (no iterations for a tile behind the
end) the greater counts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tilec.ir import ops
from tilec.ir.analysis import facts_of
from tilec.ir.copy_engines import alignment, begins_anywhere, leaves_by_rows, ragged_tensors
from tilec.ir.core import Block, Func, Op, Region, Value, walk
from tilec.ir.fold import fold
from tilec.ir.types import ScalarType
from tilec.passes.arrange import thread_work
from tilec.passes.block_order import growing
from tilec.passes.utils.plans import is_mixed, waits_for_products
from tilec.target import SECTOR
from tilec.tune.transfers import INSIDE, Sizes, Transfer, shape_of

UNKNOWN_TRIPS = 8
UNKNOWN_LENGTH = 4096
LONG_ROW = 256.0  # bytes; longer rows are no better
ROW_START = 8  # bytes that the memory bus loses at the start of each row of a tile
# Clocks of one for a row that begins anywhere, and for each access by which 32 threads write a part
# of it: 543x999x1 in tiles of 32x32 to 128x64.
ROW_ADDRESS, ROW_ACCESS = 8, 2.5
_PLAIN_UNARY = ("neg", "abs", "not")
_SAMPLES = 8  # blocks that stand for all of a grid

Values = Callable[[str, str, int], int | None]  # of a parameter: its role, argument and dimension
Env = dict[Value, bool | int | float]
Times = Callable[[tuple[int, ...]], float]  # how often what stands in these loops happens


@dataclass(frozen=True)
class Product:
    """One `gemm`: its op, how it stands in the loops, and whether in a pipelined one."""

    op: ops.Gemm
    loops: tuple[int, ...]

    @property
    def flops(self) -> float:
        m, n, k = self.op.shape
        return 2.0 * m * n * k


@dataclass(frozen=True)
class Mixed:
    """Of the work of a block what stands in loops in which threads wait for products (`waits`):
    clocks that it keeps the units of threads busy (`issued` instructions, `special` functions),
    `folds` among the lanes of a row, bytes `stored`, and how often a product is `waited` for."""

    issued: float
    special: float
    folds: float
    stored: float
    waited: float


@dataclass(frozen=True)
class Numbers:
    """The work of one launch. Per block of the user's grid, on average: `products` (each with how
    often it happens), bytes `loaded` by the dimensions of the grid along which they change, bytes
    `stored`, the same as the L2 cache is `written` them (more where rows begin inside of sectors),
    clocks that `scattered` ones of them take, `vector` element-wise operations and `special` ones
    (exponentials, roots) outside of `mixed` loops, `iterations` of pipelined loops;
    `growing`, where there are the more of them the larger a block's first index is: how many the
    first and the last block have. `dram` bytes must cross the memory bus at least once.

    Tiles are `loaded` in whole cache lines: each row of at most a line of them costs the lines it
    touches, two where rows do not begin at lines; `tiles` are their bytes alone. `outside` are,
    like `loads`, the bytes of tiles that lie beyond their tensors and are filled instead.
    `streamed` are those loaded in pipelined loops, `fetched` those behind, by an epilogue: what is
    loaded before is on its way while nothing else is to be done. `results` is how often a result is
    stored (`mixed` loops add to theirs without waiting), `sides` the extents of the tensors that
    have one."""

    grid: tuple[int, ...]
    products: tuple[tuple[Product, float], ...]
    loads: Mapping[frozenset[int], float]
    tiles: Mapping[frozenset[int], float]
    outside: Mapping[frozenset[int], float]
    streamed: float
    fetched: float
    stored: float
    written: float
    scattered: float
    results: float
    sides: frozenset[int]
    vector: float
    special: float
    iterations: float
    dram: float
    mixed: Mixed
    growing: tuple[float, float] | None = None
    _in_clusters: dict[Sequence[int], tuple[float, float]] = field(default_factory=dict)

    @property
    def blocks(self) -> int:
        return math.prod(self.grid)

    @property
    def loaded(self) -> float:
        return sum(self.loads.values())

    def loaded_in(self, cluster: Sequence[int]) -> tuple[float, float]:
        """Bytes that each block of a cluster loads, and those of them that lie `outside`, if what
        several need is loaded once."""
        if (known := self._in_clusters.get(cluster)) is not None:
            return known

        def own(amounts: Mapping[frozenset[int], float]) -> float:
            return sum(
                amount / math.prod(c for d, c in enumerate(cluster) if d not in along)
                for along, amount in amounts.items()
            )

        found = self._in_clusters[cluster] = own(self.loads), own(self.outside)
        return found

    def loaded_near(self, group: int, near: int) -> float:
        """Bytes of tiles that each of `near` blocks that follow one another loads, if what several
        of them need is loaded once. `group` neighbours along dimension 1 follow each other. 0 where
        that is the same for all groups, as blocks stand in a row, or where nobody knows: a tile
        depends on both of a block's first indices.
        """
        if min(*self.grid[:2], len(self.grid)) < 2 or any({0, 1} <= a for a in self.loads):
            return 0.0
        high = self.grid[1]
        near = min(near, self.blocks)
        rows = min(group, high, near)
        columns = min(-(-near // rows), self.grid[0])
        rows = min(max(rows, -(-near // columns)), high)
        planes = -(-near // (rows * columns))

        def distinct(along: frozenset[int]) -> int:
            sides = (rows if d == 1 else columns if d == 0 else planes for d in along)
            return min(math.prod(sides), near)

        return sum(amount * distinct(along) for along, amount in self.tiles.items()) / near


@dataclass
class Work:
    """See the module's opening; `at` gives the numbers for one launch. `elements` are those of the
    largest element-wise loop; `mixed` the loops in which threads wait for products, `threads` what
    they do there, `vector` element-wise operations elsewhere, the quick ones and the others."""

    func: Func
    products: list[Product] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    vector: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)
    threads: list[tuple[Op, tuple[int, ...]]] = field(default_factory=list)
    loops: list[ops.For | ops.While] = field(default_factory=list)
    mixed: set[int] = field(default_factory=set)
    steps: list[Op] = field(default_factory=list)
    elements: int = 0

    @cached_property
    def grows(self) -> frozenset[int]:
        return growing(self.func)

    @cached_property
    def pipelined(self) -> set[int]:
        """Which of the loops are."""
        every = enumerate(self.loops)
        return {i for i, o in every if isinstance(o, ops.For) and o.kind == "pipelined"}

    def shares(self, cluster: Sequence[int]) -> bool:
        """Whether the blocks of such a cluster load a tile that is the same for several."""
        wide = {d for d, c in enumerate(cluster) if c > 1}
        tiles = (t for t in self.transfers if len(t.extents) > 1 and not t.is_store)
        return any(not wide <= t.along for t in tiles)

    def at(self, values: Values, grid: Sequence[int] | None = None) -> Numbers | None:
        """The numbers where sizes, strides and scalar parameters have these `values` and the launch
        gives `grid`, if the kernel does not; None if the grid cannot be known."""
        base: Env = {}
        for p in self.func.params:
            if p.role in ("size", "stride", "scalar"):
                value = values(p.role, p.arg, p.dim)
                if value is not None:
                    base[p.value] = value
        extents = list(grid) if grid is not None else _run(self.func.grid.ops, dict(base))
        if extents is None:
            return None
        trips = [0.0] * len(self.loops)
        samples = _SAMPLES if any(isinstance(o, ops.BlockIndex) for o in self.steps) else 1
        for number in range(samples):
            index = _sample(extents, number, samples)
            for i, n in enumerate(self._trips(dict(base), extents, index)):
                trips[i] += n / samples

        def times(loops: tuple[int, ...]) -> float:
            return math.prod(trips[i] for i in loops)

        sizes = {p.value.name: v for p in self.func.params if (v := base.get(p.value)) is not None}
        inner = {t.loops for t in self.transfers if t.loops and t.loops[-1] in self.pipelined}
        stored = [t.tensor for t in self.transfers if t.is_store]
        return Numbers(
            grid=tuple(extents),
            products=tuple((p, times(p.loops)) for p in self.products),
            sides=frozenset(n for v in stored for n in shape_of(v.buffer, sizes) if n),
            vector=sum(n * times(loops) for n, _, loops in self.vector),
            special=sum(n * times(loops) for _, n, loops in self.vector),
            iterations=sum(times(loops) for loops in inner),
            growing=self._growing(base, extents, inner),
            **self._moved(sizes, times, math.prod(extents)),
        )

    def _moved(self, sizes: Sizes, times: Times, blocks: int) -> dict[str, Any]:
        """What the tiles that move come to, by the names that `Numbers` have for it."""
        found = dict.fromkeys(("streamed", "fetched", "stored", "written", "scattered"), 0.0)
        found["results"] = 1.0
        loads, tiles, outside = (defaultdict[frozenset[int], float](float) for _ in range(3))
        moved = defaultdict[Value, list[float]](lambda: [0.0, 0.0])
        rows = defaultdict[Value, float](lambda: LONG_ROW)
        mixed_stored = 0.0
        for t in self.transfers:
            amount = t.clipped(sizes) * t.bits / 8 * times(t.loops)
            if t.is_store:
                inside = (t.step(sizes) or SECTOR) < SECTOR
                found["stored"] += amount
                found["written"] += amount * (1 + INSIDE * inside)
                found["scattered"] += amount * self._scattered(t)
                if self.mixed & {*t.loops}:
                    mixed_stored += amount
                else:
                    found["results"] = max(found["results"], times(t.loops))
            else:
                lines = amount * t.lines(sizes)
                loads[t.along] += lines
                tiles[t.along] += amount
                outside[t.along] += math.prod(t.extents) * t.bits / 8 * times(t.loops) - amount
                if self.pipelined & {*t.loops}:
                    found["streamed"] += lines
                elif t.behind:
                    found["fetched"] += amount
            moved[t.tensor][t.is_store] += amount
            rows[t.tensor] = min(rows[t.tensor], t.row * t.bits / 8)
        dram = 0.0
        for tensor, both in moved.items():
            shape = shape_of(tensor.buffer, sizes)
            whole = math.prod(math.inf if n is None else n for n in shape) * tensor.dtype.bits / 8
            least = sum(min(amount * blocks, whole) for amount in both)
            dram += least * (1 + ROW_START / max(rows[tensor], 1.0))
        mixed = self._mixed(times, mixed_stored)
        kinds = {"loads": loads, "tiles": tiles, "outside": outside}
        return {**found, **kinds, "dram": dram, "mixed": mixed}

    def _mixed(self, times: Times, stored: float) -> Mixed:
        """What stands in the `mixed` loops, of which there are so many iterations."""
        work = [(thread_work(o), times(loops)) for o, loops in self.threads]
        return Mixed(
            sum(issued * n for (issued, _), n in work),
            sum(special * n for (_, special), n in work),
            sum(times(loops) for o, loops in self.threads if isinstance(o, ops.Reduce)),
            stored,
            sum(times(p.loops) for p in self.products if self.mixed & {*p.loops}),
        )

    def _growing(
        self, base: Env, extents: Sequence[int], inner: Collection[tuple[int, ...]]
    ) -> tuple[float, float] | None:
        """Iterations of the `inner` loops in the first and last block along the first dimension of
        the grid, where it is that along which they grow."""
        if self.grows != {0} or extents[0] < 2:
            return None

        def iterations(x: int) -> float:
            trips = self._trips(dict(base), extents, [x, *(0 for _ in extents[1:])])
            return sum(math.prod(trips[i] for i in loops) for loops in inner)

        return iterations(0), iterations(extents[0] - 1)

    def _trips(self, env: Env, extents: Sequence[int], index: Sequence[int]) -> list[float]:
        """Iterations of each loop in the block with these indices."""
        trips: list[float] = []
        for o in self.steps:
            match o:
                case ops.BlockIndex(dim=d):
                    env[o.result] = index[d] if d < len(index) else 0
                case ops.GridSize(dim=d):
                    env[o.result] = extents[d] if d < len(extents) else 1
                case ops.For():
                    lo, hi, step = (env.get(v) for v in (o.lo, o.hi, o.step))
                    if lo is None or hi is None or not step:
                        trips.append(UNKNOWN_TRIPS)
                        continue
                    trips.append(max(0.0, math.ceil((hi - lo) / step)))
                    env[o.body.args[0]] = int(lo + hi) // 2
                case ops.While():
                    trips.append(UNKNOWN_TRIPS)
                case _:
                    value = fold(o, env.get)
                    if value is None:
                        value = _supposed(o, env)
                    if value is not None:
                        env[o.result] = value
        return trips

    def _scattered(self, t: Transfer) -> float:
        """Clocks that a byte takes of what a product has made, where it leaves in pieces of rows
        that begin anywhere in a sector, or in parts of a row for a warp."""
        vector = alignment(t.tensor.buffer) * 8 // t.bits
        ragged = ragged_tensors(self.func)
        if not self.products or not begins_anywhere(t.tensor, vector, ragged):
            return 0.0
        if leaves_by_rows(t.tensor, t.row, vector, ragged):
            row = ROW_ADDRESS + ROW_ACCESS * math.ceil(t.row / (32 * vector))
            return row / (t.row * t.bits / 8)
        # As many bytes a clock as a thread stores at once: 25 MB took 59 us on an H200, by two.
        return 1 / (vector * t.bits / 8)

    def fragment_bits(self) -> list[int]:
        """Bits of each fragment."""
        allocs = self.func.body.every(ops.Alloc)
        return [o.type.size * o.type.dtype.bits for o in allocs if o.type.space == "fragment"]


def read_work(func: Func) -> Work:
    """The work of `func` (TILE)."""
    work = Work(func)
    _Reader(work).block(func.body, ())
    needed = {v for o in work.loops if isinstance(o, ops.For) for v in (o.lo, o.hi, o.step)}
    kept: list[Op] = []
    for o in reversed(list(walk(func.body))):
        if o in work.loops:
            kept.append(o)
        elif isinstance(o, (ops.BlockIndex, ops.GridSize)) or (o.pure and len(o.results) == 1):
            if o.result in needed:
                needed.update(o.operands)
                kept.append(o)
    work.steps = kept[::-1]
    return work


class _Reader:
    """Fills in a `Work`."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.origins = facts_of(work.func).origins
        self.gathers = {o.result: o for o in work.func.body.every(ops.Gather)}

    def block(self, block: Block, loops: tuple[int, ...], behind: bool = False) -> None:
        """`behind`: whether a pipelined loop stands before it, in the block that it is a branch of
        (what a loop asks for in each of its iterations is not read behind all of another)."""
        work = self.work
        for o in block.ops:
            others = isinstance(o, ops.Gemm | ops.For | ops.While | ops.If)
            if work.mixed & {*loops} and not others:
                work.threads.append((o, loops))
            match o:
                case ops.For() | ops.While():
                    work.loops.append(o)
                    inside = (*loops, len(work.loops) - 1)
                    if isinstance(o, ops.For) and (is_mixed(o) or waits_for_products(o)):
                        work.mixed.add(len(work.loops) - 1)
                    for region in o.regions:
                        self.block(region, inside)
                    behind |= isinstance(o, ops.For) and o.kind == "pipelined"
                case ops.If():
                    for region in o.regions:
                        self.block(region, loops, behind)
                case ops.Parallel():
                    self._elements(o.body, loops, o.extents, behind)
                case ops.Load() | ops.Store():
                    self._elements(Block((), (o,)), loops, (), behind)
                case _:
                    if isinstance(o, ops.Gemm):
                        work.products.append(Product(o, loops))
                    for r, is_store in _accesses(o):
                        work.transfers.append(self._tile(r, loops, is_store, behind))

    def _tile(self, r: Region, loops: tuple[int, ...], is_store: bool, behind: bool) -> Transfer:
        gather, extents = self.gathers.get(r.buffer), r.extents
        if gather is None:
            along = self.origins.grid_dims(r.offsets)
            return Transfer(r.buffer, extents, loops, is_store, extents[-1], along, behind)
        along = self.origins.grid_dims([*r.offsets, *_numbers(gather.captured)])
        count = (math.prod(extents),)
        return Transfer(gather.source, count, loops, False, extents[-1], along, behind)

    def _elements(
        self, block: Block, loops: tuple[int, ...], extents: tuple[int, ...], behind: bool
    ) -> None:
        """Ops that happen for each element of `extents`, along which the block's arguments run."""
        work = self.work
        quick, special, count = 0, 0, math.prod(extents)
        work.elements = max(work.elements, count)

        for o in walk(block):
            for r, is_store in _accesses(o):
                runs = self.origins.of(r.offsets[-1])
                row = math.prod(e for arg, e in zip(block.args, extents) if arg in runs)
                along = self.origins.grid_dims(r.offsets)
                moved = Transfer(r.buffer, (count,), loops, is_store, row, along, behind)
                work.transfers.append(moved)
            match o:
                case ops.Binary() | ops.Fma() if o.result.dtype.is_float:
                    quick += 1
                case ops.Unary() if o.result.dtype.is_float:
                    quick += o.kind in _PLAIN_UNARY
                    special += o.kind not in _PLAIN_UNARY
        if quick + special and not work.mixed & {*loops}:
            work.vector.append((quick * count, special * count, loops))


def _numbers(values: Collection[Value]) -> list[Value]:
    return [v for v in values if isinstance(v.type, ScalarType)]


def _accesses(o: Op) -> Iterator[tuple[Region, bool]]:
    """The regions of tensors that an op of no body reads, and (True) those that it writes."""
    for e in () if o.region_fields else o.effects():
        # (Without extents it is somewhere in the tensor: what a `print` shows.)
        if e.region is not None and e.region.extents and e.region.buffer.space == "global":
            if e.reads:
                yield e.region, False
            if e.writes:
                yield e.region, True


def _sample(extents: Sequence[int], number: int, of: int) -> list[int]:
    """The indices of one `of` so many blocks that stand for all of a grid: spread evenly along
    each of its dimensions, along each in another order."""
    return [
        int(extent * ((number * (2 * dim + 1)) % of + 0.5) / of)
        for dim, extent in enumerate(extents)
    ]


def _run(statements: Sequence[Op], env: Env) -> list[int] | None:
    """What a block of scalar ops yields, None where it cannot be known."""
    for o in statements:
        if o.results:
            value = fold(o, env.get)
            if value is not None:
                env[o.result] = value
    found = [env.get(v) for v in ops.yielded(Block((), tuple(statements)))]
    numbers = [int(v) for v in found if v is not None]
    return numbers if numbers and len(numbers) == len(found) else None


def _supposed(o: Op, env: Env) -> bool | int | float | None:
    """What an op counts as whose operand is only known on the device: the least of that and of a
    number, whole tiles of a length, the greater of two that it decides between; None where nothing
    is known."""
    if isinstance(o, ops.Select) and {o.on_true, o.on_false} <= env.keys():
        return max(env[o.on_true], env[o.on_false])
    if not isinstance(o, ops.Binary):
        return None
    if o.kind == "min":
        return env.get(o.lhs, env.get(o.rhs))
    tile = env.get(o.rhs)
    if o.lhs in env or not tile or tile < 0:
        return None
    return {"floordiv": -(-UNKNOWN_LENGTH // tile), "mod": 0}.get(o.kind)
