"""Exponentials whose last bits nobody sees are the hardware's, and a scale in front of them is a
part of what their argument is multiplied by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from form_help import SM90, aligned, tile_func

import tilec
import tilec.language as T
from tilec.ir.core import Func
from tilec.ir.ops import Binary, Fma, Reduce, Unary, constants
from tilec.passes.fuse_exponents import fuse_exponents
from tilec.passes.sink_scales import sink_scales

pytestmark = pytest.mark.usefixtures("unassembled")

M, N = T.dynamic("M, N")
TARGETS = ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu"]


def rounded(A: T.Tensor((M, 64), "float32"), C: T.Tensor((M, 64), "float16")):
    with T.Kernel(T.ceildiv(M, 16), threads=32) as b:
        a = T.alloc_fragment((16, 64), "float32")
        T.copy(A[b * 16, 0], a)
        for i, j in T.Parallel(16, 64):
            a[i, j] = T.if_then_else(j < 60, T.exp(a[i, j]), 0.0)
        T.copy(a, C[b * 16, 0])


def summed(A: T.Tensor((M, N), "float32"), C: T.Tensor((M,), "float32")):
    """What a tile's exponentials leave is written again before another iteration reads it."""
    with T.Kernel(T.ceildiv(M, 16), threads=32) as b:
        a, c = T.alloc_fragment((16, 64), "float32"), T.alloc_fragment((16,), "float32")
        T.clear(c)
        for n in T.Pipelined(T.ceildiv(N, 64), num_stages=2):
            T.copy(A[b * 16, n * 64], a)
            for i, j in T.Parallel(16, 64):
                a[i, j] = T.exp(a[i, j])
            T.reduce_sum(a, c, dim=1, clear=False)
        T.copy(c, C[b * 16])


def short(A: T.Tensor((M, 32), "float32"), C: T.Tensor((M,), "float32")):
    """Of few terms a sum is more exact than they are."""
    with T.Kernel(T.ceildiv(M, 16), threads=32) as b:
        a, c = T.alloc_fragment((16, 32), "float32"), T.alloc_fragment((16,), "float32")
        T.copy(A[b * 16, 0], a)
        for i, j in T.Parallel(16, 32):
            a[i, j] = T.exp(a[i, j])
        T.reduce_sum(a, c, dim=1)
        T.copy(c, C[b * 16])


def seen_later(A: T.Tensor((M, 64), "float32"), C: T.Tensor((M, 64), "float16")):
    """The next iteration has it in the argument of another exponential."""
    with T.Kernel(T.ceildiv(M, 16), threads=32) as b:
        a, c = T.alloc_fragment((16, 64), "float32"), T.alloc_fragment((16, 64), "float16")
        T.copy(A[b * 16, 0], a)
        for _n in T.Pipelined(2, num_stages=2):
            for i, j in T.Parallel(16, 64):
                a[i, j] = T.exp(a[i, j] * 0.1)
            T.copy(a, c)
        T.copy(c, C[b * 16, 0])


def kept(A: T.Tensor((M, 64), "float32"), C: T.Tensor((M, 64), "float32")):
    with T.Kernel(T.ceildiv(M, 16), threads=32) as b:
        a = T.alloc_fragment((16, 64), "float32")
        T.copy(A[b * 16, 0], a)
        for i, j in T.Parallel(16, 64):
            a[i, j] = T.exp(a[i, j])
        T.copy(a, C[b * 16, 0])


def arrays(rng: np.random.Generator, function: Callable[..., Any]) -> dict[str, np.ndarray]:
    columns = 32 if function is short else 64
    a = np.asarray(rng.standard_normal((21, columns)) * 8, np.float32)
    if function in (summed, short):
        return {"A": a, "C": np.full(21, np.nan, np.float32)}
    return {"A": a, "C": np.full(a.shape, np.nan, "float32" if function is kept else "float16")}


def run(function: Callable[..., Any], held: dict[str, np.ndarray], target: str) -> None:
    kernel = tilec.kernel(function)
    if target == "cpu":
        kernel(*held.values())
    else:
        report = tilec.simulate(kernel, *held.values(), target=target)
        assert report.ok, report


