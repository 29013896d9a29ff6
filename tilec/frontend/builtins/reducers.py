"""Reducers: results to which the iterations of parallel loops contribute.

A loop's contributions are a fragment with an element for each iteration, neutral before the loop;
behind the loop it is reduced along the dimensions that the update does not name, into what the
reducer holds. So a reducer is a fragment that is complete between loops; and a fragment of which
several iterations change one element by `acc[i] += x` is one in that loop."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilec import language as T
from tilec.frontend.arithmetic import affine_of
from tilec.frontend.builtins.atomic import may_be_atomic
from tilec.frontend.builtins.table import Call, builtin
from tilec.frontend.context import ParallelScope
from tilec.frontend.expressions import Expressions
from tilec.frontend.open_loops import USUAL_THREADS
from tilec.frontend.races import ADD_UP
from tilec.frontend.values import Buffer, Number, Region, Scalar, describe
from tilec.ir.builder import Builder
from tilec.ir.core import Value, squeeze
from tilec.ir.effects import effects_in
from tilec.ir.errors import CompileError
from tilec.ir.ops import Alloc, Atomic, Binary, Copy, Fill, Load, Parallel, Reduce, Store
from tilec.ir.ops.tile import COMBINED
from tilec.ir.semantics import neutral
from tilec.ir.types import FLOAT32, INT32, BufferType

KINDS = {k: COMBINED.get(k, k) for k in ("sum", "max", "min", "bitand", "bitor", "bitxor")}


@dataclass
class Reducer:
    """What a call of T.alloc_reducer gave. `open`: it has been given its first value."""

    kind: str
    open: bool = False


@builtin(T.alloc_reducer, of="tiles")
def alloc_reducer(t: Expressions, c: Call) -> Buffer:
    kind = c.choice("op", tuple(KINDS))
    dtype = c.dtype("dtype")
    if kind.startswith("bit") and dtype.is_float:
        message = f"a reducer by {kind} combines the bits of ints, its dtype is {dtype.name}"
        raise t.error(message, 'write op="sum", "max" or "min", or an int dtype', c.place("dtype"))
    held = FLOAT32 if dtype.is_float and dtype.bits < 32 else dtype
    buffer = t.allocated(c.shape("shape"), held, "fragment")
    t.reducers[buffer.value] = Reducer(kind)
    return buffer


def _reducer(t: Expressions, c: Call, name: str, value: object) -> tuple[Buffer, Reducer]:
    found = t.reducers.get(value.value) if isinstance(value, Buffer) else None
    if found is None or not isinstance(value, Buffer):
        hint = 'allocate one: acc = T.alloc_reducer((m,), "float32", op="sum")'
        raise c.wrong(name, f"is {describe(value)}, not a reducer", hint)
    return value, found


@builtin(T.reducer_init, of="tiles")
def reducer_init(t: Expressions, c: Call) -> None:
    buffer, reducer = _reducer(t, c, "reducer", c["reducer"])
    dtype = buffer.type.dtype
    if c["init"] is None:
        value = t.constant(neutral(KINDS[reducer.kind], dtype), dtype)
    else:
        value = t.convert(c.number("init"), dtype)
    t.emit(Fill, t.box(t.tile(buffer, "the reducer")), value.value)
    reducer.open = True


def combines(
    t: Expressions, node: ast.stmt, target: ast.expr, element: Region, kind: str,
    number: Callable[[], Number],
) -> bool:  # fmt: skip
    """Whether the statement `acc[i] += x`, or what else combines an element by `kind`, contributes
    to a reducer, or to a fragment of which several iterations of a T.Parallel change it, as an
    earlier trace has found; what they give is combined behind the loop, then."""
    scope, buffer = t.parallel, element.buffer
    if scope is None:
        return False
    reducer = t.reducers.get(buffer.value)
    if reducer is not None and KINDS[reducer.kind] == kind:
        with t.at(target):
            contribute(t, element, number())
        return True
    scope.updates[t.loc] = node
    if node not in t.left_out.added_up:
        return False
    names = [name for name, combined in KINDS.items() if combined == kind]
    if not names or scope.combined.setdefault(buffer.value, kind) != kind:
        raise _races(t, buffer)
    t.reducers[buffer.value] = Reducer(names[0], open=True)
    try:
        contribute(t, element, number())
    except CompileError as e:
        raise _races(t, buffer) from e
    finally:
        del t.reducers[buffer.value]
    t.added_up.add(buffer.value)
    return True


def check_combined(t: Expressions, scope: ParallelScope, loop: Parallel) -> None:
    """Raises CompileError where a loop reads, or sets, what its iterations add up."""
    for o, e in effects_in(loop.body) if scope.combined else ():
        if e.buffer in scope.combined:
            raise t.error(
                f"{e.buffer.name} is added up by all iterations of T.Parallel, and used in it",
                "use it behind the loop",
                at=o.loc,
            )


def too_many_shares(t: Expressions, scope: ParallelScope) -> list[int]:
    """The dimensions along which a loop's contributions are combined, where those take more
    registers than a thread has for them."""
    made = (o.type for o in scope.before.ops if isinstance(o, Alloc))
    bits = sum(x.size * x.dtype.bits for x in made if scope.behind and x.space == "fragment")
    if bits <= _MOST_REGISTERS * 32 * (t.threads or USUAL_THREADS):
        return []
    return [d for d, e in enumerate(scope.extents) if e > 1 and d not in scope.named]


def _races(t: Expressions, buffer: Buffer) -> CompileError:
    return t.error(
        f"iterations of T.Parallel write the same element of {buffer.name}; they run in any order",
        ADD_UP,
    )


@builtin(T.reducer_update)
def reducer_update(t: Expressions, c: Call) -> None:
    target = c["target"]
    if not isinstance(target, Region) or not target.is_element:
        message = f"the target of T.reducer_update is {describe(target)}, not an element"
        raise t.error(message, "write T.reducer_update(acc[i], x)", c.place("target"))
    _reducer(t, c, "target", target.buffer)
    with t.at(c.place("target")):
        contribute(t, target, c.number("value"))


def contribute(t: Expressions, target: Region, number: Number) -> None:
    """Combine an element of a reducer with what this iteration of a T.Parallel gives."""
    buffer, reducer, scope = target.buffer, t.reducers[target.buffer.value], t.parallel
    if scope is None:
        raise t.error(
            "T.reducer_update stands outside of T.Parallel: whether one thread or all of them "
            "contribute cannot be told",
            "write for i in T.Parallel(n): T.reducer_update(acc[…], x)",
        )
    if not reducer.open:
        hint = f"write T.reducer_init({buffer.name}) before the loop"
        raise t.error(f"{buffer.name} is updated before T.reducer_init", hint)
    dims = _dimensions(t, target, scope)
    dtype = buffer.type.dtype
    given = t.convert(number, dtype)
    if dims is None:
        _by_atomics(t, target, given)
        return
    if None in dims:
        _by_element(t, target, given, dims.index(None))
        return
    value = given.value
    before = scope.before
    made = BufferType(scope.extents, dtype, "fragment")
    shares = before.value(Alloc, made, name=f"{buffer.name}_shares", loc=t.loc)
    whole = before.whole(shares)
    nothing = before.const(neutral(KINDS[reducer.kind], dtype), dtype)
    before.emit(Fill, whole, nothing, loc=t.loc)
    at = tuple(map(t.index_value, scope.indices))
    old = t.emit(Load, shares, at).result
    t.emit(Store, shares, at, t.emit(Binary, KINDS[reducer.kind], old, value).result)
    behind = Builder(t.loc)
    known = [d for d in dims if d is not None]
    scope.named.update(d for d, _ in known if d is not None)
    _combine(behind, buffer.value, reducer.kind, shares, scope.extents, known)
    scope.behind += behind.ops


def _by_element(t: Expressions, target: Region, value: Scalar, d: int) -> None:
    """Where index `d` of a reducer is any number: each element takes what is for it."""
    before, at, behind = target.offsets[:d], target.offsets[d], target.offsets[d + 1 :]
    nothing = t.constant(
        neutral(KINDS[t.reducers[target.buffer.value].kind], value.dtype), value.dtype
    )
    for n in range(target.buffer.type.static_shape[d]):
        share = t.select(t.run_time(t.compare("eq", at, n)), value, nothing)
        contribute(t, t.element(target.buffer, (*before, n, *behind), target.loc), share)


def _by_atomics(t: Expressions, target: Region, value: Scalar) -> None:
    """Where an index of a reducer is any number of many: contributions meet in shared memory."""
    buffer, scope = target.buffer, t.parallel
    assert scope is not None
    kind, before, behind = KINDS[t.reducers[buffer.value].kind], scope.before, Builder(t.loc)
    made = BufferType(buffer.type.static_shape, value.dtype, "shared")
    met = before.value(Alloc, made, name=f"{buffer.name}_shares", loc=t.loc)
    whole = before.whole(met)
    nothing = before.const(neutral(kind, value.dtype), value.dtype)
    before.emit(Fill, whole, nothing, loc=t.loc)
    t.emit(Atomic, met, t.indices_at(target), value.value, kind)
    with behind.each_element(made.static_shape) as (inner, at):
        old, share = inner.value(Load, buffer.value, at), inner.value(Load, met, at)
        inner.emit(Store, buffer.value, at, inner.binary(kind, old, share))
    scope.behind += behind.ops


_MOST_REGISTERS = 128  # of a thread for a loop's contributions
_MOST_ELEMENTS = 16  # of a dimension that is indexed by any number, each added up by itself
Place = int | Scalar  # of all iterations of a loop


def _dimensions(
    t: Expressions, target: Region, scope: ParallelScope
) -> tuple[tuple[int | None, Place] | None, ...] | None:
    """For each index of the target the dimension of the loop that it is; None where it is the same
    for all iterations, and then where; None alone where it is neither, of few elements. None where
    one is neither, of many."""
    own = [affine_of(i) for i in scope.indices]
    inner = {r for o in t.builder.ops for r in o.results}
    terms = {x for form in own for x in form.terms}
    dims: list[tuple[int | None, Place] | None] = []
    for d, offset in enumerate(target.offsets):
        size, form = target.buffer.type.static_shape[d], affine_of(offset)
        found = [n for n, x in enumerate(own) if not (form - x).terms and form.const == x.const]
        same = not terms & set(form.terms)
        if isinstance(offset, Scalar) and offset.value in inner:
            same = same and not form.terms
            offset = form.const
        if same and (not isinstance(offset, int) or 0 <= offset < size):
            dims.append((None, offset))
        elif len(found) == 1 and (found[0], 0) not in dims and scope.extents[found[0]] == size:
            dims.append((found[0], 0))
        elif size <= _MOST_ELEMENTS:
            dims.append(None)
        elif may_be_atomic(target.buffer.type.dtype):
            return None
        else:
            raise t.error(
                f"index {d} of {describe(target.buffer)} in T.reducer_update is neither an index "
                f"of T.Parallel (line {scope.line}) that runs over all of its {size} elements, nor "
                "the same for all iterations",
                f"let T.Parallel run over the {size} elements of dimension {d}",
            )
    return tuple(dims)


def _combine(
    b: Builder,
    reducer: Value,
    kind: str,
    shares: Value,
    extents: tuple[int, ...],
    dims: Sequence[tuple[int | None, Place]],
) -> None:
    """Combine a loop's contributions, dimension by dimension, with what the reducer holds."""
    named = [d for d, _ in dims if d is not None]
    left = [*range(len(extents))]
    shape = reducer.buffer.static_shape
    all_of_it = squeeze([extents[d] for d in sorted(named)]) == squeeze(shape)
    in_order = all_of_it and named == sorted(named)
    others = [d for d in left if d not in named]
    for d in reversed(others):
        place = left.index(d)
        if d == others[0] and in_order:
            b.emit(Reduce, b.whole(shares), b.whole(reducer), place, kind, clear=False)
            return
        left.remove(d)
        kept = tuple(extents[d] for d in left) or (1,)
        rest = b.value(Alloc, BufferType(kept, shares.dtype, "fragment"))
        b.emit(Reduce, b.whole(shares), b.whole(rest), place, kind)
        shares = rest
    with b.each_element(shape) as (inner, args):
        zero = inner.const(0)
        of_share = {d: arg for arg, (d, _) in zip(args, dims) if d is not None}
        share = inner.value(Load, shares, tuple(of_share[d] for d in left) or (zero,))
        for arg, size, (d, offset) in zip(args, shape, dims):
            if d is None and size > 1:  # only there
                at = inner.const(offset) if isinstance(offset, int) else offset.value
                here = inner.compare("eq", arg, inner.cast(at, INT32))
                nothing = inner.const(neutral(KINDS[kind], shares.dtype), shares.dtype)
                share = inner.select(here, share, nothing)
        old = inner.value(Load, reducer, args)
        inner.emit(Store, reducer, args, inner.binary(KINDS[kind], old, share))


@builtin(T.finalize_reducer, of="tiles")
def finalize_reducer(t: Expressions, c: Call) -> None:
    buffer, _ = _reducer(t, c, "reducer", c["reducer"])
    c.integer("batch", 1)
    if c["dst"] is None:
        return  # it holds the result itself, in the dtype that it adds up in
    source, dest = t.tiles(buffer, c["dst"], (c.place("reducer"), c.place("dst")))
    t.emit(Copy, t.box(source), t.box(dest))
