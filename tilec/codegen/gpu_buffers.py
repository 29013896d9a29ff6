"""Buffers of a GPU kernel: registers, shared and global memory, and every access to them.

A fragment is one stack slot per pack of its registers (a local buffer: per element), never an
array, so that LLVM turns every slot into values; `registers.plan_registers` says which are arrays
nevertheless. A place in shared memory is a number of bytes from its start: what is known only at
run time and what is a number are kept apart, so that the number becomes the instruction's own
offset.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tilec.codegen.casts import memory_type, register_type
from tilec.codegen.emitter import BaseEmitter
from tilec.codegen.lanes import from_memory, to_memory
from tilec.codegen.registers import RegisterPlan
from tilec.ir import ops
from tilec.ir.core import Func, Op, Value, walk, within
from tilec.ir.errors import CompileError, InternalError
from tilec.ir.llvm import Val, int_val, shaped
from tilec.ir.types import INT32, BufferType, DType, TensorMapType
from tilec.target import Target

INVARIANT = ", !invariant.load !2"
STREAMED = ", !nontemporal !3"
GUARDED = "guarded load"
COMPUTED = (ops.Cast, ops.Unary, ops.Binary, ops.Fma)
LEAST_TOGETHER = 2  # loads on conditions in a block
_TOUCHED = ("dest", "source", "a", "b", "barrier")
SHARED = Val("ptr addrspace(3)", "@smem")
_touching: dict[type[Op], tuple[str, ...]] = {}  # which of these words its operands have


@dataclass(frozen=True, slots=True)
class Registers:
    """Where a fragment or local buffer is: `slots` of `pack` elements each, or one array."""

    dtype: DType
    slots: tuple[Val, ...]
    pack: int
    is_array: bool

    @property
    def slot_type(self) -> str:
        return shaped(register_type(self.dtype), self.pack)

    @property
    def align(self) -> int:
        return max(1, self.dtype.bits // 8)


def zero_of(kind: str) -> Val:
    return int_val(0, kind) if kind.startswith("i") else Val(kind, "zeroinitializer")


class Buffers(BaseEmitter):
    """The half of the emitter that knows memory. `env` has the scalars (and vectors) printed so
    far."""

    device_scope: str  # of LLVM's atomics: what all threads of the device see
    func: Func
    target: Target
    plan: RegisterPlan
    mutable: set[Value]
    unrolling = False  # the iterations of a loop are printed, one behind the other

    def __init__(self) -> None:
        super().__init__()
        self.registers: dict[Value, Registers] = {}
        self.shared: dict[Value, tuple[Val, int]] = {}
        self.names: dict[Op, str] = {}  # of what an op touches
        self.roots: dict[Value, Value] = {}  # the buffer of which a value is one stage

    # --- allocation ---

    def emit_alloc(self, o: ops.Alloc) -> None:
        t = o.type
        if t.space in ("shared", "barrier"):
            if o.address < 0:
                raise InternalError(f"{o.result.name} has no address in shared memory", o.loc)
            self.shared[o.result] = (int_val(0), o.address)
            return
        count = t.laid_out.size("reg") if t.space == "fragment" else t.size
        is_array = o.result in self.plan.arrays
        pack = 1 if is_array else o.packed
        if count % pack:
            raise InternalError(f"{count} registers in packs of {pack}", o.loc)
        empty = Registers(t.dtype, (), pack, is_array)
        kind = f"[{count} x {empty.slot_type}]" if is_array else empty.slot_type
        number = 1 if is_array else count // pack
        slots = tuple(self.f.alloca(kind, empty.align) for _ in range(number))
        self.registers[o.result] = Registers(t.dtype, slots, pack, is_array)

    def emit_ring_stage(self, o: ops.RingStage) -> None:
        moved, fixed = self.shared[o.root]
        self.roots[o.result] = o.root
        slot = self.get(o.stage)
        step = int_val(o.root.buffer.stage_bytes)
        more = self.scalars.binary("mul", slot, step, INT32)
        if more.literal is not None:
            self.shared[o.result] = (moved, fixed + more.literal)
        else:
            self.shared[o.result] = (self.scalars.binary("add", moved, more, INT32), fixed)

    def touched(self, o: Op) -> str:
        """The names of what an op touches in shared memory, or else of the tensor."""
        found = self.names.get(o)
        if found is None:  # an unrolled loop asks again for each iteration
            found = self.names[o] = self._touched(o)
        return found

    def _touched(self, o: Op) -> str:
        words = _touching.get(type(o))
        if words is None:
            words = tuple(word for word in _TOUCHED if word in o.operand_fields)
            _touching[type(o)] = words
        values = [getattr(o, word) for word in words]
        buffers = [v for v in values if isinstance(v, Value) and isinstance(v.type, BufferType)]
        for spaces in (("shared",), ("barrier",), ("global",)):
            names = [self.roots.get(v, v).name for v in buffers if v.space in spaces]
            if names:
                return ", ".join(dict.fromkeys(names))
        return ""

    # --- registers ---

    def register_slot(self, v: Value, index: Val) -> tuple[Val, int]:
        """(slot, element within its pack) of a register counted in elements."""
        r, i = self.registers[v], index.literal
        if r.is_array:
            return self.f.gep(r.slot_type, r.slots[0], index), 0
        if i is None or not 0 <= i // r.pack < len(r.slots):
            raise InternalError(f"register {index.ref} of {v.name}: {v.type}", self.f.loc)
        return r.slots[i // r.pack], i % r.pack

    def read_register(self, v: Value, index: Val) -> Val:
        r = self.registers[v]
        slot, e = self.register_slot(v, index)
        got = self.f.load(r.slot_type, slot, r.align)
        return got if r.pack == 1 else self.f.extract_element(got, e, register_type(r.dtype))

    def write_register(self, v: Value, index: Val, value: Val) -> None:
        r = self.registers[v]
        slot, e = self.register_slot(v, index)
        if r.pack > 1:
            value = self.f.insert_element(self.f.load(r.slot_type, slot, r.align), value, e)
        self.f.store(value, slot, r.align)

    def pack_slots(self, v: Value, register: Value, count: int, pack: int) -> tuple[Val, ...]:
        """`count` slots from pack number `register` on: the operand of a matrix instruction that
        takes `pack` elements in each."""
        r, first = self.registers[v], self.get(register).literal
        if r.is_array or first is None:
            raise CompileError(
                f"{v.name} ({v.type}) feeds a matrix instruction with an index known at run time",
                self.f.loc,
                "index it in a loop with compile-time bounds",
            )
        found = r.slots[first : first + count]
        if r.pack != pack or len(found) != count:
            raise InternalError(
                f"{v.name}: {len(r.slots)} packs of {r.pack}, wanted {count} of {pack} at {first}",
                self.f.loc,
            )
        return found

    def read_packs(self, v: Value, slots: Sequence[Val], kinds: Sequence[str]) -> list[Val]:
        """The packs in `slots` as values of the LLVM types `kinds` of equal width."""
        r = self.registers[v]
        return [
            self.f.cast("bitcast", self.f.load(r.slot_type, s, r.align), k)
            for s, k in zip(slots, kinds)
        ]

    def write_packs(self, v: Value, slots: Sequence[Val], values: Sequence[Val]) -> None:
        r = self.registers[v]
        for s, x in zip(slots, values):
            self.f.store(self.f.cast("bitcast", x, r.slot_type), s, r.align)

    def emit_reg_read(self, o: ops.RegRead) -> None:
        self.env[o.result] = self.read_register(o.fragment, self.get(o.index))

    def emit_reg_write(self, o: ops.RegWrite) -> None:
        self.write_register(o.fragment, self.get(o.index), self.get(o.value))

    def emit_load(self, o: ops.Load) -> None:
        self.env[o.result] = self.read_register(o.source, self._flat(o.source, o.indices))

    def emit_store(self, o: ops.Store) -> None:
        self.write_register(o.dest, self._flat(o.dest, o.indices), self.get(o.value))

    def emit_check_index(self, o: ops.CheckIndex) -> None:
        self._check(o.buffer, o.indices)

    def _check(self, v: Value, indices: Sequence[Value]) -> None:
        """A record that only the simulator reads: to LLVM it is a comment."""
        found = [self.scalars.cast(self.get(i), i.dtype, INT32) for i in indices]
        extents = v.buffer.static_shape
        if all(i.literal is not None and 0 <= i.literal < n for i, n in zip(found, extents)):
            return
        touched, self.f.buffer = self.f.buffer, self.roots.get(v, v).name
        self.f.act("check_index", tuple(found), f"; within {' x '.join(map(str, extents))}")
        self.f.buffer = touched

    def _flat(self, v: Value, indices: Sequence[Value]) -> Val:
        """The linear index into a local buffer."""
        if v not in self.registers:
            raise InternalError(f"an element access to {v.type}", self.f.loc)
        if len(indices) > 1:  # a single one the array's own size keeps
            self._check(v, indices)
        total = int_val(0)
        for extent, index in zip(v.buffer.static_shape, indices):
            i = self.scalars.cast(self.get(index), index.dtype, INT32)
            total = self.scalars.binary("mul", total, extent, INT32)
            total = self.scalars.binary("add", total, i, INT32)
        return total

    # --- addresses ---

    def _bytes(self, v: Value, offset: Val) -> tuple[Val, int]:
        """Where element `offset` of a shared buffer (slot `offset` of a barrier) is, in bytes from
        the start of shared memory: a run-time part and a number."""
        moved, fixed = self.shared[v]
        size = v.dtype.bits // 8
        if offset.literal is not None:
            return moved, fixed + offset.literal * size
        base, more = self.scalars.split_sum(offset)
        scaled = self.scalars.binary("mul", base, size, INT32)
        total = self.scalars.binary("add", scaled, moved, INT32)
        base, extra = self.scalars.split_sum(total)
        return base, fixed + more * size + extra

    def shared_address(self, v: Value, offset: Val) -> Val:
        """The address (i32) of an element of a shared buffer or a slot of a barrier."""
        moved, fixed = self._bytes(v, offset)
        start = self.f.cast("ptrtoint", SHARED, "i32")
        return self.f.add(self.f.add(start, moved), fixed)

    def pointer(self, v: Value, offset: Val) -> Val:
        """A pointer to an element of a global tensor or a shared buffer."""
        f = self.f
        if v.space == "global":
            base, more = self.scalars.split_sum(offset)
            elem = memory_type(v.dtype)
            if more < 0:
                return f.gep(elem, self.get(v), offset)
            return f.gep(elem, f.gep(elem, self.get(v), base), int_val(more, offset.type))
        moved, fixed = self._bytes(v, offset)
        if fixed < 0:
            moved, fixed = f.add(moved, fixed), 0
        return f.gep("i8", f.gep("i8", SHARED, moved), int_val(fixed))

    # --- loads and stores ---

    def is_constant(self, v: Value) -> bool:
        """Whether nothing changes the tensor while the kernel runs."""
        return v.space == "global" and v not in self.mutable

    def mutable_tensors(self) -> set[Value]:
        """The tensors that may change while the kernel runs."""
        stored: set[object] = set()
        mapped: set[str] = set()
        for o in walk(self.func.body):
            stored.add(getattr(o, "dest", None))
            if isinstance(o, ops.TmaStore) and isinstance(o.map.type, TensorMapType):
                mapped.add(o.map.type.tensor)
        params = self.func.params
        tensors = [p for p in params if isinstance(p.value.type, BufferType)]
        found = {p.value for p in tensors if p.value in stored or p.arg in mapped}
        return {p.value for p in tensors} if found and self.func.attrs.get("may_alias") else found

    def emit_mem_load(self, o: ops.MemLoad) -> None:
        f, dtype = self.f, o.source.dtype
        kind = shaped(memory_type(dtype), o.lanes)
        if o.words:
            kind = f"<{o.lanes * dtype.bits // 32} x i32>"
        constant = self.is_constant(o.source)
        tail = INVARIANT if constant else ""
        if o.cache == "evict_first":
            tail += STREAMED
        at, guard = self.pointer(o.source, self.get(o.offset)), self.guard(o.guard)
        align = self._align(o.align, dtype)

        size = o.lanes * dtype.bits // 8
        plain = constant and guard.literal is None and o.other is None

        def made() -> Val:
            if plain and align >= size and o.result in self._asked_together:
                found = self.load_if(size, at, guard)
                if found is not None:
                    return found if found.type == kind else f.cast("bitcast", found, kind)
            other = functools.partial(self._other, o, kind)
            return self.value_if(guard, lambda: f.load(kind, at, align, tail=tail), other, "load")

        # What is behind a branch LLVM loads for each element again.
        shared = plain and self.unrolling
        name = f"{GUARDED} {kind} {at.ref} {guard.ref} {align}{tail}"
        got = f.once(name, made) if shared else made()
        self.env[o.result] = from_memory(f, got, dtype)

    def emit_misaligned(self, o: ops.Misaligned) -> None:
        f, size = self.f, o.source.dtype.bits // 8
        start = f.cast("trunc", f.cast("ptrtoint", self.get(o.source), "i64"), "i32")
        moved = f.mul(f.cast("trunc", self.get(o.offset), "i32"), size)
        past = f.binary("and", f.add(start, moved), 15)
        skip = f.binary("lshr", past, size.bit_length() - 1)
        self.env[o.result] = self.ranges.set(skip, 0, 15 // size)

    def emit_realign(self, o: ops.Realign) -> None:
        """Whole words are selected, a half of them at a time; a funnel shift does the rest."""
        f, size = self.f, o.dtype.bits // 8
        skip = f.mul(self.get(o.skip), size)
        words = f.unpack(self.get(o.words), 8, "i32")
        for step in (2, 1):
            moved = f.icmp("ne", f.binary("and", skip, 4 * step), 0)
            words = [f.select(moved, b, a) for a, b in zip(words, words[step:])]
        bits = f.mul(f.binary("and", skip, 3), 8)
        found = [
            f.intrinsic("i32", "llvm.fshr.i32", (high, low, bits))
            for low, high in zip(words, words[1:])
        ]
        if o.valid is not None:
            end = f.mul(self.get(o.valid), 8 * size)
            masks = [self._first_bits(f.add(end, -32 * i)) for i in range(len(found))]
            found = [f.binary("and", w, m) for w, m in zip(found, masks)]
        lanes = 128 // o.dtype.bits
        kind = f"<{lanes} x {memory_type(o.dtype)}>"
        self.env[o.result] = f.cast("bitcast", f.pack(found), kind)

    def _first_bits(self, count: Val) -> Val:
        """A word whose first `count` bits are ones; all of them from 32 on, none below 1."""
        f, zero, ones = self.f, int_val(0), int_val(-1)
        rest = f.binary("and", f.binary("sub", zero, count), 31)
        some = f.select(f.icmp("sgt", count, zero), f.binary("lshr", ones, rest), zero)
        return f.select(f.icmp("sge", count, 32), ones, some)

    def emit_mem_store(self, o: ops.MemStore) -> None:
        dtype = o.dest.dtype
        value = to_memory(self.f, self.get(o.value), dtype)
        at = self.pointer(o.dest, self.get(o.offset))
        tail = STREAMED if o.cache == "evict_first" else ""
        self.only_if(
            self.guard(o.guard),
            lambda: self.f.store(value, at, self._align(o.align, dtype), tail=tail),
            "store",
        )

    def atomic_offset(self, o: ops.MemAtomic) -> Val:
        """Elements from the buffer's start to what is updated."""
        return self.get(o.offset)

    def emit_mem_atomic(self, o: ops.MemAtomic) -> None:
        """LLVM makes a loop of compare-and-swap of what the machine has not."""
        f, dtype = self.f, o.dest.dtype
        value = to_memory(f, self.get(o.value), dtype)
        at = self.pointer(o.dest, self.atomic_offset(o))
        guard = self.guard(o.guard)
        compare = None if o.compare is None else to_memory(f, self.get(o.compare), dtype)
        scope, align = f'syncscope("{self.device_scope}")', f"align {dtype.bits // 8}"

        def done() -> Val:
            if compare is None:
                kind = ops.atomicrmw(o.kind, dtype)
                text = f"atomicrmw {kind} {at}, {value} {scope} monotonic, {align}"
                return f.inst("atomicrmw", value.type, (at, value), text)
            return f.compare_exchange(at, compare, value, f"{scope} monotonic monotonic, {align}")

        got = self.value_if(guard, done, lambda: zero_of(value.type), "atomic")
        self.env[o.result] = from_memory(f, got, dtype)

    @staticmethod
    def _align(known: int, dtype: DType) -> int:
        """Elements are aligned to themselves in every buffer."""
        return max(known, dtype.bits // 8)

    def load_if(self, size: int, at: Val, guard: Val) -> Val | None:
        """The bytes at a place of global memory that nothing changes, where `guard` holds, else
        zeros, by one instruction without a branch; None where there is none."""
        return None

    @functools.cached_property
    def _asked_together(self) -> set[Value]:
        """What is loaded on a condition and computed with at once, several times in straight-line
        code. LLVM takes that computation to the branch of its load, where the assembler lets it
        wait for this load before it asks for the next one."""
        users = self.func.body.users
        found: set[Value] = set()
        beside: dict[Op | None, list[Value]] = {}
        for o, around in within(self.func.body):
            if isinstance(o, ops.MemLoad) and o.guard is not None:
                written_out = any(x in self.plan.unrolled for x in around)
                kinds = (*COMPUTED, ops.Extract) if written_out else COMPUTED
                dtype = o.source.dtype
                if not any(isinstance(x, kinds) for x in users.get(o.result, ())):
                    continue
                if written_out:
                    found.add(o.result)
                elif dtype.is_float or dtype.bits < 32:  # others are places, mostly
                    beside.setdefault(around[-1] if around else None, []).append(o.result)
        return found.union(*(loads for loads in beside.values() if len(loads) >= LEAST_TOGETHER))

    def _other(self, o: ops.MemLoad, kind: str) -> Val:
        """What a load gives where its guard is false."""
        if o.other is None:
            return zero_of(kind)
        other = to_memory(self.f, self.get(o.other), o.source.dtype)
        return other if o.lanes == 1 else self.f.pack([other] * o.lanes)

    # --- branches ---

    def guard(self, cond: Value | None) -> Val:
        """The condition of an access; without one it always acts."""
        return int_val(1, "i1") if cond is None else self.get(cond)

    @contextmanager
    def branch(self, cond: Val, stem: str) -> Iterator[None]:
        """What is printed inside runs where `cond` holds."""
        f = self.f
        then, join = f.label(stem), f.label(f"{stem}_done")
        f.cbr(cond, then, join, join)
        f.start(then)
        mark = f.mark()
        yield
        f.forget(mark)
        f.br(join)
        f.start(join)

    def only_if(self, cond: Val, write: Callable[[], object], stem: str) -> None:
        """Print what `write()` prints, on a branch taken where `cond` holds."""
        if cond.literal is None:
            with self.branch(cond, stem):
                write()
        elif cond.literal:
            write()

    def value_if(
        self, cond: Val, made: Callable[[], Val], other: Callable[[], Val], stem: str
    ) -> Val:
        """What `made()` gives, on a branch taken where `cond` holds, else what `other()` does."""
        if cond.literal is not None:
            return made() if cond.literal else other()
        f, instead = self.f, other()
        start = f.block.label
        with self.branch(cond, stem):
            value, end = made(), f.block.label
        phi = f.phi(value.type)
        phi.incoming = [(instead, start), (value, end)]
        return phi.result
