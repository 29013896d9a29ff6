"""Ops of the LOWERED contract: what one thread does. Loops of kind "unroll" are unrolled by the
emitter while it prints, so an index that selects a register is a number by then.

Offsets into memory are in elements from the start of the buffer (of the stage, for a ring): i64
for global tensors, i32 for shared memory. A `guard` is a bool: where it is false nothing is
accessed. Registers of a fragment are counted in elements by `reg_read`/`reg_write` and in packs
(`Alloc.packed` elements each) by the matrix ops."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir.core import Effects, Op, Value
from tilec.ir.effects import ORDER, OUTPUT, read, update
from tilec.ir.errors import InternalError
from tilec.ir.op_classes import op
from tilec.ir.semantics import Array, np
from tilec.ir.types import INT32, UINT32, DType, Type, VectorType, scalar_type

__all__ = [
    "Lane", "Warp", "Lookup", "RegRead", "RegWrite", "Extract", "Pack", "ShuffleXor", "Shuffle",
    "WarpMma", "LoadMatrices", "LdmatrixValues", "CheckIndex", "MemLoad", "Misaligned", "Realign",
    "MemStore", "CountUp", "CpAsync", "Ldmatrix",
    "Stmatrix", "Mma", "Wgmma", "TmaLoad", "TmaStore", "PrefetchMap", "AndOr", "PermuteBytes",
]  # fmt: skip


@op("lane", pure=True, result=INT32)
class Lane(Op):
    """This thread's index in its warp: i32."""


@op("warp", pure=True, result=INT32)
class Warp(Op):
    """This warp's index in its scope: i32, the same in all lanes (and known to be by the back
    end)."""


@op("lookup", pure=True, result=INT32)
class Lookup(Op):
    """`table[index]`, where `index` is a number once loops are unrolled: i32."""

    table: tuple[int, ...]
    index: Value


@op("reg_read", reads="fragment", result="fragment[]")
class RegRead(Op):
    """Register `index` (elements) of a fragment: a scalar of its dtype."""

    fragment: Value
    index: Value


@op("reg_write", writes="fragment")
class RegWrite(Op):
    """Set register `index` (elements) of a fragment."""

    fragment: Value
    index: Value
    value: Value


@op("extract", pure=True, result="vector[]")
class Extract(Op):
    """Element `index` of a vector."""

    vector: Value
    index: int


@op("pack", pure=True)
class Pack(Op):
    """A vector of these scalars."""

    values: tuple[Value, ...]

    def infer(self) -> Sequence[Type]:
        return (VectorType(self.values[0].dtype, len(self.values)),)


@op("and_or", pure=True, result="value")
class AndOr(Op):
    """`(value & mask) | bits`, of a u32."""

    value: Value
    mask: int
    bits: int

    def verify(self) -> None:
        if self.value.type != scalar_type(UINT32):
            raise InternalError(f"bits of {self.value.type} under a mask", self.loc)

    def evaluate(self, value: Array) -> Array:
        return value & np.uint32(self.mask) | np.uint32(self.bits)


@op("permute_bytes", pure=True, result="low")
class PermuteBytes(Op):
    """A u32 of four bytes of two: number 0 is the lowest of `low`, 7 the highest of `high`."""

    low: Value
    high: Value
    bytes: tuple[int, ...]

    def verify(self) -> None:
        if {self.low.type, self.high.type} != {scalar_type(UINT32)}:
            raise InternalError(f"bytes of {self.low.type} and {self.high.type}", self.loc)
        if len(self.bytes) != 4 or not set(self.bytes) <= {*range(8)}:
            raise InternalError(f"{self.bytes} are no four bytes of two words", self.loc)

    def evaluate(self, low: Array, high: Array) -> Array:
        both = low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)
        parts = [(both >> np.uint64(8 * n) & np.uint64(0xFF)) for n in self.bytes]
        word = sum(part << np.uint64(8 * n) for n, part in enumerate(parts))
        return np.asarray(word).astype(np.uint32)


@op("shuffle_xor", effects=ORDER, result="value")
class ShuffleXor(Op):
    """What lane `lane ^ mask` of this warp holds as `value`, a scalar or a vector. All lanes of the
    warp take part. `promised`: the author of the kernel says that they do."""

    value: Value
    mask: int
    promised: bool = False

    def verify(self) -> None:
        if not 0 < self.mask < 64:
            raise InternalError(f"a shuffle with the lane mask {self.mask}", self.loc)


@op("shuffle", effects=ORDER, result="value")
class Shuffle(Op):
    """What lane number `lane` (i32) of this warp holds as `value`, a scalar or a vector. All lanes
    of the warp take part. `promised`: see `ShuffleXor`."""

    value: Value
    lane: Value
    promised: bool = False


@op("warp_mma", effects=ORDER)
class WarpMma(Op):
    """c + a @ b by the instruction `instr` (a row's name) among the lanes of a warp (32 of mma, 64
    of mfma), each of which gives its own elements of the operands in the order of its registers,
    and gets those of the sum. All of them take part."""

    instr: str
    a: tuple[Value, ...]
    b: tuple[Value, ...]
    c: tuple[Value, ...]

    def infer(self) -> Sequence[Type]:
        return tuple(v.type for v in self.c)


