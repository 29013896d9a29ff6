"""AMD's forms: intrinsics only, because LLVM here has no assembler for inline assembly.

A barrier is `s_barrier` between a release and an acquire fence of the workgroup for LDS only: alone
it would not wait for LDS traffic, and a full fence would drain the loads in flight. The wait stands
there by itself too: the one that LLVM makes of the fence may be taken away again
(`SIInsertWaitcnts`: at the head of a loop, when nothing was on its way before the loop and it has
not yet seen what the loop's end leaves).
"""

from __future__ import annotations

import math

from tilec.codegen.gpu import MAX_INDEX, Multiplier
from tilec.codegen.gpu_maths import GpuScalars
from tilec.codegen.gpu_print import PrintingEmitter
from tilec.codegen.lanes import in_words
from tilec.codegen.numerics import FORMATS, FORMATS_FNUZ
from tilec.codegen.ranges import Ranges
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.errors import CompileError, InternalError
from tilec.ir.instr import FLOAT8_NAMES, AmdInstruction, find_instruction
from tilec.ir.llvm import Function, Val, float_val, int_val
from tilec.ir.types import DType
from tilec.target import Target

LDS_ONLY = "!4"  # the fence synchronises LDS, nothing else
# The immediate of s_waitcnt, by the length of a wave (MI300 ISA, "S_WAITCNT": bits 0 to 3, 14 and
# 15 vmcnt, 4 to 6 expcnt, 8 to 11 lgkmcnt; RDNA3 ISA: 0 to 2 expcnt, 4 to 9 lgkmcnt, 10 to 15
# vmcnt). All ones wait for nothing.
LDS_DONE = {64: 0xC07F, 32: 0xFC07}
# By the length of a wave, which tells CDNA and RDNA apart: the SIMDs of a multiprocessor (a compute
# unit; RDNA's two that share blocks), and the most waves of one of them (LLVM's AMDGPU guide,
# "amdgpu-waves-per-eu"; the ISA documents).
EXECUTION_UNITS = {64: (4, 8), 32: (4, 16)}


class AmdgpuScalars(GpuScalars):
    """Fast forms of the vector ALU."""

    fast_forms = {
        "exp2": "llvm.amdgcn.exp2.f32",
        "rcp": "llvm.amdgcn.rcp.f32",
        "rsqrt": "llvm.amdgcn.rsq.f32",
        "log2": "llvm.amdgcn.log.f32",
        "sin": "llvm.amdgcn.sin.f32",
        "cos": "llvm.amdgcn.cos.f32",
    }

    def __init__(self, f: Function, ranges: Ranges, target: Target) -> None:
        super().__init__(f, ranges)
        self.formats = FORMATS_FNUZ if target.has("float8_fnuz") else FORMATS
        self.converts = target.has("float8")

    def to_float8(self, x: Val, dtype: DType) -> Val:
        if not self.converts:
            return super().to_float8(x, dtype)
        f, name = self.f, FLOAT8_NAMES[dtype]
        top = self.formats[dtype].most
        for pred, edge in (("ogt", top), ("olt", -top)):
            bound = float_val(edge)
            x = f.select(f.fcmp(pred, x, bound), bound, x)
        args = [x, x, int_val(0), int_val(0, "i1")]
        return f.cast("trunc", f.intrinsic("i32", f"llvm.amdgcn.cvt.pk.{name}.f32", args), "i8")

    def from_float8(self, x: Val, dtype: DType) -> Val:
        if not self.converts:
            return super().from_float8(x, dtype)
        word = self.f.cast("zext", x, "i32")
        name = f"llvm.amdgcn.cvt.f32.{FLOAT8_NAMES[dtype]}"
        return self.f.intrinsic("float", name, [word, int_val(0)])

    def fast(self, kind: str, x: Val) -> Val:
        """See GpuScalars. Angles go in turns, without the whole ones: v_sin_f32 takes those from
        -256 to 256."""
        if kind in ("sin", "cos"):
            turns = self.f.binary("fmul", x, 0.5 / math.pi)
            x = self.f.intrinsic("float", "llvm.amdgcn.fract.f32", [turns])
        return super().fast(kind, x)


