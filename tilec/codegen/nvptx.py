"""NVIDIA's forms: what `tilec.codegen.gpu` leaves to the vendor, spelled through the hardware
instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilec.codegen.casts import memory_type
from tilec.codegen.gpu import DIMS, MAX_INDEX, Multiplier
from tilec.codegen.gpu_maths import GpuScalars
from tilec.codegen.gpu_print import PrintingEmitter
from tilec.codegen.lanes import from_memory, in_words, parts_of, to_memory
from tilec.codegen.ranges import Ranges
from tilec.ir import ops
from tilec.ir.clusters import SINGLE, first_of_all, launched_cluster, residents_of
from tilec.ir.core import Func, Op, Value
from tilec.ir.errors import InternalError
from tilec.ir.instr import (
    Asm,
    MmaInstruction,
    SparseMmaInstruction,
    WgmmaInstruction,
    cluster,
    find_instruction,
    sync,
    wgmma_wait,
)
from tilec.ir.instr import memory as moves
from tilec.ir.instr.instruction import LLVM_TYPES, Instruction
from tilec.ir.instr.nvidia import AND_OR, PERMUTE_BYTES, TANH, UNKNOWN
from tilec.ir.llvm import Function, Val, float_val, int_val, shaped
from tilec.ir.types import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, INT32, DType, VectorType
from tilec.target import Target

WARPGROUP = 4  # warps
FLOAT8 = {FLOAT8_E4M3: "e4m3", FLOAT8_E5M2: "e5m2"}


def register_share(o: ops.Scope, func: Func, target: Target) -> Instruction:
    """How threads of a scope of `func` come to their share of the registers."""
    threads = int(func.attrs["launch_threads"]) * residents_of(func)
    return sync.setmaxnreg(o.registers, o.registers > target.registers // threads // 8 * 8)


class NvptxScalars(GpuScalars):
    """Fast forms of PTX: `ex2.approx.ftz`, `rcp.approx.ftz`, `rsqrt.approx`, `div.full`, and from
    Hopper on the conversions of float8 (two at a time) and the rounding to TF32."""

    fast_forms = {
        "exp2": "llvm.nvvm.ex2.approx.ftz.f",
        "rcp": "llvm.nvvm.rcp.approx.ftz.f",
        "rsqrt": "llvm.nvvm.rsqrt.approx.f",
        "log2": "llvm.nvvm.lg2.approx.ftz.f",
        "sin": "llvm.nvvm.sin.approx.ftz.f",
        "cos": "llvm.nvvm.cos.approx.ftz.f",
    }

    def __init__(self, f: Function, ranges: Ranges, target: Target) -> None:
        super().__init__(f, ranges)
        self.target = target

    def maths1(self, kind: str, x: Val, dtype: DType) -> Val:
        if kind != "fast_tanh":
            return super().maths1(kind, x, dtype)
        (made,) = self.f.asm(TANH.asm, [x], TANH.name)
        return made

    def round_tf32(self, x: Val) -> Val:
        if not self.target.has("wgmma"):
            return super().round_tf32(x)
        bits = self.f.intrinsic("i32", "llvm.nvvm.f2tf32.rn", [x])
        return self.f.cast("bitcast", bits, "float")

    def quotient_fast(self, a: Val, b: Val) -> Val:
        return self.f.intrinsic("float", "llvm.nvvm.div.full", [a, b])

    def narrow_int(self, x: Val, dtype: DType) -> Val:
        if dtype != BFLOAT16:
            return super().narrow_int(x, dtype)
        # Where LLVM 22 sees that the integer is 0 or -1, a conversion of its own becomes one of a
        # single bit, which it prints for sm_90 as one of 0 or 1.
        return self.f.intrinsic("bfloat", "llvm.nvvm.f2bf16.rn", [x])

    def to_float8(self, x: Val, dtype: DType) -> Val:
        if not self.target.has("float8"):
            return super().to_float8(x, dtype)
        name = f"llvm.nvvm.ff.to.{FLOAT8[dtype]}x2.rn"
        pair = self.f.intrinsic("i16", name, [float_val(0.0), x])
        return self.f.cast("trunc", pair, "i8")

    def from_float8(self, x: Val, dtype: DType) -> Val:
        if not self.target.has("float8"):
            return super().from_float8(x, dtype)
        name = f"llvm.nvvm.{FLOAT8[dtype]}x2.to.f16x2.rn"
        pair = self.f.intrinsic("<2 x half>", name, [self.f.cast("zext", x, "i16")])
        return self.f.cast("fpext", self.f.extract_element(pair, 0, "half"), "float")


def _plain(instr: Instruction) -> Callable[[NvptxEmitter, Op], None]:
    """The method for an op that is one instruction without operands."""

    def emit(self: NvptxEmitter, o: Op) -> None:
        self.execute(instr)

    return emit


class NvptxEmitter(PrintingEmitter):
    """PTX through LLVM's NVPTX target."""

    linkage = "ptx_kernel"
    device_scope = "device"
    debug_kind = "DebugDirectivesOnly"
    triple = "nvptx64-nvidia-cuda"
    thread_index = "llvm.nvvm.read.ptx.sreg.tid.x"
    block_index = "llvm.nvvm.read.ptx.sreg.ctaid"

    def _enter(self) -> None:
        rows = {"trigger": sync.LAUNCH_DEPENDENTS, "wait": sync.WAIT_FOR_LAUNCHES}
        for word in first_of_all(self.func, self.target):
            self.execute(rows[word])
        super()._enter()

    def make_scalars(self) -> NvptxScalars:
        return NvptxScalars(self.f, self.ranges, self.target)

    def uniform(self, warp: Val) -> Val:
        lanes = [int_val(-1), warp, int_val(0), int_val(31)]
        return self.f.intrinsic("i32", "llvm.nvvm.shfl.sync.idx.i32", lanes)

    def attributes(self) -> str:
        blocks = self.func.attrs.get("min_blocks") or 1
        words = f'"nvvm.maxntid"="{self.threads}" "nvvm.minctasm"="{blocks}"'
        dims = launched_cluster(self.func)
        if dims == SINGLE:
            return words
        return f'{words} "nvvm.cluster_dim"="{",".join(map(str, dims))}"'

    def execute(self, instr: Instruction, *args: Val) -> list[Val]:
        """The inline assembly of a row."""
        return self.asm(instr.asm, args, instr.name)

    def asm(self, a: Asm, args: Sequence[Val] = (), instr: str = "") -> list[Val]:
        """An instruction's inline assembly; the kinds of its arguments are checked against the
        row."""
        given = tuple(x.type for x in args)
        if given != a.inputs:
            raise InternalError(
                f"{instr}: arguments {given}, the instruction takes {a.inputs}", self.f.loc
            )
        return self.f.asm(a, args, instr)

    def load_if(self, size: int, at: Val, guard: Val) -> Val | None:
        f = self.f
        address = f.cast("ptrtoint", at, "i64")
        words = self.execute(moves.load_if(size), address, f.cast("zext", guard, "i32"))
        if size == 1:
            return f.cast("trunc", words[0], "i8")
        return words[0] if len(words) == 1 else f.pack(words)

    # --- ids ---

    def emit_grid_size(self, o: ops.GridSize) -> None:
        got = self.f.intrinsic("i32", f"llvm.nvvm.read.ptx.sreg.nctaid.{DIMS[o.dim]}")
        self.env[o.result] = self.ranges.set(got, 1, MAX_INDEX)

    def emit_cluster_index(self, o: ops.ClusterIndex) -> None:
        got = self.f.intrinsic("i32", f"llvm.nvvm.read.ptx.sreg.cluster.ctaid.{DIMS[o.dim]}")
        self.env[o.result] = self.ranges.set(got, 0, cluster.MAX_BLOCKS - 1)

    # --- synchronisation ---

    def enter_scope(self, o: ops.Scope) -> None:
        if o.registers:
            self.execute(register_share(o, self.func, self.target))

    def emit_barrier(self, o: ops.Barrier) -> None:
        number = self._group_id(o.id) if o.number is None else self.get(o.number)
        self.execute(sync.BARRIER_SYNC, number, int_val(o.threads or self.threads))

    def emit_barrier_arrive(self, o: ops.BarrierArrive) -> None:
        self.execute(sync.BARRIER_ARRIVE, int_val(o.id), int_val(o.threads))

    def _group_id(self, first: int, ahead: int = 0) -> Val:
        """The named barrier of this thread's group, or of the group `ahead` of it."""
        if self.consumer_groups == 1:
            return int_val(first)
        at = self.scalars.binary("add", self.group, ahead, INT32)
        if ahead:
            at = self.scalars.binary("mod", at, self.consumer_groups, INT32)
        return self.scalars.binary("add", at, first, INT32)

    def emit_ordered_wait(self, o: ops.OrderedWait) -> None:
        """`bar.sync` of one's own barrier with the group before, which only arrives."""
        self._ordered(sync.BARRIER_SYNC, o, 0)

    def emit_ordered_arrive(self, o: ops.OrderedArrive) -> None:
        self._ordered(sync.BARRIER_ARRIVE, o, 1)

    def _ordered(
        self, instr: Instruction, o: ops.OrderedWait | ops.OrderedArrive, ahead: int
    ) -> None:
        if not o.warpgroups:
            both = int_val(2 * self.group_threads)
            self.execute(instr, self._group_id(o.id, ahead), both)
            return
        at = self.scalars.binary("floordiv", self.warp, WARPGROUP, INT32)
        if ahead:
            at = self.scalars.binary("add", at, ahead, INT32)
            at = self.scalars.binary("mod", at, o.warpgroups, INT32)
        number = self.scalars.binary("add", at, o.id, INT32)
        self.execute(instr, number, int_val(2 * 32 * WARPGROUP))

    emit_warp_sync, emit_proxy_fence = _plain(sync.WARP_SYNC), _plain(sync.PROXY_FENCE)
    emit_pause, emit_device_fence = _plain(sync.PAUSE), _plain(sync.DEVICE_FENCE)
    emit_mbarrier_init_fence = _plain(sync.MBARRIER_INIT_FENCE)
    emit_cp_async_commit = _plain(moves.CP_ASYNC_COMMIT)
    emit_tma_store_commit = _plain(moves.TMA_STORE_COMMIT)

    def atomic_offset(self, o: ops.MemAtomic) -> Val:
        """Of minima and maxima of less than 32 bits LLVM (20) makes a loop of compare-and-swap on
        the word around; where it knows that they begin the word, it takes the operation itself out
        of that loop, and what others have written meanwhile is lost."""
        offset = super().atomic_offset(o)
        if o.kind not in ("min", "max") or o.dest.dtype.bits >= 32:
            return offset
        return self.execute(UNKNOWN[offset.type], offset)[0]

    def emit_mem_red(self, o: ops.MemRed) -> None:
        at = self.f.cast("ptrtoint", self.pointer(o.dest, self.get(o.offset)), "i64")
        t = o.value.type
        assert isinstance(t, VectorType)
        dtype, value, count = o.dest.dtype, self.get(o.value), t.lanes * o.dest.dtype.bits // 32
        if dtype.bits == 32:
            values = self.f.unpack(value, count, "float")
        else:
            words = self.f.cast("bitcast", value, f"<{count} x i32>")
            values = self.f.unpack(words, count, "i32")
        instr = moves.red_add(dtype, t.lanes)
        self.only_if(self.guard(o.guard), lambda: self.execute(instr, at, *values), "red")

    def emit_count_up(self, o: ops.CountUp) -> None:
        at = self.f.cast("ptrtoint", self.pointer(o.dest, self.get(o.offset)), "i64")
        (self.env[o.result],) = self.execute(sync.COUNT_UP, at, int_val(o.last))

    def emit_and_or(self, o: ops.AndOr) -> None:
        numbers = (int_val(o.mask), int_val(o.bits))
        (self.env[o.result],) = self.execute(AND_OR, self.get(o.value), *numbers)

    def emit_permute_bytes(self, o: ops.PermuteBytes) -> None:
        chosen = int_val(sum(n << 4 * i for i, n in enumerate(o.bytes)))
        words = self.get(o.low), self.get(o.high)
        (self.env[o.result],) = self.execute(PERMUTE_BYTES, *words, chosen)

    def barrier_address(self, barrier: Value, slot: Value) -> Val:
        return self.shared_address(barrier, self.get(slot))

    def emit_mbarrier_init(self, o: ops.MbarrierInit) -> None:
        instr = sync.mbarrier_init(o.count)
        for i in range(o.barrier.buffer.size) if o.slot < 0 else (o.slot,):
            self.execute(instr, self.shared_address(o.barrier, int_val(i)))

    def emit_mbarrier_expect(self, o: ops.MbarrierExpect) -> None:
        at = self.barrier_address(o.barrier, o.stage)
        if o.block is None:
            self.execute(sync.mbarrier_expect(o.bytes), at)
        else:
            self.execute(cluster.expect_at(o.bytes), at, self.get(o.block))

    def emit_mbarrier_expect_tx(self, o: ops.MbarrierExpectTx) -> None:
        self.execute(sync.mbarrier_expect_tx(o.bytes), self.barrier_address(o.barrier, o.stage))

    def emit_set_registers(self, o: ops.SetRegisters) -> None:
        if self.target.has("setmaxnreg"):
            self.execute(sync.setmaxnreg(o.registers, o.increase))

    def emit_cluster_barrier(self, o: ops.ClusterBarrier) -> None:
        halves = {"arrive": cluster.CLUSTER_ARRIVE, "wait": cluster.CLUSTER_WAIT}
        self.execute(halves.get(o.part, cluster.CLUSTER_BARRIER))

    def emit_mbarrier_arrive(self, o: ops.MbarrierArrive) -> None:
        at = self.barrier_address(o.barrier, o.stage)
        if o.block is not None:
            instr = cluster.MBARRIER_PUBLISH_AT if o.publish else cluster.MBARRIER_ARRIVE_AT
            guard = self.guard(o.guard)
            self.execute(instr, at, self.get(o.block), self.f.cast("zext", guard, "i32"))
        elif o.guard is None:
            instr = sync.MBARRIER_ARRIVE_COPIES if o.copies else sync.MBARRIER_ARRIVE
            self.execute(instr, at)
        else:
            guard = self.f.cast("zext", self.get(o.guard), "i32")
            self.execute(sync.MBARRIER_ARRIVE_IF, at, guard)

    def emit_mbarrier_wait(self, o: ops.MbarrierWait) -> None:
        at = self.barrier_address(o.barrier, o.stage)
        instr = cluster.MBARRIER_WAIT_ACQUIRE if o.acquire else sync.MBARRIER_WAIT
        self.execute(instr, at, self.get(o.parity))

    def emit_cluster_load(self, o: ops.ClusterLoad) -> None:
        """The words of the elements, which come as one vector of them."""
        f, form = self.f, cluster.cluster_load(o.lanes * o.source.dtype.bits // 32).asm
        at = self.shared_address(o.source, self.get(o.offset))
        got = f.pack(self.asm(form, [at, self.get(o.block)], "ld.cluster"))
        to = shaped(memory_type(o.source.dtype), o.lanes)
        self.env[o.result] = f.cast("bitcast", got, to)

    def emit_cluster_store(self, o: ops.ClusterStore) -> None:
        f, given = self.f, to_memory(self.f, self.get(o.value), o.value.dtype)
        lanes = o.value.type.lanes if isinstance(o.value.type, VectorType) else 1
        bits = o.dest.dtype.bits * lanes
        if bits < 32:
            words = [f.cast("zext", f.cast("bitcast", given, f"i{bits}"), "i32")]
        elif bits == 32:
            words = [f.cast("bitcast", given, "i32")]
        else:
            words = f.unpack(f.cast("bitcast", given, f"<{bits // 32} x i32>"), bits // 32, "i32")
        at = self.shared_address(o.dest, self.get(o.offset))
        self.execute(cluster.cluster_store(bits // 8), at, self.get(o.block), *words)

    def emit_cluster_send(self, o: ops.ClusterSend) -> None:
        self.execute(
            cluster.cluster_send(o.bytes),
            self.shared_address(o.source, self.get(o.source_offset)),
            self.shared_address(o.dest, self.get(o.dest_offset)),
            self.barrier_address(o.barrier, o.stage),
            self.get(o.block),
        )

    # --- asynchronous copies ---

    def emit_cp_async(self, o: ops.CpAsync) -> None:
        source = self.pointer(o.source, self.get(o.source_offset))
        args = [
            self.shared_address(o.dest, self.get(o.dest_offset)),
            self.f.cast("ptrtoint", source, "i64"),
        ]
        if o.valid is not None:
            args.append(self.get(o.valid))
        instr = moves.cp_async(o.bytes, o.valid is not None, o.cache)
        self.execute(instr, *args)

    def emit_cp_async_wait(self, o: ops.CpAsyncWait) -> None:
        self.execute(moves.cp_async_wait(o.pending))

    def emit_prefetch_map(self, o: ops.PrefetchMap) -> None:
        self.execute(moves.TMA_PREFETCH, self.get(o.map))

    def emit_tma_load(self, o: ops.TmaLoad) -> None:
        instr = moves.tma_load(len(o.coords), o.blocks is not None, o.cache)
        dest = self.shared_address(o.dest, self.get(o.dest_offset))
        coords = [self.get(c) for c in o.coords]
        args = [dest, self.get(o.map), *coords, self.barrier_address(o.barrier, o.stage)]
        if o.blocks is not None:
            args.append(self.get(o.blocks))
        self.execute(instr, *args)

    def emit_tma_store(self, o: ops.TmaStore) -> None:
        instr = moves.tma_store(len(o.coords), o.guard is not None, o.cache, o.reduction)
        source = self.shared_address(o.source, self.get(o.source_offset))
        args = [self.get(o.map), *(self.get(c) for c in o.coords), source]
        if o.guard is not None:
            args.append(self.f.cast("zext", self.get(o.guard), "i32"))
        self.execute(instr, *args)

    def emit_tma_store_wait(self, o: ops.TmaStoreWait) -> None:
        self.execute(moves.tma_store_wait(o.pending, o.read))

    # --- matrices ---

    def emit_ldmatrix(self, o: ops.Ldmatrix) -> None:
        instr = moves.ldmatrix(o.count, o.transposed)
        got = self.execute(instr, self.shared_address(o.source, self.get(o.offset)))
        slots = self.pack_slots(o.dest, o.register, o.count, 32 // o.dest.dtype.bits)
        self.write_packs(o.dest, slots, got)

    def emit_ldmatrix_values(self, o: ops.LdmatrixValues) -> None:
        f, pack = self.f, 32 // o.source.dtype.bits
        instr = moves.ldmatrix(o.count, o.transposed)
        kind = memory_type(o.source.dtype)
        words = self.execute(instr, self.shared_address(o.source, self.get(o.offset)))
        for r, part in zip(o.results, (x for w in words for x in parts_of(f, w, kind, pack))):
            self.env[r] = from_memory(f, part, r.dtype)

    def emit_stmatrix(self, o: ops.Stmatrix) -> None:
        instr = moves.stmatrix(len(o.values), o.transposed)
        at = self.shared_address(o.dest, self.get(o.offset))
        values = [self.f.cast("bitcast", self.get(v), "i32") for v in o.values]
        self.execute(instr, at, *values)

    def multiplier(self, o: ops.Mma | ops.WarpMma) -> Multiplier:
        instr = find_instruction(o.instr)
        match instr:
            case MmaInstruction():
                form = instr.asm()
            case SparseMmaInstruction() if isinstance(o, ops.Mma):
                form = instr.asm(o.selector)
            case _:
                raise InternalError(f"{o.instr} is not an mma", o.loc)
        return instr, form.inputs, lambda args: self.asm(form, args, o.instr)

    def emit_wgmma(self, o: ops.Wgmma) -> None:
        instr = find_instruction(o.instr)
        if not isinstance(instr, WgmmaInstruction):
            raise InternalError(f"{o.instr} is not a wgmma", o.loc)
        flag = int_val(1, "i1") if o.accumulate is None else self.get(o.accumulate)
        accumulate = "if" if flag.literal is None else "always" if flag.literal else "never"
        form = instr.product(
            o.m_blocks,
            o.a_steps,
            o.b_steps,
            a_transposed=o.a_transposed,
            b_transposed=o.b_transposed,
            accumulate=accumulate,
            a_place=o.a.space,
            served=o.served,
        )
        if o.a.space == "fragment":
            inputs = self.registers[o.a].slots
            args = self.read_packs(o.a, inputs, ["i32"] * len(inputs))
        else:
            args = [self._descriptor(o.a, o.a_offset, o.a_fields)]
        if o.metadata is not None:
            words = self.registers[o.metadata].slots
            args += self.read_packs(o.metadata, words, ["i32"] * len(words))
        args.append(self._descriptor(o.b, o.b_offset, o.b_fields))
        if accumulate == "if":
            args.append(self.f.cast("zext", flag, "i32"))
        slots = self.registers[o.c].slots
        if len(slots) != len(form.outputs):
            raise InternalError(f"{o.instr}: {len(slots)} registers in {o.c.name}", o.loc)
        if accumulate != "never":
            args += self.read_packs(o.c, slots, form.outputs)
        self.write_packs(o.c, slots, self.asm(form, args, o.instr))

    def _descriptor(self, v: Value, offset: Value, fields: int) -> Val:
        """A matrix descriptor: the address in units of 16 bytes in 14 bits, below the fields. The
        mask keeps a cluster's block number, in the address's upper bits, out of them."""
        f = self.f
        units = f.binary("lshr", self.shared_address(v, self.get(offset)), 4)
        low = f.cast("zext", f.binary("and", units, 0x3FFF), "i64")
        return f.binary("or", low, fields)

    def emit_wgmma_wait(self, o: ops.WgmmaWait) -> None:
        """The registers pass through the wait, so that nothing that touches them can pass it."""
        held = [(v, self.registers[v]) for v in o.fragments]
        kinds = ["f" if r.slot_type == "float" else "r" for _, r in held for _ in r.slots]
        types = [LLVM_TYPES[k] for k in kinds]
        values, at = list[Val](), 0
        for v, r in held:
            values += self.read_packs(v, r.slots, types[at : at + len(r.slots)])
            at += len(r.slots)
        got = self.asm(wgmma_wait(o.pending, kinds), values, "wgmma.wait")
        for v, r in held:
            self.write_packs(v, r.slots, got[: len(r.slots)])
            got = got[len(r.slots) :]

    # --- lanes ---

    def emit_shuffle_xor(self, o: ops.ShuffleXor) -> None:
        self._shuffle(o.result, o.value, "bfly", int_val(o.mask))

    def emit_shuffle(self, o: ops.Shuffle) -> None:
        self._shuffle(o.result, o.value, "idx", self.get(o.lane))

    def _shuffle(self, result: Value, value: Value, mode: str, lane: Val) -> None:
        name = f"llvm.nvvm.shfl.sync.{mode}.i32"

        def move(word: Val) -> Val:
            return self.f.intrinsic("i32", name, [int_val(-1), word, lane, int_val(31)])

        self.env[result] = in_words(self.f, self.get(value), move)