@op("load_matrices")
class LoadMatrices(Op):
    """Matrices of 8 rows of 16 bytes of a shared buffer, as the 32 lanes of a warp hold them: lane
    l has, of each, the elements of 32 bits from number 32 / bits * (l % 4) of row l / 4 on; if
    `transposed` (elements of 16 bits) those of rows 2 * (l % 4) and the next in column l / 4.
    Matrix i begins `rows[i]` rows and `columns[i]` elements behind `indices`, which are the same
    for all lanes; of four the last lies as far from the second as the third from the first. All
    lanes take part."""

    source: Value
    indices: tuple[Value, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    transposed: bool = False

    @property
    def per(self) -> int:
        """What a lane has of each matrix."""
        return 32 // self.source.dtype.bits

    def infer(self) -> Sequence[Type]:
        return (scalar_type(self.source.dtype),) * (self.per * len(self.rows))

    def verify(self) -> None:
        bits = self.source.dtype.bits
        shaped = len(self.indices) == self.source.buffer.rank >= 2 and len(self.rows) in (1, 2, 4)
        each = zip(self.rows, self.columns, strict=True)
        first, *others = each
        if len(others) == 3:  # addresses are computed from the bits of a matrix's number
            shaped &= all(z + o == x + y for o, x, y, z in zip(first, *others))
        if not shaped:
            raise InternalError(f"matrices of {self.source.type}", self.loc)
        if bits not in (8, 16, 32) or (self.transposed and bits != 16):
            raise InternalError(f"matrices of elements of {bits} bits", self.loc)

    def effects(self) -> Effects:
        extents = (max(self.rows) + 8, max(self.columns) + 4 * self.per)
        outer = (1,) * (len(self.indices) - 2)
        return (read(self.source, self.indices, (*outer, *extents)), *ORDER)


@op("ldmatrix_values", reads="source", effects=ORDER)
class LdmatrixValues(Op):
    """`ldmatrix` of `count` matrices into values, each two (four, one) elements of 16 (8, 32) bits
    after the other. Lane l gives the offset of row l % 8 of matrix l / 8."""

    source: Value
    offset: Value
    count: int
    transposed: bool = False

    def infer(self) -> Sequence[Type]:
        return (scalar_type(self.source.dtype),) * (self.count * 32 // self.source.dtype.bits)


@op("check_index", effects=ORDER)
class CheckIndex(Op):
    """Each of `indices` of a shared or local buffer must lie inside of its dimension, which nothing
    before the run could prove. Nothing on a machine: the simulator looks."""

    buffer: Value
    indices: tuple[Value, ...]


@op("mem_load", reads="source")
class MemLoad(Op):
    """`lanes` consecutive elements at `offset` (a scalar if 1). `align` in bytes is what is known
    of the address. Where `guard` is false: `other` (a scalar, for each element; zero if absent).
    `cache`: how long L2 should keep it, "evict_first" or "evict_last"; "" where nobody says; what
    a target's instruction cannot say is left out. `words`: their bits, as a vector of u32.
    `speculative`: the elements are the tensor's, whether what stands around it runs or not."""

    source: Value
    offset: Value
    lanes: int = 1
    align: int = 1
    guard: Value | None = None
    other: Value | None = None
    cache: str = ""
    words: bool = False
    speculative: bool = False

    def infer(self) -> Sequence[Type]:
        dtype = self.source.dtype
        if self.words:
            return (VectorType(UINT32, self.lanes * dtype.bits // 32),)
        return (scalar_type(dtype) if self.lanes == 1 else VectorType(dtype, self.lanes),)


@op("misaligned", pure=True, result=INT32)
class Misaligned(Op):
    """How many elements the address of element `offset` of a global tensor lies past a multiple of
    16 bytes: i32."""

    source: Value
    offset: Value


@op("realign", pure=True)
class Realign(Op):
    """The 16 bytes that begin `skip` elements of `dtype` (less than 16 bytes) into `words`, eight
    u32: a vector of `dtype`. Of these the first `valid` ones; zero behind them."""

    words: Value
    skip: Value
    dtype: DType
    valid: Value | None = None

    def infer(self) -> Sequence[Type]:
        return (VectorType(self.dtype, 128 // self.dtype.bits),)

    def verify(self) -> None:
        if self.words.type != VectorType(UINT32, 8):
            raise InternalError(f"{self.words.type} to be realigned", self.loc)


@op("mem_store", writes="dest")
class MemStore(Op):
    """Write a scalar or vector at `offset`."""

    dest: Value
    offset: Value
    value: Value
    align: int = 1
    guard: Value | None = None
    cache: str = ""

    def verify(self) -> None:
        if self.value.dtype != self.dest.dtype:
            raise InternalError(f"store of {self.value.type} into {self.dest.type}", self.loc)


@op("count_up", result=INT32, updates="dest")
class CountUp(Op):
    """Add one to element `offset` of `dest`, an int32 tensor, at once with regard to all threads of
    the device; where it held `last` it becomes 0. Gives what it held. It orders nothing by itself:
    see `device_fence`."""

    dest: Value
    offset: Value
    last: int

    def verify(self) -> None:
        t = self.dest.buffer
        if t.space != "global" or t.dtype != INT32:
            raise InternalError(f"a counter in {t}", self.loc)


@op("cp_async", reads="source", writes="dest", engine="cp_async")
class CpAsync(Op):
    """Start copying `bytes` (4, 8 or 16) from a global tensor to shared memory, past the registers.
    With `valid` (i32, 0 to `bytes`) only so many bytes are read; zeros are written after them. PTX
    ISA, `cp.async` with src-size. `cache` as of `mem_load`."""

    dest: Value
    dest_offset: Value
    source: Value
    source_offset: Value
    bytes: int
    valid: Value | None = None
    cache: str = ""


@op("ldmatrix", reads="source", writes="dest")
class Ldmatrix(Op):
    """Read `count` (1, 2, 4) matrices of 8x8 16-bit elements from shared memory into packs
    `register` … of a fragment whose packs are two elements. Lane l gives the address of row l % 8
    of matrix l / 8. PTX ISA, `ldmatrix`."""

    dest: Value
    register: Value
    source: Value
    offset: Value
    count: int
    transposed: bool = False


@op("stmatrix", writes="dest")
class Stmatrix(Op):
    """Write matrices of 8x8 16-bit elements, one per value (each a vector of two elements). PTX
    ISA, `stmatrix`."""

    dest: Value
    offset: Value
    values: tuple[Value, ...]
    transposed: bool = False


@op("mma", reads="a b", updates="c")
class Mma(Op):
    """c += a @ b by the matrix instruction `instr` (a row's name), on the row's own number of
    consecutive packs starting at pack `c_register`, `a_register`, `b_register` of each
    fragment. Of an mma.sp: `metadata` (u32) and `selector` (`SparseMmaInstruction`)."""

    instr: str
    c: Value
    c_register: Value
    a: Value
    a_register: Value
    b: Value
    b_register: Value
    metadata: Value | None = None
    selector: int = 0


@op("wgmma")
class Wgmma(Op):
    """One warpgroup's product, started and committed as one group; the fragment `c` is in flight
    until a `wgmma_wait`. PTX ISA, `wgmma.mma_async`. B is in shared memory. So may A be; or it is a
    fragment, all of whose registers ([m block][k step]) are in flight with `c`, and the fields
    about its place are zero or empty.

    `a_offset`, `b_offset`: elements from the start of the buffer to this warpgroup's operand
    (i32). `a_fields`, `b_fields`: the descriptor's bits above the address. `a_steps`: units of 16
    bytes to add for [m block][k step] (m-major, flat), `b_steps`: for each k step. `c` holds
    `m_blocks` times the row's registers, one m block after the other. Where `accumulate` (bool) is
    false the first step overwrites `c`; without it, it adds. `metadata`: of a compressed A, a
    fragment of words, [m block][`served` k steps]."""

    instr: str
    c: Value
    a: Value
    a_offset: Value
    b: Value
    b_offset: Value
    m_blocks: int
    a_fields: int
    b_fields: int
    a_steps: tuple[int, ...]
    b_steps: tuple[int, ...]
    a_transposed: bool = False
    b_transposed: bool = False
    accumulate: Value | None = None
    metadata: Value | None = None
    served: int = 1

    def effects(self) -> Effects:
        operands = read(self.a, engine="wgmma"), read(self.b, engine="wgmma")
        described = () if self.metadata is None else (read(self.metadata),)
        return (*operands, *described, update(self.c, "wgmma"))


@op("tma_load", writes="dest", updates="barrier", engine="tma")
class TmaLoad(Op):
    """Start one TMA box: from the tensor of `map` at `coords` (innermost first, i32) to shared
    memory; its bytes are counted on slot `stage` of `barrier`. Executed by one thread.

    `blocks` (i32): bit n is set where the block with number n in the cluster receives the box, at
    the same place of its shared memory and counted on its own barrier (multicast). `cache` as of
    `mem_load`."""

    dest: Value
    dest_offset: Value
    map: Value
    coords: tuple[Value, ...]
    barrier: Value
    stage: Value
    blocks: Value | None = None
    cache: str = ""


@op("tma_store", reads="source", effects=OUTPUT, engine="tma")
class TmaStore(Op):
    """Start one TMA box from shared memory to the tensor of `map`; parts outside the tensor are
    dropped. Executed by the threads where `guard` (bool) holds, if it is given (no branch): one per
    box. `cache` as of `mem_load`. With `reduction` (one of `ATOMICS`) it is combined with what is
    there, element by element, each at once."""

    map: Value
    coords: tuple[Value, ...]
    source: Value
    source_offset: Value
    guard: Value | None = None
    cache: str = ""
    reduction: str = ""


@op("prefetch_map", effects=ORDER)
class PrefetchMap(Op):
    """Bring a TMA descriptor into its cache."""

    map: Value
