"""Conversions: where an op wants a buffer in another place or layout than it has, the op gets a
buffer of its own, copied before and after."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Substitution, Value, walk
from tilec.ir.effects import buffers_written, effects_in
from tilec.ir.element_loops import ELEMENTWISE, is_part_of_fragment
from tilec.ir.layout import Layout, blocked, row_major
from tilec.ir.ops import Alloc, Copy, For, Gemm, Load, Parallel, Reduce, Store
from tilec.ir.types import BufferType, Type
from tilec.passes.utils.accesses import changes_memory, fragment_accesses, parallel_accesses
from tilec.passes.utils.building import copy_whole
from tilec.passes.utils.distribution import fewest_registers
from tilec.passes.utils.gemm_layouts import accumulator_type, operand_shared_layout, operand_type
from tilec.passes.utils.groups import warps_of
from tilec.passes.utils.reductions import result_layout
from tilec.target import Target


def convert_operands(func: Func, target: Target) -> Block:
    """The body of a laid-out function in which every op finds its fragments as it wants them: a
    loop in the loop's layout, a product's operands and result in its instruction's; an operand that
    has to come from shared memory (part of a fragment, or a product without a matrix instruction)
    is put there, and so is a fragment while an op reaches for elements of other threads. What a
    serial loop does not write is converted once, in front of it."""
    warps_at = warps_of(func, target)
    made: set[Value] = set()
    inside = {x for o in func.body.every(Parallel) for x in walk(o.body)}

    def visit(o: Op) -> None | list[Op]:
        before, wants = Builder(o.loc), _Wants()
        o = _one_layout_each(o, before)
        made.update(v for x in before.ops for v in x.results)
        match o:
            case For(kind="serial"):
                return _converted_before(o, made)
            case Parallel(layout=layout) if layout is not None:
                stored = set()
                for a in fragment_accesses(o):
                    # A store in a branch leaves some elements as they were.
                    place, whole = (a.buffer, a.runs), a.op in o.body.ops
                    read = not whole if a.write else place not in stored
                    wants.fragment(a.buffer, a.project(layout), read, a.write)
                    if a.write and whole:
                        stored.add(place)
                for v in _kept_by_replicas(o, layout):
                    wants.in_shared(v)
                own = {a.op for a in fragment_accesses(o)}
                for a in parallel_accesses(o):
                    if a.buffer.space == "fragment" and a.op not in own:
                        wants.in_shared(a.buffer, True, a.write)
            case Load(source=v) if v.space == "fragment" and o not in inside:
                if v.buffer.size == 1:
                    by_all = blocked(v.buffer.static_shape, target.warp_size, warps_at(o), 1)
                    wants.fragment(v, by_all, True, False)
                else:
                    wants.in_shared(v, True, False)
            case Store(dest=v) if v.space == "fragment" and o not in inside:
                wants.in_shared(v, True, True)
            case _ if type(o) in ELEMENTWISE:
                held: list[Layout] = []
                for e in o.effects():
                    if e.region is None or e.region.type.space != "fragment":
                        continue
                    v = e.region.buffer
                    if is_part_of_fragment(e.region):
                        wants.in_shared(v, True, e.writes)
                    elif not isinstance(o, Copy) and v.buffer.layout is not None:
                        held.append(v.buffer.layout)  # a copy's sides may differ
                        wants.fragment(v, held[0], e.reads, e.writes)
            case Reduce():
                layout = o.source.type.laid_out
                result = result_layout(layout, o)
                if result is None:
                    layout = fewest_registers(layout.shape, target.warp_size, warps_at(o), 1)
                    wants.fragment(o.source.buffer, layout, True, False)
                    result = result_layout(layout, o)
                assert result is not None
                wants.fragment(o.dest.buffer, result, not o.clear, True)
            case Gemm():
                warps = warps_at(o)
                wants.place(o.c, accumulator_type(o, warps, target.warp_size), not o.clear, True)
                for which, side in (("a", o.a), ("b", o.b)):
                    v, t = side.buffer, side.type
                    if t.space != "fragment":
                        continue
                    if o.instr.startswith("simt") or not side.is_whole:
                        layout = operand_shared_layout(t.static_shape, t.dtype.bits, o.instr)
                        wants.place(v, replace(t, space="shared", layout=layout), True, False)
                    else:
                        wants.place(v, operand_type(o, which, warps), True, False)
        done = wants.around(o, made)
        return [*before.ops, *(done or [o])] if before.ops else done

    return func.body.rewrite(Op, visit)


def _one_layout_each(o: Op, b: Builder) -> Op:
    """The op with a copy, made by `b`, of each fragment that it reads in one more layout: `f[j]`
    beside `f[i]`, or one fragment as both operands of a product."""
    copies: dict[tuple[Value, BufferType], Value] = {}

    def copied(v: Value, t: BufferType) -> Value:
        if (v, t) not in copies:
            copies[v, t] = b.value(Alloc, t, name=v.name)
            copy_whole(b, v, copies[v, t])
        return copies[v, t]

    if isinstance(o, Gemm) and o.a.buffer is o.b.buffer and o.b.type.space == "fragment":
        return replace(o, b=replace(o.b, buffer=copied(o.b.buffer, o.b.buffer.buffer)))
    if not isinstance(o, Parallel) or o.layout is None:
        return o
    own = fragment_accesses(o)
    written = {a.buffer for a in own if a.write}
    first: dict[Value, BufferType] = {}
    others: dict[Op, Value] = {}
    for a in own:
        t = a.buffer.buffer.with_layout(a.project(o.layout))
        if a.buffer not in written and first.setdefault(a.buffer, t) != t:
            others[a.op] = copied(a.buffer, t)

    def visit(x: Load) -> None | list[Op]:
        return [replace(x, source=others[x])] if x in others else None

    return replace(o, body=o.body.rewrite(Load, visit)) if others else o


def _converted_before(o: For, made: set[Value]) -> list[Op] | None:
    """The loop behind those conversions that give the same in all iterations. `made`: buffers that
    a conversion fills, and nothing else writes."""
    written = set(buffers_written(e for _, e in effects_in(o.body)))
    b, subst = Builder(o.loc), dict[Value, Value]()
    found: dict[tuple[Value, Type], Value] = {}
    for x in o.body.every(Copy):
        if x.dest.buffer in made and x.source.buffer not in written:
            v, t = x.source.buffer, x.dest.type
            if (v, t) not in found:
                found[v, t] = b.value(Alloc, t, name=x.dest.buffer.name)
                copy_whole(b, v, found[v, t])
            subst[x.dest.buffer] = found[v, t]
    if not subst:
        return None

    def visit(x: Op) -> None | list[Op]:
        mine = x.result if isinstance(x, Alloc) else x.dest.buffer if isinstance(x, Copy) else None
        return [] if mine in subst or mine in found.values() else None

    body = o.body.rewrite(Op, visit).substituted(subst)
    made.update(found.values())
    return [*b.ops, replace(o, body=body)]


class _Wants:
    """The types one op wants for its buffers, and whether it reads and writes them."""

    def __init__(self) -> None:
        self.types: dict[Value, BufferType] = {}
        self.read: set[Value] = set()
        self.written: set[Value] = set()

    def fragment(self, v: Value, layout: Layout, read: bool, written: bool) -> None:
        """In shared memory where the op, which writes it, wants it in two layouts."""
        t = v.buffer.with_layout(layout)
        if self.types.get(v, t) == t:
            self.place(v, t, read, written)
        else:
            self.in_shared(v, True, written)

    def place(self, v: Value, t: BufferType, read: bool, written: bool) -> None:
        self.types[v] = t
        if read:
            self.read.add(v)
        if written:
            self.written.add(v)

    def in_shared(self, v: Value, read: bool = False, written: bool = False) -> None:
        t = v.buffer
        self.place(v, replace(t, space="shared", layout=row_major(t.static_shape)), read, written)

    def around(self, o: Op, made: set[Value]) -> list[Op] | None:
        """`o` on buffers of its own, between the copies; None if it has all it wants. `made` gets
        those that nothing but the first copy writes."""
        before, after = Builder(o.loc), Builder(o.loc)
        subst: Substitution = {}
        for v, t in self.types.items():
            if v.buffer == t:
                continue
            fresh = before.value(Alloc, t, name=f"{v.name}_converted")
            if v in self.read:
                copy_whole(before, v, fresh)
            if v in self.written:
                copy_whole(after, fresh, v)
            if v not in self.written:
                made.add(fresh)
            subst[v] = fresh
        if not subst:
            return None
        (done,) = Block((), (o,)).substituted(subst).ops
        if isinstance(done, Gemm) and done.asynchronous:
            done = replace(done, asynchronous=False)  # what it gives is copied at once
        return [*before.ops, done, *after.ops]


def _kept_by_replicas(p: Parallel, layout: Layout) -> set[Value]:
    """The fragments written by a loop that also changes memory in place, if several threads run the
    same iterations, or one thread does for several registers: only one of them may, for another
    might read what has changed already."""
    replicas = (layout.replicas(owner) for owner in ("reg", "lane", "warp"))
    if all(n == 1 for n in replicas) or not changes_memory(p):
        return set()
    return {a.buffer for a in fragment_accesses(p) if a.write}
