"""Who may move the data of a copy, and how much at a time, as far as the types of the tensors say:
their dtypes, their strides and what their addresses are multiples of."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable
from functools import cached_property
from typing import NamedTuple

from tilec.ir.analysis import Facts, facts_of
from tilec.ir.core import Func, Region, Value, squeeze
from tilec.ir.effects import changing_tensors
from tilec.ir.instr.memory import tma_gives
from tilec.ir.layout import Layout, blocked
from tilec.ir.ops import AnnotateSafeValue, Copy, Gather, constants
from tilec.ir.types import BOOL, BufferType, DType
from tilec.target import Target

TMA_ALIGN = 16  # bytes: base address and strides of a tensor map
TMA_MOST = 1 << 32  # the largest extent of a tensor map (CUDA driver API, cuTensorMapEncodeTiled)
CP_ASYNC = (4, 8, 16)  # bytes that one cp.async brings
ACCESS_REGISTERS = 3  # of what a narrow access has brought: its address, and the elements
ELEMENT_REGISTERS = 2  # of a thread's elements that are neighbours in a column: one address
PIECE_ACCESSES = 3  # narrow ones that take as long as 16 bytes in two pieces, shifted
# Accesses that an element of a tile whose pieces do not divide among the threads takes beside its
# own, as one waits for the other, in a block of few threads; of how many none.
ELEMENT_WAITS, ELEMENT_THREADS = 5.34, 512
PIECE_REGISTERS = 9  # that hold two pieces and an address
ROWS_TOGETHER = 16  # that a warp loads pieces of in that time
LEAST_ROW = 512  # bits of a row of a tile that leaves by rows
REGISTER_STAGES = 2  # of a tile that waits in registers until the last one has been read


class Narrow(NamedTuple):
    """Accesses of an iteration by which threads bring tiles, where they are narrower than 16 bytes
    (or as many as take that long); registers of all threads for what waits there. Beside these,
    `tiles` that come in pieces: shape, and elements of a piece."""

    accesses: int
    waiting: int
    tiles: tuple[tuple[tuple[int, ...], int], ...] = ()

    def by(self, threads: int, warp_size: int) -> tuple[int, int]:
        """Accesses and registers where so many threads bring the tiles."""
        accesses, waiting = self.accesses, self.waiting
        for shape, per in self.tiles:
            size = math.prod(shape)
            if piece_layout(shape, per, warp_size, threads // warp_size) is None:
                waits = ELEMENT_WAITS * max(0.0, 1 - threads / ELEMENT_THREADS)
                accesses += int(size * (1 + waits))
                waiting += ELEMENT_REGISTERS * size
                continue
            pieces = size // per
            rows = warp_size // math.gcd(warp_size, shape[-1] // per)
            accesses += PIECE_ACCESSES * pieces * max(rows // ROWS_TOGETHER, 1)
            waiting += PIECE_REGISTERS * pieces
        return accesses, waiting


@functools.cache
def piece_layout(shape: tuple[int, ...], per: int, warp_size: int, warps: int) -> Layout | None:
    """How a tile's pieces of `per` elements are spread over threads; None where they do not divide
    among these, and each would bring several that others bring too."""
    layout = blocked(shape, warp_size, warps, per)
    repeated = layout.replicas("lane") * layout.replicas("warp") > 1
    return None if repeated and layout.size("reg") > per else layout


class CopyEngines:
    """Who may bring the tiles of the run-ahead copies of `func`, of which `facts` may be known."""

    def __init__(self, func: Func, target: Target, facts: Facts | None = None) -> None:
        self.func = func
        self.target = target
        self.facts = facts or facts_of(func)
        self.safe = safe_values(func)

    def of(self, o: Copy, specialise: bool) -> str:
        """ "tma" (where producer warps may: `specialise`), "cp_async" or "threads"."""
        if specialise and self.tma_may_load(o, o.dest.dtype):
            return "tma"
        width = self.vector(o) * o.source.dtype.bits // 8
        same = o.source.dtype == o.dest.dtype and not self.safe.get(o.source.buffer)
        if self.target.has("cp_async") and same and width in CP_ASYNC:
            return "cp_async"
        return "threads"

    def tma_may_load(self, o: Copy, dtype: DType) -> bool:
        """Whether producer warps may bring a run-ahead copy by TMA into elements of `dtype`, if the
        tile's layout is one that boxes can write."""
        return (
            self.target.has("tma")
            and not o.disable_tma
            and tma_gives(o.source.dtype, dtype)
            and not self.safe.get(o.source.buffer)
            and box_may_begin(o.source, self.facts)
            and same_order(o)
        )

    def tma_may_store(self, o: Copy) -> bool:
        """Whether TMA can write where a copy does, whatever its source."""
        t = o.dest.type
        return (
            self.target.has("tma")
            and not o.disable_tma
            and t.space == "global"
            and t.dtype != BOOL
            and box_may_begin(o.dest, self.facts, store=True)
            and o.dest.buffer not in self.ragged
        )

    def through_registers(self, copies: Iterable[Copy], specialise: bool) -> bool:
        """Whether the tiles of a loop's run-ahead `copies` that TMA does not bring wait in
        registers: cp.async brings all of them or none."""
        return any(self.of(o, specialise) == "threads" for o in copies)

    def in_pieces(self, o: Copy) -> bool:
        """Whether threads may bring a tile whose rows begin anywhere by 16 bytes at a time from
        multiples of 16 bytes (`passes/utils/realign.py`): rows that nothing writes while the kernel
        runs, wide enough."""
        t, last = o.source.type, o.dest.shape[-1:]
        return (
            t.dtype.bits in (8, 16)
            and t.dtype == o.dest.dtype != BOOL
            and innermost_contiguous(t)
            and same_order(o)
            and bool(last)
            and last[0] % (16 * 8 // t.dtype.bits) == 0
            and not o.coalesced_width
            and self.vector(o) * t.dtype.bits < 16 * 8
            and not self.safe.get(o.source.buffer)
            and o.source.buffer not in self.written | self.gathered
            and not self.func.attrs.get("may_alias")
        )

    @cached_property
    def ragged(self) -> frozenset[Value]:
        """See `ragged_tensors`."""
        return ragged_tensors(self.func)

    @cached_property
    def gathered(self) -> set[Value]:
        """The tensors that are nowhere in memory."""
        return {o.result for o in self.func.body.every(Gather)}

    @cached_property
    def written(self) -> set[Value]:
        """The tensors that may change while the kernel runs."""
        return changing_tensors(self.func)

    def narrow(self, copies: Collection[Copy], specialise: bool) -> Narrow:
        """What threads take to bring the tiles of `copies` where alignment keeps their accesses
        below 16 bytes."""
        through_registers = self.through_registers(copies, specialise)
        accesses = waiting = 0
        tiles: list[tuple[tuple[int, ...], int]] = []
        for o in copies:
            vector, bits = self.vector(o), o.source.dtype.bits
            if vector * bits >= 16 * 8 or self.of(o, specialise) == "tma":
                continue
            if through_registers and self.in_pieces(o):
                tiles.append((o.dest.shape, 16 * 8 // bits))
            else:
                each = o.dest.type.size // vector
                accesses += each
                waiting += ACCESS_REGISTERS * through_registers * each
        return Narrow(accesses, waiting, tuple(tiles))

    def vector(self, o: Copy) -> int:
        """Elements per access: what the global side's alignment allows, at most 16 bytes."""
        # A fragment's elements are converted in registers; what counts is their size in memory.
        both = o.source, o.dest
        sides = [r for r in both if r.type.space != "fragment"]
        widest = 16 * 8 // max(r.dtype.bits for r in sides or both)
        for r in both:
            t = r.type
            if t.space == "global":
                widest = min(widest, contiguous(t, r.offsets, r.extents, self.facts))
        last = o.dest.shape or (1,)
        while last[-1] % widest:
            widest //= 2
        if o.coalesced_width:
            while widest > o.coalesced_width:
                widest //= 2
        return widest


def safe_values(func: Func) -> dict[Value, float]:
    """What reads out of the bounds of a tensor give, where it was said: else, as by copies past the
    registers always, 0."""
    known = constants(func.body)
    return {o.dest: known.get(o.value, 0) for o in func.body.every(AnnotateSafeValue)}


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


def ragged_tensors(func: Func) -> frozenset[Value]:
    """The tensors whose rows end within 16 bytes. TMA stores whole 16 bytes, also where the last of
    them lie behind the row (NVIDIA H200; Triton's issue 11583), so there is nothing that it may
    store to them; threads may, as wide as the strides let them."""
    named = set(func.attrs.get("ragged", ()))
    return frozenset(p.value for p in func.params if p.role == "tensor" and p.arg in named)


def begins_anywhere(tensor: Value, vector: int, ragged: frozenset[Value]) -> bool:
    """Whether rows of a global tensor, `vector` elements of which a thread may store at once, begin
    (or, in one of the `ragged`, end) anywhere in a sector of memory."""
    whole = vector * tensor.dtype.bits >= TMA_ALIGN * 8 and tensor not in ragged
    return tensor.space == "global" and tensor.dtype.bits >= 8 and not whole


def leaves_by_rows(tensor: Value, row: int, vector: int, ragged: frozenset[Value]) -> bool:
    """Whether what a matrix instruction has made should leave for such a tensor through shared
    memory: by rows, whose `row` elements in a tile are enough for a warp."""
    return begins_anywhere(tensor, vector, ragged) and row * tensor.dtype.bits >= LEAST_ROW


def tensor_map_fits(t: BufferType) -> bool:
    """Whether a tensor map can describe the tensor: rank, contiguous last dimension, 16-byte base
    and strides."""
    return (
        1 <= t.rank <= 5
        and t.strides is not None
        and t.strides[-1] == 1
        and t.dtype.bits % 8 == 0
        and all(isinstance(e, str) or e <= TMA_MOST for e in t.shape)
        and alignment(t) == TMA_ALIGN
    )


def box_may_begin(r: Region, facts: Facts, store: bool = False) -> bool:
    """Whether a tensor map can describe the tensor of a region, and TMA can load from there or
    `store` there: along a row at a multiple of 16 bytes, and no store in front of the tensor, along
    any dimension. Anywhere else it ends in an illegal instruction (NVIDIA H200; Triton's issue
    7385)."""
    return (
        tensor_map_fits(r.type)
        and (r.type.rank > 1 or not store)
        and facts.divisor(r.offsets[-1]) * r.dtype.bits // 8 % TMA_ALIGN == 0
        and (not store or all(map(facts.non_negative, r.offsets)))
    )


def same_order(o: Copy) -> bool:
    """The tile's dimensions are the tensor's non-trivial ones, and the last is the contiguous
    one."""
    extents = (o.source if o.source.type.space == "global" else o.dest).extents
    wide = [i for i, e in enumerate(extents) if e != 1]
    return o.source.shape == o.dest.shape and (not wide or wide[-1] == len(extents) - 1)
