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

from tilec.ir.analysis import Facts
from tilec.ir.core import Block, Func, Op, Value, defining_ops, rewrite, walk
from tilec.ir.instr.memory import tma_gives
from tilec.ir.layout import Layout, leading_run, tma_box
from tilec.ir.ops import (
    AnnotateSafeValue,
    Binary,
    Const,
    Copy,
    For,
    If,
    Store,
    While,
    squeeze,
)
from tilec.ir.types import BOOL, BufferType, DType
from tilec.passes.addressing import depends
from tilec.passes.stage_stores import staged_form
from tilec.target import Target

TMA_ALIGN = 16  # bytes: base address and strides of a tensor map
MAX_BOX = 256  # elements of a TMA box in one dimension


def select_copies(func: Func, target: Target) -> Func:
    """See the module's opening."""
    chooser = _Chooser(func, target)

    def visit(o: Op) -> Op | None:
        return chooser.choose(o) if isinstance(o, Copy) and not o.agent else None

    return func.with_body(rewrite(func.body, visit))


class _Chooser:
    def __init__(self, func: Func, target: Target) -> None:
        self.target = target
        self.func = func
        self.facts = Facts(func)
        self.safe = SafeValues(func)
        self.unseen = _never_seen_again(func)

    def choose(self, o: Copy) -> Op:
        vector = self.vector(o)
        if o.ahead:
            if self._tma_load(o):
                return replace(o, agent="tma", vector=vector)
            width = vector * o.source.dtype.bits // 8
            same = o.source.dtype == o.dest.dtype and self.safe.zero(o.source)
            if self.target.has("cp_async") and same and width in (4, 8, 16):
                return replace(o, agent="cp_async", vector=vector)
        if self.func.attrs.get("staged_store") and self._tma_store(o):
            return replace(o, agent="tma_store", vector=vector)
        return replace(o, agent="threads", vector=vector)

    def vector(self, o: Copy) -> int:
        """Elements per access: what the global side's alignment allows, at most 16 bytes."""
        # A fragment's elements are converted in registers; what counts is their size in memory.
        sides = [v for v in (o.source, o.dest) if v.buffer.space != "fragment"]
        widest = 16 * 8 // max(v.dtype.bits for v in sides or (o.source, o.dest))
        for buffer, offsets, extents in (
            (o.source, o.source_offsets, o.source_extents),
            (o.dest, o.dest_offsets, o.dest_extents),
        ):
            if buffer.buffer.space == "global":
                widest = min(widest, contiguous(buffer.buffer, offsets, extents, self.facts))
        last = squeeze(o.dest_extents) or (1,)
        while last[-1] % widest:
            widest //= 2
        if o.coalesced_width:
            while widest > o.coalesced_width:
                widest //= 2
        return widest

    def _tma_load(self, o: Copy) -> bool:
        s = o.dest.buffer
        return (
            tma_may_load(o, s.dtype, self.func, self.target, self.safe)
            and s.layout is not None
            and box_fits(s.layout, s.dtype.bits)
        )

    def _tma_store(self, o: Copy) -> bool:
        f, t = o.source.buffer, o.dest.buffer
        if (
            not self.target.has("tma")
            or o.disable_tma
            or t.space != "global"
            or t.dtype == BOOL
            or not tensor_map_fits(t)
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
            and o.dest_extents[-2:] == f.static_shape
        )

    def _box_store(self, o: Copy) -> bool:
        """Whether TMA can take a shared tile as it lies. All threads meet there, so it must stand
        where the whole block goes."""
        s, t = o.source.buffer, o.dest.buffer
        return (
            s.dtype == t.dtype
            and o.source_extents == s.static_shape
            and s.layout is not None
            and box_fits(s.layout, s.dtype.bits)
            and _same_order(o)
        )


class SafeValues:
    """What reads out of the bounds of a function's tensors give."""

    def __init__(self, func: Func) -> None:
        constants = {o.result: o.value for o in walk(func.body) if isinstance(o, Const)}
        self.found = {
            o.dest: constants.get(o.value)
            for o in walk(func.body)
            if isinstance(o, AnnotateSafeValue)
        }

    def zero(self, tensor: Value) -> bool:
        """Whether that is 0, which is what copies past the registers give."""
        return not self.found.get(tensor)


