"""The GPU emitter: LOWERED ops to LLVM records, one method per op, `emit_<op's name>`.

It decides nothing; it spells. What is the same for all vendors is here (functions, control flow,
scalars) and in `gpu_buffers`; a vendor's class adds its ids, barriers, asynchronous copies and
matrix instructions. A loop that `registers.plan_registers` wants unrolled is printed once per
iteration with its index a number, so that arithmetic folds; every other one becomes a loop that
LLVM must not unroll. What has been computed on the way to a place is used again there
(`Function.known`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilec.codegen.casts import memory_type, register_type
from tilec.codegen.emitter import check_name
from tilec.codegen.foreign import Foreign, call_foreign, sources
from tilec.codegen.gpu_buffers import GUARDED, SHARED, Buffers
from tilec.codegen.lanes import convert, from_memory, parts_of
from tilec.codegen.ranges import Ranges, limits
from tilec.codegen.registers import plan_registers
from tilec.codegen.scalars import Scalars
from tilec.ir import ops
from tilec.ir.core import Block, Func, Op, Param, Value, walk
from tilec.ir.errors import InternalError
from tilec.ir.instr import MatrixInstruction
from tilec.ir.llvm import UNROLLED, Function, Val, int_val, shaped
from tilec.ir.llvm_printer import DebugInfo, print_function
from tilec.ir.ops import Binary, Cast, Extract, Pack, Select, Unary
from tilec.ir.short_loops import is_short
from tilec.ir.types import BOOL, FLOAT32, INT32, BufferType, ScalarType, TensorMapType, VectorType
from tilec.target import Target

MAX_INDEX = (1 << 31) - 1
DIMS = "xyz"
_ELEMENTWISE = ("add", "sub", "mul", "div", "and", "or", "xor")
_PACKED_CASTS = {
    ("float", "half"): "fptrunc",
    ("float", "bfloat"): "fptrunc",
    ("half", "float"): "fpext",
}


Multiplier = tuple[MatrixInstruction, Sequence[str], Callable[[list[Val]], Sequence[Val]]]
"""A matrix instruction, the LLVM types of its arguments, and what makes its result of them."""


class Emitter(Buffers):
    """Prints one function. Subclasses say how their vendor spells what is its own."""

    linkage = ""
    debug_kind = ""
    stack_space = 0
    triple = ""
    thread_index = block_index = ""  # the intrinsics

    thread: Val
    lane: Val
    warp: Val
    block_warp: Val
    group = int_val(0)
    consumer_groups = 1  # of the scope being printed
    group_threads = 0

    def __init__(self, func: Func, target: Target) -> None:
        super().__init__()
        self.func, self.target = func, target
        self.threads = int(func.attrs["launch_threads"])
        self.plan = plan_registers(func)
        self.rounded = rounded_quotients(func)
        self.mutable = self.mutable_tensors()
        self.f = Function(
            func.name, [self._param(p) for p in func.params], linkage=self.linkage, attrs="#0"
        )
        self.f.loc = func.loc
        self.f.known = {}
        self.f.stack_space = self.stack_space
        self.ranges = Ranges()
        self.scalars = self.make_scalars()

    # --- what a vendor says ---

    def make_scalars(self) -> Scalars:
        raise NotImplementedError

    def uniform(self, warp: Val) -> Val:
        """`warp`, which is the same in all lanes, so that the assembler can see that it is."""
        raise NotImplementedError

    def attributes(self) -> str:
        """The function's attribute group, without number and braces."""
        raise NotImplementedError

    def flags(self) -> list[str]:
        """The module's flags, as metadata nodes without numbers."""
        return []

    def enter_scope(self, o: ops.Scope) -> None:
        """What a vendor prints first in a scope."""

    # --- the function ---

    def _param(self, p: Param) -> tuple[str, str, str]:
        """(type, attributes, name) of a parameter."""
        name, t = f"%{p.value.name}", p.value.type
        if isinstance(t, TensorMapType):
            return "ptr", 'byval([128 x i8]) align 64 "nvvm.grid_constant"', name
        if not isinstance(t, BufferType):
            return memory_type(p.value.dtype), "", name
        words = [] if self.func.attrs.get("may_alias") else ["noalias"]
        if p.value not in self.mutable:
            words.append("readonly")
        return "ptr addrspace(1)", " ".join([*words, f"align {t.align}"]), name

    def _enter_params(self) -> None:
        for p, (kind, _, name) in zip(self.func.params, self.f.params):
            v = Val(kind, name)
            if isinstance(p.value.type, ScalarType):
                v = from_memory(self.f, v, p.value.dtype)
            if p.role in ("size", "elements", "grid"):
                self.ranges.set(v, 0, min(limits(kind)[1], (1 << 47) - 1))
            self.env[p.value] = v

    def _enter(self) -> None:
        """Print what the entry block computes once: `thread`, `lane`, `block_warp`."""
        f, size = self.f, self.target.warp_size
        self.thread = self.ranges.set(f.intrinsic("i32", self.thread_index), 0, self.threads - 1)
        self.lane = self.ranges.set(f.binary("and", self.thread, size - 1), 0, size - 1)
        warp = f.binary("lshr", self.thread, size.bit_length() - 1)
        last = (self.threads - 1) // size
        self.warp = self.block_warp = self.ranges.set(self.uniform(warp), 0, last)

    def header(self) -> list[str]:
        """Module text before the declarations."""
        return [f'target triple = "{self.triple}"']

    def print_module(self) -> str:
        """LLVM text of the whole module."""
        self._enter_params()
        self._enter()
        self.block(self.func.body)
        self.f.ret()
        debug = None
        if self.debug_kind and self.func.loc.line:
            debug = DebugInfo(self.func.name, self.func.loc, self.debug_kind)
        return self.module(debug)

    def module(self, debug: DebugInfo | None) -> str:
        """The text of the module, whose records have been made."""
        check_name(self.func.name, self.func.loc, self.f.declarations)
        flags = self.flags()
        if debug:
            flags.append('!{i32 2, !"Debug Info Version", i32 3}')
        body = print_function(self.f, debug)
        lines = [
            *self.header(),
            f"{SHARED.ref} = external addrspace(3) global [0 x i8], align 1024",
            *self.f.declarations.values(),
            body,
            f"attributes #0 = {{ {self.attributes()} }}",
            "attributes #1 = { convergent nounwind }",
            "attributes #2 = { nounwind memory(none) }",
            "!0 = distinct !{!0, !1}",
            '!1 = !{!"llvm.loop.unroll.disable"}',
            "!2 = !{}",
            "!3 = !{i32 1}",
            '!4 = !{!"amdgpu-synchronize-as", !"local"}',
            "!5 = distinct !{!5, !6}",
            f'!6 = !{{!"llvm.loop.unroll.count", i32 {UNROLLED}}}',
            *(f"!{7 + i} = {flag}" for i, flag in enumerate(flags)),
        ]
        if flags:
            numbers = ", ".join(f"!{7 + i}" for i in range(len(flags)))
            lines.append(f"!llvm.module.flags = !{{{numbers}}}")
        if debug:
            lines += [debug.text(), f"!llvm.dbg.cu = !{{!{debug.compile_unit}}}"]
        return "\n".join(lines) + "\n" + sources(self.func.body, self.stack_space)

    def block(self, block: Block) -> None:
        """Print the ops of a region."""
        done: set[Op] = set()
        for i, o in enumerate(block.ops):
            if o in done:
                continue
            self.f.buffer = self.touched(o)
            if isinstance(o, ops.Scope):
                chain = _exclusive(block.ops[i:])
                done.update(chain)
                self._scopes(chain)
                continue
            self.emit(o)

    def emit_foreign(self, o: Foreign) -> None:
        """What LLVM is given as the user wrote it."""
        types = [self.scalars.register(t) for t in o.types]
        args = [self.get(v) for v in o.args]
        self.env.update(zip(o.results, call_foreign(self.f, o, self.target, args, types)))

    emit_asm = emit_asm_effect = emit_extern = emit_extern_effect = emit_foreign

    def missing(self, o: Op) -> InternalError:
        return InternalError(f"{self.target} has no form of {o.opname}", o.loc)

    # --- scalars ---

    def each(self, o: Op, fn: Callable[..., Val], *operands: Value) -> None:
        """The result of `o` is `fn` of the operands; of vectors, of each lane."""
        t = operands[0].type
        if not isinstance(t, VectorType):
            self.env[o.result] = fn(*map(self.get, operands))
            return
        values = [self.get(v) for v in operands]
        columns = [
            self.f.unpack(x, t.lanes, x.type[1:-1].split(" x ")[1])
            if "<" in x.type
            else [x] * t.lanes
            for x in values
        ]
        self.env[o.result] = self.f.pack([fn(*one) for one in zip(*columns)])

    def emit_binary(self, o: ops.Binary) -> None:
        dtype = o.lhs.dtype
        if o.result in self.rounded:
            self.each(o, self.scalars.quotient_fast, o.lhs, o.rhs)
            return
        if isinstance(o.lhs.type, VectorType) and o.kind in _ELEMENTWISE:
            words = {"div": "fdiv"} if dtype.is_float else {}
            if dtype.is_float and register_type(dtype) in ("half", "float", "double"):
                words |= {"add": "fadd", "sub": "fsub", "mul": "fmul"}
            elif dtype.is_int and dtype != BOOL and o.kind != "div":
                words[o.kind] = o.kind
            if o.kind in words and register_type(dtype) != "bfloat":
                a, b = self.get(o.lhs), self.get(o.rhs)
                self.env[o.result] = self.f.binary(words[o.kind], a, b)
                return
        super().emit_binary(o)

    def emit_cast(self, o: ops.Cast) -> None:
        t, to = o.operand.type, register_type(o.dtype)
        opcode = _PACKED_CASTS.get((register_type(o.operand.dtype), to))
        if isinstance(t, VectorType) and opcode:
            self.env[o.result] = convert(self.f, opcode, self.get(o.operand), to)
            return
        super().emit_cast(o)

    def emit_bitcast(self, o: ops.Bitcast) -> None:
        if o.operand.type == o.result.type or o.operand.dtype.bits == o.dtype.bits:
            super().emit_bitcast(o)
            return
        to = shaped(register_type(o.dtype), o.lanes)
        self.env[o.result] = self.f.cast("bitcast", self.get(o.operand), to)

    def emit_fma(self, o: ops.Fma) -> None:
        if isinstance(o.a.type, VectorType) and o.a.dtype in self.scalars.own:
            self.env[o.result] = self.scalars.call("fma", *map(self.get, o.operands))
            return
        super().emit_fma(o)

    def emit_block_index(self, o: ops.BlockIndex) -> None:
        got = self.f.intrinsic("i32", f"{self.block_index}.{DIMS[o.dim]}")
        self.env[o.result] = self.ranges.set(got, 0, MAX_INDEX)

    def emit_thread_index(self, o: ops.ThreadIndex) -> None:
        self.env[o.result] = self.thread

    def emit_lane(self, o: ops.Lane) -> None:
        self.env[o.result] = self.lane

    def emit_warp(self, o: ops.Warp) -> None:
        self.env[o.result] = self.warp

    def emit_lookup(self, o: ops.Lookup) -> None:
        index = self.get(o.index).literal
        if index is None:
            raise InternalError("a lookup whose index is not a number", o.loc)
        self.env[o.result] = int_val(o.table[index])

    def emit_pack(self, o: ops.Pack) -> None:
        self.env[o.result] = self.f.pack([self.get(v) for v in o.values])

    def emit_and_or(self, o: ops.AndOr) -> None:
        masked = self.f.binary("and", self.get(o.value), o.mask)
        self.env[o.result] = self.f.binary("or", masked, o.bits)

    def emit_permute_bytes(self, o: ops.PermuteBytes) -> None:
        found = int_val(0)
        for n, which in enumerate(o.bytes):
            word = self.get(o.high if which > 3 else o.low)
            byte = self.f.binary("and", self.f.binary("lshr", word, 8 * (which % 4)), 0xFF)
            found = self.f.binary("or", found, self.f.binary("shl", byte, 8 * n))
        self.env[o.result] = found

    def emit_extract(self, o: ops.Extract) -> None:
        kind = register_type(o.vector.dtype)
        self.env[o.result] = self.f.extract_element(self.get(o.vector), o.index, kind)

    # --- matrices ---

    def multiplier(self, o: ops.Mma | ops.WarpMma) -> Multiplier:
        """The instruction of a product."""
        raise self.missing(o)

    def emit_mma(self, o: ops.Mma) -> None:
        instr, kinds, multiply = self.multiplier(o)
        args, dest = list[Val](), tuple[Val, ...]()
        parts = zip((o.a, o.b, o.c), (o.a_register, o.b_register, o.c_register))
        for (v, register), count, pack in zip(parts, instr.registers, instr.packs):
            dest = self.pack_slots(v, register, count, pack)
            args += self.read_packs(v, dest, kinds[len(args) : len(args) + count])
        if o.metadata is not None:
            args.append(self.get(o.metadata))
        self.write_packs(o.c, dest, multiply(args))

    def emit_warp_mma(self, o: ops.WarpMma) -> None:
        (instr, kinds, multiply), f, args = self.multiplier(o), self.f, list[Val]()
        for values, pack in zip((o.a, o.b, o.c), instr.packs):
            given = [self.get(v) for v in values]
            for i in range(0, len(given), pack):
                word = given[i] if pack == 1 else f.pack(given[i : i + pack])
                args.append(f.cast("bitcast", word, kinds[len(args)]))
        kind, pack = self.get(o.c[0]).type, instr.packs[2]
        for i, word in enumerate(multiply(args)):
            parts = parts_of(f, word, kind, pack)
            self.env.update(zip(o.results[i * pack : (i + 1) * pack], parts))

    # --- loops ---

    def emit_for(self, o: ops.For) -> None:
        if o not in self.plan.unrolled:
            super().emit_for(o)
            return
        lo, hi, step = self.get(o.lo), self.get(o.hi), self.get(o.step)
        if lo.literal is None or hi.literal is None or not step.literal:
            raise InternalError("the bounds of an unrolled loop are not numbers", o.loc)
        values = [self.get(v) for v in o.inits]
        outer, mark = self.unrolling, self.f.mark()
        self.unrolling = True
        for i in range(lo.literal, hi.literal, step.literal):
            self.env[o.body.args[0]] = int_val(i, lo.type)
            self.env.update(zip(o.body.args[1:], values))
            self.block(o.body)
            values = [self.get(v) for v in ops.yielded(o.body)]
        self.env.update(zip(o.results, values))
        self.unrolling = outer
        if not outer:  # longer, it would take registers
            self.f.forget(mark, GUARDED)

    def loop_form(self, o: ops.For | ops.While) -> str:
        """LLVM is to unroll what is short, and nothing else."""
        return "unroll" if isinstance(o, ops.For) and is_short(o.body) else "keep"

    # --- scopes ---

    def _scopes(self, chain: Sequence[ops.Scope]) -> None:
        """Each warp runs the scope it belongs to, if any; all meet again after the last."""
        f, outer = self.f, self.warp
        join = f.label("scopes_end")
        left = set(range(-(-self.threads // self.target.warp_size)))
        for o in chain:
            f.loc = o.loc
            mine = set(range(o.first_warp, o.first_warp + o.warps))
            first = int_val(o.first_warp)
            self.warp = self.scalars.binary("sub", self.block_warp, first, INT32)
            thread = self.thread
            following = join
            if not mine >= left:
                body, following = f.label(o.name), f.label(f"not_{o.name}")
                f.cbr(f.icmp("ult", self.warp, o.warps), body, following, join)
                f.start(body)
            mark, warp, known = f.mark(), self.warp, self.ranges.get(self.warp)
            if o.warps == 1:
                self.warp = int_val(0)
            else:
                self.ranges.set(warp, 0, o.warps - 1)
            if o.consumer_groups > 1:
                self._enter_group(o)
            self.enter_scope(o)
            self.region(o.body, ())
            f.forget(mark)
            self.ranges.set(warp, *known)
            self.thread, self.group = thread, int_val(0)
            self.consumer_groups, self.group_threads = 1, 0
            f.br(join)
            if following != join:
                f.start(following)
            left -= mine
            self.warp = outer
            if following == join:
                break
        else:
            f.br(join)
        f.start(join)

    def _enter_group(self, o: ops.Scope) -> None:
        """Count warps and threads from the first of this thread's group."""
        binary, size = self.scalars.binary, self.target.warp_size
        warps = int_val(o.warps // o.consumer_groups)
        self.group = self.ranges.set(
            binary("floordiv", self.warp, warps, INT32), 0, o.consumer_groups - 1
        )
        self.warp = binary("mod", self.warp, warps, INT32)
        self.ranges.set(self.warp, 0, o.warps // o.consumer_groups - 1)
        first = binary("mul", self.warp, int_val(size), INT32)
        self.thread = binary("add", first, self.lane, INT32)
        self.consumer_groups = o.consumer_groups
        self.group_threads = o.warps // o.consumer_groups * size

    def emit_consumer_group(self, o: ops.ConsumerGroup) -> None:
        self.env[o.result] = self.group


def _exclusive(block: Sequence[Op]) -> list[ops.Scope]:
    """The scopes at the beginning of `block` of which a warp belongs to one at most."""
    found: list[ops.Scope] = []
    taken: set[int] = set()
    for o in block:
        if not isinstance(o, ops.Scope):
            break
        mine = set(range(o.first_warp, o.first_warp + o.warps))
        if mine & taken:
            break
        taken |= mine
        found.append(o)
    return found


# --- quotients whose last bits nobody sees --------------------------------------------------------


_FACTORS = ("mul", "div", "min", "max")


def rounded_quotients(func: Func) -> frozenset[Value]:
    """The float32 quotients that reach nothing but conversions to floats of 16 bits or less, by way
    of products, quotients, signs, selections and nothing that could cancel their leading bits: an
    error of 2 ulp is 2**-12 of the narrower type's, so the result differs from the exactly divided
    one in about one of 2000 roundings, by the rounding that was nearly a tie."""
    ops = list(walk(func.body))
    if not any(_divides(o) for o in ops):
        return frozenset()
    users = func.body.users
    rounded: set[Value] = set()
    for o in reversed(ops):
        for r in o.results:
            if r in users and all(_narrows(user, r, rounded) for user in users[r]):
                rounded.add(r)
    return frozenset(o.results[0] for o in ops if _divides(o) and o.results[0] in rounded)


def _divides(o: Op) -> bool:
    return isinstance(o, Binary) and o.kind == "div" and o.lhs.dtype == FLOAT32


def _narrows(o: Op, v: Value, rounded: set[Value]) -> bool:
    """Whether what `o` makes of `v` ends in a narrower float."""
    match o:
        case Cast():
            return o.dtype.is_float and o.dtype.bits <= 16
        case Binary(kind=kind) if kind in _FACTORS:
            return o.results[0] in rounded
        case Unary(kind="neg" | "abs") | Pack() | Extract():
            return o.results[0] in rounded
        case Select():
            return o.cond is not v and o.results[0] in rounded
    return False
