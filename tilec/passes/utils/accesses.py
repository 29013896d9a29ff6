"""What a `parallel` loop touches, and by which of its indices."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import prod

from tilec.ir import ops
from tilec.ir.core import Block, Op, Value, made_in, walk
from tilec.ir.effects import buffers_read, buffers_written, effects_in, only_act
from tilec.ir.layout import Layout
from tilec.ir.uniformity import Level, Uniformity


@dataclass(frozen=True)
class Access:
    """One load or store in a parallel loop. `runs`: for each index of the buffer the loop dimension
    it is, in the buffer's order, or several whose row-major number it is; constant zeros (of
    extent-1 dimensions) are left out. `dims`: those of all of them. `every`: the same, of whatever
    buffer."""

    op: Op
    buffer: Value
    write: bool
    runs: tuple[tuple[int, ...], ...]
    indices: tuple[Value, ...]
    every: tuple[tuple[int, ...], ...]

    @functools.cached_property
    def dims(self) -> tuple[int, ...]:
        return tuple(d for run in self.runs for d in run)

    def project(self, loop: Layout) -> Layout:
        """The layout that the loop's layout means for this buffer: the dimensions it is not
        indexed by drop, and a thread holds once what several of its iterations use."""
        layout = loop
        for d in reversed(range(len(loop.shape))):
            if d not in self.dims:
                layout = layout.drop(d).once("reg")
        kept = sorted(self.dims)
        layout = layout.permute(tuple(kept.index(d) for d in self.dims))
        shape = self.buffer.buffer.static_shape
        return layout if layout.shape == shape else layout.reshape(shape)


@functools.lru_cache(maxsize=64)
def parallel_accesses(p: ops.Parallel) -> tuple[Access, ...]:
    """Every load and store in the loop, with `runs` only where all indices are loop indices, or
    their numbers (of powers of two, in fragments)."""
    made: set[Value] = set(p.body.args)
    found: list[Access] = []
    runs: dict[Value, tuple[int, ...]] = {a: (i,) for i, a in enumerate(p.body.args)}
    numbers: dict[Value, object] = {}
    scaled: dict[Value, tuple[tuple[int, ...], object]] = {}

    def note(o: Op) -> None:
        """What is a row-major number of the loop's indices."""
        match o:
            case ops.Const():
                numbers[o.result] = o.value
            case ops.Cast() if o.operand in runs and o.dtype.is_int and o.dtype.bits >= 32:
                runs[o.result] = runs[o.operand]
            case ops.Binary(kind="mul") if o.lhs in runs and o.rhs in numbers:
                scaled[o.result] = runs[o.lhs], numbers[o.rhs]
            case ops.Binary(kind="add") if o.lhs in scaled and o.rhs in runs:
                high, by = scaled[o.lhs]
                low = [p.extents[d] for d in runs[o.rhs]]
                if by == prod(low) and not any(e & (e - 1) for e in low):
                    runs[o.result] = high + runs[o.rhs]

    for o in walk(p.body):
        note(o)
        made.update(o.results)
        if isinstance(o, ops.ElementAccess):
            buffer = o.buffer
            shape = buffer.buffer.shape
            kept = [
                v
                for v, e in zip(o.indices, shape)
                if not (e == 1 and (numbers.get(v) == 0 or v not in made))
            ]
            mine = tuple(runs.get(v, ()) for v in kept)
            dims = [d for run in mine for d in run]
            every = mine if all(mine) and len({*dims}) == len(dims) else ()
            several = buffer.space == "fragment" or all(len(run) == 1 for run in mine)
            own = every if several else ()
            found.append(Access(o, buffer, isinstance(o, ops.Store), own, o.indices, every))
    return tuple(found)


def only_store(block: Block) -> ops.Store | None:
    """The store of an element that is all that `block` does (`only_act`)."""
    found = only_act(block)
    return found if isinstance(found, ops.Store) else None


def fragment_accesses(p: ops.Parallel) -> list[Access]:
    """The accesses to fragments by the loop's own indices, over their whole extents; and those that
    read the one element of a fragment."""
    out = []
    for a in parallel_accesses(p):
        t = a.buffer.buffer
        if t.space != "fragment" or (not a.dims and (a.write or t.size != 1)):
            continue
        extents = tuple(e for e in t.static_shape if e != 1)
        own = (prod(p.extents[d] for d in run) for run in a.runs)
        if extents == tuple(e for e in own if e != 1):
            out.append(a)
    return out


def covered(p: ops.Parallel) -> set[Value]:
    """Buffers of which the loop writes every element, whatever its conditions say."""
    return {
        a.buffer
        for a in parallel_accesses(p)
        if a.write
        and a.op in p.body.ops
        and tuple(prod(p.extents[d] for d in run) for run in a.every)
        == tuple(e for e in a.buffer.buffer.shape if e != 1)
    }


def is_by_each_thread(p: ops.Parallel, uniformity: Uniformity) -> bool:
    """Whether what the loop does differs between threads (it uses their index, or variables of
    their own): each of them does all of it."""
    used = {*p.uses} - made_in(p)
    return any(uniformity.level(v) > Level.BLOCK for v in used)


def changes_memory(p: ops.Parallel) -> bool:
    """Whether the loop reads and writes one buffer in memory: an iteration that is run twice may
    read then what it has changed already."""
    effects = [e for _, e in effects_in(p.body)]
    both = {*buffers_read(effects)} & {*buffers_written(effects)}
    return any(v.space not in ("fragment", "local") for v in both)


def together(o: ops.For | ops.While | ops.If, uniformity: Uniformity) -> bool:
    """Whether all threads of the scope go the same way: a barrier may stand inside."""
    return all(uniformity.level(v) == Level.BLOCK for v in ops.decides(o))
