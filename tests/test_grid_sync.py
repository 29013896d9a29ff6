"""T.sync_grid: a kernel is several launches, each with what it computes for itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.effects import written_tensors
from tilec.ir.ops import GridSync
from tilec.jit.build import trace_variant

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
M, N = T.dynamic("M, N")


@tilec.kernel
def softmax(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), n: T.int32):
    """Of a whole vector, times n, by all blocks."""
    part = T.alloc_global((8, 2), "float32")
    with T.Kernel(8, threads=64) as b:
        x = T.alloc_fragment((64,), "float32")
        m = T.alloc_fragment((1,), "float32")
        scale = T.alloc_var("float32", 2.0)
        scale = scale * n
        each = T.ceildiv(N, 8)
        first = b * each
        T.fill(m, -T.infinity("float32"))
        for k in T.serial(T.ceildiv(each, 64)):
            for i in T.Parallel(64):
                inside = (k * 64 + i < each) & (first + k * 64 + i < N)
                x[i] = T.if_then_else(inside, A[first + k * 64 + i] * scale, -T.infinity("float32"))
            T.reduce_max(x, m, clear=False)
        for i in T.Parallel(1):
            part[b, 0] = m[i]
        T.sync_grid()
        top = T.alloc_var("float32", -T.infinity("float32"))
        for k in T.serial(8):
            top = T.max(top, part[k, 0])
        T.fill(m, 0)
        for k in T.serial(T.ceildiv(each, 64)):
            for i in T.Parallel(64):
                inside = (k * 64 + i < each) & (first + k * 64 + i < N)
                x[i] = T.if_then_else(inside, T.exp(A[first + k * 64 + i] * scale - top), 0.0)
            T.reduce_sum(x, m, clear=False)
        for i in T.Parallel(1):
            part[b, 1] = m[i]
        T.sync_grid()
        total = T.alloc_var("float32", 0.0)
        high = T.alloc_var("float32", -T.infinity("float32"))
        for k in T.serial(8):
            total += part[k, 1]
            high = T.max(high, part[k, 0])
        for k in T.serial(T.ceildiv(each, 64)):
            for i in T.Parallel(64):
                if k * 64 + i < each:
                    at = first + k * 64 + i
                    B[at] = T.exp(A[at] * scale - high) / total


def launch(kernel: Any, target: str, *arrays: Any) -> None:
    if target == "cpu":
        kernel(*arrays)
    else:
        report = tilec.simulate(kernel, *arrays, target=target)
        assert not report.findings, report


def wanted(a: np.ndarray, factor: float) -> np.ndarray:
    x = np.exp(factor * (a.astype(np.float64) - a.max()))
    return x / x.sum()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [1, 100, 3000])
def test_numbers(target: str, n: int, rng: np.random.Generator) -> None:
    a, b = rng.standard_normal(n).astype(np.float32), np.full(n, np.nan, np.float32)
    launch(softmax, target, a, b, 3)
    np.testing.assert_allclose(b, wanted(a, 6), rtol=2e-5, atol=1e-9)


def test_each_launch_has_its_own() -> None:
    args = (tilec.spec((1000,), "float32"), tilec.spec((1000,), "float32"))
    assert softmax.is_sequence and len(softmax.parts.kernels) == 3
    assert len(softmax.parts.compile(args, "cuda:sm_90a", {})) == 3
    written = []
    for kernel in softmax.parts.kernels:
        given = {"part": tilec.spec((8, 2), "float32")} if written else {}
        key = kernel.key_of((), "cuda:sm_90a", dict(zip("AB", args)) | given)
        func = trace_variant(kernel.signature, key)
        assert not [o for o in walk(func.body) if isinstance(o, GridSync)]
        written.append({v.name for v in written_tensors(func.body)})
    assert written == [{"part"}, {"part"}, {"B"}]


def test_results_and_several_kernels(rng: np.random.Generator) -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((M, N), "float32")):
        B = T.empty((M,), "float32")
        C = T.empty((M,), "float32")
        with T.Kernel(M, threads=32) as row:
            for _ in T.Parallel(1):
                B[row] = A[row, 0]
            T.sync_grid()
            for _ in T.Parallel(1):
                C[row] = B[M - 1 - row] + 1
        with T.Kernel(1, threads=32):
            for _ in T.Parallel(1):
                C[0] = -C[0]
        return B, C

    a = rng.standard_normal((70, 3)).astype(np.float32)
    b, c = kernel(a)
    np.testing.assert_array_equal(b, a[:, 0])
    expected = a[::-1, 0] + np.float32(1)
    expected[0] = -expected[0]
    np.testing.assert_array_equal(c, expected)


def mistake(body: Callable[[Any, Any], Any], *words: str) -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            body(A, B)

    with pytest.raises(tilec.CompileError) as e:
        kernel.compile(*[tilec.spec((64,), "float32")] * 2, target="cpu")
    for word in words:
        assert re.search(word, str(e.value)), e.value


def _function(A: Any, B: Any) -> None:
    T.sync_grid()


def test_in_a_function() -> None:
    mistake(_function, "stands in a function", "in the body of with T.Kernel itself")


def compiled(kernel: Any, *words: str) -> None:
    with pytest.raises(tilec.CompileError) as e:
        kernel.parts.compile([tilec.spec((64,), "float32")] * 2, "cpu", {})
    for word in words:
        assert re.search(word, str(e.value)), e.value


def test_in_a_loop() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            T.sync_grid()
            for _ in T.serial(2):
                T.sync_grid()

    compiled(kernel, "stands in a loop or a condition", "split there into launches")


def test_what_is_on_chip_is_gone() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((64,), "float32")
            T.copy(A, x)
            T.sync_grid()
            T.copy(x, B)

    with pytest.raises(tilec.CompileError, match="what x held before T.sync_grid") as e:
        kernel.parts.compile([tilec.spec((64,), "float32")] * 2, "cpu", {})
    assert "T.copy(x, B)" in str(e.value) and "T.alloc_global" in str(e.value)


def test_half_of_it_is_gone_too() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_shared((64,), "float32")
            T.copy(A, x)
            T.sync_grid()
            for i in T.Parallel(32):
                x[i] = 0
            T.copy(x, B)

    compiled(kernel, "what x held before T.sync_grid")


def test_numbers_of_what_is_written() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            first = A[0] + B[1]
            T.sync_grid()
            for i in T.Parallel(64):
                B[i] = first

    compiled(kernel, "computed before T.sync_grid", "compute it behind")


def test_without_a_grid() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(threads=64):
            T.sync_grid()

    with pytest.raises(tilec.CompileError, match="whose grid stands in T.Kernel"):
        kernel[(1,)](*np.zeros((2, 64), np.float32))


@pytest.mark.gpu
def test_on_the_gpu(rng: np.random.Generator, torch: Any) -> None:
    a = rng.standard_normal(100_000).astype(np.float32)
    first = None
    for _ in range(50):
        b = torch.full((100_000,), float("nan"), device="cuda")
        softmax(torch.from_numpy(a).cuda(), b, 3)
        first = b if first is None else first
        assert torch.equal(b, first)
    np.testing.assert_allclose(first.cpu().numpy(), wanted(a, 6), rtol=2e-5, atol=1e-9)
