"""collect_atomics: what iterations do to a few elements of a tensor, a block does to its own first.

Before: TILE; a loop over elements (or a loop or condition around some) with atomics at indices that
are read from memory, as a histogram has:

    parallel (1024)                        fill bins, 0
        atomic H[X[i]], 1, add      ->     parallel (1024)
                                               if X[i] < 64: atomic bins[X[i]], 1, add
                                           parallel (64)
                                               if bins[i] != 0: atomic H[i], bins[i], add

After: TILE. Memory does one atomic of a place at a time, and so many blocks ask for the same few;
shared memory does so for one block, and neighbours' atomics of neighbouring places are one request.
Only where nobody asks what an element was and nothing else touches the tensor, so that others may
see the changes later; where the loop has no fewer iterations than the tensor has elements. Where
the number of these is not known, the block asks whether it is so, and else does as it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Substitution, Value, made_in, rewritten, upstream, walk
from tilec.ir.effects import acts_beyond_buffers, effects_in
from tilec.ir.ops import FOLDS, Alloc, Atomic, Fill, For, If, Load, Parallel
from tilec.ir.semantics import neutral
from tilec.ir.types import INT32, BufferType, DType
from tilec.ir.uniformity import asks_for_threads
from tilec.target import Target

LEAST = 256  # iterations
MOST_BYTES = 16 << 10  # of a block's own elements: blocks stand beside others


def collect_atomics(func: Func, target: Target) -> Func:
    if target.kind == "cpu" or func.attrs.get("may_alias") or asks_for_threads(func):
        return func
    if not func.body.has(Atomic):
        return func
    return func.with_body(_Scopes(func).block(func.body))


@dataclass
class _Bins:
    """The `atomics` of one tensor in a scope. `window`: for each dimension the one index that all
    have, or its extent."""

    tensor: Value
    atomics: list[Atomic]
    window: list[Value | int | str]
    iterations: int

    @property
    def kind(self) -> str:
        return self.atomics[0].kind

    @property
    def extents(self) -> list[int | str]:
        return [x for x in self.window if not isinstance(x, Value)]

    @property
    def elements(self) -> int:
        """Of the dimensions whose extent is known."""
        return prod(e for e in self.extents if isinstance(e, int))


class _Scopes:
    """The loops over elements of a function, and what stands around them."""

    def __init__(self, func: Func) -> None:
        self.func = func
        self.users = func.body.users
        self.made = func.body.defs
        self.sizes = {p.value.name: p.value for p in func.params if p.role == "size"}

    def block(self, block: Block) -> Block:
        ops: list[Op] = []
        for o in block.ops:
            if (made := self.collected(o)) is not None:
                ops += made
                continue
            if isinstance(o, If) or (isinstance(o, For) and o.kind in ("serial", "unroll")):
                o = o.with_regions(self.block)
            ops.append(o)
        return block.with_ops(ops)

    def collected(self, o: Op) -> list[Op] | None:
        """What stands for a scope; None where it stays as it is."""
        if not isinstance(o, Parallel | For | If) or o.results:
            return None
        if isinstance(o, For) and o.kind not in ("serial", "unroll"):
            return None
        if acts_beyond_buffers(o):
            return None  # others may be told of what is done
        b = Builder(o.loc)
        subst: Substitution = {}
        left, bins = MOST_BYTES, dict[Value, tuple[_Bins, list[int]]]()
        for found in self.bins(o, b, subst):
            size = found.tensor.dtype.bits // 8
            shape = self.shape(found, min(found.iterations, left // size))
            if shape is not None:
                bins[found.tensor] = found, shape
                left -= prod(shape) * size
        return self.with_bins(o, b, bins) if bins else None

    # --- which they are ---------------------------------------------------------------------------

    def bins(self, o: Op, b: Builder, subst: Substitution) -> list[_Bins]:
        """The tensors whose atomics a block may collect; `b` makes what they need before."""
        loops = [p for p in o.every(Parallel)]
        inside = [x for p in loops for x in p.body.every(Atomic)]
        touched = [(x, e.region.buffer) for x, e in effects_in(o) if e.region is not None]
        found = []
        for tensor in dict.fromkeys(a.dest for a in inside):
            atomics = [a for a in inside if a.dest is tensor]
            alone = all(x in atomics for x, buffer in touched if buffer is tensor)
            if not alone or not all(self.is_quiet(a, atomics[0].kind) for a in atomics):
                continue
            window = self.window(o, atomics, b, subst)
            if window is not None:
                most = max(prod(p.extents) for p in loops if {*walk(p)} & {*atomics})
                found.append(_Bins(tensor, atomics, window, most))
        return [x for x in found if x.iterations >= LEAST]

    def is_quiet(self, a: Atomic, kind: str) -> bool:
        """Whether it is one of those, and nobody asks for what an element was."""
        dtype = a.dest.dtype
        able = dtype.bits >= 32 and (dtype.is_int or (dtype.is_float and kind == "add"))
        quiet = a.kind == kind and not self.users.get(a.result)
        return quiet and kind in FOLDS and able and self.is_tensor(a)

    def is_tensor(self, a: Atomic) -> bool:
        return any(p.value is a.dest and p.role == "tensor" for p in self.func.params)

    def window(
        self, scope: Op, atomics: Sequence[Atomic], b: Builder, subst: Substitution
    ) -> list[Value | int | str] | None:
        """Which elements they may change; None where these are not few, or many iterations do not
        meet there."""
        inside = made_in(scope)
        window: list[Value | int | str] = []
        for d, extent in enumerate(atomics[0].dest.buffer.shape):
            at = {self.before(a.indices[d], inside, b, subst) for a in atomics}
            same, *others = at
            window.append(extent if others or same is None else same)
        varying = [d for d, x in enumerate(window) if not isinstance(x, Value)]
        if not varying:
            return None  # one place (`combine_atomics`)
        made = {x: o for x, o in self.made.items() if x in inside}
        behind = upstream((a.indices[varying[-1]] for a in atomics), made)
        return window if any(isinstance(x, Load) for x in behind) else None

    def before(self, v: Value, inside: set[Value], b: Builder, subst: Substitution) -> Value | None:
        """An index as it is before the scope; None where it is not the same all over."""
        if v not in inside:
            return v
        needed = [*upstream((v,), self.made, subst)]
        needed = [x for x in needed if not inside.isdisjoint(x.results)]
        own = {r for x in needed for r in x.results} | subst.keys()
        if not all(x.pure for x in needed) or v not in own:
            return None
        if any(y in inside and y not in own for x in needed for y in x.operands):
            return None
        b.ops += [x.clone(subst) for x in needed]
        return subst[v]

    def shape(self, found: _Bins, most: int) -> list[int] | None:
        """The shape of a block's own elements, `most` at most: of a dimension whose extent is not
        known, as many as there is room for."""
        unknown = [e for e in found.extents if isinstance(e, str)]
        if len(unknown) > 1 or not 0 < found.elements <= most:
            return None
        room = 1 << (most // found.elements).bit_length() - 1
        return [room if isinstance(e, str) else e for e in found.extents]

    # --- what becomes of them ---------------------------------------------------------------------

    def with_bins(
        self, o: Op, b: Builder, bins: Mapping[Value, tuple[_Bins, list[int]]]
    ) -> list[Op]:
        fits: dict[str, Value] = {}
        for found, shape in bins.values():
            for extent, room in zip(found.extents, shape):
                if isinstance(extent, str) and f"{extent} {room}" not in fits:
                    fits[f"{extent} {room}"] = b.compare("le", self.sizes[extent], room)
        own = {
            tensor: b.value(
                Alloc, BufferType(tuple(shape), tensor.dtype, "shared"), name=f"{tensor.name}_own"
            )
            for tensor, (_, shape) in bins.items()
        }
        then = Builder(o.loc)
        for tensor, (found, _) in bins.items():
            nothing = then.const(_nothing(found.kind, tensor.dtype), tensor.dtype)
            then.emit(Fill, then.whole(own[tensor]), nothing)
        then.ops += self.redirected(o, bins, own)
        for tensor, (found, shape) in bins.items():
            self.handed_on(then, found, shape, own[tensor])
        cond = b.conjunction([*fits.values()])
        b.branch(cond, then.ops, () if cond is None else (o.clone({}),))
        return b.ops

    def redirected(
        self, o: Op, bins: Mapping[Value, tuple[_Bins, list[int]]], own: Mapping[Value, Value]
    ) -> Sequence[Op]:
        """The scope with atomics of the block's own elements."""

        def visit(x: Op) -> None | list[Op]:
            if not isinstance(x, Atomic) or x.dest not in own:
                return None
            b = Builder(x.loc)
            at, tests = list[Value](), list[Value]()
            for index, extent in zip(x.indices, bins[x.dest][0].window):
                if isinstance(extent, Value):
                    continue
                wide = index if index.dtype.bits >= 32 else b.cast(index, INT32)
                end = b.cast(self.sizes[extent], wide.dtype) if isinstance(extent, str) else extent
                tests += [b.compare("ge", wide, 0)] * (wide.dtype.kind == "int")
                tests.append(b.compare("lt", wide, end))
                at.append(b.cast(wide, INT32))
            with b.when(b.conjunction(tests)) as inner:
                inner.emit(Atomic, own[x.dest], tuple(at), x.value, x.kind)
            return b.ops

        return rewritten([o], visit)

    def handed_on(self, b: Builder, found: _Bins, shape: Sequence[int], own: Value) -> None:
        """The atomics of the tensor, for what has come together: those of neighbouring places are
        neighbours', as memory takes them together."""
        with b.each_element(shape, coalesced_width=1) as (inner, at):
            value, left = inner.value(Load, own, at), iter(at)
            nothing = inner.const(_nothing(found.kind, own.dtype), own.dtype)
            with inner.when(inner.compare("ne", value, nothing)) as some:
                places = tuple(x if isinstance(x, Value) else next(left) for x in found.window)
                some.emit(Atomic, found.tensor, places, value, found.kind)


def _nothing(kind: str, dtype: DType) -> int | float:
    """What changes no element."""
    return -0.0 if dtype.is_float else neutral(kind, dtype)
