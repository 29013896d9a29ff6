"""Arrays that calls allocate (`T.empty`, `out=`): whatever is kept, dropped or launched beside
them, each holds what its own call computed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

N = T.dynamic("N")
CALLS = 10_000


@tilec.kernel
def copied(A):
    N = T.const("N")
    A: T.Tensor((N,), "float32")
    C = T.empty((N,), "float32")
    with T.Kernel(1, threads=64):
        for i in T.Parallel(N):
            C[i] = A[i]
    return C


@tilec.kernel(out=["C"])
def copied_to_named(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 64), threads=64) as bx:
        for i in T.Parallel(64):
            C[bx * 64 + i] = A[bx * 64 + i]


@tilec.kernel
def counted(n: T.int32, first: T.float32):
    C = T.empty((n + 1, 2), "float32")
    with T.Kernel(T.ceildiv(n + 1, 32), threads=32) as bx:
        for i, j in T.Parallel(32, 2):
            if bx * 32 + i <= n:
                C[bx * 32 + i, j] = first + T.float32(2 * (bx * 32 + i) + j)
    return C


@tilec.kernel
def repeated(A: T.Tensor((N,), "float32"), times: T.int32):
    C = T.empty((N * times,), "float32")
    with T.Kernel(T.ceildiv(N * times, 32), threads=32) as bx:
        for i in T.Parallel(32):
            if bx * 32 + i < N * times:
                C[bx * 32 + i] = A[(bx * 32 + i) % N]
    return C


@tilec.kernel
def two(A: T.Tensor((N,), "float32")):
    C = T.empty((N,), "float32")
    D = T.empty((N, 3), "int32")
    with T.Kernel(T.ceildiv(N, 64), threads=64) as bx:
        for i in T.Parallel(64):
            C[bx * 64 + i] = A[bx * 64 + i]
        for i, j in T.Parallel(64, 3):
            D[bx * 64 + i, j] = T.int32(A[bx * 64 + i])
    return C, D


@tilec.kernel
def partial(A: T.Tensor((N,), "float32"), BN: T.constexpr = T.auto(32, 64)):
    C = T.empty((T.ceildiv(N, BN) * BN,), "float32")
    with T.Kernel(T.ceildiv(N, BN), threads=64) as bx:
        for i in T.Parallel(BN):
            C[bx * BN + i] = A[bx * BN + i]
    return C


@tilec.kernel
def from_grid(A: T.Tensor((N,), "float32"), BN: T.constexpr = T.auto(32, 64)):
    C = T.empty((N,), "float32")
    bx = T.program_id(0)
    with T.Kernel(threads=64):
        for i in T.Parallel(BN):
            C[bx * BN + i] = A[bx * BN + i]
    return C


def on_grid(a: Any) -> Any:
    size = a.shape[0]
    return from_grid[lambda meta: (T.cdiv(size, meta["BN"]),)](a)


KERNELS: tuple[Callable[..., Any], ...] = (copied, copied_to_named, two, partial, on_grid)


def check(results: Any, size: int, value: float) -> None:
    """Every element of a call's results is `value`."""
    for r in results if isinstance(results, tuple) else (results,):
        found = np.asarray(r.cpu() if hasattr(r, "cpu") else r)[:size]
        assert found.size and (found == value).all(), (found, value)


def run(make: Callable[[int], Any], calls: int, seed: int) -> None:
    """`calls` calls of kernels and sizes drawn at random. `make` allocates zeros; the values are
    all different, so that a result says whose it is, and in the same memory: a launch depends on
    addresses, not on what is there."""
    rng = random.Random(seed)
    inputs = [make(size) for size in (1, 7, 33, 33, 64, 200)]
    kept: list[tuple[Any, int, float]] = []
    for number in range(calls):
        a, kernel = rng.choice(inputs), rng.choice(KERNELS)
        if rng.random() < 0.05:
            a = make(rng.randrange(1, 300))
        a[:] = number
        result = kernel(a)
        match rng.randrange(4):
            case 0:
                check(result, a.shape[0], number)
            case 1 | 2:
                kept.append((result, a.shape[0], number))
        if len(kept) > 200:
            rng.shuffle(kept)
            while len(kept) > rng.randrange(1, 200):
                check(*kept.pop())
    for entry in kept:
        check(*entry)


