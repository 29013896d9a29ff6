"""lower_copies: copies and fills become parallel loops, boxes and fragments' own transfers.

Before: `copy` and `fill` ops with agents. After: none is left. A copy that threads make is a
parallel loop over its region, in the layout of the fragment on one side (between two fragments: of
the one that is written) or else coalesced over the block; fragments whose elements change lanes
exchange them by shuffles (`lower_exchanges`); matrices go to shared memory by `stmatrix`
(`lower_matrices`); a fragment that leaves through TMA is staged warp by
warp (`lower_stores`)."""

from __future__ import annotations

from tilec.ir.core import Block, Builder, Func, Op, Region, Value, rewrite, walk
from tilec.ir.errors import InternalError
from tilec.ir.layout import Layout
from tilec.ir.ops import (
    Binary,
    Cast,
    Const,
    Copy,
    Fill,
    Load,
    Parallel,
    Store,
    squeeze,
)
from tilec.ir.types import INT32, ScalarType
from tilec.passes.utils.distribution import along_rows, covering
from tilec.passes.utils.lower_exchanges import exchange_registers, rename_registers
from tilec.passes.utils.lower_matrices import (
    is_matrix_load,
    is_matrix_store,
    load_matrices,
    matrix_inputs,
    store_matrices,
)
from tilec.target import Target

WIDEST_BITS = 128  # a thread's widest access


def lower_copies(func: Func, target: Target) -> Func:
    """See the module's opening."""
    warps = int(func.attrs["threads"]) // target.warp_size
    constants = {
        o.result: int(o.value) for o in walk(func.body) if isinstance(o, Const) and o.dtype.is_int
    }

    inputs = matrix_inputs(func)

    def visit(o: Op) -> None | list[Op]:
        match o:
            case Copy(agent="registers"):
                return rename_registers(o, constants)
            case Copy(agent="shuffle"):
                return exchange_registers(o)
            case Copy() if is_matrix_store(o, target):
                return store_matrices(o)
            case Copy() if is_matrix_load(o, inputs, target):
                return load_matrices(o)
            case Copy() if o.agent != "tma_store":
                return [*_copy(o, warps, target)]
            case Fill():
                return [*_fill(o, warps, target)]
        return None

    return func.with_body(rewrite(func.body, visit))


def _loop_layout(
    sides: list[Region], extents: tuple[int, ...], vector: int, warps: int, target: Target
) -> Layout:
    """The layout of a fragment taking part, without its dimensions of extent 1; coalesced without
    one."""
    for side in sides:
        t = side.buffer.buffer
        if t.space == "fragment":
            if t.layout is None:
                raise InternalError(f"{t} has no layout")
            return t.layout if t.layout.shape == extents else t.layout.reshape(extents)
    vector = max(1, vector)
    while vector > 1 and extents[-1] % vector:
        vector //= 2
    dest = sides[0].buffer.buffer
    narrow = dest.space == "global" and vector * dest.dtype.bits < WIDEST_BITS
    spread = along_rows if narrow else covering
    return spread(extents, target.warp_size, warps, vector)


def _loop(
    o: Op, extents: tuple[int, ...], layout: Layout, agent: str = ""
) -> tuple[Builder, tuple[Value, ...], Parallel]:
    args = tuple(Value(ScalarType(INT32), f"i{d}") for d in range(len(extents)))
    b = Builder(o.loc)
    return b, args, Parallel(extents, Block(args), layout=layout, agent=agent, loc=o.loc)


def _own(extents: tuple[int, ...], args: tuple[Value, ...]) -> list[Value | None]:
    """For each dimension its index of the loop; None where the extent is 1 and others are not. A
    region of one element has one index, that of its last dimension."""
    if not squeeze(extents):
        return [None] * (len(extents) - 1) + [args[0]]
    left = iter(args)
    return [None if e == 1 else next(left) for e in extents]


def _indices(
    b: Builder, offsets: tuple[Value, ...], extents: tuple[int, ...], args: tuple[Value, ...]
) -> tuple[Value, ...]:
    """The buffer's indices for the loop's: dimensions of extent 1 keep their offset."""
    indices = []
    for offset, arg in zip(offsets, _own(extents, args)):
        if arg is None:
            indices.append(offset)
            continue
        wide = arg if offset.dtype == INT32 else b.value(Cast, arg, offset.dtype)
        indices.append(b.value(Binary, "add", offset, wide))
    return tuple(indices)


def element_indices(
    b: Builder,
    v: Value,
    offsets: tuple[Value, ...],
    extents: tuple[int, ...],
    args: tuple[Value, ...],
) -> tuple[Value, ...]:
    """A fragment is copied whole: its indices are the loop's own, zeros where its extent is 1."""
    if v.buffer.space != "fragment":
        return _indices(b, offsets, extents, args)
    return tuple(b.value(Const, 0, INT32) if a is None else a for a in _own(extents, args))


def _elements(b: Builder, side: Region, args: tuple[Value, ...]) -> tuple[Value, ...]:
    return element_indices(b, side.buffer, side.offsets, side.extents, args)


def _copy(o: Copy, warps: int, target: Target) -> list[Op]:
    extents = o.dest.shape or (1,)
    layout = _loop_layout([o.dest, o.source], extents, o.vector, warps, target)
    b, args, loop = _loop(o, extents, layout, "cp_async" if o.agent == "cp_async" else "")
    source, dest = _elements(b, o.source, args), _elements(b, o.dest, args)
    value = b.value(Load, o.source.buffer, source)
    if value.dtype != o.dest.dtype:
        value = b.value(Cast, value, o.dest.dtype)
    b.emit(Store, o.dest.buffer, dest, value)
    return [_close(loop, args, b)]


def _fill(o: Fill, warps: int, target: Target) -> list[Op]:
    extents = o.dest.shape or (1,)
    vector = 128 // o.dest.dtype.bits
    layout = _loop_layout([o.dest], extents, vector, warps, target)
    b, args, loop = _loop(o, extents, layout)
    b.emit(Store, o.dest.buffer, _elements(b, o.dest, args), o.value)
    return [_close(loop, args, b)]


def _close(loop: Parallel, args: tuple[Value, ...], b: Builder) -> Parallel:
    return Parallel(loop.extents, b.block(args), layout=loop.layout, agent=loop.agent, loc=loop.loc)