def tma_may_load(o: Copy, dtype: DType, func: Func, target: Target, safe: SafeValues) -> bool:
    """Whether producer warps may bring a run-ahead copy by TMA into elements of `dtype`, if the
    tile's layout is one that boxes can write."""
    t = o.source.buffer
    return (
        bool(func.attrs.get("specialise"))
        and target.has("tma")
        and not o.disable_tma
        and tma_gives(t.dtype, dtype)
        and safe.zero(o.source)
        and tensor_map_fits(t)
        and _same_order(o)
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
                for u in users[o.dest]
            ):
                moves = [i and any(depends(v, i, defs) for v in o.dest_offsets) for i in loops]
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
    if not isinstance(o, Copy) or o.dest is not copy.dest or o.source is copy.dest:
        return False
    for x, y, first, second in zip(
        o.dest_offsets, copy.dest_offsets, o.dest_extents, copy.dest_extents
    ):
        (base, a), (other, b) = _from_base(x, defs), _from_base(y, defs)
        if base is other and (b - a >= first if a < b else a - b >= second):
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
    for index, offset in zip(o.indices, copy.dest_offsets):
        made = defs.get(index)
        parts = (made.lhs, made.rhs) if isinstance(made, Binary) and made.kind == "add" else ()
        if index is not offset and offset not in parts:
            return False
        if any(p is not offset and p in defs for p in parts):
            return False
    return True


def gcd2(limit: int, divisor: int) -> int:
    """The largest power of two that divides both."""
    g = 1
    while limit % (2 * g) == 0 and divisor % (2 * g) == 0:
        g *= 2
    return g


def alignment(t: BufferType) -> int:
    """Bytes (a power of two up to 16) that divide the address of every element whose last index is
    0."""
    known = t.align
    if t.strides is None:
        row = t.shape[-1] if t.rank > 1 else 0
        return gcd2(known, row * t.dtype.bits // 8 if isinstance(row, int) else t.dtype.bits // 8)
    for s in t.strides[:-1]:
        if isinstance(s, int):
            known = gcd2(known, s * t.dtype.bits // 8)
    return known


def innermost_contiguous(t: BufferType) -> bool:
    """Whether neighbours along the last dimension are neighbours in memory."""
    return t.strides is None or t.strides[-1] == 1


def contiguous(
    t: BufferType, offsets: tuple[Value, ...], extents: tuple[int, ...], facts: Facts
) -> int:
    """How many elements of a region of a tensor, from any multiple of itself on, are known to be
    adjacent and aligned together."""
    if not innermost_contiguous(t) or (extents[-1] == 1 and squeeze(extents)):
        return 1
    elements = min(alignment(t) * 8 // t.dtype.bits, 64)
    return max(1, gcd2(elements, facts.divisor(offsets[-1])))


def tensor_map_fits(t: BufferType) -> bool:
    """Whether a tensor map can describe the tensor: rank, contiguous last dimension, 16-byte base
    and strides."""
    return (
        2 <= t.rank <= 5
        and t.strides is not None
        and t.strides[-1] == 1
        and t.dtype.bits % 8 == 0
        and alignment(t) == TMA_ALIGN
    )


def box_fits(layout: Layout, bits: int) -> bool:
    """Whether TMA boxes can write this shared layout."""
    found = tma_box(layout, bits)
    return found is not None and all(e <= MAX_BOX for e in found[0])


def _same_order(o: Copy) -> bool:
    """The tile's dimensions are the tensor's non-trivial ones, and the last is the contiguous
    one."""
    extents = o.source_extents if o.source.buffer.space == "global" else o.dest_extents
    wide = [i for i, e in enumerate(extents) if e != 1]
    return squeeze(o.source_extents) == squeeze(o.dest_extents) and (
        not wide or wide[-1] == len(extents) - 1
    )


def _is_narrow(fragment: BufferType, tensor: BufferType) -> bool:
    """Whether a thread holds less than 16 bytes of a row: others store well themselves."""
    assert fragment.layout is not None
    dim, run = leading_run(fragment.layout)
    return dim != fragment.layout.rank - 1 or run * tensor.dtype.bits < 128
