"""sink_scales: a tile that is scaled, and whose rows' maxima are then subtracted in the argument of
an exponential, is scaled there.

Before and after: TILE. Attention as mathematics has it scales the scores, takes the maxima of their
rows, and then `T.exp(s - m)`. An exponential multiplies its argument by a constant anyhow:

    parallel { s[i, j] = s[i, j] * c }           reduce s, r, max
    reduce s, m, max                      ->     parallel { m[i] = r[i] * c }
    parallel { s[i, j] = exp(s[i, j] - m[i]) }   parallel { s[i, j] = exp2(s[i, j] * k - r[i] * k) }

with k = c log2 e, which `fuse_exponents` makes one multiply-add of. Rounded products with a
positive number keep their order, so that m is what it was. The running maximum r is kept beside m,
which nobody else may write, and which begins at minus infinity, as what a mask puts in the place of
scores has to be. `T.exp` only where nobody sees the last bits (`utils/rough.py`)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Substitution, Value
from tilec.ir.effects import buffers_written, effects_in
from tilec.ir.types import FLOAT32
from tilec.passes.utils.accesses import only_store
from tilec.passes.utils.rough import Rough
from tilec.target import Target

LOWEST = -math.inf


class _End(NamedTuple):
    """`most` has the maxima of a tile's rows, and the difference `argument` of an `element` and its
    `row`'s, both times `by` by now, is what `exponential` takes."""

    most: Value
    element: Value
    row: tuple[Value, ...]
    argument: Value
    by: float
    exponential: Value


class _Scaled(NamedTuple):
    """A tile whose elements are `load` times a number, `product`, and what becomes of them."""

    load: Value
    product: Value
    scale: float
    end: _End


def sink_scales(func: Func, target: Target) -> Func:
    if not any(o.kind in ("exp", "exp2") for o in func.body.every(ops.Unary)):
        return func
    found = _Found(func)
    scaled = [s for o in func.body.every(ops.Parallel) if (s := found.scaled(o)) is not None]
    if len({s.end.most for s in scaled}) < len(scaled):
        return func
    for s in scaled:
        func = func.with_body(_sunk(func.body, s))
    return func


