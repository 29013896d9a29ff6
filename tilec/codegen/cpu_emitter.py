"""The state of the CPU emitter, and the ops that are neither loops nor matrix products.

Code is emitted for `lanes` iterations of a parallel loop at once (1 outside of one). A value is
then a scalar if all lanes agree on it, a `Ramp` if it is the loop index plus something they agree
on, else a vector; `mask` holds the lanes that run (None: all of them). Scalar ops simply take the
widest shape of their operands.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tilec.codegen.cpu_access import Index, MemoryEmitter, MemRef, Place, Ramp
from tilec.codegen.cpu_gemm import MicroKernels
from tilec.codegen.cpu_machine import machine_of
from tilec.codegen.cpu_scalars import CpuScalars
from tilec.codegen.emitter import BaseEmitter, directive, print_format
from tilec.codegen.foreign import Foreign, call_foreign
from tilec.codegen.lanes import literal_of, memory_type, register_type, to_memory
from tilec.ir import ops
from tilec.ir.analysis import Facts
from tilec.ir.core import Op, Value
from tilec.ir.errors import CompileError
from tilec.ir.llvm import Function, Val, elem_of, int_val, lanes_of
from tilec.ir.types import BOOL, FLOAT64, INT64, BufferType, DType, Extent
from tilec.target import Target

LINE = 64  # bytes of a cache line, to which buffers and their rows are aligned
STACK_LIMIT = 4096  # a larger buffer lies in the scratch area instead


class Emitter(BaseEmitter):
    """Everything that is known while the body of one kernel is spelled. `varying`: the values that
    differ between lanes; `proved`: by the id of an access, which of its indices need no guard."""

    def __init__(self, fn: Function, target: Target, facts: Facts, grid: tuple[Val, ...]) -> None:
        super().__init__()
        self.target = target
        machine = machine_of(target)
        self.f, self.machine, self.facts, self.grid = fn, machine, facts, grid
        self.scalars = CpuScalars(fn, machine.half, machine.fma)
        self.ranges = self.scalars.ranges
        self.kernels = MicroKernels(machine)
        self.access = MemoryEmitter.begin(fn)
        self.block_index: tuple[Val, ...] = ()
        self.lanes = 1
        self.mask: Val | None = None
        self.varying: set[Value] = set()
        self.proved: dict[int, tuple[bool, ...]] = {}
        self.unit_strides = False
        self.memories: dict[Value, MemRef] = {}
        self.tails: dict[Value, str] = {}
        self.extents: dict[str, Val] = {}
        self.texts: dict[str, str] = {}
        self.asserts = False
        self.scratch = Val("ptr", "%scratch")
        self.scratch_bytes = 0

    def missing(self, o: Op) -> CompileError:
        if isinstance(o, ops.Scope):
            message = "tile words under a condition that parts the threads of a block"
            hint = "move them out of the condition, or compile for a GPU target"
            return CompileError(f"{message} cannot be compiled for the CPU", o.loc, hint)
        return CompileError(
            f"{o.opname} cannot be compiled for the CPU", o.loc, "compile it for a GPU target"
        )

    @contextmanager
    def running(self, mask: Val | None) -> Iterator[None]:
        """Emit with these lanes running."""
        before, self.mask = self.mask, mask
        yield
        self.mask = before

    # --- values ---

    def get(self, v: Value) -> Val:
        """A value on which all lanes agree."""
        got: Index = self.env[v]
        if isinstance(got, Ramp) or lanes_of(got.type) > 1:
            raise CompileError(
                "this must be the same in all iterations of the parallel loop",
                self.f.loc,
                "compute it from values outside of the loop",
            )
        return got

    def is_uniform(self, v: Value) -> bool:
        got = self.env[v]
        return isinstance(got, Val) and lanes_of(got.type) == 1

    def vector(self, v: Value) -> Val:
        return self.access.vector(self.env[v], self.lanes)

    def carried(self, v: Value, target: Value) -> Val:
        got: Index = self.env[v]
        return self.vector(v) if target in self.varying or isinstance(got, Ramp) else got

    def operands(self, *values: Value) -> list[Val]:
        """Scalars if all lanes agree on all of them."""
        form = self.get if all(self.is_uniform(v) for v in values) else self.vector
        return [form(v) for v in values]

    def extent(self, n: Extent) -> Val:
        """A size or stride as i64."""
        return int_val(n, "i64") if isinstance(n, int) else self.extents[n]

    def text(self, value: str) -> Val:
        """A pointer to a zero-terminated string."""
        name = self.texts.setdefault(value, f"@{self.f.name}.text{len(self.texts)}")
        return Val("ptr", name)

    # --- memory ---

    def indices(self, values: Sequence[Value]) -> list[Index]:
        return [self.access.wide(self.env[v], v.dtype.kind == "int") for v in values]

    def _place(self, o: ops.ElementAccess, v: Value) -> tuple[MemRef, Place]:
        """The buffer `v` that `o` accesses, and where."""
        memory = self.memories[v]
        strides = v.buffer.strides or (1,)
        if self.unit_strides and memory.sizes and isinstance(strides[-1], str):
            memory = memory.with_unit_stride()
        proved = self.proved.get(id(o), (False,) * len(o.indices))
        if self.facts.assumed or v.space != "global":
            known = [all(self.facts.inside(*x)) for x in zip(o.indices, v.buffer.shape)]
            proved = tuple(map(operator.or_, proved, known))
        return memory, self.access.place(memory, self.indices(o.indices), self.lanes, proved)

    def emit_alloc(self, o: ops.Alloc) -> None:
        """A buffer on the stack if it is small or each lane's own, else in the scratch area of the
        call.
        """
        t = o.type
        shape = t.static_shape
        strides = row_strides(t)
        count = (shape[0] * strides[0] if shape else 1) * t.stages
        elem = memory_type(t.dtype)
        private = self.lanes > 1
        size = (count * self.lanes * t.dtype.bytes + LINE - 1) // LINE * LINE + LINE
        if private or size <= STACK_LIMIT:
            pointer = self.f.alloca(f"[{size // t.dtype.bytes} x {elem}]", LINE)
        else:
            offset = int_val(self.scratch_bytes, "i64")
            pointer = self.f.gep("i8", self.scratch, offset)
            self.scratch_bytes += size
        self.memories[o.result] = MemRef(
            pointer,
            t.dtype,
            tuple(int_val(s, "i64") for s in strides),
            tuple(int_val(n, "i64") for n in shape),
            tail=self.tails.get(o.result, ""),
            private=private,
        )

    def emit_load(self, o: ops.Load) -> None:
        memory, place = self._place(o, o.source)
        self.env[o.result] = self.access.load(memory, place, self.lanes, self.mask)

    def emit_store(self, o: ops.Store) -> None:
        memory, place = self._place(o, o.dest)
        self.access.store(memory, place, self.env[o.value], self.lanes, self.mask)

    def emit_atomic(self, o: ops.Atomic) -> None:
        memory, place = self._place(o, o.dest)
        dtype, values = memory.dtype, [self.env[o.value]]
        if o.compare is not None:
            values.append(self.env[o.compare])
        narrow = dtype.is_float and dtype.bits < 32 and o.kind != "exchange"

        def change(at: Val, v: Val, *compare: Val) -> Val:
            if compare:
                how = f"monotonic monotonic, align {dtype.bytes}"
                return self.f.compare_exchange(at, compare[0], v, how)
            if narrow:
                return self._swapped(at, dtype, lambda x: self.scalars.binary(o.kind, x, v, dtype))
            text = f"{ops.atomicrmw(o.kind, dtype)} {at}, {v} monotonic, align {dtype.bytes}"
            return self.f.inst("atomicrmw", v.type, (at, v), f"atomicrmw {text}")

        self.env[o.result] = self.access.atomic(
            memory, place, values, change, self.lanes, self.mask
        )

    def _swapped(self, at: Val, dtype: DType, changed: Callable[[Val], Val]) -> Val:
        """What lies in memory as the bits of a narrow float is compared and swapped until nobody
        came between."""
        f, kind = self.f, memory_type(dtype)
        first = f.load(kind, at, dtype.bytes, words="volatile ")
        (old,) = f.loop_header("swap", [first])
        again, done = f.block.label, f.label("swapped")
        new = changed(old.result)
        text = f"cmpxchg {at}, {old.result}, {new} monotonic monotonic, align {dtype.bytes}"
        pair = f.inst("cmpxchg", f"{{ {kind}, i1 }}", (at, old.result, new), text)
        held, ok = f.extract_value(pair, 0, kind), f.extract_value(pair, 1, "i1")
        old.incoming.append((held, f.block.label))
        f.cbr(ok, done, again, done)
        f.start(done)
        return old.result

    def emit_pause(self, o: ops.Pause) -> None:
        self.f.call("i32", "sched_yield")

    def emit_device_fence(self, o: ops.DeviceFence) -> None:
        self.f.act("fence", (), "fence acq_rel")

    def emit_annotate_safe_value(self, o: ops.AnnotateSafeValue) -> None:
        memory = self.memories[o.dest]
        assert memory.safe is not None
        value = to_memory(self.f, self.get(o.value), memory.dtype)
        self.f.store(value, memory.safe, memory.dtype.bytes)

    # --- scalars ---

    def emit_binary(self, o: ops.Binary) -> None:
        ramp = self._ramp(o)
        if ramp is not None:
            self.env[o.result] = ramp
            return
        super().emit_binary(o)

    def _ramp(self, o: ops.Binary) -> Ramp | None:
        """Sums of a ramp and what lanes agree on, and multiples of it, are ramps."""
        a, b = self.env[o.lhs], self.env[o.rhs]
        if isinstance(b, Ramp) and o.kind in ("add", "mul"):
            a, b = b, a
        if not isinstance(a, Ramp) or isinstance(b, Ramp) or lanes_of(b.type) > 1:
            return None
        if o.kind in ("add", "sub"):
            return Ramp(self.f.binary(o.kind, a.base, b), a.step)
        by = literal_of(b)
        if o.kind == "mul" and by is not None:
            return Ramp(self.f.mul(a.base, b), a.step * by)
        return None

    def emit_cast(self, o: ops.Cast) -> None:
        x, source, dest = self.env[o.operand], o.operand.dtype, o.dtype
        if isinstance(x, Ramp) and dest.is_int and dest.bits >= 32 and source.kind == "int":
            self.env[o.result] = Ramp(self.scalars.cast(x.base, source, dest), x.step)
            return
        super().emit_cast(o)

    def emit_block_index(self, o: ops.BlockIndex) -> None:
        self.env[o.result] = self.block_index[o.dim]

    def emit_grid_size(self, o: ops.GridSize) -> None:
        self.env[o.result] = self.grid[o.dim]

    def emit_foreign(self, o: Foreign) -> None:
        """What LLVM is given as the user wrote it, once for each lane."""
        types = [register_type(t) for t in o.types]
        args = self.operands(*o.args)
        lanes = max((lanes_of(x.type) for x in args), default=1)
        columns = [self.f.unpack(x, lanes, elem_of(x.type)) if lanes > 1 else [x] for x in args]
        made = [
            call_foreign(self.f, o, self.target, one, types)
            for one in (zip(*columns) if args else [()])
        ]
        for n, r in enumerate(o.results):
            self.env[r] = self.f.pack([m[n] for m in made]) if lanes > 1 else made[0][n]

    emit_asm = emit_asm_effect = emit_extern = emit_extern_effect = emit_foreign

    # --- tiles ---

    def emit_gemm(self, o: ops.Gemm) -> None:
        a, b, c = (self.memories[v] for v in (o.a.buffer, o.b.buffer, o.c))
        starts = []
        for memory, at in ((a, o.a.offsets), (b, o.b.offsets)):
            place = self.access.place(memory, self.indices(at), 1, (True,) * len(at))
            starts.append(self.f.gep(memory_type(memory.dtype), memory.pointer, place.base))
        strides = [int(s.literal or 0) for m in (a, b, c) for s in m.strides[-2:]]
        self.kernels.call(self.f, o, (*starts, c.pointer), strides)

    # --- what is said to the user ---

    def emit_print(self, o: ops.Print) -> None:
        """One call of the C library's `printf` for a line, so that lines of different threads do
        not mix."""
        words = ["%s" if v.dtype == BOOL else directive(v.dtype) for v in o.values]
        given = [self.text(print_format(o, words)), *map(self._promoted, o.values)]
        self.f.declarations["printf"] = "declare i32 @printf(ptr, ...)"
        self.f.declarations["fflush"] = "declare i32 @fflush(ptr)"
        line = f"call i32 (ptr, ...) @printf({', '.join(map(str, given))})"
        self.f.act("call", tuple(given), line)
        self.f.act("call", (), "call i32 @fflush(ptr null)")

    def emit_device_assert(self, o: ops.DeviceAssert) -> None:
        """What fails is a number in the module, for the launch to read. One is as good as another:
        threads and blocks may overwrite each other's."""
        f = self.f
        failed, passed = f.label("failed"), f.label("passed")
        f.cbr(self.get(o.cond), passed, failed, passed)
        f.start(failed)
        at = Val("ptr", f"@{f.name}.failed")
        text = f"store atomic i32 {o.number}, {at} monotonic, align 4"
        f.act("store", (int_val(o.number), at), text)
        f.br(passed)
        f.start(passed)
        self.asserts = True

    def _promoted(self, v: Value) -> Val:
        """As C passes it to a function with variable arguments."""
        x = self.get(v)
        if v.dtype == BOOL:
            return self.f.select(x, self.text("True"), self.text("False"))
        return self.scalars.cast(x, v.dtype, FLOAT64 if v.dtype.is_float else INT64)

    def _emit_nothing(self, o: Op) -> None:
        """A wish about a GPU's memory, or a wait for threads that have all come already."""

    emit_annotate_layout = emit_use_swizzle = emit_assume = _emit_nothing
    emit_barrier = emit_warp_sync = _emit_nothing


def row_strides(t: BufferType) -> tuple[int, ...]:
    """Strides, in elements, of an on-chip buffer. Rows of matrices are padded to whole vectors, so
    that a vector at a row's end stays inside the buffer.
    """
    shape = t.static_shape
    if not shape:
        return ()
    row = shape[-1]
    if len(shape) > 1:
        unit = min(LINE // t.dtype.bytes, 1 << max(row - 1, 0).bit_length())
        row = -(-row // unit) * unit
    strides = [1]
    for extent in (row, *reversed(shape[1:-1])):
        strides.insert(0, strides[0] * extent)
    return tuple(strides[-len(shape) :])
