"""Tile ops: what a user writes about whole tiles. Their buffers are handles; a region of a buffer
is the buffer, one offset (a scalar Value) per dimension, and one compile-time extent per
dimension."""

from __future__ import annotations

import string
from typing import Any

from tilec.ir import semantics
from tilec.ir.core import Effect, Effects, Op, Region, Value, altered, squeeze
from tilec.ir.effects import DESCRIBE, OUTPUT, read, write
from tilec.ir.errors import InternalError
from tilec.ir.op_classes import op
from tilec.ir.ops.atomic import ElementAccess
from tilec.ir.ops.scalar import COMPARE_KINDS
from tilec.ir.semantics import Array
from tilec.ir.sparse import covered, expand
from tilec.ir.types import FLOAT32, FLOAT64, INT32, BufferType, DType, scalar_type

__all__ = [
    "Alloc", "View", "Load", "Store", "Copy", "Fill", "Gemm", "Reduce",
    "Print", "DeviceAssert", "Assume", "AnnotateLayout", "AnnotateSafeValue", "UseSwizzle",
    "AnnotateSchedule",
]  # fmt: skip

# who works beside the threads, by what moves a copy's data or by the family of the instruction
# that multiplies
ENGINES = {"cp_async": "cp_async", "tma": "tma", "tma_store": "tma"}
ENGINES |= {"wgmma": "wgmma", "wgmma_sp": "wgmma"}
_SWAPPED_POLICY = {"full_row": "full_col", "full_col": "full_row"}


@op("alloc", result="type")
class Alloc(Op):
    """An on-chip buffer (shared, fragment, local, barrier) that lives as long as the block of code
    it stands in.

    `address`: byte offset in shared memory, decided by `plan_shared` (-1: not yet). `packed`: how
    many of a fragment's elements one register value holds (a vector), where a matrix instruction
    takes them so."""

    type: BufferType
    address: int = -1
    packed: int = 1

    def verify(self) -> None:
        if self.type.space not in ("shared", "fragment", "local", "barrier"):
            raise InternalError(f"an alloc in {self.type.space} memory", self.loc)
        if any(isinstance(e, str) or e < 1 for e in self.type.shape):
            said = f"an on-chip buffer needs compile-time extents above 0, not {self.type}"
            raise InternalError(said, self.loc)

    def effects(self) -> Effects:
        return (Effect("allocate", Region(self.result)),)


@op("view", pure=True, result="type")
class View(Op):
    """The memory of `source`, in row-major order, as a buffer of another shape or dtype and of as
    many bits; with `at` what lies at that index of its first dimension. Stands in what the front
    end gives alone (`resolve_views`)."""

    source: Value
    type: BufferType
    at: Value | None = None

    def verify(self) -> None:
        shapes = (self.source.buffer.shape, self.type.shape)
        if self.at is not None:
            if shapes[0][1:] != shapes[1] or self.source.dtype is not self.type.dtype:
                raise InternalError(f"a view of {self.type} in {self.source.type}", self.loc)
        elif all(isinstance(e, int) for shape in shapes for e in shape):
            bits = [b.size * b.dtype.bits for b in (self.source.buffer, self.type)]
            if bits[0] != bits[1]:
                raise InternalError(f"a view of {bits[1]} bits of {bits[0]}", self.loc)


@op("load", reads="source", result="source[]")
class Load(ElementAccess):
    """One element. Out of a global tensor's bounds: the tensor's safe value (0 unless
    annotated)."""

    source: Value
    indices: tuple[Value, ...]


@op("store")
class Store(ElementAccess):
    """Write one element, already of the buffer's dtype. Out of a global tensor's bounds: nothing.
    `engine` "cp_async": it is an element of a global tensor, or 0, on its way to shared memory
    until the thread waits for it."""

    dest: Value
    indices: tuple[Value, ...]
    value: Value
    engine: str = "threads"

    def effects(self) -> Effects:
        return (write(self.dest, self.indices, (1,) * len(self.indices), engine=self.engine),)

    def verify(self) -> None:
        if self.value.type != scalar_type(self.dest.dtype):
            raise InternalError(f"store of {self.value.type} into {self.dest.type}", self.loc)


