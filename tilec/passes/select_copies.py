"""select_copies: who moves the data of each copy, and how much at a time.

Before: copies name regions. After: each copy has an `agent` and a `vector`:
- "tma": one thread starts box copies into shared memory (run-ahead copies of specialised kernels);
- "cp_async": threads start copies past their registers (run-ahead copies);
- "tma_store": a fragment is staged in shared memory and leaves through TMA, warp by warp; a shared
tile leaves as it lies;
- "threads": loads and stores of `vector` consecutive elements. A tensor whose base or strides do
  not allow an agent takes the next one down. The facts come from the tensor's type, never from
  values."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.agents import Agents, box_may_begin, ragged_tensors, same_order
from tilec.ir.core import Block, Func, Op, Value, defining_ops, rewrite, walk
from tilec.ir.layout import Layout, has_runs, leading_run, tma_box
from tilec.ir.ops import (
    Binary,
    Const,
    Copy,
    For,
    If,
    Store,
    While,
)
from tilec.ir.types import BOOL, BufferType
from tilec.passes.stage_stores import staged_form
from tilec.passes.utils.addressing import depends
from tilec.passes.utils.rings import settle
from tilec.target import Target

MAX_BOX = 256  # elements of a TMA box in one dimension


def select_copies(func: Func, target: Target) -> Func:
    """See the module's opening."""
    chooser = _Chooser(func, target)

    def visit(o: Op) -> Op | None:
        return chooser.choose(o) if isinstance(o, Copy) and not o.agent else None

    return settle(func.with_body(rewrite(func.body, visit)))


class _Chooser:
    def __init__(self, func: Func, target: Target) -> None:
        self.target = target
        self.func = func
        self.agents = Agents(func, target)
        self.unseen = _never_seen_again(func)
        self.ragged = ragged_tensors(func)
        self.not_by_tma: set[Value] = set()  # tiles of which it cannot bring some copy
        specialise = bool(func.attrs.get("specialise"))
        for o in walk(func.body):
            if isinstance(o, Copy) and o.ahead:
                s = o.dest.buffer.buffer
                boxes = s.layout is not None and box_fits(s.layout, s.dtype.bits)
                if self.agents.of(o, specialise and boxes) != "tma":
                    self.not_by_tma.add(o.dest.buffer)

    def choose(self, o: Copy) -> Op:
        vector = self.agents.vector(o)
        if o.ahead:
            agent = self.agents.of(o, o.dest.buffer not in self.not_by_tma)
            if agent == "tma" or (agent == "cp_async" and _has_runs(o, vector)):
                return replace(o, agent=agent, vector=vector)
        if self.func.attrs.get("staged_store") and self._tma_store(o):
            return replace(o, agent="tma_store", vector=vector)
        return replace(o, agent="threads", vector=vector)

    def _tma_store(self, o: Copy) -> bool:
        f, t = o.source.buffer.buffer, o.dest.buffer.buffer
        if (
            not self.target.has("tma")
            or o.disable_tma
            or t.space != "global"
            or t.dtype == BOOL
            or not box_may_begin(o.dest, self.agents.facts, store=True)
            or o.dest.buffer in self.ragged
            or o not in self.unseen
        ):
            return False
        if f.space == "shared":
            return self._box_store(o)
        return (
            f.space == "fragment"
            and len(f.shape) == 2
            and _is_narrow(f, t)
            and staged_form(f.layout, t.dtype.bits, self.target)[1] is not None
            and o.dest.extents[-2:] == f.static_shape
        )

    def _box_store(self, o: Copy) -> bool:
        """Whether TMA can take a shared tile as it lies. All threads meet there, so it must stand
        where the whole block goes."""
        s, t = o.source.buffer.buffer, o.dest.buffer.buffer
        return (
            s.dtype == t.dtype
            and o.source.is_whole
            and s.layout is not None
            and box_fits(s.layout, s.dtype.bits)
            and same_order(o)
        )


