"""T.sync_grid: a kernel is several launches, each with what it computes for itself, or one whose
blocks wait for one another."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.core import Func, Op, walk
from tilec.ir.effects import written_tensors
from tilec.ir.ops import GridSync
from tilec.jit.build import trace_variant
from tilec.jit.export import c_header
from tilec.jit.simulate import simulate_changed
from tilec.runtime.image import NO_BLOCKS

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


def wanted(a: np.ndarray, factor: float) -> np.ndarray:
    x = np.exp(factor * (a.astype(np.float64) - a.max()))
    return x / x.sum()


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [1, 100, 3000])
def test_numbers(target: str, n: int, rng: np.random.Generator) -> None:
    a, b = rng.standard_normal(n).astype(np.float32), np.full(n, np.nan, np.float32)
    run(softmax, target, a, b, 3)
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


ONE = tilec.spec((64,), "float32")


@tilec.kernel
def turns(A: T.Tensor((M, 64), "int32"), n: T.int32):
    """Each block adds one to what its neighbour has, turned around, n times."""
    with T.Kernel(M, threads=64) as b:
        x = T.alloc_fragment((64,), "int32")
        for _ in T.serial(n):
            for i in T.Parallel(64):
                x[i] = A[(b + 1) % M, 63 - i] + 1
            T.sync_grid()
            T.copy(x, A[b, 0])
            T.sync_grid()


def turned(a: np.ndarray, n: int) -> np.ndarray:
    for _ in range(n):
        a = np.roll(a[:, ::-1], -1, 0) + 1
    return a


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("blocks, n", [(1, 3), (5, 0), (5, 1), (6, 4)])
def test_in_a_loop(target: str, blocks: int, n: int, rng: np.random.Generator) -> None:
    a = rng.integers(0, 100, (blocks, 64)).astype(np.int32)
    want = turned(a, n)
    run(turns, target, a, n)
    np.testing.assert_array_equal(a, want)


def test_many_blocks_on_the_cpu() -> None:
    """More than there are processors, time and again: the words are zero for each launch."""
    for n in (3, 4):
        a = np.arange(200 * 64, dtype=np.int32).reshape(200, 64)
        want = turned(a, n)
        turns(a, n)
        np.testing.assert_array_equal(a, want)


def test_blocks_in_any_order(rng: np.random.Generator) -> None:
    a = rng.integers(0, 100, (4, 64)).astype(np.int32)
    report = tilec.simulate(turns, a, 2, target="cuda:sm_90a", schedules=4)
    assert report.ok and not report.findings, report


def test_the_launch_is_cooperative() -> None:
    variant = turns.compile(tilec.spec((8, 64), "int32"), 3, target="cuda:sm_90a")
    assert variant.image.cooperative and not turns.is_sequence
    assert [(p.role, p.dim) for p in variant.image.params if p.role == "counters"] == [
        ("counters", 8)
    ]
    assert variant.asm.count("fence.acq_rel.gpu") == 4
    assert "nanosleep" in variant.asm
    assert "wait for one another" in c_header(variant.image, "turns", "turns.cubin")
    amd = turns.compile(tilec.spec((8, 64), "int32"), 3, target="hip:gfx942")
    assert amd.image.cooperative and "s_sleep" in amd.asm


def _without(word: str) -> Callable[[Func], Func]:
    def change(func: Func) -> Func:
        return func.rewrite(Op, lambda o: [] if o.opname == word else None)

    return change


@pytest.mark.parametrize("target", ["cuda:sm_90a", "hip:gfx942"])
@pytest.mark.parametrize("word", ["device_fence", "barrier"])
def test_less_is_a_race(word: str, target: str) -> None:
    a = np.zeros((3, 64), np.int32)
    report = simulate_changed(_without(word), turns, a, 2, target=target)
    assert "data race" in {f.kind for f in report.findings}


def test_without_it_is_a_race() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((4, 64), "int32"), n: T.int32):
        with T.Kernel(4, threads=64) as b:
            for k in T.serial(n):
                for i in T.Parallel(64):
                    A[b, i] = A[(b + 1) % 4, i] + 1
                if k > 0:
                    T.sync_grid()

    report = tilec.simulate(kernel, np.zeros((4, 64), np.int32), 2, target="cuda:sm_90a")
    assert "data race" in {f.kind for f in report.findings}


def test_a_block_that_does_not_come() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32"), n: T.int32):
        with T.Kernel(3, threads=64) as b:
            if b < n:
                T.sync_grid()
            A[b] = 1

    with pytest.warns(tilec.CompileWarning, match="waits for all blocks, and stands in") as w:
        report = tilec.simulate(kernel, np.zeros(64, np.float32), 2, target="cuda:sm_90a")
    assert "sizes and scalars only" in str(w[0].message)
    found = next(f for f in report.findings if f.kind == "deadlock")
    assert "do not come to T.sync_grid" in str(found)
    report = tilec.simulate(kernel, np.zeros(64, np.float32), 3, target="cuda:sm_90a")
    assert not report.findings


@tilec.kernel
def keeps(A: T.Tensor((M, 64), "float32"), B: T.Tensor((M, 64), "float32"), n: T.int32):
    """What is on chip, and what was computed of what is written, lives across the meeting."""
    with T.Kernel(M, threads=64) as b:
        x = T.alloc_shared((64,), "float32")
        T.copy(A[b, 0], x)
        first = B[b, 0]
        T.sync_grid()
        if n > 0:
            T.sync_grid()
        for i in T.Parallel(64):
            B[(b + 1) % M, i] = x[i] + first


@pytest.mark.parametrize("target", TARGETS)
def test_state_lives_across_it(target: str, rng: np.random.Generator) -> None:
    assert keeps.is_sequence
    for n in (0, 1):
        a, b = rng.standard_normal((2, 5, 64)).astype(np.float32)
        want = np.roll(a + b[:, :1], 1, 0)
        run(keeps, target, a, b, n)
        np.testing.assert_array_equal(b, want)
    specs = [tilec.spec((5, 64), "float32")] * 2
    images = [v.image for v in keeps.parts.compile((*specs, 1), target, {})]
    assert [i.cooperative for i in images] == [True, False]
    assert images[1].grid == NO_BLOCKS


@tilec.kernel
def in_parallel(A: T.Tensor((256,), "float32")):
    """Between the iterations of a loop: it is two."""
    with T.Kernel(4, threads=128) as b:
        x = T.alloc_fragment((64,), "float32")
        for i in T.Parallel(64):
            A[b * 64 + i] = b * 64 + i
        T.sync_grid()
        for i in T.Parallel(64):
            x[i] = A[255 - b * 64 - i]
            T.sync_grid()
            A[b * 64 + i] += x[i]


@pytest.mark.parametrize("target", TARGETS)
def test_between_iterations(target: str) -> None:
    a = np.zeros(256, np.float32)
    run(in_parallel, target, a)
    assert (a == 255).all()


def _function(A: Any) -> None:
    T.sync_grid()
    A[0] = 1


def test_in_a_function_and_without_a_grid() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32")):
        with T.Kernel(threads=32):
            _function(A)
            T.sync_grid()
            A[1] = A[0] + 1

    a = np.zeros(64, np.float32)
    kernel[(3,)](a)
    assert a[0] == 1 and a[1] == 2


def mistake(body: Callable[[Any, Any], Any], *words: str) -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=256):
            body(A, B)

    with pytest.raises(tilec.CompileError) as e:
        kernel.compile(ONE, ONE, target="cuda:sm_90a")
    for word in words:
        assert re.search(word, str(e.value)), e.value


def _lost(A: Any, B: Any) -> None:
    for i in T.Parallel(64):
        v = A[i]
        T.sync_grid()
        B[i] = v


def _deep(A: Any, B: Any) -> None:
    for i in T.Parallel(64):
        if i < 3:
            T.sync_grid()


def _group(A: Any, B: Any) -> None:
    if T.get_thread_binding(0) < 128:
        T.sync_grid()


def _some(A: Any, B: Any) -> None:
    if A[T.get_thread_binding(0)] < 128:
        T.sync_grid()


def test_mistakes() -> None:
    mistake(_lost, "each iteration has its own v, gone behind T.sync_grid", "in a fragment")
    mistake(_deep, r"T.sync_grid cannot stand in T.Parallel")
    mistake(_group, "holds for a part of the block's threads", "let all threads of the block come")
    mistake(_some, r"T.sync_grid\(\) needs every thread")


def test_too_many_blocks() -> None:
    a = np.zeros((1025, 64), np.int32)
    with pytest.raises(tilec.LaunchError, match="1025 blocks wait for one another") as e:
        turns(a, 1)
    assert "cpu runs 1024 of them at once" in str(e.value)
    assert not a.any()
    with pytest.raises(tilec.LaunchError, match="all of them run"):
        tilec.simulate(turns, a[:3], 1, target="cuda:sm_90a", blocks=2)


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


@pytest.mark.gpu
def test_meetings_on_the_gpu(torch: Any) -> None:
    """All blocks of the machine, 200 launches, each element names its iteration."""
    for launches in range(200):
        n = launches % 7
        a = torch.arange(132 * 64, dtype=torch.int32, device="cuda").reshape(132, 64) + launches
        want = turned(a.cpu().numpy(), n)
        turns(a, n)
        np.testing.assert_array_equal(a.cpu().numpy(), want)
    with pytest.raises(tilec.LaunchError, match="wait for one another"):
        turns(torch.zeros((1 << 20, 64), dtype=torch.int32, device="cuda"), 1)
