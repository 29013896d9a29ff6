"""combine_atomics: what many iterations, or lanes, do to one element, they combine first
(warp-aggregated atomics).

Before: TILE; atomics whose place is the same for several iterations of a loop over elements, or for
all lanes of a warp:

    parallel (64, 128)                     parallel (64, 128) { shares[i, j] = x[i, j] }
        atomic S[i], x[i, j], add     ->   reduce shares, sums, dim=1
                                           parallel (64) { atomic S[i], sums[i], add }

    atomic S[0], part, add            ->   part += what lane ^ 16, 8, 4, 2 and 1 have
                                           if thread % 32 == 0: atomic S[0], part, add
                                           warp_sync

After: TILE, and each does so once for all that share it. What stands under conditions begins with
what changes nothing (0 of sums), and a result that is that still is left out. Where a loop around
has nothing else to do with the tensor, what its iterations give is combined behind it. Long loops
over elements combine piece by piece, so that a thread has registers for theirs.

Memory does one atomic of a place at a time. Only where nobody asks what an element was, and in no
order with other memory; floats are added in another order, as atomics promise none, those below
float32 in float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.clusters import threads_of
from tilec.ir.core import Block, Func, Op, Substitution, Value, fresh, made_in, rewritten, upstream
from tilec.ir.effects import acts_beyond_buffers, changing_tensors, effects_in, is_clonable
from tilec.ir.ops.tile import COMBINED
from tilec.ir.semantics import neutral
from tilec.ir.types import FLOAT32, INT32, UINT32, BufferType, DType
from tilec.ir.uniformity import Level, uniformity_of
from tilec.passes.mem2reg import mem2reg
from tilec.passes.utils.thread_masks import ThreadMasks
from tilec.target import Target

FEW = 4  # atomics of one place that stay as they are
MOST = 32  # registers of a thread that contributions take
MOST_HELD = 128  # where they come from such, which LLVM then need not hold beside them
_REDUCTIONS = {kind: name for name, kind in COMBINED.items()}


def combine_atomics(func: Func, target: Target) -> Func:
    if func.attrs.get("may_alias") or not func.body.has(ops.Atomic):
        return func
    made = func
    while (body := _Scopes(made, target).block(made.body, threads_of(made))) is not made.body:
        made = made.with_body(body)
    return func if made is func else mem2reg(made, target)


@dataclass
class _Group:
    """Atomics of one place, in a loop over elements or (None) by threads. `needed`: what makes the
    place, of what is made inside of the scope. `along`: the loop's dimensions that are combined.
    `sure`: all contribute."""

    atomics: list[ops.Atomic]
    loop: ops.Parallel | None
    needed: list[Op]
    along: list[int]
    sure: bool

    @property
    def kind(self) -> str:
        return self.atomics[0].kind

    @property
    def dest(self) -> Value:
        return self.atomics[0].dest

    @property
    def held(self) -> DType:
        """The dtype that contributions are combined in."""
        dtype = self.dest.dtype
        if dtype.bits >= 32:
            return dtype
        return FLOAT32 if dtype.is_float else UINT32 if dtype.kind == "uint" else INT32

    def nothing(self, b: Builder) -> Value:
        return b.const(neutral(self.kind, self.held), self.held)

    def once(self, b: Builder, value: Value, subst: Substitution) -> None:
        """The atomic for all of them."""
        test = None if self.sure else b.compare("ne", value, self.nothing(b))
        with b.when(test) as some:
            some.ops += [x.clone(subst) for x in self.needed]
            at = tuple(subst.get(v, v) for v in self.atomics[0].indices)
            some.emit(ops.Atomic, self.dest, at, some.cast(value, self.dest.dtype), self.kind)


class _Scopes:
    """The statements of a function around which atomics may be combined."""

    def __init__(self, func: Func, target: Target) -> None:
        self.target = target
        self.uniform, self.masks = uniformity_of(func), ThreadMasks(func)
        self.made, self.users = func.body.defs, func.body.users
        self.written = changing_tensors(func)
        ordered = func.body.has(
            ops.DeviceFence, ops.AsmEffect
        )  # a lane's own writes, with its own atomics
        self.by_warps = target.kind != "cpu" and not ordered

    def block(self, block: Block, threads: int) -> Block:
        kept: list[Op] = []
        for o in block.ops:
            if isinstance(o, ops.Parallel | ops.For | ops.If | ops.Atomic) and (
                made := self.combined(o, threads)
            ):
                kept += made
                continue
            if isinstance(o, ops.If | ops.For | ops.While | ops.Scope):
                own = o.warps * self.target.warp_size if isinstance(o, ops.Scope) else threads
                few = [r for r in o.regions if isinstance(o, ops.If) and self.is_few(o, r)]
                o = o.with_regions(partial(self.inside, threads=own, few=few))
            kept.append(o)
        return block.with_ops(kept)

    def inside(self, region: Block, threads: int, few: list[Block]) -> Block:
        return region if region in few else self.block(region, threads)

    def combined(self, o: Op, threads: int) -> list[Op] | None:
        """What stands for a scope; None where it stays as it is."""
        if not self.is_quiet(o):
            return None
        groups = self.groups(o)
        for loop in dict.fromkeys(g.loop for g in groups):
            mine = [g for g in groups if g.loop is loop]
            if loop is None:
                return self.by_lanes(o, mine)
            if (shape := self.shape(loop, mine, threads)) is not None:
                return self.by_tiles(o, loop, mine, shape)
        return None

    # --- which they are ---------------------------------------------------------------------------

    def is_quiet(self, o: Op) -> bool:
        """Whether what is done in a scope may be seen behind it: nobody is told of a part."""
        if acts_beyond_buffers(o):
            return False
        if not isinstance(o, ops.For | ops.If):
            return True
        if o.has(ops.While, ops.Scope, ops.Gemm, ops.WarpMma) or not all(
            map(self.is_plain, o.every(ops.Atomic))
        ):
            return False
        return isinstance(o, ops.If) or o.kind in ("serial", "unroll", "pipelined")

    def is_plain(self, a: ops.Atomic) -> bool:
        return a.kind in ops.FOLDS and not self.users.get(a.result)

    def groups(self, o: Op) -> list[_Group]:
        places: dict[tuple[object, ...], list[ops.Atomic]] = {}
        loops: dict[ops.Atomic, ops.Parallel | None] = dict(self.atomics(o))
        for a, loop in loops.items():
            places.setdefault((loop, a.dest, *a.indices), []).append(a)
        touched = [(x, e.region.buffer) for x, e in effects_in(o) if e.region is not None]
        found = []
        for (_, dest, *_), atomics in places.items():
            others = [x for x, buffer in touched if buffer is dest]
            alike = all(
                isinstance(x, ops.Atomic) and self.is_plain(x) and x.kind == atomics[0].kind
                for x in others
            )
            if alike and (group := self.group(o, loops[atomics[0]], atomics)):
                found.append(group)
        return found

    def atomics(
        self, o: Op, loop: ops.Parallel | None = None
    ) -> Iterator[tuple[ops.Atomic, ops.Parallel | None]]:
        """Those inside a scope, each with the loop over elements around it; not those that few
        lanes do."""
        if isinstance(o, ops.Atomic):
            yield o, loop
        inside = o if isinstance(o, ops.Parallel) else loop
        for region in o.regions:
            if inside is None and isinstance(o, ops.If) and self.is_few(o, region):
                continue
            for x in region.ops:
                yield from self.atomics(x, inside)

    def is_few(self, o: ops.If, region: Block) -> bool:
        """Whether few lanes of a warp come to a branch."""
        mask = self.masks.mask(o.cond) if self.target.kind != "cpu" else None
        if mask is not None:
            lanes = (mask if region is o.then else ~mask).reshape(-1, self.target.warp_size)
            return int(np.count_nonzero(lanes, axis=1).max()) <= FEW
        return region is o.then and self.names_one(o.cond)

    def names_one(self, cond: Value) -> bool:
        """Whether a condition holds for a lane that it names by its index."""
        o = self.made.get(cond)
        if isinstance(o, ops.Binary) and o.kind == "and":
            return any(map(self.names_one, o.operands))
        if not isinstance(o, ops.Compare) or o.kind != "eq":
            return False
        own = [v for v in o.operands if self.uniform.level(v) is Level.THREAD]
        return len(own) == 1 and not any(isinstance(x, ops.Load) for x in upstream(own, self.made))

    def group(self, o: Op, loop: ops.Parallel | None, atomics: list[ops.Atomic]) -> _Group | None:
        """Atomics of one place as a group; None where there is nothing to combine."""
        most = Level.WARP if loop is None else Level.BLOCK
        if self.uniform.around(o) > most:
            return None
        args = () if loop is None else loop.body.args
        needed = self.needed(o, atomics[0].indices, args, most)
        if needed is None:
            return None
        used = {v for x in needed for v in x.uses} | {*atomics[0].indices}
        sure = any(a is o or a in (loop.body.ops if loop is o else ()) for a in atomics)
        if loop is None:
            parts = isinstance(o, ops.If) and self.uniform.level(o.cond) <= Level.WARP
            return _Group(atomics, loop, needed, [], sure) if self.by_warps and not parts else None
        if self.uniform.around(loop) > most or isinstance(o, ops.If):
            return None
        if loop.layout is not None or loop.wanted is not None or 0 in loop.extents:
            return None
        along = [d for d, v in enumerate(args) if v not in used and loop.extents[d] > 1]
        if prod(loop.extents[d] for d in along) < FEW:
            return None
        return _Group(atomics, loop, needed, along, sure)

    def needed(
        self, o: Op, place: Sequence[Value], args: Sequence[Value], most: Level
    ) -> list[Op] | None:
        """What makes a place, of what is made in the scope; None where that is not the same for
        all, but for a loop's `args`, or not known behind the scope."""
        inside = made_in(o)
        own = {v: x for v, x in self.made.items() if v in inside}
        needed = [*upstream(place, own)]
        if not all(is_clonable(x, self.written) for x in needed):
            return None
        made = {r for x in needed for r in x.results} | {*args}
        outside = ({v for x in needed for v in x.uses} | {*place}) - made
        start = [r for x in needed if not x.operands for r in x.results]
        levels = map(self.uniform.level, (*outside, *start, *(() if args else place)))
        return None if outside & inside or max(levels, default=Level.BLOCK) > most else needed

    def shape(self, loop: ops.Parallel, groups: list[_Group], threads: int) -> list[int] | None:
        """The extents of a loop, or of pieces of it for whose contributions threads have registers;
        None where there are no such."""
        bits, shape = sum(g.held.bits for g in groups), [*loop.extents]
        held = any(v.space == "fragment" for v in loop.uses)
        room = (MOST_HELD if held else MOST) * 32 * threads // bits
        for d in () if held else groups[0].along:
            if all(d in g.along for g in groups):
                rest = prod(shape) // shape[d]
                fits = [n for n in range(1, shape[d] + 1) if shape[d] % n == 0 and n * rest <= room]
                shape[d] = max(fits, default=1)
        least = min(threads, prod(loop.extents))
        return shape if least <= prod(shape) <= room else None

    # --- what becomes of them ---------------------------------------------------------------------

    def by_lanes(self, o: Op, groups: list[_Group]) -> list[Op]:
        """Each lane's contributions, in a variable of its own, and what a warp makes of them."""
        b, behind = Builder(o.loc), Builder(o.loc)
        own: dict[Op, Value] = {}
        zero = b.const(0)
        for g in groups:
            value = g.atomics[0].value
            if g.atomics[0] is not o:
                part = b.value(ops.Alloc, BufferType((1,), g.held, "local"), name="part")
                b.emit(ops.Store, part, (zero,), g.nothing(b))
                own |= dict.fromkeys(g.atomics, part)
                value = behind.value(ops.Load, part, (zero,))
            value, lanes = behind.cast(value, g.held), self.target.warp_size
            while lanes := lanes // 2:
                other = behind.value(ops.ShuffleXor, value, lanes)
                value = behind.binary(g.kind, value, other)
            lane = behind.binary("mod", behind.value(ops.ThreadIndex), self.target.warp_size)
            with behind.when(behind.compare("eq", lane, 0)) as first:
                g.once(first, value, {})
            behind.emit(ops.WarpSync)  # what a lane does behind its own is behind it

        def visit(x: Op) -> list[Op] | None:
            return (
                _contributed(x, own[x], (zero,)) if isinstance(x, ops.Atomic) and x in own else None
            )

        return [*b.ops, *rewritten([o] if own else [], visit), *behind.ops]

    def by_tiles(
        self, o: Op, loop: ops.Parallel, groups: list[_Group], shape: Sequence[int]
    ) -> list[Op]:
        """The contributions of a loop's iterations, in a fragment, and what comes of them."""
        b, behind = Builder(o.loc), Builder(o.loc)
        own: dict[Op, Value] = {}
        args = fresh(loop.body.args)
        plain = set[Op]()
        for g in groups:
            held = BufferType(tuple(shape), g.held, "fragment")
            shares = b.value(ops.Alloc, held, name=f"{g.dest.name}_shares")
            own |= dict.fromkeys(g.atomics, shares)
            if g.sure and len(g.atomics) == 1 and tuple(shape) == loop.extents:
                plain.update(g.atomics)
            else:
                b.emit(ops.Fill, b.whole(shares), g.nothing(b))
            self.reduced(behind, g, loop, shares)

        def visit(x: Op) -> list[Op] | None:
            if isinstance(x, ops.Atomic) and x in own:
                return _contributed(x, own[x], args, x in plain)
            same = isinstance(x, ops.Parallel) and x.body.args == loop.body.args
            return _in_pieces(x, shape, args) if isinstance(x, ops.Parallel) and same else None

        return [*b.ops, *rewritten([o], visit), *behind.ops]

    def reduced(self, b: Builder, g: _Group, loop: ops.Parallel, shares: Value) -> None:
        """What the contributions come to, and an atomic for each place."""
        extents = shares.buffer.static_shape
        left = [*range(len(extents))]
        for d in reversed(g.along):
            at = left.index(d)
            left.remove(d)
            kept = tuple(extents[d] for d in left) or (1,)
            rest = b.value(
                ops.Alloc, BufferType(kept, g.held, "fragment"), name=f"{g.dest.name}_rest"
            )
            name = _REDUCTIONS.get(g.kind, g.kind)
            b.emit(ops.Reduce, b.whole(shares), b.whole(rest), at, name)
            shares = rest
        with b.each_element(shares.buffer.static_shape) as (inner, places):
            value = inner.value(ops.Load, shares, places)
            g.once(inner, value, {loop.body.args[d]: v for d, v in zip(left, places)})


def _contributed(a: ops.Atomic, own: Value, at: tuple[Value, ...], alone: bool = False) -> list[Op]:
    """What stands for an atomic: its value is combined with what `own` has, or is all of that."""
    b = Builder(a.loc)
    value = b.cast(a.value, own.dtype)
    if not alone:
        value = b.binary(a.kind, b.value(ops.Load, own, at), value)
    b.emit(ops.Store, own, at, value)
    return b.ops


def _in_pieces(o: ops.Parallel, shape: Sequence[int], args: tuple[Value, ...]) -> list[Op]:
    """A loop over elements, with the indices `args`, as loops over pieces of this shape."""
    b, body, subst = Builder(o.loc), Builder(o.loc), dict[Value, Value](zip(o.body.args, args))
    with ExitStack() as loops:
        inner = b
        for old, arg, extent, size in zip(o.body.args, args, o.extents, shape):
            if size < extent:
                one = inner.counted(extent // size, "piece", "serial")
                piece, inner = loops.enter_context(one)
                subst[old] = body.binary("add", inner.binary("mul", piece, size), arg)
        body.ops += o.body.substituted(subst).ops
        inner.ops.append(replace(o, extents=tuple(shape), body=body.block(args)))
    return b.ops
