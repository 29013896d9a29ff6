"""narrow_operands: operands of products are as wide as what they hold.

Before and after: TILE, as traced, so that plans are chosen for what the products are. A tile of
float32 of which threads make the operand of a product

    parallel { a[i, j] = select(mask[i, j], cast(x[i, j], f32), 0.0) }     x: float16
    gemm a, b, acc                                                          a, b: float32

holds numbers of float16. Where both operands do, and nothing but products reads them, they are
tiles of float16: each product of two numbers is the same, and the sum is float32's as before, but
tensor cores compute it. bfloat16 likewise. Numbers are taken from smaller dtypes by casts,
selected, or constants; the larger or smaller of two is one of them. Of ints the ranges tell
(`Facts`): two bits of a byte less one are int8, and as floats float16, however they are computed.
What a number is multiplied by may be done behind the product where it is the same along K
(`utils/operand_factors.py`)."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import ops
from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Value, walk
from tilec.ir.fold import normal
from tilec.ir.intervals import dtype_range
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, DType
from tilec.passes.forward_copies import read_in_place
from tilec.passes.utils.building import copy_whole, with_more, with_types
from tilec.passes.utils.identities import digits_of, holds
from tilec.passes.utils.operand_factors import Factors, scaled_sum
from tilec.target import Target

# Of which tensor cores multiply two, the first that does for both.
NARROW = {FLOAT32: (FLOAT16, BFLOAT16), INT32: (INT8,)}


def narrow_operands(func: Func, target: Target) -> Func:
    if target.kind == "cpu":
        return func
    found = _Found(func)
    if not found.dtypes:
        return func
    factors = {v: f for v, f in found.factors.of.items() if v in found.dtypes}
    filled = {f.loop.body.args: f for f in factors.values()}

    def visit(o: Op) -> None | list[Op]:
        match o:
            case ops.Store(dest=v) if v in found.dtypes:
                pass
            case ops.Fill() if (v := o.dest.buffer) in found.dtypes:
                pass
            case ops.Gemm() if o.a.buffer in factors or o.b.buffer in factors:
                return scaled_sum(o, (factors.get(o.a.buffer), factors.get(o.b.buffer)))
            case ops.Parallel() if o.body.args in filled:
                return [o, *filled[o.body.args].kept(o.loc)]
            case _:
                return None
        b = Builder(o.loc)
        value = found.narrowed(b, o.value, found.dtypes[v])
        return [*b.ops, replace(o, value=value)]

    body = with_more(func.body.rewrite(Op, visit), {v: (f.held,) for v, f in factors.items()})
    typed = {v: replace(v.buffer, dtype=d) for v, d in found.dtypes.items()}
    body = with_types(body, typed).rewrite(ops.Parallel, _copy)
    before = {o.result for o in func.body.every(ops.Alloc)}
    operands = {x.buffer for o in body.every(ops.Gemm) for x in o.inputs}
    return read_in_place(func.with_body(body), operands - before)


def held_narrow(func: Func) -> set[Value]:
    """The tiles of float32 operands whose numbers are those of a narrow dtype."""
    held = _Found(func, scaled=False).held
    return {v for v, dtypes in held.items() if dtypes and v.dtype == FLOAT32}


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
    """The dtypes of buffers that may be as narrow, `held` as far as their own numbers go; `scaled`:
    once their factors are left to the product."""

    def __init__(self, func: Func, scaled: bool = True) -> None:
        self.defs = func.body.defs
        self.facts = facts_of(func)
        wide = {o.result for o in func.body.every(ops.Alloc) if o.type.dtype in NARROW}
        products = [o for o in func.body.every(ops.Gemm) if {o.a.buffer, o.b.buffer} <= wide]
        self.dtypes: dict[Value, DType] = {}
        self.held = {v: {*NARROW[v.dtype]} for v in wide} if products else {}
        if not products:
            return
        operands = {x.buffer for o in products for x in (o.a, o.b)} if scaled else set()
        self.factors = Factors(func, operands)
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
                if fit := [d for d in NARROW[v.dtype] if d in held[v]]:
                    self.dtypes[v] = fit[0]

    def allowed(self, o: Op, v: Value) -> set[DType]:
        """The dtypes that the buffer may be of as far as the op goes."""
        match o:
            case ops.Gemm() if o.c is not v and o.c.dtype == v.dtype and o.metadata is None:
                return {*NARROW[v.dtype]} if o.a.dtype == o.b.dtype else set()
            case ops.Copy() if o.dest.buffer is v and o.source.buffer is not v:
                return {d for d in NARROW[v.dtype] if holds(d, o.source.dtype)}
            case ops.Store(dest=dest) if dest is v:
                return self.holding(o.value)
            case ops.Fill() if o.dest.buffer is v:
                return self.holding(o.value)
        return set()

    def holding(self, v: Value) -> set[DType]:
        """The dtypes that hold whatever a value is."""
        made, floats = self.defs.get(v), NARROW[FLOAT32]
        found = {d for d in floats if holds(d, v.dtype)}
        if v.dtype.is_int:
            low, high = self.facts.range(v)
            least, most = dtype_range(INT8)
            inside = low is not None and high is not None and least <= low and high <= most
            return found | {INT8} if inside else found
        match made:
            case ops.Const(value=number):
                wide = normal(number, v.dtype)
                found |= {d for d in floats if wide is not None and normal(wide, d) == wide}
            case ops.Cast(operand=x) if x.dtype.is_int:
                low, high = self.facts.range(x)
                if low is not None and high is not None:
                    most = max(abs(low), abs(high))
                    found |= {d for d in floats if most <= 1 << digits_of(d)}
            case ops.Cast(operand=x) if holds(v.dtype, x.dtype):
                found |= self.holding(x)
            case ops.Select(on_true=x, on_false=y):
                found |= self.holding(x) & self.holding(y)
            case ops.Binary(kind="min" | "max", lhs=x, rhs=y):
                found |= self.holding(x) & self.holding(y)
            case ops.Unary(kind="neg" | "abs", operand=x):
                found |= self.holding(x)
            case ops.Binary(kind="mul") if v in self.factors.left:
                found |= self.holding(self.factors.left[v])
        return found

    def narrowed(self, b: Builder, v: Value, dtype: DType) -> Value:
        """The value, made of such."""
        made = self.defs.get(v)
        match made:
            case ops.Const(value=number):
                return b.const(number, dtype)
            case ops.Cast(operand=x) if holds(v.dtype, x.dtype) or (
                v.dtype.is_float and x.dtype.is_int
            ):
                return self.narrowed(b, x, dtype)
            case ops.Select(cond, on_true=x, on_false=y):
                return b.select(cond, *(self.narrowed(b, e, dtype) for e in (x, y)))
            case ops.Binary(kind="mul") if v in self.factors.left:
                return self.narrowed(b, self.factors.left[v], dtype)
        return b.cast(v, dtype)
