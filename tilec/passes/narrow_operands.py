"""narrow_operands: operands of products are as wide as what they hold.

Before and after: TILE, as traced, so that plans are chosen for what the products are. A tile of
float32 of which threads make the operand of a product

    parallel { a[i, j] = select(mask[i, j], cast(x[i, j], f32), 0.0) }     x: float16
    gemm a, b, acc                                                          a, b: float32

holds numbers of float16. Where both operands do, and nothing but products reads them, they are
tiles of float16: each product of two numbers is the same, and the sum is float32's as before, but
tensor cores compute it. bfloat16 likewise. Numbers are taken from smaller dtypes by casts,
selected, or constants; the larger or smaller of two is one of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Value, walk
from tilec.ir.fold import normal
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, DType
from tilec.passes.forward_copies import read_in_place
from tilec.passes.utils.building import copy_whole, with_types
from tilec.passes.utils.identities import holds

NARROW = FLOAT16, BFLOAT16  # of which tensor cores multiply two, the first that does for both


def narrow_operands(func: Func) -> Func:
    found = _Found(func)
    if not found.dtypes:
        return func

    def visit(o: Op) -> None | list[Op]:
        match o:
            case ops.Store(dest=v) if v in found.dtypes:
                pass
            case ops.Fill() if (v := o.dest.buffer) in found.dtypes:
                pass
            case _:
                return None
        b = Builder(o.loc)
        value = found.narrowed(b, o.value, found.dtypes[v])
        return [*b.ops, replace(o, value=value)]

    body = func.body.rewrite(Op, visit)
    typed = {v: replace(v.buffer, dtype=d) for v, d in found.dtypes.items()}
    return read_in_place(func.with_body(with_types(body, typed).rewrite(ops.Parallel, _copy)))


def held_narrow(func: Func) -> set[Value]:
    """The tiles of float32 operands whose numbers are those of a narrow dtype."""
    return {v for v, dtypes in _Found(func).held.items() if dtypes}


def _copy(o: ops.Parallel) -> list[Op] | None:
    """A loop that only copies a shared tile, as a copy."""
    acts = [x for x in o.body.ops if not x.pure and not isinstance(x, ops.Yield)]
    match acts:
        case [ops.Load() as load, ops.Store() as store] if (
            store.value is load.result
            and load.indices == store.indices == o.body.args
            and load.source.space == store.dest.space == "shared"
            and load.source.buffer.static_shape == store.dest.buffer.static_shape == o.extents
        ):
            b = Builder(o.loc)
            copy_whole(b, load.source, store.dest)
            return b.ops
    return None


class _Found:
    """The dtypes of buffers that may be as narrow."""

    def __init__(self, func: Func) -> None:
        self.defs = func.body.defs
        wide = {o.result for o in func.body.every(ops.Alloc) if o.type.dtype == FLOAT32}
        products = [o for o in func.body.every(ops.Gemm) if {o.a.buffer, o.b.buffer} <= wide]
        self.dtypes: dict[Value, DType] = {}
        self.held: dict[Value, set[DType]] = defaultdict(lambda: {*NARROW})
        if not products:
            return
        for o in walk(func.body):
            for v in wide.intersection(o.operands):
                self.held[v] &= self.allowed(o, v)
        held, known = {v: {*found} for v, found in self.held.items()}, None
        while known != (known := sum(map(len, held.values()))):
            for o in products:
                both = held[o.a.buffer] & held[o.b.buffer]
                held[o.a.buffer], held[o.b.buffer] = both, {*both}
        for o in products:
            for v in (o.a.buffer, o.b.buffer):
                if fit := [d for d in NARROW if d in held[v]]:
                    self.dtypes[v] = fit[0]

    def allowed(self, o: Op, v: Value) -> set[DType]:
        """The dtypes that the buffer may be of as far as the op goes."""
        match o:
            case ops.Gemm() if o.c is not v and o.c.dtype == FLOAT32 and o.metadata is None:
                return {*NARROW} if o.a.dtype == o.b.dtype else set()
            case ops.Copy() if o.dest.buffer is v and o.source.buffer is not v:
                return {d for d in NARROW if holds(d, o.source.dtype)}
            case ops.Store(dest=dest) if dest is v:
                return self.holding(o.value)
            case ops.Fill() if o.dest.buffer is v:
                return self.holding(o.value)
        return set()

    def holding(self, v: Value) -> set[DType]:
        """The dtypes that hold whatever a value is."""
        made = self.defs.get(v)
        found = {d for d in NARROW if holds(d, v.dtype)}
        match made:
            case ops.Const(value=number):
                wide = normal(number, v.dtype)
                found |= {d for d in NARROW if wide is not None and normal(wide, d) == wide}
            case ops.Cast(operand=x) if holds(v.dtype, x.dtype):
                found |= self.holding(x)
            case ops.Select(on_true=x, on_false=y):
                found |= self.holding(x) & self.holding(y)
            case ops.Binary(kind="min" | "max", lhs=x, rhs=y):
                found |= self.holding(x) & self.holding(y)
            case ops.Unary(kind="neg" | "abs", operand=x):
                found |= self.holding(x)
        return found

    def narrowed(self, b: Builder, v: Value, dtype: DType) -> Value:
        """The value, made of such."""
        made = self.defs.get(v)
        match made:
            case ops.Const(value=number):
                return b.const(number, dtype)
            case ops.Cast(operand=x) if holds(v.dtype, x.dtype):
                return self.narrowed(b, x, dtype)
            case ops.Select(cond, on_true=x, on_false=y):
                return b.select(cond, *(self.narrowed(b, e, dtype) for e in (x, y)))
        return b.cast(v, dtype)