@op("copy")
class Copy(Op):
    """Copy a region onto another, converting to the destination's dtype.

    Without extents that are 1 both boxes have the same shape. Reads out of a global tensor's bounds
    give its safe value, writes out of bounds are dropped. `coalesced_width` (elements),
    `disable_tma` and `eviction_policy` are the user's wishes. Decided by passes: `ahead`, the copy
    may run before its iteration (`plan_pipeline`); `engine`, who moves the data ("threads",
    "cp_async", "tma", "tma_store"), and `vector`, elements per access (`select_copies`); `staging`,
    the shared memory a "tma_store" goes through (`stage_stores`); `reduction`, one of `ATOMICS`: a
    "tma_store" combines each element with what is there, and nothing comes between."""

    source: Region
    dest: Region
    staging: Value | None = None
    coalesced_width: int = 0
    disable_tma: bool = False
    eviction_policy: str = ""
    ahead: bool = False
    engine: str = ""
    vector: int = 0
    reduction: str = ""

    def verify(self) -> None:
        if self.source.shape != self.dest.shape:
            boxes = f"{self.source.extents} onto {self.dest.extents}"
            raise InternalError(f"copy of {boxes}", self.loc)
        if self.reduction and self.engine != "tma_store":
            raise InternalError(f"{self.reduction} by {self.engine or 'nobody'}", self.loc)

    def effects(self) -> Effects:
        engine = ENGINES.get(self.engine, "threads")
        reader = engine if self.staging is None else "threads"
        done = "update" if self.reduction else "write"
        source, dest = Effect("read", self.source, reader), Effect(done, self.dest, engine)
        if self.staging is None:
            return source, dest
        return source, dest, Effect("update", Region(self.staging), private=True)

    def evaluate(self, source: Array) -> Array:
        converted = semantics.cast(source, self.source.dtype, self.dest.dtype)
        return converted.reshape(self.dest.extents)


@op("fill", writes="dest")
class Fill(Op):
    """Set every element of an on-chip buffer, or of a region of a global tensor, to `value`.
    `replaced`, decided by `fold_clears`: a product behind it stores instead of adding, and what the
    elements are until then does not matter."""

    dest: Region
    value: Value
    replaced: bool = False

    def verify(self) -> None:
        if self.value.type != scalar_type(self.dest.dtype):
            raise InternalError(f"fill of {self.dest.buffer.type} with {self.value.type}", self.loc)

    def evaluate(self, value: Array) -> Array:
        return semantics.np.full(self.dest.extents, value)


