"""fuse_multiply_adds: `a * b + c` of float32 or float64 is rounded once.

Before and after: TILE. What compilers of CUDA C++, HIP and Triton do by default: one instruction in
place of two, with one rounding less. It is an op of the IR on every target, so that GPUs, the CPU
and the simulator give the same bits; `@tilec.kernel(enable_fp_fusion=False)` leaves it out, and
what a program rounds by name (`T.ieee_mul`, `__fmul_rn`) stays as it is.

A product is fused where each of its uses is a sum or difference beside it. Two products with a
factor in common stay apart: `x * s - m * s` has to vanish where `x` is `m`, which the error of a
rounded `m * s` beside an exact `x * s` does not (`fuse_exponents` knows more of these). Half
precision is left alone: targets without its multiply-add would round twice."""

from __future__ import annotations

from collections.abc import Hashable

from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Value, walk
from tilec.ir.ops import Binary, Const, Fma, Load, Parallel, Unary
from tilec.ir.types import FLOAT32, FLOAT64
from tilec.target import Target

_FUSED = (FLOAT32, FLOAT64)


def fuse_multiply_adds(func: Func, target: Target) -> Func:
    if not func.attrs.get("fp_fusion", True):
        return func
    found = _Found(func.body)
    taken: dict[Value, Binary] = {}  # the product that a sum takes up
    for block in (func.body, *(r for o in walk(func.body) for r in o.regions)):
        taken.update(found.pairs(block))

    def visit(o: Op) -> None | list[Op]:
        if not isinstance(o, Binary) or o.result not in taken:
            return None
        product = taken[o.result]
        b = Builder(o.loc)
        x, rest = product.lhs, o.rhs
        if o.rhs is product.result:
            x, rest = (b.value(Unary, "neg", x) if o.kind == "sub" else x), o.lhs
        elif o.kind == "sub":
            rest = b.value(Unary, "neg", rest)
        return [*b.ops, Fma(x, product.rhs, rest, results=o.results, loc=o.loc)]

    if not taken:
        return func
    body = func.body.rewrite(Op, visit)
    products = {p.result for p in taken.values()}
    return func.with_body(body.rewrite(Binary, lambda o: [] if o.result in products else None))


class _Found:
    """Sums and products of a body. `along`: the indices of loops over elements that a value
    depends on; what depends on fewer than a sum does is made once for many."""

    def __init__(self, body: Block) -> None:
        self.users, self.made = body.users, body.defs
        self.along: dict[Value, frozenset[Value]] = {}
        for o in walk(body):
            if isinstance(o, Parallel):
                self.along.update((v, frozenset((v,))) for v in o.body.args)
            depends = (self.along.get(v, frozenset()) for v in o.operands)
            self.along.update(dict.fromkeys(o.results, frozenset[Value]().union(*depends)))

    def pairs(self, block: Block) -> dict[Value, Binary]:
        """The product that each sum of the block takes up, by the sum."""
        binaries = [o for o in block.ops if isinstance(o, Binary) and o.lhs.dtype in _FUSED]
        products = {o.result: o for o in binaries if o.kind == "mul"}
        sums: dict[Op, list[Binary]] = {
            o: self.of(o, products) for o in binaries if o.kind in ("add", "sub")
        }
        while True:
            taken = {o: terms[0] for o, terms in sums.items() if terms}
            left = {
                p
                for p in taken.values()
                if any(taken.get(u) is not p for u in self.users[p.result])
            }
            if not left:
                return {o.result: p for o, p in taken.items()}
            sums = {o: [p for p in terms if p not in left] for o, terms in sums.items()}

    def of(self, o: Binary, products: dict[Value, Binary]) -> list[Binary]:
        """The products that a sum may take up."""
        terms = [products[v] for v in o.operands if v in products]
        factors = [{*map(self.key, p.operands)} for p in terms]
        if len(factors) == 2 and not factors[0].isdisjoint(factors[1]):
            return []
        return [p for p in terms if self.along[p.result] == self.along[o.result]]

    def key(self, v: Value) -> Hashable:
        """Equal of values that are."""
        match self.made.get(v):
            case Const(value=value):
                return value
            case Load(source=source, indices=indices):
                return source, indices
        return v