class AmdgpuEmitter(PrintingEmitter):
    """Code objects through LLVM's AMDGPU target."""

    linkage = "amdgpu_kernel"
    device_scope = "agent"
    debug_kind = "LineTablesOnly"
    stack_space = 5
    triple = "amdgcn-amd-amdhsa"
    thread_index = "llvm.amdgcn.workitem.id.x"
    block_index = "llvm.amdgcn.workgroup.id"

    def make_scalars(self) -> AmdgpuScalars:
        return AmdgpuScalars(self.f, self.ranges, self.target)

    def uniform(self, warp: Val) -> Val:
        return self.f.intrinsic("i32", "llvm.amdgcn.readfirstlane.i32", [warp])

    def attributes(self) -> str:
        words = (
            f'nounwind "amdgpu-flat-work-group-size"="{self.threads},{self.threads}" '
            '"uniform-work-group-size"="true"'
        )
        blocks = self.func.attrs.get("min_blocks")
        if not blocks:
            return words
        units, most = EXECUTION_UNITS[self.target.warp_size]
        waves = -(-blocks * self.threads // self.target.warp_size)
        return f'{words} "amdgpu-waves-per-eu"="{min(-(-waves // units), most)}"'

    def flags(self) -> list[str]:
        return ['!{i32 1, !"amdhsa_code_object_version", i32 500}']

    # --- ids ---

    def emit_grid_size(self, o: ops.GridSize) -> None:
        """Blocks are whole here, so the grid in work items (the dispatch packet) divides by the
        block's size."""
        f = self.f
        packet = f.intrinsic("ptr addrspace(4)", "llvm.amdgcn.dispatch.ptr")
        items = f.load("i32", f.gep("i8", packet, int_val(12 + 4 * o.dim, "i64")), 4)
        threads = self.threads if o.dim == 0 else 1
        got = f.binary("udiv", items, threads)
        self.env[o.result] = self.ranges.set(got, 1, MAX_INDEX)

    # --- synchronisation ---

    def emit_barrier(self, o: ops.Barrier) -> None:
        f = self.f
        if o.threads not in (0, self.threads):
            raise CompileError(
                f"a barrier of {o.threads} of {self.threads} threads: {self.target} has only the "
                "whole block's",
                o.loc,
                "let all threads of the block meet",
            )
        f.act("fence", (), f'fence syncscope("workgroup") release, !mmra {LDS_ONLY}')
        f.call("void", "llvm.amdgcn.s.waitcnt", [int_val(LDS_DONE[self.target.warp_size])])
        f.call("void", "llvm.amdgcn.s.barrier")
        f.act("fence", (), f'fence syncscope("workgroup") acquire, !mmra {LDS_ONLY}')

    def emit_barrier_arrive(self, o: ops.BarrierArrive) -> None:
        raise CompileError(
            f"{self.target} has no barriers with numbers",
            o.loc,
            "let all threads of the block meet",
        )

    def emit_warp_sync(self, o: ops.WarpSync) -> None:
        self.f.call("void", "llvm.amdgcn.wave.barrier")

    def emit_pause(self, o: ops.Pause) -> None:
        self.f.call("void", "llvm.amdgcn.s.sleep", [int_val(1)])  # 64 clocks

    def emit_device_fence(self, o: ops.DeviceFence) -> None:
        self.f.act("fence", (), 'fence syncscope("agent") acq_rel')

    def emit_count_up(self, o: ops.CountUp) -> None:
        at, last = self.pointer(o.dest, self.get(o.offset)), int_val(o.last)
        text = f'atomicrmw uinc_wrap {at}, {last} syncscope("agent") monotonic, align 4'
        self.env[o.result] = self.f.inst("atomicrmw", "i32", (at, last), text)

    # --- matrices ---

    def multiplier(self, o: ops.Mma | ops.WarpMma) -> Multiplier:
        instr = find_instruction(o.instr)
        if not isinstance(instr, AmdInstruction):
            raise InternalError(f"{instr.name} is not AMD's", o.loc)
        form = instr.intrinsic()

        def multiply(args: list[Val]) -> list[Val]:
            given = [*args, *(int_val(c) for c in form.constants)]
            for place, bit in form.flags:
                given.insert(place, int_val(bit, "i1"))
            return [self.f.intrinsic(form.output, form.name, given, o.instr, form.semantics)]

        return instr, form.inputs, multiply

    # --- lanes ---

    def emit_shuffle_xor(self, o: ops.ShuffleXor) -> None:
        """Inside of four lanes a data-parallel primitive, inside of 32 a swizzle, else through the
        addresses of LDS (MI300 ISA, "Data-parallel primitives", "DS_SWIZZLE_B32")."""
        f = self.f
        if o.mask < 4:
            control = sum((i ^ o.mask) << 2 * i for i in range(4))
            flags = [int_val(control), int_val(15), int_val(15), int_val(1, "i1")]

            def move(word: Val) -> Val:
                return f.intrinsic("i32", "llvm.amdgcn.update.dpp.i32", [word, word, *flags])
        elif o.mask < 32:
            pattern = int_val(31 | o.mask << 10)

            def move(word: Val) -> Val:
                return f.intrinsic("i32", "llvm.amdgcn.ds.swizzle", [word, pattern])
        else:
            self._bpermute(o.result, o.value, f.binary("xor", self.lane, o.mask))
            return
        self.env[o.result] = in_words(f, self.get(o.value), move)

    def emit_shuffle(self, o: ops.Shuffle) -> None:
        self._bpermute(o.result, o.value, self.get(o.lane))

    def _bpermute(self, result: Value, value: Value, lane: Val) -> None:
        f = self.f
        address = f.binary("shl", lane, 2)

        def move(word: Val) -> Val:
            return f.intrinsic("i32", "llvm.amdgcn.ds.bpermute", [address, word])

        self.env[result] = in_words(f, self.get(value), move)
