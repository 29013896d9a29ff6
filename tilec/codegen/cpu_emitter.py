"""The state of the CPU emitter, and the ops that are neither loops nor matrix products.

Code is emitted for `lanes` iterations of a parallel loop at once (1 outside of one). A value is
then a scalar if all lanes agree on it, a `Ramp` if it is the loop index plus something they agree
on, else a vector; `mask` holds the lanes that run (None: all of them). Scalar ops simply take the
widest shape of their operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tilec.codegen.cpu_access import Access, Index, Memory, Ramp, memory_type_bytes
from tilec.codegen.cpu_gemm import MicroKernels
from tilec.codegen.cpu_machine import Machine
from tilec.codegen.cpu_scalars import CpuScalars
from tilec.codegen.lanes import lanes_of, literal_of, memory_type, register_type, shaped
from tilec.ir.analysis import Facts
from tilec.ir.core import Block, Op, Value
from tilec.ir.errors import CompileError
from tilec.ir.llvm import Function, Phi, Val, int_val
from tilec.ir.ops import (
    Alloc,
    AnnotateLayout,
    AnnotateSafeValue,
    Barrier,
    Binary,
    Bitcast,
    BlockIndex,
    Cast,
    Compare,
    Const,
    Fma,
    Gemm,
    GridSize,
    Load,
    Select,
    Store,
    Unary,
    UseSwizzle,
    WarpSync,
    Yield,
)
from tilec.ir.types import BufferType, Extent

LINE = 64  # bytes of a cache line, to which buffers and their rows are aligned
STACK_LIMIT = 4096  # a larger buffer lies in the scratch area instead


Handlers = dict[type[Op], Callable[["Emitter", Any], None]]


@dataclass
class Emitter:
    """Everything that is known while the body of one kernel is spelled."""

    fn: Function
    machine: Machine
    facts: Facts
    grid: tuple[Val, ...]
    kernels: MicroKernels
    handlers: Handlers
    block_index: tuple[Val, ...] = ()
    lanes: int = 1
    mask: Val | None = None
    varying: set[Value] = field(default_factory=set)
    proved: dict[int, tuple[bool, ...]] = field(default_factory=dict)
    unit_strides: bool = False
    env: dict[Value, Index] = field(default_factory=dict)
    memories: dict[Value, Memory] = field(default_factory=dict)
    tails: dict[Value, str] = field(default_factory=dict)
    extents: dict[str, Val] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    scratch_bytes: int = 0

    def __post_init__(self) -> None:
        self.scalars = CpuScalars(self.fn, self.machine.half, self.machine.fma)
        self.access = Access.begin(self.fn)
        self.scratch = Val("ptr", "%scratch")

    # --- walking ---

    def block(self, block: Block) -> tuple[Index, ...]:
        """Emit a region; the values its Yield hands over."""
        for o in block.ops:
            if isinstance(o, Yield):
                return tuple(self.env[v] for v in o.values)
            handler = self.handlers.get(type(o))
            if handler is None:
                raise CompileError(
                    f"{o.opname} cannot be compiled for the CPU",
                    o.loc,
                    "compile it for a GPU target",
                )
            self.fn.loc = o.loc
            handler(self, o)
        return ()

    @contextmanager
    def running(self, mask: Val | None) -> Iterator[None]:
        """Emit with these lanes running."""
        before, self.mask = self.mask, mask
        yield
        self.mask = before

    # --- values ---

    def scalar(self, v: Value) -> Val:
        """A value on which all lanes agree."""
        got = self.env[v]
        if isinstance(got, Ramp) or lanes_of(got.type) > 1:
            raise CompileError(
                "this must be the same in all iterations of the parallel loop",
                self.fn.loc,
                "compute it from values outside of the loop",
            )
        return got

    def is_uniform(self, v: Value) -> bool:
        got = self.env[v]
        return isinstance(got, Val) and lanes_of(got.type) == 1

    def vector(self, v: Value) -> Val:
        return self.access.vector(self.env[v], self.lanes)

    def shaped_as(self, value: Index, target: Value) -> Val:
        """`value` in the shape that block argument or result `target` has."""
        if target in self.varying or isinstance(value, Ramp):
            return self.access.vector(value, self.lanes)
        return value

    def phis(self, targets: Sequence[Value]) -> list[Phi]:
        """A phi for each carried value, bound to it."""
        made = []
        for v in targets:
            lanes = self.lanes if v in self.varying else 1
            phi = self.fn.phi(shaped(register_type(v.dtype), lanes))
            self.env[v] = phi.result
            made.append(phi)
        return made

    def operands(self, *values: Value) -> list[Val]:
        """Register forms of one shape: scalars if all lanes agree on all of them."""
        if all(self.is_uniform(v) for v in values):
            return [self.scalar(v) for v in values]
        return [self.vector(v) for v in values]

    def extent(self, n: Extent) -> Val:
        """A size or stride as i64."""
        return int_val(n, "i64") if isinstance(n, int) else self.extents[n]

    def text(self, value: str) -> Val:
        """A pointer to a zero-terminated string."""
        name = self.texts.setdefault(value, f"@{self.fn.name}.text{len(self.texts)}")
        return Val("ptr", name)

    def repeat(self, count: Val, body: Callable[[Val], Any]) -> None:
        """`body` for the i64 numbers 0, 1, … below `count`."""
        fn = self.fn
        head, inner, done = fn.label("repeat"), fn.label("do"), fn.label("endrepeat")
        before = fn.block.label
        fn.br(head)
        fn.start(head)
        index = fn.phi("i64")
        fn.cbr(fn.icmp("slt", index.result, count), inner, done, done)
        fn.start(inner)
        body(index.result)
        after = fn.add(index.result, int_val(1, "i64"))
        fn.br(head, loop="keep")
        index.incoming = [(int_val(0, "i64"), before), (after, fn.block.label)]
        fn.start(done)

    # --- memory ---

    def indices(self, values: Sequence[Value]) -> list[Index]:
        return [self.access.wide(self.env[v], v.dtype.kind == "int") for v in values]

    def memory(self, v: Value) -> Memory:
        found = self.memories[v]
        if self.unit_strides and found.sizes and isinstance((v.buffer.strides or (1,))[-1], str):
            return found.with_unit_stride()
        return found

    def allocate(self, o: Alloc) -> None:
        """A buffer on the stack if it is small or each lane's own, else in the scratch area of the
        call.
        """
        t = o.type
        shape = t.static_shape
        strides = row_strides(t)
        count = (shape[0] * strides[0] if shape else 1) * t.versions
        elem = memory_type(t.dtype)
        private = self.lanes > 1
        size = (count * self.lanes * memory_type_bytes(t.dtype) + LINE - 1) // LINE * LINE + LINE
        if private or size <= STACK_LIMIT:
            pointer = self.fn.alloca(f"[{size // memory_type_bytes(t.dtype)} x {elem}]", LINE)
        else:
            offset = int_val(self.scratch_bytes, "i64")
            pointer = self.fn.gep("i8", self.scratch, offset)
            self.scratch_bytes += size
        self.memories[o.result] = Memory(
            pointer,
            t.dtype,
            tuple(int_val(s, "i64") for s in strides),
            tail=self.tails.get(o.result, ""),
            private=private,
        )


def row_strides(t: BufferType) -> tuple[int, ...]:
    """Strides, in elements, of an on-chip buffer. Rows of matrices are padded to whole vectors, so
    that a vector at a row's end stays inside the buffer.
    """
    shape = t.static_shape
    if not shape:
        return ()
    row = shape[-1]
    if len(shape) > 1:
        unit = min(LINE // memory_type_bytes(t.dtype), 1 << max(row - 1, 0).bit_length())
        row = -(-row // unit) * unit
    strides = [1]
    for extent in (row, *reversed(shape[1:-1])):
        strides.insert(0, strides[0] * extent)
    return tuple(strides[-len(shape) :])


# --- ops ----------------------------------------------------------------------------------------


def emit_const(e: Emitter, o: Const) -> None:
    e.env[o.result] = e.scalars.literal(o.value, o.dtype)


def emit_binary(e: Emitter, o: Binary) -> None:
    ramp = _ramp(e, o)
    if ramp is not None:
        e.env[o.result] = ramp
        return
    a, b = e.operands(o.lhs, o.rhs)
    e.env[o.result] = e.scalars.binary(o.kind, a, b, o.lhs.dtype)


def _ramp(e: Emitter, o: Binary) -> Ramp | None:
    """Sums of a ramp and what lanes agree on, and multiples of it, are ramps."""
    a, b = e.env[o.lhs], e.env[o.rhs]
    if isinstance(b, Ramp) and o.kind in ("add", "mul"):
        a, b = b, a
    if not isinstance(a, Ramp) or isinstance(b, Ramp) or lanes_of(b.type) > 1:
        return None
    if o.kind in ("add", "sub"):
        return Ramp(e.fn.binary(o.kind, a.base, b), a.step)
    by = literal_of(b)
    if o.kind == "mul" and by is not None:
        return Ramp(e.fn.mul(a.base, b), a.step * by)
    return None


def emit_unary(e: Emitter, o: Unary) -> None:
    (x,) = e.operands(o.operand)
    e.env[o.result] = e.scalars.unary(o.kind, x, o.operand.dtype)


def emit_fma(e: Emitter, o: Fma) -> None:
    a, b, c = e.operands(o.a, o.b, o.c)
    e.env[o.result] = e.scalars.fma(a, b, c, o.a.dtype)


def emit_compare(e: Emitter, o: Compare) -> None:
    a, b = e.operands(o.lhs, o.rhs)
    e.env[o.result] = e.scalars.compare(o.kind, a, b, o.lhs.dtype)


def emit_select(e: Emitter, o: Select) -> None:
    cond, a, b = e.operands(o.cond, o.on_true, o.on_false)
    e.env[o.result] = e.scalars.select(cond, a, b)


def emit_cast(e: Emitter, o: Cast) -> None:
    x, source, dest = e.env[o.operand], o.operand.dtype, o.dtype
    if isinstance(x, Ramp) and dest.is_int and dest.bits >= 32 and source.kind == "int":
        base = e.scalars.cast(x.base, source, dest)
        e.env[o.result] = Ramp(base, x.step)
        return
    (v,) = e.operands(o.operand)
    e.env[o.result] = e.scalars.cast(v, source, dest)


def emit_bitcast(e: Emitter, o: Bitcast) -> None:
    (x,) = e.operands(o.operand)
    e.env[o.result] = e.scalars.bitcast(x, o.operand.dtype, o.dtype)


def emit_block_index(e: Emitter, o: BlockIndex) -> None:
    e.env[o.result] = e.block_index[o.dim]


def emit_grid_size(e: Emitter, o: GridSize) -> None:
    e.env[o.result] = e.grid[o.dim]


def emit_alloc(e: Emitter, o: Alloc) -> None:
    e.allocate(o)


def emit_load(e: Emitter, o: Load) -> None:
    memory = e.memory(o.source)
    place = e.access.place(memory, e.indices(o.indices), e.lanes, _proved(e, o, o.indices))
    e.env[o.result] = e.access.load(memory, place, e.lanes, e.mask)


def emit_store(e: Emitter, o: Store) -> None:
    memory = e.memory(o.dest)
    place = e.access.place(memory, e.indices(o.indices), e.lanes, _proved(e, o, o.indices))
    e.access.store(memory, place, e.env[o.value], e.lanes, e.mask)


def _proved(e: Emitter, o: Op, indices: Sequence[Value]) -> tuple[bool, ...]:
    return e.proved.get(id(o), (False,) * len(indices))


def emit_safe_value(e: Emitter, o: AnnotateSafeValue) -> None:
    memory = e.memories[o.dest]
    assert memory.safe is not None
    value = e.scalar(o.value)
    if value.type == "i1":
        value = e.fn.cast("zext", value, "i8")
    e.fn.store(value, memory.safe, memory_type_bytes(memory.dtype))


def emit_gemm(e: Emitter, o: Gemm) -> None:
    a, b, c = (e.memories[v] for v in (o.a.buffer, o.b.buffer, o.c))
    starts = []
    for memory, at in ((a, o.a.offsets), (b, o.b.offsets)):
        place = e.access.place(memory, e.indices(at), 1, (True,) * len(at))
        starts.append(e.fn.gep(memory_type(memory.dtype), memory.pointer, place.base))
    strides = [int(s.literal or 0) for m in (a, b, c) for s in m.strides[-2:]]
    e.kernels.call(e.fn, o, (*starts, c.pointer), strides)


def emit_nothing(e: Emitter, o: Op) -> None:
    """A wish about a GPU's memory, or a wait for threads that have all come already."""


HANDLERS: Handlers = {
    Const: emit_const,
    Binary: emit_binary,
    Unary: emit_unary,
    Fma: emit_fma,
    Compare: emit_compare,
    Select: emit_select,
    Cast: emit_cast,
    Bitcast: emit_bitcast,
    BlockIndex: emit_block_index,
    GridSize: emit_grid_size,
    Alloc: emit_alloc,
    Load: emit_load,
    Store: emit_store,
    AnnotateSafeValue: emit_safe_value,
    AnnotateLayout: emit_nothing,
    Barrier: emit_nothing,
    WarpSync: emit_nothing,
    UseSwizzle: emit_nothing,
    Gemm: emit_gemm,
}
