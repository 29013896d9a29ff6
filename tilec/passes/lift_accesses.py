"""lift_accesses: what an element loop over a fragment reads from global memory and writes there
becomes copies of its own.

Before: LAID_OUT; a `parallel` in the layout of a matrix instruction's result may load a residual or
a bias and store what it computes, element by element as that layout has it. After: such a loop
works on registers alone. A tile it reads is copied into a fragment before it, one element for each
row or column into a fragment that holds it once per thread; what it stores goes to a fragment, and
from there by a copy, which may take any road that a copy of the user's may (`select_copies`,
`widen_copies`): 16 bytes at a time, or through TMA. The loop itself needs no guards any more.

    for i, j: C[y + i, x + j] = f(acc[i, j], bias[x + j], D[y + i, x + j])

    row = bias[x …];  tile = D[y …, x …]
    for i, j: out[i, j] = f(acc[i, j], row[j], tile[i, j])
    C[y …, x …] = out

A loop whose own accesses are wide is left alone, as is one that touches the same tensor in other
ways."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.core import Block, Builder, Func, Op, Value, rewrite, walk
from tilec.ir.layout import Layout, leading_run, single_registers
from tilec.ir.ops import Alloc, Cast, Const, Copy, Load, Parallel, Store
from tilec.ir.types import INT32, BufferType, DType
from tilec.passes.accesses import fragment_accesses
from tilec.passes.memory_access import MAX_VECTOR_BYTES
from tilec.passes.regions import LoopRegions
from tilec.target import Target


def lift_accesses(func: Func, target: Target) -> Func:
    """See the module's opening."""
    overlapping = bool(func.attrs.get("may_alias"))

    def visit(o: Op) -> None | list[Op]:
        if not isinstance(o, Parallel) or o.layout is None or o.agent:
            return None
        return _Lift(o, o.layout).ops() if _is_open(o, o.layout, overlapping) else None

    return func.with_body(rewrite(func.body, visit))


class _Lift(LoopRegions):
    """One loop that is taken apart."""

    def __init__(self, o: Parallel, layout: Layout) -> None:
        super().__init__(o)
        self.layout = layout
        self.before = Builder(o.loc)
        self.after = Builder(o.loc)
        self.loaded: dict[tuple[Value, ...], tuple[Value, list[Value]]] = {}

    def ops(self) -> list[Op] | None:
        body = [self.load(x) if isinstance(x, Load) else self.store(x) for x in self.o.body.ops]
        if not self.before.ops:
            return None
        loop = replace(self.o, body=Block(self.o.body.args, tuple(body)))
        return [*self.hoisted, *self.before.ops, loop, *self.after.ops]

    def load(self, o: Load) -> Op:
        """The load, from a fragment if its elements can be brought there by a copy."""
        if o.source.buffer.space != "global":
            return o
        key = (o.source, *o.indices)
        if key not in self.loaded:
            region = self.region(o.source, o.indices)
            if region is None or not region[2]:
                return o
            offsets, extents, order = region
            fragment = self.fragment(f"{o.source.name}_tile", o.source.dtype, order)
            shape = fragment.buffer.static_shape
            self.before.loc = o.loc
            zeros = self.zeros(self.before, shape)
            self.before.emit(Copy, o.source, offsets, extents, fragment, zeros, shape)
            self.loaded[key] = fragment, order
        fragment, order = self.loaded[key]
        return replace(o, source=fragment, indices=tuple(order))

    def store(self, o: Op) -> Op:
        """The store, to a fragment if a copy can take it from there."""
        if not isinstance(o, Store) or o.dest.buffer.space != "global":
            return o
        region = self.region(o.dest, o.indices)
        if region is None or len(region[2]) != sum(e > 1 for e in self.o.extents):
            return o
        offsets, extents, order = region
        value = o.value
        made = self.made.get(value)
        if isinstance(made, Cast):
            value = made.operand  # the copy converts, two values at a time
        fragment = self.fragment(f"{o.dest.name}_tile", value.dtype, order)
        shape = fragment.buffer.static_shape
        self.after.loc = o.loc
        zeros = self.zeros(self.after, shape)
        self.after.emit(Copy, fragment, zeros, shape, o.dest, offsets, extents)
        return replace(o, dest=fragment, indices=tuple(order), value=value)

    def fragment(self, name: str, dtype: DType, order: list[Value]) -> Value:
        """A fragment of the loop's layout, of the dimensions that `order` runs along."""
        dims = [self.o.body.args.index(a) for a in order]
        layout = self.layout
        for d in reversed(range(layout.rank)):
            if d not in dims:
                layout = layout.drop(d)
        kept = sorted(dims)
        layout = single_registers(layout.permute(kept.index(d) for d in dims))
        t = BufferType(layout.shape, dtype, "fragment", layout=layout)
        return self.before.value(Alloc, t, name=name)

    def zeros(self, b: Builder, shape: tuple[int, ...]) -> tuple[Value, ...]:
        return tuple(b.value(Const, 0, INT32) for _ in shape)


def _is_open(p: Parallel, layout: Layout, overlapping: bool) -> bool:
    """Whether the loop is one over a whole fragment, some of its accesses are narrower than they
    might be, and taking its loads before all of its stores changes nothing."""
    if layout.shape != p.extents or layout.replicas("lane") * layout.replicas("warp") > 1:
        return False
    if not any(len(a.dims) == len(p.extents) for a in fragment_accesses(p)):
        return False
    stores = [o for o in walk(p.body) if isinstance(o, Store) and o.dest.buffer.space == "global"]
    loads = [o for o in walk(p.body) if isinstance(o, Load) and o.source.buffer.space == "global"]
    dim, run = leading_run(layout)
    last = p.body.args[-1]
    wide = all(
        dim == layout.rank - 1
        and v.dtype.bits * run >= 8 * MAX_VECTOR_BYTES
        and last in (i[-1], *_terms(p, i[-1]))
        for v, i in (
            (o.dest if isinstance(o, Store) else o.source, o.indices) for o in stores + loads
        )
    )
    if wide or any(o not in p.body.ops for o in stores):
        return False
    written: dict[Value, tuple[Value, ...]] = {}
    for o in walk(p.body):
        if isinstance(o, Store) and o in stores:
            if o.dest in written:
                return False
            written[o.dest] = o.indices
        if (
            isinstance(o, Load)
            and o in loads
            and (o.source in written or (written and overlapping))
        ):
            return False
    return all(written.get(o.source, o.indices) == o.indices for o in loads)


def _terms(p: Parallel, v: Value) -> tuple[Value, ...]:
    """The operands of the op that makes `v` in the loop's body."""
    return next((o.operands for o in p.body.ops if v in o.results), ())
