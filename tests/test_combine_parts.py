"""Sums that blocks share through global memory: what is made of them, what they compute in the
simulator in any order of the blocks, what a launch brings along, and where they are chosen."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from form_help import GFX942, SM80, SM90
from frontend_help import ops as found
from test_clusters import plan
from test_lowering import matmul_text
from test_runtime_cuda import FakeCuda, fake, image  # noqa: F401
from test_schedules import arrays, best

import tilec
import tilec.language as T
from tilec.codegen import emit
from tilec.ir.core import Func, Op
from tilec.ir.errors import LaunchError, ResourceError
from tilec.ir.ops import Barrier, CountUp, DeviceFence, MemStore
from tilec.ir.parser import parse_func
from tilec.ir.printer import print_func
from tilec.jit.simulate import simulate_changed
from tilec.passes import run_plan
from tilec.runtime import cuda
from tilec.runtime.block import ArgumentBlock, BlockLayout
from tilec.runtime.driver import check_grid, launched_grid, sums_of
from tilec.runtime.image import AbiParam, Image
from tilec.runtime.workspace import LEAST
from tilec.target import Target

pytestmark = pytest.mark.usefixtures("unassembled")

M, N, K, P = T.dynamic("M, N, K, P")


# --- what is made ---------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [SM80, SM90, GFX942], ids=str)
def test_one_counter_between_two_fences(target: Target) -> None:
    """Each block stores its registers whole, one thread counts; nothing waits."""
    text = matmul_text(64, 64, 32, 1, 128, 0, 1)
    func = run_plan(parse_func(text), target, plan(parts=5, specialise=False, persistent=False,
                                                   staged_store=False))  # fmt: skip
    (count,) = found(func, CountUp)
    assert count.last == 4 and print_func(parse_func(print_func(func))) == print_func(func)
    own = {p.role: p.dim for p in func.params if p.role in ("workspace", "counters")}
    assert own == {"workspace": 5 * 64 * 64 * 4, "counters": 4}
    stored = [o for o in found(func, MemStore) if o.dest.name == "acc_parts"]
    lanes = 64 * 64 // 128 // 4
    assert len(stored) == lanes and all(o.align == 16 and o.guard is None for o in stored)
    code = emit(func, target)
    if target is GFX942:  # its barrier orders shared memory only: each thread publishes its own
        assert len(found(func, DeviceFence)) == 4
        assert code.count('fence syncscope("agent") acq_rel') == 4
        assert "atomicrmw uinc_wrap ptr addrspace(1)" in code
    else:
        assert len(found(func, DeviceFence)) == 2
        assert code.count("fence.acq_rel.gpu") == 2 and "atom.relaxed.gpu.global.inc" in code


def test_names_that_the_user_has_taken() -> None:
    @tilec.kernel
    def product(
        acc_parts: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        counters: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 64), threads=128) as (bx, by):
            T.annotate_schedule(split=(1, 2))
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((16, 32), "float16")
            acc = T.alloc_fragment((64, 16), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 32)):
                T.copy(acc_parts[by * 64, k * 32], a)
                T.copy(B[bx * 16, k * 32], b)
                T.gemm(a, b, acc, transpose_B=True)
            T.copy(acc, counters[by * 64, bx * 16])

    (a, b, _, c), _ = case(64, 16, 72)
    report = tilec.simulate(product, a, b, c)
    assert not report.findings, str(report)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.T.astype(np.float64), atol=1e-4)


def test_a_loop_behind_the_sum_is_refused() -> None:
    @tilec.kernel
    def twice(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            T.annotate_schedule(split=(1, 4))
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((64, 32), "float16")
            a2 = T.alloc_shared((64, 32), "float16")
            b2 = T.alloc_shared((64, 32), "float16")
            first = T.alloc_fragment((64, 64), "float32")
            second = T.alloc_fragment((64, 64), "float32")
            T.clear(first)
            T.clear(second)
            for k in T.Pipelined(T.ceildiv(K, 32)):
                T.copy(A[by * 64, k * 32], a)
                T.copy(B[bx * 64, k * 32], b)
                T.gemm(a, b, first, transpose_B=True)
            for k in T.Pipelined(T.ceildiv(K, 32)):
                T.copy(A[by * 64, k * 32], a2)
                T.copy(B[bx * 64, k * 32], b2)
                T.gemm(a2, b2, second, transpose_B=True)
            for i, j in T.Parallel(64, 64):
                first[i, j] += second[i, j]
            T.copy(first, C[by * 64, bx * 64])

    half = [tilec.spec((64, 512), "float16")] * 2
    with pytest.raises(ResourceError, match=r"4 blocks can share: another T.Pipelined follows it"):
        twice.compile(*half, tilec.spec((64, 64), "float32"), target="cuda:sm_90a")


def scaled_sum(split: tuple[int, int]) -> tilec.Kernel:
    """A product of blocks with a scale each, which threads add up."""

    @tilec.kernel
    def scaled(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        S: T.Tensor((M, P), "float32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 64), threads=128) as (bx, by):
            T.annotate_schedule(split=split)
            a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((16, 32), "float16")
            part, acc = (T.alloc_fragment((64, 16), "float32") for _ in range(2))
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
                T.copy(A[by * 64, k * 32], a)
                T.copy(B[bx * 16, k * 32], b)
                T.gemm(a, b, part, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(64, 16):
                    acc[i, j] += part[i, j] * S[by * 64 + i, k]
            T.copy(acc, C[by * 64, bx * 16])

    return scaled


@pytest.mark.parametrize("split", [(1, 3), (2, 1)])
def test_what_threads_add_up_is_shared(split: tuple[int, int], rng: np.random.Generator) -> None:
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((70, 152), (20, 152)))
    s, c = rng.integers(1, 5, (70, 5)).astype(np.float32), np.full((70, 20), np.nan, np.float32)
    report = tilec.simulate(scaled_sum(split), a, b, s, c, target="cuda:sm_90a")
    assert not report.findings, str(report)
    scales = np.repeat(s.astype(float), 32, 1)[:, :152]
    np.testing.assert_array_equal(c, (a * scales) @ b.T.astype(float))


# --- what it computes -----------------------------------------------------------------------------


def shared(split: Any, cluster: Any = None, specialise: Any = None, bn: int = 64) -> Any:
    """C = max(A @ B^T, 0) + bias in tiles of 64 x `bn`, the epilogue in who comes last."""

    @tilec.kernel
    def product(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        bias: T.Tensor((N,), "float32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, bn), T.ceildiv(M, 64), threads=128) as (bx, by):
            T.annotate_schedule(split=split, cluster=cluster, specialise=specialise)
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((bn, 32), "float16")
            acc = T.alloc_fragment((64, bn), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 32)):
                T.copy(A[by * 64, k * 32], a)
                T.copy(B[bx * bn, k * 32], b)
                T.gemm(a, b, acc, transpose_B=True)
            for i, j in T.Parallel(64, bn):
                acc[i, j] = T.max(acc[i, j], 0.0) + bias[bx * bn + j]
            T.copy(acc, C[by * 64, bx * bn])

    return product


def case(m: int, n: int, k: int) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(m + n + k)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (n, k)))
    bias = rng.standard_normal(n).astype(np.float32)
    want = np.maximum(a.astype(np.float64) @ b.astype(np.float64).T, 0) + bias
    return [a, b, bias, np.full((m, n), np.nan, np.float32)], want


@pytest.mark.parametrize(
    ("split", "target", "words", "shape"),
    [
        ((1, 4), "cuda:sm_90a", {}, (100, 72, 200)),
        ((1, 3), "cuda:sm_90a", {"specialise": False}, (65, 70, 136)),
        ((2, 3), "cuda:sm_90a", {}, (64, 72, 200)),
        ((1, 17), "cuda:sm_90a", {"bn": 16}, (64, 16, 1200)),
        ((1, 8), "cuda:sm_90a", {}, (64, 64, 40)),  # blocks without an iteration
        (4, "cuda:sm_90a", {"cluster": (2, 1)}, (140, 72, 136)),
        ((1, 5), "cuda:sm_80", {}, (70, 100, 168)),
        ((1, 4), "hip:gfx942", {}, (70, 100, 168)),
    ],
)
def test_in_any_order_of_the_blocks(split: Any, target: str, words: Any, shape: Any) -> None:
    """The last one to come sums and runs the epilogue, with the same bits whoever it is."""
    args, want = case(*shape)
    kernel = shared(split, **words)
    outputs = []
    for seed in (0, 7):
        args[-1][:] = np.nan
        wishes = {"schedules": 1 + bool(seed), "seed": seed, "check_outputs": True}
        report = tilec.simulate(kernel, *args, target=target, **wishes)
        assert not report.findings, str(report)
        np.testing.assert_allclose(args[-1], want, rtol=1e-4, atol=1e-3)
        outputs.append(args[-1].tobytes())
    count = split if isinstance(split, int) else split[1]
    assert report.grid[2] == count and outputs[0] == outputs[1]


@pytest.mark.turns
@pytest.mark.parametrize("target", ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942"))
def test_what_the_optimiser_leaves(target: str) -> None:
    args, want = case(64, 64, 136)
    report = tilec.simulate(shared((1, 3)), *args, target=target, optimised=True)
    assert not report.findings, str(report)
    np.testing.assert_allclose(args[-1], want, rtol=1e-4, atol=1e-3)


@tilec.kernel
def batched(
    A: T.Tensor((P, M, K), "int8"),
    B: T.Tensor((P, N, K), "int8"),
    C: T.Tensor((P, M, N), "int32"),
    D: T.Tensor((P, M, N), "int32"),
):
    """Two sums at once, in three dimensions."""
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), P, threads=64) as (bx, by, bz):
        T.annotate_schedule(split=(1, 3))
        a = T.alloc_shared((32, 64), "int8")
        b = T.alloc_shared((32, 64), "int8")
        one = T.alloc_fragment((32, 32), "int32")
        two = T.alloc_fragment((32, 32), "int32")
        T.clear(one)
        T.clear(two)
        for k in T.Pipelined(T.ceildiv(K, 64)):
            T.copy(A[bz, by * 32, k * 64], a)
            T.copy(B[bz, bx * 32, k * 64], b)
            T.gemm(a, b, one, transpose_B=True)
            T.gemm(a, a, two, transpose_B=True)
        T.copy(one, C[bz, by * 32, bx * 32])
        T.copy(two, D[bz, by * 32, bx * 32])


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a"])
def test_two_sums_of_a_batch(target: str) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(-9, 9, (2, 32, 208), np.int8)
    b = rng.integers(-9, 9, (2, 40, 208), np.int8)
    c, d = np.zeros((2, 32, 40), np.int32), np.zeros((2, 32, 40), np.int32)
    report = tilec.simulate(batched, a, b, c, d, target=target)
    assert not report.findings and report.grid == (2, 1, 6)
    wide = a.astype(np.int32)
    assert (c == wide @ b.astype(np.int32).transpose(0, 2, 1)).all()
    assert (d[:, :, :32] == wide @ wide.transpose(0, 2, 1)).all()


def test_a_grid_that_the_launch_gives() -> None:
    @tilec.kernel
    def product(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(threads=128) as (bx, by):
            T.annotate_schedule(split=(1, 3))
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((64, 32), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            T.use_swizzle(4)
            for k in T.Pipelined(T.ceildiv(K, 32)):
                T.copy(A[by * 64, k * 32], a)
                T.copy(B[bx * 64, k * 32], b)
                T.gemm(a, b, acc, transpose_B=True)
            T.copy(acc, C[by * 64, bx * 64])

    (a, b, _, c), _ = case(136, 100, 136)
    report = tilec.simulate(product, a, b, c, grid=(2, 3))
    assert not report.findings and report.grid == (2, 3, 3), str(report)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.T.astype(np.float64), atol=1e-3)


# --- what the simulator finds ---------------------------------------------------------------------


def without(cls: type[Op], number: int | None) -> Any:
    """The function without one op of a class, or without any."""

    def change(func: Func) -> Func:
        seen = -1

        def visit(o: Op) -> list[Op] | None:
            nonlocal seen
            seen += isinstance(o, cls)
            return [] if isinstance(o, cls) and number in (None, seen) else None

        return func.rewrite(Op, visit)

    return change


def counting(by: int) -> Any:
    def visit(o: Op) -> Op | None:
        return replace(o, last=o.last + by) if isinstance(o, CountUp) else None

    return lambda func: func.rewrite(Op, visit)


@pytest.mark.parametrize(
    ("target", "change", "kind"),
    [
        ("cuda:sm_90a", without(DeviceFence, 0), "data race"),  # no release
        ("cuda:sm_90a", without(DeviceFence, 1), "data race"),  # no acquire
        ("cuda:sm_80", without(DeviceFence, 0), "data race"),
        ("cuda:sm_80", without(DeviceFence, 1), "data race"),
        ("hip:gfx942", without(DeviceFence, None), "data race"),
        ("cuda:sm_90a", counting(1), "counter not reset"),
        ("cuda:sm_90a", counting(-1), "counter not reset"),
        ("hip:gfx942", counting(1), "counter not reset"),
    ],
)
def test_what_is_missing_is_found(target: str, change: Any, kind: str) -> None:
    args, _ = case(64, 64, 136)
    report = simulate_changed(change, shared((1, 4)), *args, target=target)
    assert kind in {f.kind for f in report.findings}, str(report)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_barrier_less_is_found(number: int) -> None:
    args, _ = case(64, 64, 136)
    func = simulate_changed
    report = func(without(Barrier, number), shared((1, 4), specialise=True), *args)
    assert report.findings


# --- what a launch brings along -------------------------------------------------------------------

PARAMS = (
    AbiParam("tensor", "C", -1, "pointer"),
    AbiParam("workspace", "acc_parts", 65536, "pointer"),
    AbiParam("counters", "counters", 4, "pointer"),
)


class Memory(FakeCuda):
    """With streams that may be captured, and memory."""

    CUstreamCaptureMode = type("", (), {"CU_STREAM_CAPTURE_MODE_RELAXED": 2})
    CUstream_flags = type("", (), {"CU_STREAM_NON_BLOCKING": 1})
    captured = 0  # the graph
    last = 0x7000_0000_0000

    def cuStreamIsCapturing(self, stream: int) -> tuple:
        return 0, int(self.captured > 0)

    def cuStreamGetCaptureInfo(self, stream: int) -> tuple:
        return 0, 1, self.captured, 0, [], 0

    def cuThreadExchangeStreamCaptureMode(self, mode: int) -> tuple:
        return self.record("mode", mode), 0

    def cuMemAlloc(self, size: int) -> tuple:
        self.last += 1 << 32
        return self.record("cuMemAlloc", size), self.last

    def cuStreamCreate(self, flags: int) -> tuple:
        return self.record("cuStreamCreate", flags), 0x77

    def cuMemsetD8Async(self, address: int, value: int, size: int, stream: int) -> tuple:
        return (self.record("cuMemsetD8Async", address, value, size, stream),)

    def cuStreamSynchronize(self, stream: int) -> tuple:
        return (self.record("cuStreamSynchronize", stream),)

    def cuStreamDestroy(self, stream: int) -> tuple:
        return (self.record("cuStreamDestroy", stream),)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    from test_runtime_cuda import install

    api = Memory()
    install(monkeypatch, api)
    return api


def given(api: Memory, ready: Any) -> list[int]:
    """The addresses that a launch passes."""
    import ctypes

    seen: list[int] = []

    def look(params: int) -> None:
        pointers = (ctypes.c_uint64 * 3).from_address(params)
        seen.extend(ctypes.c_uint64.from_address(p).value for p in pointers)

    api.at_launch = look
    assert ready() == 0
    return seen


def addresses() -> ArgumentBlock:
    return BlockLayout(PARAMS, "cuda:sm_90a").block([0xC0, 0, 0])


def own() -> Image:
    return image(params=PARAMS, arguments=(), grid="(4, 3, 1)", parts=8)


def test_each_stream_and_graph_has_its_own(memory: Memory) -> None:
    kernel = cuda.CudaDriver().load(own(), 0)
    grid = launched_grid(kernel, (4, 3, 1))
    assert grid == (4, 3, 8) and sums_of(kernel.image, grid) == 12
    one, again, other = (kernel.ready(grid, addresses(), s) for s in (0x50, 0x50, 0x60))
    first = given(memory, one)
    assert first[0] == 0xC0 and first == given(memory, one) == given(memory, again)
    assert not {*first[1:]} & {*given(memory, other)[1:]}
    sizes = [c[1] for c in memory.calls if c[0] == "cuMemAlloc"]
    assert sizes == [1 << 20, LEAST] * 2 or sizes == [LEAST, 1 << 20] * 2
    cleared = [c[1:] for c in memory.calls if c[0] == "cuMemsetD8Async"]
    assert [c[1:] for c in cleared] == [(0, LEAST, 0x77)] * 2 and cleared[0][0] == first[2]
    memory.captured = 5
    graph = given(memory, one)
    assert graph == given(memory, again), "one stream of one graph"
    assert not {*graph[1:]} & {*first[1:]}
    memory.captured = 6
    assert not {*given(memory, one)[1:]} & {*graph[1:], *first[1:]}
    memory.captured = 0
    assert given(memory, one) == first
    relaxed = [c[1] for c in memory.calls if c[0] == "mode"]
    assert relaxed == [2, 0] * (len(relaxed) // 2)


def test_the_block_takes_other_arguments(memory: Memory) -> None:
    kernel, block = cuda.CudaDriver().load(own(), 0), addresses()
    ready = kernel.ready((4, 3, 8), block, 0x50)
    first = given(memory, ready)
    for captured in (0, 5, 0):
        memory.captured = captured
        block.words()[0] += 64
        found = given(memory, ready)
        assert found[0] == block.words()[0] and (found[1:] == first[1:]) == (not captured)


def test_a_larger_launch_gets_more(memory: Memory) -> None:
    kernel = cuda.CudaDriver().load(own(), 0)
    small = kernel.ready((4, 3, 8), addresses(), 0)
    before = given(memory, small)
    large = given(memory, kernel.ready((400, 30, 8), addresses(), 0))
    assert before[1] != large[1] and before[2] == large[2]
    assert given(memory, small) == before, "it is still there"


def test_no_room(memory: Memory) -> None:
    kernel = cuda.CudaDriver().load(own(), 0)
    memory.failing["cuMemAlloc"] = 2
    with pytest.raises(tilec.TilecError, match="allocating 1,048,576 bytes on cuda:0 for what"):
        kernel.ready((4, 3, 8), addresses(), 0)


def test_too_many_blocks_in_z() -> None:
    limits = SM90.grid_limits
    check_grid(own(), (4, 3, 8000), limits)
    with pytest.raises(LaunchError, match=r"8200 blocks in z, and 8 launched blocks share"):
        check_grid(own(), (4, 3, 8200), limits)


def test_saved_and_exported(tmp_path: Any) -> None:
    args, _ = case(64, 64, 136)
    made = shared((1, 4)).compile(*args, target="cuda:sm_90a")
    again = Image.from_bytes(made.image.to_bytes(), "it")
    assert again.parts == 4 and again.params == made.image.params
    header = made.export_c(tmp_path / "k")[1].read_text()
    assert "// Launch 4 times the grid's blocks in z." in header
    assert re.search(r"void \* to 65536 bytes for each block of the grid: any content", header)
    assert re.search(r"void \* to 4 bytes for each block of the grid: zeros, and zeros", header)


# --- where it is chosen ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(512, 512, 65536), (128, 256, 32768), (64, 64, 131072), (16, 512, 8192)]
)
def test_long_sums_of_few_tiles(shape: tuple[int, int, int]) -> None:
    """512x512x65536 took 118 us with the largest cluster and 56 with eight parts, cuBLAS 53."""
    tile, chosen = best(*shape)
    blocks = -(-shape[0] // tile[0]) * -(-shape[1] // tile[1]) * chosen.split * chosen.parts
    assert chosen.parts > 1 and 66 <= blocks <= 264


@pytest.mark.parametrize(
    "shape", [(4096, 4096, 4096), (1024, 1024, 1024), (8192, 8192, 512), (4096, 512, 128)]
)
def test_not_where_there_are_tiles_enough(shape: tuple[int, int, int]) -> None:
    assert best(*shape)[1].parts == 1


def test_a_count_beyond_a_cluster() -> None:
    """split=16 may be any clusters and parts that make 16."""
    kernel = shared(16)
    rows = tilec.recommend(kernel, *[tilec.spec(s, d) for s, d in (
        ((64, 4096), "float16"), ((64, 4096), "float16"), ((64,), "float32"), ((64, 64), "float32")
    )], target="cuda:sm_90a", topk=30)  # fmt: skip
    chosen = [r.plan for r in rows if r.estimate]
    assert {p.split * p.parts for p in chosen} == {16} and len({p.split for p in chosen}) > 1
    assert arrays(1, 1, 1)