def maker(kind: str) -> Callable[[int], Any]:
    if kind == "numpy":
        return lambda size: np.zeros(size, np.float32)
    torch = pytest.importorskip("torch")  # of tests that have the mark
    return lambda size: torch.zeros(size, device=kind)


TENSORS = pytest.param("cpu", marks=pytest.mark.torch)
KINDS = ["numpy", TENSORS, pytest.param("cuda", marks=[pytest.mark.torch, pytest.mark.gpu])]


@pytest.mark.parametrize("kind", KINDS)
def test_every_result_is_its_calls_own(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_NUM_THREADS", "1")
    run(maker(kind), CALLS, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_results_in_a_list(kind: str, kernel: Callable[..., Any]) -> None:
    a = maker(kind)(40)
    results = []
    for value in range(20):
        a[:] = value
        results.append(kernel(a))
    for value, result in enumerate(results):
        check(result, 40, value)


@pytest.mark.parametrize("kind", KINDS)
def test_threads(kind: str) -> None:
    make, failures = maker(kind), []

    def work(seed: int) -> None:
        try:
            run(make, 300, seed)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures[0]


@pytest.mark.parametrize("kind", ["numpy", TENSORS])
def test_a_call_allocates_each_output_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make = maker(kind)
    a, b = make(50), make(50)
    module = np if kind == "numpy" else pytest.importorskip("torch")
    made: list[Any] = []
    plain = module.empty
    monkeypatch.setattr(module, "empty", lambda *a, **k: made.append(1) or plain(*a, **k))
    kernel = tilec.kernel(copied.function)  # its allocators are the patched ones
    for count in range(1, 9):
        kernel((a, a, b)[count % 3])
        assert len(made) == count


def test_extents_by_any_arithmetic_that_a_grid_may_have() -> None:
    @tilec.kernel
    def rounded(A: T.Tensor((N,), "float32")):
        C = T.empty((((N & 3) << 1) + T.max(N // 8, 2),), "float32")
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                C[i] = A[i] + 1
        return C

    a = np.arange(67, dtype=np.float32)
    (made,) = [x for x in rounded.compile(a).image.arguments if x.output]
    assert made.shape == ("(((N & 3) << 1) + max((N // 8), 2))",)
    np.testing.assert_array_equal(rounded(a), a[: (67 & 3) * 2 + 8] + 1)


@pytest.mark.parametrize("kind", ["numpy", TENSORS])
def test_extents_that_integer_arguments_give(kind: str) -> None:
    """A call with another number allocates another shape, by the remembered path, too."""
    a = maker(kind)(5)
    a[:] = 3.0
    (made,) = [x for x in repeated.compile(a, 2).image.arguments if x.output]
    assert made.shape == ("(N * times)",)
    for times in (2, 3, 2, 0, 1, 3):
        found = np.asarray(repeated(a, times))
        np.testing.assert_array_equal(found, np.full(5 * times, 3.0, np.float32))


def test_extents_without_any_tensor() -> None:
    for n in (0, 40, 7, 40):
        found = np.asarray(counted(n, 0.5))
        want = 0.5 + np.arange(2 * (n + 1), dtype=np.float64).reshape(n + 1, 2)
        np.testing.assert_array_equal(found, want)


def test_extents_that_are_not_known_before_the_call() -> None:
    @tilec.kernel
    def by_content(A: T.Tensor((N,), "int32"), x: T.float32):
        C = T.empty((T.int32(x),), "int32")
        with T.Kernel(1, threads=32):
            C[0] = A[0]
        return C

    message = r"extent 0 of T.empty is a run-time int32, which is not known before the call"
    with pytest.raises(tilec.CompileError, match=message) as raised:
        by_content.compile(np.zeros(3, np.int32), 2.0)
    assert "integer parameters" in str(raised.value)
