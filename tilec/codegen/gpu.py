"""The GPU emitter: LOWERED ops to LLVM records, one method per op, `emit_<op's name>`.

It decides nothing; it spells. What is the same for all vendors is here: control flow, unrolling, registers,
memory accesses. A vendor's class adds its ids, barriers, asynchronous copies and matrix instructions.

- A fragment is one stack slot per pack of its registers, never an array, so LLVM turns every slot into values.
  That needs each register index to be a number when it is printed: loops of kind "unroll" are unrolled while
  printing. An index that is not a number sends printing back to the start with the innermost short loop
  around it unrolled too, or, where there is none, with that one fragment as an array.
- A scalar lives in `env`, a buffer's address in `address` (bytes, i32, in shared memory).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.codegen.ranges import Ranges
from tilec.codegen.scalars import Scalars, literal, memory_type, register_type
from tilec.ir import ops
from tilec.ir.core import Block, Func, Op, Value, walk
from tilec.ir.errors import CompileError, InternalError
from tilec.ir.llvm import DebugInfo, Function, Val, int_val
from tilec.ir.memory import version_bytes
from tilec.ir.types import BOOL, BufferType, DType, TensorMapType
from tilec.target import Target

LARGEST_UNROLL = 256
MAX_INDEX = (1 << 31) - 1


class _Retry(Exception):
    """Printing must start again, knowing more."""


class Choices:
    """What earlier attempts at printing a function found out."""

    def __init__(self) -> None:
        self.unrolled: set[Op] = set()
        self.arrays: set[Value] = set()


class Emitter:
    """Prints one function. Subclasses say how their vendor spells what is its own."""

    linkage = ""
    shared = Val("ptr addrspace(3)", "@smem")
    debug_kind = ""
    stack_space = 0

    def __init__(self, func: Func, target: Target, choices: Choices) -> None:
        self.func, self.target, self.choices = func, target, choices
        self.env: dict[Value, Val] = {}
        self.address: dict[Value, Val] = {}
        self.slots: dict[Value, list[Val]] = {}
        self.packs: dict[Value, int] = {}
        self.loops: list[ops.For] = []
        self.written = {o.dest for o in walk(func.body) if isinstance(o, ops.MemStore)}
        self.f = Function(func.name, self._params(), linkage=self.linkage, attrs="#0")
        self.f.loc = func.loc
        self.f.stack_space = self.stack_space
        self.ranges = Ranges()
        for p in func.params:
            if p.role in ("size", "grid"):
                self.ranges.set(self.env[p.value], 0, MAX_INDEX)
        self.scalars = self.make_scalars()
        self.enter()

    # --- what a vendor says ---

    def make_scalars(self) -> Scalars:
        raise NotImplementedError

    def enter(self) -> None:
        """Print what the entry block computes once: `self.thread`, `self.lane`, `self.block_warp`."""
        raise NotImplementedError

    def header(self) -> list[str]:
        """Module text before the declarations."""
        raise NotImplementedError

    def attributes(self) -> str:
        """The function's attribute group, without number and braces."""
        raise NotImplementedError

    thread: Val
    lane: Val
    block_warp: Val
    warp: Val

    # --- the function ---

    def _params(self) -> list[tuple[str, str, str]]:
        alias = bool(self.func.attrs.get("may_alias"))
        params = []
        for p in self.func.params:
            name = f"%{p.value.name}"
            t = p.value.type
            if isinstance(t, BufferType):
                words = [] if alias else ["noalias"]
                if p.value not in self.written:
                    words.append("readonly")
                words.append(f"align {t.align}")
                kind, attrs = "ptr addrspace(1)", " ".join(words)
            elif isinstance(t, TensorMapType):
                kind = "ptr"
                attrs = 'byval([128 x i8]) align 64 "nvvm.grid_constant"'
            else:
                kind, attrs = register_type(p.value.dtype), ""
                if p.value.dtype == BOOL:
                    raise CompileError("a bool cannot be a kernel's parameter", self.func.loc)
            params.append((kind, attrs, name))
            self.env[p.value] = Val(kind, name)
        return params

    def print_module(self) -> str:
        """LLVM text of the whole module."""
        self.block(self.func.body)
        self.f.ret()
        debug = None
        if self.debug_kind and self.func.loc.line:
            debug = DebugInfo(self.func.name, self.func.loc, self.debug_kind)
        body = self.f.text(debug)
        lines = self.header()
        lines += self.f.declarations.values()
        lines += [body, f"attributes #0 = {{ {self.attributes()} }}"]
        lines += ["attributes #1 = { convergent nounwind }", "!0 = distinct !{!0, !1}"]
        lines.append('!1 = !{!"llvm.loop.unroll.disable"}')
        if debug:
            lines += [debug.text(), f"!llvm.dbg.cu = !{{!{debug.compile_unit}}}"]
            lines.append('!2 = !{i32 2, !"Debug Info Version", i32 3}')
        lines += self.flags(debug is not None)
        return "\n".join(lines) + "\n"

    def flags(self, debug: bool) -> list[str]:
        """Module flags; `!2` is the debug information's version where there is any."""
        return ["!llvm.module.flags = !{!2}"] if debug else []

    def block(self, block: Block) -> None:
        for o in block.ops:
            self.f.loc = o.loc
            emit = getattr(self, f"emit_{o.opname}", None)
            if emit is None:
                raise InternalError(f"{self.target} has no form of {o.opname}", o.loc)
            emit(o)

    def get(self, v: Value) -> Val:
        return self.env[v]

    def number(self, v: Value, buffer: Value) -> int | None:
        """The number a register index is; None where the buffer is an array. Starts over where it is
        neither."""
        known = self.env[v].literal
        if buffer in self.choices.arrays:
            return None
        if known is not None:
            return known
        for loop in reversed(self.loops):
            lo, hi, step = (self.env[x].literal for x in (loop.lo, loop.hi, loop.step))
            if lo is None or hi is None or not step or loop in self.choices.unrolled:
                continue
            if (hi - lo) // step <= LARGEST_UNROLL:
                self.choices.unrolled.add(loop)
                raise _Retry
        self.choices.arrays.add(buffer)
        raise _Retry

    # --- scalars ---

    def emit_yield(self, o: ops.Yield) -> None:
        pass

    def emit_const(self, o: ops.Const) -> None:
        self.env[o.result] = literal(o.value, o.dtype)

    def emit_binary(self, o: ops.Binary) -> None:
        a, b = self.get(o.lhs), self.get(o.rhs)
        self.env[o.result] = self.scalars.binary(o.kind, a, b, o.lhs.dtype)

    def emit_unary(self, o: ops.Unary) -> None:
        self.env[o.result] = self.scalars.unary(o.kind, self.get(o.operand), o.operand.dtype)

    def emit_fma(self, o: ops.Fma) -> None:
        a, b, c = (self.get(v) for v in (o.a, o.b, o.c))
        self.env[o.result] = self.scalars.fma(a, b, c, o.a.dtype)

    def emit_compare(self, o: ops.Compare) -> None:
        a, b = self.get(o.lhs), self.get(o.rhs)
        self.env[o.result] = self.scalars.compare(o.kind, a, b, o.lhs.dtype)

    def emit_select(self, o: ops.Select) -> None:
        cond, a, b = (self.get(v) for v in (o.cond, o.on_true, o.on_false))
        self.env[o.result] = self.scalars.select(cond, a, b)

    def emit_cast(self, o: ops.Cast) -> None:
        x = self.get(o.operand)
        self.env[o.result] = self.scalars.cast(x, o.operand.dtype, o.dtype)

    def emit_bitcast(self, o: ops.Bitcast) -> None:
        x = self.get(o.operand)
        self.env[o.result] = self.scalars.bitcast(x, o.operand.dtype, o.dtype)

    def emit_thread_index(self, o: ops.ThreadIndex) -> None:
        self.env[o.result] = self.thread

    def emit_lane(self, o: ops.Lane) -> None:
        self.env[o.result] = self.lane

    def emit_warp(self, o: ops.Warp) -> None:
        self.env[o.result] = self.warp

    def emit_lookup(self, o: ops.Lookup) -> None:
        index = self.env[o.index].literal
        if index is None:
            raise InternalError("a lookup whose index is not a number", o.loc)
        self.env[o.result] = int_val(o.table[index])

    def emit_pack(self, o: ops.Pack) -> None:
        self.env[o.result] = self.f.pack([self.get(v) for v in o.values])

    def emit_extract(self, o: ops.Extract) -> None:
        kind = register_type(o.vector.dtype)
        self.env[o.result] = self.f.extract_element(self.get(o.vector), o.index, kind)

    # --- buffers ---

    def emit_alloc(self, o: ops.Alloc) -> None:
        t = o.type
        if t.space in ("shared", "barrier"):
            if o.address < 0:
                raise InternalError("a shared buffer without an address", o.loc)
            base = self.f.cast("ptrtoint", self.shared, "i32")
            self.address[o.result] = self.f.add(base, int_val(o.address))
            return
        count = t.size
        if t.space == "fragment":
            if t.layout is None:
                raise InternalError("a fragment without a layout", o.loc)
            count = t.layout.size("reg")
        elem = register_type(t.dtype)
        pack = o.packed
        if o.result in self.choices.arrays:
            self.slots[o.result] = [self.f.alloca(f"[{count} x {elem}]", 16)]
            self.packs[o.result] = 1
            return
        kind = elem if pack == 1 else f"<{pack} x {elem}>"
        align = max(1, t.dtype.bits // 8)
        self.slots[o.result] = [self.f.alloca(kind, align) for _ in range(count // pack)]
        self.packs[o.result] = pack

    def emit_version(self, o: ops.Version) -> None:
        step = int_val(version_bytes(o.root.buffer))
        offset = self.f.mul(self.get(o.slot), step)
        self.address[o.result] = self.f.add(self.address[o.root], offset)

    def register(self, v: Value, index: Value) -> tuple[Val, int]:
        """(slot, element within its pack) of a register counted in elements."""
        i = self.number(index, v)
        slots = self.slots[v]
        if i is None:
            at = self.f.cast("sext", self.get(index), "i64")
            return self.f.gep(register_type(v.dtype), slots[0], at), 0
        pack = self.packs[v]
        if i // pack >= len(slots):
            raise InternalError(f"register {i} of {v.type}", self.f.loc)
        return slots[i // pack], i % pack

    def pack_slots(self, v: Value, register: Value, count: int) -> list[Val]:
        """`count` slots from pack number `register` on: what a matrix instruction reads or writes."""
        first = self.number(register, v)
        if first is None:
            raise CompileError(
                f"{v.name} feeds a matrix instruction and is indexed by a run-time value",
                self.f.loc,
                "use a loop with compile-time bounds",
            )
        return self.slots[v][first : first + count]

    def slot_type(self, v: Value) -> str:
        elem, pack = register_type(v.dtype), self.packs[v]
        return elem if pack == 1 else f"<{pack} x {elem}>"

    def load_slot(self, v: Value, slot: Val) -> Val:
        return self.f.load(self.slot_type(v), slot, max(1, v.dtype.bits // 8))

    def store_slot(self, v: Value, slot: Val, value: Val) -> None:
        self.f.store(value, slot, max(1, v.dtype.bits // 8))

    def emit_reg_read(self, o: ops.RegRead) -> None:
        self.env[o.result] = self._read(o.fragment, o.index)

    def emit_reg_write(self, o: ops.RegWrite) -> None:
        self._write(o.fragment, o.index, self.get(o.value))

    def _read(self, v: Value, index: Value) -> Val:
        slot, e = self.register(v, index)
        got = self.load_slot(v, slot)
        return got if self.packs[v] == 1 else self.f.extract_element(got, e, register_type(v.dtype))

    def _write(self, v: Value, index: Value, value: Val) -> None:
        slot, e = self.register(v, index)
        if self.packs[v] > 1:
            value = self.f.insert_element(self.load_slot(v, slot), value, e)
        self.store_slot(v, slot, value)

    def emit_load(self, o: ops.Load) -> None:
        self.env[o.result] = self._read(o.source, self._flat(o.source, o.indices))

    def emit_store(self, o: ops.Store) -> None:
        self._write(o.dest, self._flat(o.dest, o.indices), self.get(o.value))

    def _flat(self, v: Value, indices: Sequence[Value]) -> Value:
        """The linear index into a local buffer, as a value of its own."""
        if len(indices) == 1:
            return indices[0]
        total = int_val(0)
        for extent, i in zip(v.buffer.static_shape, indices):
            total = self.f.add(self.f.mul(total, int_val(extent)), self.get(i))
        flat = Value(indices[0].type, "flat")
        self.env[flat] = total
        return flat

    # --- memory ---

    def shared_address(self, v: Value, offset: Val) -> Val:
        """Byte address (i32) of an element of a shared or barrier buffer."""
        size = int_val(v.dtype.bits // 8)
        return self.f.add(self.address[v], self.f.mul(offset, size))

    def pointer(self, v: Value, offset: Value) -> Val:
        at = self.get(offset)
        if v.buffer.space == "global":
            return self.f.gep(memory_type(v.dtype), self.get(v), at)
        return self.f.cast("inttoptr", self.shared_address(v, at), "ptr addrspace(3)")

    def from_memory(self, x: Val, dtype: DType, lanes: int) -> Val:
        if dtype != BOOL:
            return x
        zero = Val(x.type, "zeroinitializer") if lanes > 1 else int_val(0, "i8")
        return self.f.icmp("ne", x, zero)

    def to_memory(self, x: Val, dtype: DType) -> Val:
        if dtype != BOOL:
            return x
        kind = x.type.replace("i1", "i8")
        return self.f.cast("zext", x, kind)

    def emit_mem_load(self, o: ops.MemLoad) -> None:
        f, dtype = self.f, o.source.dtype
        elem = memory_type(dtype)
        kind = elem if o.lanes == 1 else f"<{o.lanes} x {elem}>"
        constant = o.source.buffer.space == "global" and o.source not in self.written
        tail = ", !invariant.load !3" if constant else ""
        if o.guard is None or self.get(o.guard).literal == 1:
            got = f.load(kind, self.pointer(o.source, o.offset), o.align, tail=tail)
            self.env[o.result] = self.from_memory(got, dtype, o.lanes)
            return
        other = self._other(o, kind)
        then, join, start = f.label("load"), f.label("loaded"), f.block.label
        f.cbr(self.get(o.guard), then, join, join)
        f.start(then)
        got = f.load(kind, self.pointer(o.source, o.offset), o.align, tail=tail)
        end = f.block.label
        f.br(join)
        f.start(join)
        phi = f.phi(kind)
        phi.incoming += [(other, start), (got, end)]
        self.env[o.result] = self.from_memory(phi.result, dtype, o.lanes)

    def _other(self, o: ops.MemLoad, kind: str) -> Val:
        if o.other is None:
            return Val(kind, "zeroinitializer")
        other = self.to_memory(self.get(o.other), o.source.dtype)
        return other if o.lanes == 1 else self.f.pack([other] * o.lanes)

    def emit_mem_store(self, o: ops.MemStore) -> None:
        f = self.f

        def write() -> None:
            value = self.to_memory(self.get(o.value), o.dest.dtype)
            f.store(value, self.pointer(o.dest, o.offset), o.align)

        if o.guard is None:
            write()
        else:
            self.only_if(self.get(o.guard), write, "store")

    def only_if(self, cond: Val, write: object, stem: str) -> None:
        """Print what `write()` prints, on a branch taken where `cond` holds."""
        if cond.literal is not None:
            if cond.literal:
                write()  # type: ignore[operator]
            return
        then, join = self.f.label(stem), self.f.label(f"{stem}_done")
        self.f.cbr(cond, then, join, join)
        self.f.start(then)
        write()  # type: ignore[operator]
        self.f.br(join)
        self.f.start(join)

    # --- control flow ---

    def emit_for(self, o: ops.For) -> None:
        lo, hi, step = self.get(o.lo), self.get(o.hi), self.get(o.step)
        fixed = lo.literal is not None and hi.literal is not None and step.literal is not None
        if fixed and (o.kind in ("unroll", "vectorized") or o in self.choices.unrolled):
            self._unrolled(o, lo.literal or 0, hi.literal or 0, step.literal or 1)
            return
        f = self.f
        head, body, end = f.label("loop"), f.label("body"), f.label("end")
        start = f.block.label
        f.br(head)
        f.start(head)
        index = f.phi(lo.type)
        index.incoming.append((lo, start))
        if self.ranges.nonneg(lo):
            limit = MAX_INDEX if lo.type == "i32" else (1 << 63) - 1
            self.ranges.set(index.result, 0, limit)
        self.env[o.body.args[0]] = index.result
        carried = []
        for arg, init in zip(o.body.args[1:], o.inits):
            first = self.get(init)
            phi = f.phi(first.type)
            phi.incoming.append((first, start))
            self.env[arg] = phi.result
            carried.append(phi)
        f.cbr(f.icmp("slt", index.result, hi), body, end, end)
        f.start(body)
        self.loops.append(o)
        self.block(o.body)
        self.loops.pop()
        following = f.add(index.result, step)
        latch = f.block.label
        index.incoming.append((following, latch))
        for phi, v in zip(carried, ops.yielded(o.body)):
            phi.incoming.append((self.get(v), latch))
        f.br(head, loop=True)
        f.start(end)
        for r, phi in zip(o.results, carried):
            self.env[r] = phi.result

    def _unrolled(self, o: ops.For, lo: int, hi: int, step: int) -> None:
        values = [self.get(v) for v in o.inits]
        kind = self.get(o.lo).type
        for i in range(lo, hi, step):
            self.env[o.body.args[0]] = int_val(i, kind)
            for arg, value in zip(o.body.args[1:], values):
                self.env[arg] = value
            self.block(o.body)
            values = [self.get(v) for v in ops.yielded(o.body)]
        for r, value in zip(o.results, values):
            self.env[r] = value

    def emit_while(self, o: ops.While) -> None:
        f = self.f
        head, body, end = f.label("while"), f.label("body"), f.label("end")
        start = f.block.label
        f.br(head)
        f.start(head)
        phis = []
        for cond_arg, body_arg, init in zip(o.cond.args, o.body.args, o.inits):
            phi = f.phi(self.get(init).type)
            phi.incoming.append((self.get(init), start))
            self.env[cond_arg] = self.env[body_arg] = phi.result
            phis.append(phi)
        self.block(o.cond)
        (cond,) = ops.yielded(o.cond)
        f.cbr(self.get(cond), body, end, end)
        f.start(body)
        self.block(o.body)
        latch = f.block.label
        for phi, v in zip(phis, ops.yielded(o.body)):
            phi.incoming.append((self.get(v), latch))
        f.br(head, loop=True)
        f.start(end)
        for r, phi in zip(o.results, phis):
            self.env[r] = phi.result

    def emit_if(self, o: ops.If) -> None:
        f, cond = self.f, self.get(o.cond)
        if cond.literal is not None:
            taken = o.then if cond.literal else o.orelse
            self.block(taken)
            for r, v in zip(o.results, ops.yielded(taken)):
                self.env[r] = self.get(v)
            return
        then, orelse, join = f.label("then"), f.label("else"), f.label("join")
        sides = [(then, o.then), (orelse, o.orelse)]
        empty = len(o.orelse.ops) <= 1 and not o.results
        f.cbr(cond, then, join if empty else orelse, join)
        ends = []
        for label, region in sides[: 1 if empty else 2]:
            f.start(label)
            self.block(region)
            ends.append(([self.get(v) for v in ops.yielded(region)], f.block.label))
            f.br(join)
        f.start(join)
        for i, r in enumerate(o.results):
            phi = f.phi(ends[0][0][i].type)
            phi.incoming += [(values[i], label) for values, label in ends]
            self.env[r] = phi.result

    def emit_scope(self, o: ops.Scope) -> None:
        f = self.f
        body, join = f.label(o.name), f.label(f"{o.name}_end")
        warp = f.binary("sub", self.block_warp, int_val(o.first_warp))
        inside = f.icmp("ult", warp, int_val(o.warps))
        f.cbr(inside, body, join, join)
        f.start(body)
        outer, self.warp = self.warp, self.ranges.set(warp, 0, o.warps - 1)
        self.enter_scope(o)
        self.block(o.body)
        self.warp = outer
        f.br(join)
        f.start(join)

    def enter_scope(self, o: ops.Scope) -> None:
        """What a vendor prints first in a scope."""


def print_function(cls: type[Emitter], func: Func, target: Target) -> str:
    """LLVM text of a LOWERED function; raises CompileError where the target cannot do something."""
    choices = Choices()
    while True:
        try:
            return cls(func, target, choices).print_module()
        except _Retry:
            continue