def _never_seen_again(func: Func) -> set[Op]:
    """The copies to global memory whose elements the kernel neither reads nor writes again, so that
    it does not matter when they arrive: to a tensor that nothing else touches (but for copies onto
    other elements, and stores to the same elements in the other branch of an `if`), at places that
    change with every loop around them."""
    users: dict[Value, list[Op]] = {}
    for o in walk(func.body):
        for v in set(o.operands):
            users.setdefault(v, []).append(o)
    found: set[Op] = set()
    defs = defining_ops(func.body)

    def visit(block: Block, loops: tuple[Value | None, ...], others: set[Op]) -> None:
        for o in block.ops:
            if isinstance(o, Copy) and all(
                u is o or _apart(u, o, defs) or (u in others and _same_elements(u, o, defs))
                for u in users[o.dest.buffer]
            ):
                moves = [i and any(depends(v, i, defs) for v in o.dest.offsets) for i in loops]
                if all(moves):
                    found.add(o)
            inner = loops
            if isinstance(o, For) and o.kind != "persistent":
                inner = (*loops, o.body.args[0])
            elif isinstance(o, While):
                inner = (*loops, None)
            if isinstance(o, If):
                visit(o.then, inner, others | set(walk(o.orelse)))
                visit(o.orelse, inner, others | set(walk(o.then)))
                continue
            for region in o.regions:
                visit(region, inner, others)

    visit(func.body, (), set())
    return found


def _apart(o: Op, copy: Copy, defs: dict[Value, Op]) -> bool:
    """Whether `o` is a copy onto other elements than `copy`: along some dimension the two begin at
    numbers from the same place that are far enough apart."""
    if not isinstance(o, Copy):
        return False
    one, other = o.dest, copy.dest
    if one.buffer is not other.buffer or o.source.buffer is other.buffer:
        return False
    for x, y, first, second in zip(one.offsets, other.offsets, one.extents, other.extents):
        (base, a), (start, b) = _from_base(x, defs), _from_base(y, defs)
        if base is start and (b - a >= first if a < b else a - b >= second):
            return True
    return False


def _from_base(v: Value, defs: dict[Value, Op]) -> tuple[Value, int]:
    """(value, number) whose sum is `v`."""
    total = 0
    while True:
        made = defs.get(v)
        number = defs.get(made.rhs) if isinstance(made, Binary) and made.kind == "add" else None
        if not isinstance(made, Binary) or not isinstance(number, Const):
            return v, total
        v, total = made.lhs, total + int(number.value)


def _same_elements(o: Op, copy: Copy, defs: dict[Value, Op]) -> bool:
    """Whether a store in a loop over elements writes where `copy` does: each index is the copy's
    offset, and at most a loop index more."""
    if not isinstance(o, Store):
        return False
    for index, offset in zip(o.indices, copy.dest.offsets):
        made = defs.get(index)
        parts = (made.lhs, made.rhs) if isinstance(made, Binary) and made.kind == "add" else ()
        if index is not offset and offset not in parts:
            return False
        if any(p is not offset and p in defs for p in parts):
            return False
    return True


def _has_runs(o: Copy, vector: int) -> bool:
    """Whether what one cp.async brings lies together in shared memory, too, in a layout that the
    user may have given."""
    memory, shape = o.dest.buffer.buffer.layout, o.dest.shape or (1,)
    assert memory is not None
    return has_runs(memory if memory.shape == shape else memory.reshape(shape), vector)


def box_fits(layout: Layout, bits: int) -> bool:
    """Whether TMA boxes can write this shared layout."""
    found = tma_box(layout, bits)
    return found is not None and all(e <= MAX_BOX for e in found[0])


def _is_narrow(fragment: BufferType, tensor: BufferType) -> bool:
    """Whether a thread holds less than 16 bytes of a row: others store well themselves."""
    assert fragment.layout is not None
    dim, run = leading_run(fragment.layout)
    return dim != fragment.layout.rank - 1 or run * tensor.dtype.bits < 128
