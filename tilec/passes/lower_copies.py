"""lower_copies: copies, fills and their like become parallel loops, boxes and fragments' own
transfers.

Before: `copy` and `fill` ops with engines, and what else is `elementwise`. After: none is left.
What threads do to a region is a parallel loop over it, in the layout of the fragment on one side
(between two fragments: of the one that is written) or else coalesced over the block; fragments
whose elements change lanes exchange them by shuffles; matrices go to shared memory by `stmatrix`,
and come from there by `ldmatrix`, four of 8x8 16-bit elements at a time; a fragment that leaves
through TMA is staged warp by warp (`lower_stores`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilec.ir import ops
from tilec.ir.analysis import Facts, facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Region, Value
from tilec.ir.element_loops import ELEMENTWISE, boxes, is_private, loop_of
from tilec.ir.errors import InternalError
from tilec.ir.instr import find_instruction
from tilec.ir.layout import Exchange, Layout, MatrixAccess, exchange, matrix_access, stmatrix_ok
from tilec.ir.uniformity import Uniformity, uniformity_of
from tilec.passes.recognise_gathers import with_places
from tilec.passes.utils.addressing import Place, coordinates, shared_offset
from tilec.passes.utils.building import read_packed
from tilec.passes.utils.distribution import along_rows, covering, each_thread
from tilec.passes.utils.groups import warps_of
from tilec.target import Target

WIDEST_BITS = 128  # a thread's widest access


def lower_copies(func: Func, target: Target) -> Func:
    warps = warps_of(func, target)
    facts, uniformity = facts_of(func), uniformity_of(func)
    inputs = matrix_inputs(func)

    def visit(o: Op) -> None | list[Op]:
        match o:
            case ops.Copy(engine="registers"):
                return rename_registers(o, facts)
            case ops.Copy(engine="shuffle"):
                return exchange_registers(o)
            case ops.Copy() if is_matrix_store(o, target):
                return store_matrices(o)
            case ops.Copy() if is_matrix_load(o, inputs, target):
                return load_matrices(o)
            case ops.Copy(engine="tma_store"):
                return None
            case ops.Fill(replaced=True):
                return []
            case _ if type(o) in ELEMENTWISE:
                return [_loop(o, warps(o), target, uniformity)]
        return None

    return func.with_body(with_places(func.body.rewrite(Op, visit)))


def _loop(o: Op, warps: int, target: Target, uniformity: Uniformity) -> Op:
    """The op's loop over elements, whose layout is that of a fragment taking part, without its
    dimensions of extent 1; coalesced without one."""
    sides = boxes(o)
    vector = o.vector if isinstance(o, ops.Copy) else WIDEST_BITS // sides[0].dtype.bits
    if is_private(o, uniformity):
        layout = each_thread(sides[0].shape or (1,))
    else:
        layout = _layout(sides, vector, warps, target)
    engine = o.engine if isinstance(o, ops.Copy) and o.engine == "cp_async" else ""
    return loop_of(o, layout, engine)


def _layout(sides: list[Region], vector: int, warps: int, target: Target) -> Layout:
    extents = sides[0].shape or (1,)
    for side in sides:
        if side.type.space == "fragment":
            layout = side.type.laid_out
            return layout if layout.shape == extents else layout.reshape(extents)
    vector = max(1, vector)
    while vector > 1 and extents[-1] % vector:
        vector //= 2
    widest = vector * max(side.dtype.bits for side in sides)
    narrow = sides[0].type.space == "global" and widest < WIDEST_BITS
    spread = along_rows if narrow else covering
    return spread(extents, target.warp_size, warps, vector)


# --- between fragments ----------------------------------------------------------------------------


def exchange_registers(o: ops.Copy) -> list[Op]:
    """The ops of a copy between fragments with the engine "shuffle": selects, shuffles and names of
    registers, as `tilec.ir.layout.exchange` plans them. Elements travel in the narrower of the two
    dtypes."""
    s, d = o.source.type, o.dest.type
    narrow = s if s.dtype.bits <= d.dtype.bits else d
    plan = exchange(s.layout, d.layout, narrow.dtype.bits)
    if plan is None:
        raise InternalError(f"no exchange from {s} to {d}", o.loc)
    b = Builder(o.loc)
    lane = b.value(ops.Lane)
    highs = {
        mask: b.compare("eq", _lane_bit(b, lane, mask), b.const(1))
        for mask in (*plan.keeps, *plan.swaps, *plan.gathers)
    }
    reader = _reader(b, lane, plan)
    count = len(plan.sources)
    with b.counted(count, "group") as (g, inner):
        values = []
        for m in range(len(plan.sources[0])):
            tables = [tuple(group[m][e] for group in plan.sources) for e in range(plan.pack)]
            registers = (inner.value(ops.Lookup, table, g) for table in tables)
            values.append(read_packed(inner, o.source.buffer, registers, narrow.dtype))
        for mask in reversed(plan.keeps):
            half = len(values) // 2
            pairs = list(zip(values[:half], values[half:]))
            values = [inner.select(highs[mask], high, low) for low, high in pairs]
        for i, mask in enumerate(plan.swaps):
            _swap(inner, values, 1 << i, mask, highs[mask])
        for mask in plan.gathers:
            others = [inner.value(ops.ShuffleXor, v, mask) for v in values]
            pairs = list(zip(values, others))
            values = [inner.select(highs[mask], other, own) for own, other in pairs]
            values += [inner.select(highs[mask], own, other) for own, other in pairs]
        if reader is not None:
            values = [inner.value(ops.Shuffle, v, reader) for v in values]
        for m, value in enumerate(values):
            value = inner.cast(value, d.dtype)
            for e in range(plan.pack):
                at = inner.value(ops.Lookup, tuple(group[m][e] for group in plan.dests), g)
                one = value if plan.pack == 1 else inner.value(ops.Extract, value, e)
                inner.emit(ops.RegWrite, o.dest.buffer, at, one)
    return b.ops


def rename_registers(o: ops.Copy, facts: Facts) -> list[Op]:
    """The ops of a copy between a fragment and its part at an offset that is a number: each thread
    has the elements already."""
    s, d = o.source.type, o.dest.type
    tables = [
        layout.table("reg", "lane", "warp") - [facts.constant(v) for v in offsets]
        for layout, offsets in ((s.laid_out, o.source.offsets), (d.laid_out, o.dest.offsets))
    ]
    where = {tuple(map(int, at)): r for r, at in enumerate(tables[0][:, 0, 0])}
    pairs = [
        (where[tuple(map(int, at))], r)
        for r, at in enumerate(tables[1][:, 0, 0])
        if tuple(map(int, at)) in where
    ]
    if any((tables[0][i] != tables[1][j]).any() for i, j in pairs) or len(pairs) != min(
        len(t) for t in tables
    ):
        raise InternalError(f"{s} and {d} do not share their registers", o.loc)
    b = Builder(o.loc)
    with b.counted(len(pairs), "register") as (g, inner):
        source, dest = (inner.value(ops.Lookup, tuple(p[i] for p in pairs), g) for i in range(2))
        value = inner.value(ops.RegRead, o.source.buffer, source)
        inner.emit(ops.RegWrite, o.dest.buffer, dest, value)
    return b.ops


def _swap(b: Builder, values: list[Value], bit: int, mask: int, high: Value) -> None:
    """Exchange a bit of the values' numbers with the lane's bit in `mask`, which is set where
    `high` holds: a lane keeps one value of each two and gives the other."""
    for m in range(len(values)):
        if m & bit:
            continue
        first, second = values[m], values[m | bit]
        given = b.select(high, first, second)
        taken = b.value(ops.ShuffleXor, given, mask)
        values[m] = b.select(high, taken, first)
        values[m | bit] = b.select(high, second, taken)


def _reader(n: Builder, lane: Value, plan: Exchange) -> Value | None:
    """The lane that each lane reads from in the end; None if it is itself."""
    if not plan.turn:
        return None
    total = n.const(0)
    for p, q in enumerate(plan.turn):
        total = n.fold("add", total, n.fold("mul", _lane_bit(n, lane, 1 << p), 1 << q))
    return total


def _lane_bit(n: Builder, lane: Value, mask: int) -> Value:
    return n.fold("mod", n.fold("floordiv", lane, mask), 2)


# --- by matrices ----------------------------------------------------------------------------------


def is_matrix_store(o: ops.Copy, target: Target) -> bool:
    """Whether `stmatrix` can make a copy of a whole fragment onto a whole shared tile, or one of
    several in a buffer: the fragment holds matrices as the instruction takes them."""
    s, d = o.source.type, o.dest.type
    return (
        target.has("stmatrix")
        and (s.space, d.space) == ("fragment", "shared")
        and _is_tile(o.source, o.dest)
        and s.layout is not None
        and d.layout is not None
        and s.layout.replicas("reg") * s.layout.replicas("warp") == 1
        and stmatrix_ok(s.layout, d.layout, d.dtype.bits)
    )


def _is_tile(fragment: Region, tile: Region) -> bool:
    """Whether a fragment and a tile are whole, and alike."""
    rank, shape = len(fragment.extents), tile.type.shape
    last = tile.extents[-rank:]
    front = tile.extents[:-rank]
    return fragment.is_whole and fragment.extents == last == shape[-rank:] and {*front} <= {1}


def store_matrices(o: ops.Copy) -> list[Op]:
    """The ops of such a copy; elements are converted two at a time."""
    with _groups(o, o.source.buffer, o.dest) as (b, inner, g, offset, access):
        per = 2 * access.count
        first = inner.fold("mul", g, per)
        registers = [inner.fold("add", first, e) for e in range(per)]
        values = tuple(
            read_packed(inner, o.source.buffer, registers[e : e + 2], o.dest.dtype)
            for e in range(0, per, 2)
        )
        inner.emit(ops.Stmatrix, o.dest.buffer, offset, values, access.transposed)
    return b.ops


@contextmanager
def _groups(
    o: ops.Copy, fragment: Value, tile: Region
) -> Iterator[tuple[Builder, Builder, Value, Value, MatrixAccess]]:
    """A loop over the groups of matrices that one instruction moves between a fragment and a shared
    tile: builders at the copy and in the loop, the group's number, the offset of this lane's row in
    the tile, and what is moved."""
    t, layout = tile.type, fragment.buffer.laid_out
    access = matrix_access(layout, t.layout, t.dtype.bits)
    assert access is not None
    b = Builder(o.loc)
    place = Place(b)
    place.make(access.rows)
    with b.counted(layout.size("reg") // (2 * access.count), "matrices") as (g, inner):
        row = inner.binary("mul", g, 8)
        coords = [*tile.offsets[: -layout.rank], *coordinates(inner, access.rows, place, row)]
        offset = shared_offset(inner, t.laid_out, coords)
        yield b, inner, g, offset, access


def matrix_inputs(func: Func) -> set[Value]:
    """The fragments that matrix instructions take two elements at a time, as ldmatrix gives
    them."""
    found = set()
    for o in func.body.every(ops.Gemm):
        if not o.instr.startswith("simt"):
            seen, row = o.swap_operands(), find_instruction(o.instr)
            for v, pack in zip((seen.a.buffer, seen.b.buffer), row.packs):
                if v.space == "fragment" and pack == 2:
                    found.add(v)
    return found


def is_matrix_load(o: ops.Copy, inputs: set[Value], target: Target) -> bool:
    """Whether `ldmatrix` can make a copy of a whole shared tile, or one of several in a buffer,
    onto one of the `inputs`."""
    s, d = o.source.type, o.dest.type
    return (
        target.has("ldmatrix")
        and o.dest.buffer in inputs
        and s.space == "shared"
        and s.dtype == d.dtype
        and _is_tile(o.dest, o.source)
        and s.layout is not None
        and d.layout is not None
        and d.layout.replicas("reg") == 1
        and matrix_access(d.layout, s.layout, d.dtype.bits) is not None
    )


def load_matrices(o: ops.Copy) -> list[Op]:
    """The ops of such a copy."""
    with _groups(o, o.dest.buffer, o.source) as (b, inner, g, offset, access):
        first = inner.binary("mul", g, access.count)
        sides = o.dest.buffer, first, o.source.buffer, offset
        inner.emit(ops.Ldmatrix, *sides, access.count, access.transposed)
    return b.ops