def kinds(func: Func) -> list[str]:
    return [o.kind for o in func.body.every(Unary)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("function", [rounded, summed])
def test_what_is_rounded_or_summed_is_fast(
    function: Any, target: str, rng: np.random.Generator
) -> None:
    held = arrays(rng, function)
    assert kinds(fuse_exponents(tile_func(function, held), SM90)) == ["exp2"]
    a = np.minimum(held["A"], 8)
    held["A"][...] = a
    run(function, held, target)
    want = np.exp(a.astype(np.float64))
    want = want.sum(1) if function is summed else np.where(np.arange(64) < 60, want, 0)
    exact = {"rtol": 1e-6} if function is summed else {"rtol": 1e-3, "atol": 6e-8}
    np.testing.assert_allclose(held["C"], want, **exact)


@pytest.mark.parametrize("function", [short, seen_later, kept])
def test_what_is_seen_is_exact(function: Any, rng: np.random.Generator) -> None:
    held = arrays(rng, function)
    func = tile_func(function, held)
    assert fuse_exponents(func, SM90) is func
    held["A"][...] = np.minimum(held["A"], 8)
    run(function, held, "cuda:sm_90a")
    want = np.exp(held["A"].astype(np.float64))
    if function is not seen_later:
        np.testing.assert_allclose(held["C"], want.sum(1) if function is short else want, 5e-7)


def log_sums(begin: float, hidden: float, seen: bool = False) -> Any:
    """The logarithms of rows' sums of exponentials, of what a row may see of scaled columns."""

    def kernel(
        A: T.Tensor((M, N), "float32"),
        Most: T.Tensor((M,), "float32"),
        C: T.Tensor((M,), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, 16), threads=32) as b:
            a = T.alloc_fragment((16, 64), "float32")
            most, before = T.alloc_fragment((16,), "float32"), T.alloc_fragment((16,), "float32")
            total, more = T.alloc_fragment((16,), "float32"), T.alloc_fragment((16,), "float32")
            T.fill(most, begin)
            T.clear(total)
            for n in T.Pipelined(T.ceildiv(N, 64), num_stages=2):
                T.copy(A[b * 16, n * 64], a)
                for i, j in T.Parallel(16, 64):
                    a[i, j] = T.if_then_else(n * 64 + j <= b * 16 + i, a[i, j] * 0.3, hidden)
                T.copy(most, before)
                T.reduce_max(a, most, dim=1, clear=False)
                for i, j in T.Parallel(16, 64):
                    a[i, j] = T.exp(a[i, j] - most[i])
                T.reduce_sum(a, more, dim=1)
                for i in T.Parallel(16):
                    total[i] = total[i] * T.exp(before[i] - most[i]) + more[i]
                if seen:
                    for i in T.Parallel(16):
                        most[i] = most[i] + 0.0
            for i in T.Parallel(16):
                Most[b * 16 + i] = most[i]
                C[b * 16 + i] = most[i] + T.log(total[i])

    return kernel


def scores(rng: np.random.Generator) -> dict[str, np.ndarray]:
    a = aligned(np.asarray(rng.standard_normal((37, 100)) * 20, np.float32))
    none = np.full(37, np.nan, np.float32)
    return {"A": a, "Most": none.copy(), "C": none.copy()}


@pytest.mark.parametrize("target", TARGETS)
def test_a_scale_is_a_part_of_the_exponents(target: str, rng: np.random.Generator) -> None:
    held = scores(rng)
    function = log_sums(-np.inf, -np.inf)
    func = fuse_exponents(sink_scales(tile_func(function, held), SM90), SM90)
    (fold,) = [o for o in func.body.every(Reduce) if o.kind == "max"]
    assert fold.dest.buffer.name == "most_unscaled"
    (fused,) = func.body.every(Fma)
    numbers = constants(func.body)
    scaled = [o for o in func.body.every(Binary) if o.kind == "mul" and numbers.get(o.rhs) == 0.3]
    assert len(scaled) == 1  # of a row, no more of each element
    assert kinds(func).count("exp2") == 1 and fused.c in {o.result for o in func.body.every(Unary)}
    run(function, held, target)
    a = held["A"].astype(np.float64)
    seen = np.arange(100)[None] <= np.arange(37)[:, None]
    most = np.where(seen, held["A"] * np.float32(0.3), -np.inf).max(1)
    np.testing.assert_array_equal(held["Most"], most)  # rounded as the author wrote it
    want = np.log(np.where(seen, np.exp(a * 0.3 - most[:, None]), 0).sum(1)) + most
    np.testing.assert_allclose(held["C"], want, rtol=2e-6)


@pytest.mark.parametrize(
    "how", [(-1e30, -np.inf), (-np.inf, -1e30), (-np.inf, -np.inf, True)], ids=str
)
def test_other_maxima_stay(how: tuple[Any, ...], rng: np.random.Generator) -> None:
    """Those that begin with a number, of what is hidden by one, or that are written otherwise."""
    held = scores(rng)
    func = tile_func(log_sums(*how), held)
    assert sink_scales(func, SM90) is func