class _Found:
    def __init__(self, func: Func) -> None:
        self.defs = func.body.defs
        self.users = func.body.users
        self.numbers = ops.constants(func.body)
        self.rough = Rough(func)

    def scaled(self, o: ops.Parallel) -> _Scaled | None:
        """What becomes of a tile that the loop scales; None if it does something else."""
        store = only_store(o.body)
        if store is None:
            return None
        tile, value = store.dest, store.value
        made = self.defs.get(value)
        if isinstance(made, ops.Select) and self.numbers.get(made.on_false) == LOWEST:
            value = made.on_true
        load, scale = self.times(value)
        if load is None or not 0 < scale < math.inf or value is load.result:
            return None
        if load.source is not tile or load.indices != store.indices != o.body.args:
            return None
        loads = [x for x in o.body.ops if isinstance(x, ops.Load) and x.source is tile]
        uses = (load.result, value)
        if len(loads) != 1 or any(len(self.users[v]) != 1 for v in uses):
            return None
        end = self.end(o, tile)
        return end and _Scaled(load.result, value, scale, end)

    def times(self, v: Value) -> tuple[ops.Load | None, float]:
        """The element of a fragment and the number that are multiplied."""
        o, by = self.defs.get(v), 1.0
        if isinstance(o, ops.Binary) and o.kind == "mul":
            for x, y in ((o.lhs, o.rhs), (o.rhs, o.lhs)):
                if y in self.numbers:
                    o, by = self.defs.get(x), float(self.numbers[y])
                    break
        if not isinstance(o, ops.Load) or o.result.dtype != FLOAT32:
            return None, 0.0
        return (o, by) if o.source.space == "fragment" else (None, 0.0)

    def end(self, o: ops.Parallel, tile: Value) -> _End | None:
        """The maxima and the exponentials of what the loop leaves in the tile, where nothing else
        is made of it."""
        readers = [*self.rough.readers(o, tile)]
        folds = [x for x in readers if isinstance(x, ops.Reduce)]
        loads = [x for x in readers if isinstance(x, ops.Load)]
        if len(folds) != 1 or len(loads) != 1 or len(readers) != 2:
            return None
        (fold,), (load,) = folds, loads
        later, (block, at) = self.rough.around.get(load), self.rough.places[o][-1]
        if later is None or not {fold, later} <= {*block.ops[at:]}:
            return None
        between = block.ops[at + 1 : block.ops.index(later)]
        if fold not in between or not self.is_maximum(fold, tile):
            return None
        if any(tile in buffers_written([e]) for x in between for _, e in effects_in(x)):
            return None
        return self.exponential(load, fold.dest.buffer)

    def exponential(self, load: ops.Load, most: Value) -> _End | None:
        """What takes the difference of a tile's elements and its rows' maxima."""
        v, (argument,) = load.result, self.users[load.result][:1]
        if isinstance(argument, ops.Binary) and argument.kind == "mul":
            v, (argument,) = argument.result, self.users[argument.result][:1]
        if not isinstance(argument, ops.Binary) or argument.kind != "sub" or argument.lhs is not v:
            return None
        (own, by), (row, other) = self.times(argument.lhs), self.times(argument.rhs)
        if own is not load or row is None or row.source is not most or by != other or by <= 0:
            return None
        (o,) = self.users[argument.result][:1]
        uses = (load.result, v, argument.result)
        if row.indices != load.indices[:1] or any(len(self.users[x]) != 1 for x in uses):
            return None
        if not isinstance(o, ops.Unary) or o.kind not in ("exp", "exp2"):
            return None
        if o.kind == "exp" and not self.rough.is_rough(o.result):
            return None
        by *= math.log2(math.e) if o.kind == "exp" else 1.0
        return _End(most, load.result, row.indices, argument.result, by, o.result)

    def is_maximum(self, o: ops.Reduce, tile: Value) -> bool:
        """Whether the maxima of a tile's rows are all that is written over minus infinity."""
        most = o.dest.buffer
        whole = o.source.is_whole and o.dest.is_whole and o.source.buffer is tile
        kind = o.kind == "max" and not o.propagate_nan and o.dim == 1 and len(o.dest.extents) == 1
        if not whole or not kind or most.dtype != FLOAT32 or most.space != "fragment":
            return False
        return all(
            x is o or self.begins(x) or most not in buffers_written(x.effects())
            for x in self.users[most]
        )

    def begins(self, o: Op) -> bool:
        return isinstance(o, ops.Fill) and o.dest.is_whole and self.numbers.get(o.value) == LOWEST


def _sunk(body: Block, s: _Scaled) -> Block:
    """The body with the scale in the argument of the exponential."""
    raw = Value(s.end.most.type, f"{s.end.most.name}_unscaled")
    subst: Substitution = {}

    def visit(o: Op) -> None | Op | list[Op]:
        b = Builder(o.loc)
        match o:
            case ops.Alloc() if o.result is s.end.most:
                return [o, replace(o, results=(raw,))]
            case ops.Fill() if o.dest.buffer is s.end.most:
                return [o, replace(o, dest=replace(o.dest, buffer=raw))]
            case ops.Reduce() if o.dest.buffer is s.end.most:
                b.ops.append(replace(o, dest=replace(o.dest, buffer=raw)))
                _scale_rows(b, raw, s)
                return b.ops
            case ops.Binary() if o.result is s.product:
                subst[o.result] = s.load
                return []
            case ops.Binary() if o.result is s.end.argument:
                by = s.end.by * s.scale
                rows = b.binary("mul", b.value(ops.Load, raw, s.end.row), by)
                return [*b.ops, *_difference(o, s.end.element, rows, by)]
            case ops.Unary() if o.result is s.end.exponential:
                return replace(o, kind="exp2")
        return None

    return body.rewrite(Op, visit, subst)


def _difference(o: ops.Binary, element: Value, rows: Value, by: float) -> list[Op]:
    b = Builder(o.loc)
    scaled = b.binary("mul", element, by)
    return [*b.ops, replace(o, lhs=scaled, rhs=rows)]


def _scale_rows(b: Builder, raw: Value, s: _Scaled) -> None:
    """The maxima as the author has them."""
    with b.each_element(raw.buffer.static_shape) as (inner, at):
        made = inner.binary("mul", inner.value(ops.Load, raw, at), s.scale)
        inner.emit(ops.Store, s.end.most, at, made)