@op("gemm")
class Gemm(Op):
    """C += A @ B on tiles: A is (M, K), or (K, M) if `transpose_a`; B is (K, N), or (N, K) if
    `transpose_b`; C is an (M, N) fragment. `clear`: C = A @ B. Each operand is the trailing two
    dimensions of a region. Where `accumulate` (bool, the same in the whole block) is false, C's old
    value counts as zero. With `metadata`, (M, K / n) or, if `transpose_metadata`, (K / n, M)
    integers, A is compressed: what is kept of it, (M, K / 2) (`tilec.sparse`).

    `policy` is how the user wants warps spread over C. `fast_accum`: see `tilec.language.gemm`.
    Decided by passes: by `select_gemm`, `instr` (the instruction's name), `operands_swapped` (the
    instruction computes C^T = B^T @ A^T; see `swap_operands`), `warps` (how many along M and N of
    what it computes) and `swizzle` (bytes of the widest one in which warpgroups can read parts of
    what is contiguous along M or N); by `expand_scopes`, `asynchronous` (C is in flight until a
    `wgmma_wait`)."""

    a: Region
    b: Region
    c: Value
    accumulate: Value | None = None
    metadata: Region | None = None
    transpose_a: bool = False
    transpose_b: bool = False
    transpose_metadata: bool = False
    clear: bool = False
    policy: str = "square"
    allow_tf32: bool = False
    fast_accum: bool = True
    instr: str = ""
    warps: tuple[int, ...] = ()
    swizzle: int = 128
    operands_swapped: bool = False
    asynchronous: bool = False

    def swap_operands(self) -> Gemm:
        """The same product as its instruction sees it: for a `operands_swapped` one A is B^T, B is
        A^T, and C (still the same fragment) is C^T."""
        if not self.operands_swapped:
            return self
        return altered(
            self,
            a=self.b,
            b=self.a,
            transpose_a=not self.transpose_b,
            transpose_b=not self.transpose_a,
            policy=_SWAPPED_POLICY.get(self.policy, self.policy),
            operands_swapped=False,
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(M, N, K) of the tile product."""
        m, k = self.a.extents[-2:]
        k2, n = self.b.extents[-2:]
        if self.transpose_a:
            m, k = k, m
        if self.transpose_b:
            n = k2
        return m, n, k if self.metadata is None else 2 * k

    @property
    def summed(self) -> tuple[int, int]:
        """Which dimensions of A and of B are summed over, counted from the last."""
        return -2 if self.transpose_a else -1, -1 if self.transpose_b else -2

    @property
    def inputs(self) -> tuple[Region, ...]:
        """A, B and the metadata, if there are any."""
        return (self.a, self.b) if self.metadata is None else (self.a, self.b, self.metadata)

    @property
    def by_engine(self) -> bool:
        """Whether its instruction runs beside the threads, which wait for its result."""
        return self._engine != "threads"

    @property
    def is_asynchronous(self) -> bool:
        """Whether it may be left in flight while its threads go on. One with metadata may not: it
        reads them from registers as it goes, which belong to nobody once it has been started."""
        return self.by_engine and self.metadata is None

    @property
    def _engine(self) -> str:
        return ENGINES.get(self.instr.partition(".")[0], "threads")

    def verify(self) -> None:
        m, n, k = self.shape
        kb = self.b.extents[-1] if self.transpose_b else self.b.extents[-2]
        if kb != k or self.c.buffer.static_shape != (m, n):
            raise InternalError(
                f"gemm of {self.a.buffer.type} and {self.b.buffer.type} into {self.c.type}",
                self.loc,
            )
        if self.metadata is not None:
            rows, columns = self.metadata.extents[-2:]
            if self.transpose_metadata:
                rows, columns = columns, rows
            per = covered(self.a.dtype.bits, self.metadata.dtype.bits)
            if self.operands_swapped or (rows, columns * per) != (m, k):
                said = f"a gemm of {(m, k)} with metadata {self.metadata.extents}"
                raise InternalError(said, self.loc)

    def effects(self) -> Effects:
        engine = self._engine
        c = Region(self.c, (), self.c.buffer.static_shape)
        # By threads, who fence that before the product begins (`lower_gemm`): who has waited for it
        # has that behind him, too.
        described = () if self.metadata is None else (Effect("read", self.metadata, engine),)
        return (
            Effect("read", self.a, engine),
            Effect("read", self.b, engine),
            *described,
            Effect("write" if self.clear else "update", c, engine),
        )

    def evaluate(
        self,
        a: Array,
        b: Array,
        c: Array | None = None,
        accumulate: Array | None = None,
        metadata: Array | None = None,
    ) -> Array:
        a, b = (x.reshape(r.extents[-2:]) for x, r in ((a, self.a), (b, self.b)))
        a, b = a.T if self.transpose_a else a, b.T if self.transpose_b else b
        if metadata is not None and self.metadata is not None:
            words = metadata.reshape(self.metadata.extents[-2:])
            words = words.T if self.transpose_metadata else words
            a = expand(a, semantics.np.ascontiguousarray(words), self.a.dtype.bits)
        if self.allow_tf32:
            rounds = {FLOAT32: semantics.round_tf32}
            a, b = (rounds.get(r.dtype, lambda x: x)(x) for x, r in ((a, self.a), (b, self.b)))
        kept = c if accumulate is None or accumulate else None
        return semantics.product(a, b, kept, self.c.dtype)


REDUCTIONS = ("sum", "prod", "max", "min", "abssum", "absmax", "bitand", "bitor", "bitxor")
COMBINED = {"sum": "add", "prod": "mul", "bitand": "and", "bitor": "or", "bitxor": "xor"}
"""The kind of `Binary` that combines two results of a reduction, where it has another name."""


@op("reduce")
class Reduce(Op):
    """Combine the elements of a region along dimension `dim` into one; `dest` has the other
    dimensions, and may have one of extent 1 in its place. With `clear` its old value does not
    count.

    `kind`: one of `REDUCTIONS`. What is computed in dtype `accumulator` is rounded once, to the
    destination's. A maximum or minimum leaves nans out; with `propagate_nan` it is nan where one
    is.
    Decided by `split_reductions`: `parts`, where other than 1 the destination's leading extent;
    the elements that so many warps hold are combined apart."""

    source: Region
    dest: Region
    dim: int
    kind: str
    clear: bool = True
    propagate_nan: bool = False
    parts: int = 1

    @property
    def combine(self) -> str:
        """The kind of `Binary` that combines two results."""
        kind = self.kind.removeprefix("abs")
        return COMBINED.get(kind, kind)

    @property
    def accumulator(self) -> DType:
        """Sums and products of floats, or into floats: float32 at least. Others: the wider of the
        two dtypes, of four bytes where that is a packed one."""
        s, d = self.source.dtype, self.dest.dtype
        wider = d if d.is_float == s.is_float and d.bits > s.bits else s
        rounds = self.combine in ("add", "mul")
        if d.is_float and rounds:
            wider = wider if wider.is_float else d
        if wider.is_float and (rounds or wider.bits < 8):
            return FLOAT64 if wider == FLOAT64 else FLOAT32
        return INT32 if 1 < wider.bits < 8 else wider

    def verify(self) -> None:
        kept = semantics.np.delete(self.source.extents, self.dim)
        shape = self.dest.extents[1:] if self.parts > 1 else self.dest.extents
        if squeeze(shape) != squeeze(tuple(map(int, kept))):
            boxes = f"{self.source.extents} along {self.dim} into {self.dest.extents}"
            raise InternalError(f"reduce of {boxes}", self.loc)
        if self.kind not in REDUCTIONS:
            raise InternalError(f"reduce by {self.kind!r}", self.loc)

    def effects(self) -> Effects:
        return Effect("read", self.source), Effect("write" if self.clear else "update", self.dest)

    def evaluate(self, source: Array, dest: Array | None = None) -> Array:
        acc = self.accumulator
        x = semantics.cast(source.reshape(self.source.extents), self.source.dtype, acc)
        x = semantics.unary("abs", x, acc) if self.kind.startswith("abs") else x
        found = semantics.reduce(self.combine, x, self.dim, acc, self.propagate_nan)
        if not self.clear and dest is not None:
            old = semantics.cast(dest.reshape(found.shape), self.dest.dtype, acc)
            both = semantics.np.stack([old, found])
            found = semantics.reduce(self.combine, both, 0, acc, self.propagate_nan)
        return semantics.cast(found, acc, self.dest.dtype).reshape(self.dest.extents)


@op("print")
class Print(Op):
    """Debug output: `format` has one `{}` for each value, and braces of the text doubled; one
    thread of a block prints what all of them would (`lower_prints` says which is `once`).
    `buffer`: print a whole on-chip buffer or tensor instead, an element a line, each behind
    `format` and its indices."""

    format: str
    values: tuple[Value, ...] = ()
    buffer: Value | None = None
    once: bool = False

    def pieces(self) -> list[str]:
        """The text before the first value, between the values, and after the last."""
        found = [""]
        for text, hole, _, _ in string.Formatter().parse(self.format):
            found[-1] += text
            if hole is not None:
                found.append("")
        return found

    def effects(self) -> Effects:
        shown = () if self.buffer is None else (read(self.buffer),)
        return (*shown, Effect("output"))


@op("device_assert", effects=OUTPUT)
class DeviceAssert(Op):
    """A check of debugging: where `cond` is false a GPU's thread prints `text` with `block`, its
    block's indices, and traps; the CPU notes `number`, which its launch raises an error for.
    Without `block` it is nothing on a GPU: the simulator looks."""

    cond: Value
    text: str
    number: int
    block: tuple[Value, ...] = ()


@op("assume", effects=DESCRIBE)
class Assume(Op):
    """The author says (in `text`), or where there is none the frontend, that `lhs` is `kind` `rhs`,
    both integers of one dtype: a kind of `compare`, or "multiple", which `rhs`, a Const, divides.
    Under a condition, or in a loop, it says nothing of what is defined outside."""

    lhs: Value
    rhs: Value
    kind: str
    text: str = ""

    def verify(self) -> None:
        if self.kind not in (*COMPARE_KINDS, "multiple") or self.lhs.dtype != self.rhs.dtype:
            raise InternalError(f"assume {self.lhs} {self.kind} {self.rhs}", self.loc)


@op("annotate_layout", describes="dest")
class AnnotateLayout(Op):
    """The user's layout of an on-chip buffer: a `tilec.ir.layout.Layout`, or a `LayoutRequest`
    that each target resolves for itself (e.g. "the swizzle that the matrix instruction reads")."""

    dest: Value
    layout: object


@op("annotate_safe_value", describes="dest")
class AnnotateSafeValue(Op):
    """What reads out of a global tensor's bounds give (a Const of its dtype)."""

    dest: Value
    value: Value


@op("use_swizzle", effects=DESCRIBE)
class UseSwizzle(Op):
    """Visit the grid's blocks in panels `panel_size` wide along `order` ("row" or "column"), for
    the L2 cache."""

    panel_size: int
    order: str = "row"


@op("annotate_schedule", effects=DESCRIBE)
class AnnotateSchedule(Op):
    """What the user fixes of the plan (`tilec.ir.schedule`): pairs of a field and its value."""

    choices: tuple[tuple[str, Any], ...]
