"""Loops over elements that add up products of two tiles are products of tiles, with the same
numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

M, N, K = T.dynamic("M, N, K")
TARGETS = "cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"


def outer(dtype: str = "float16", total: str = "float32", how: str = "") -> Any:
    """C = A Bᵀ in steps of 32, each of which is written out for elements."""
    turned = how == "turned"

    @tilec.kernel
    def kernel(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), total)):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            a = T.alloc_shared((64, 32), dtype)
            b = T.alloc_shared((32, 64) if turned else (64, 32), dtype)
            acc = T.alloc_fragment((64, 64), total)
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
                T.copy(A[by * 64, k * 32], a)
                if turned:
                    for i, j in T.Parallel(32, 64):
                        b[i, j] = B[bx * 64 + j, k * 32 + i]
                    for kk in T.unroll(32):
                        for i, j in T.Parallel(64, 64):
                            acc[i, j] = (
                                T.cast(b[kk, j], total) * T.cast(a[i, kk], total) + acc[i, j]
                            )
                else:
                    T.copy(B[bx * 64, k * 32], b)
                    for i, j in T.Parallel(64, 64):
                        for kk in range(31 if how == "part" else 32):
                            if how == "rounded":
                                acc[i, j] += T.cast(a[i, kk] * b[j, kk], total)
                            elif how == "more":
                                acc[i, j] += T.cast(a[i, kk], total) * T.cast(b[j, kk], total)
                                acc[i, j] += 1
                            elif how == "other":
                                acc[i, j] += T.cast(a[j, kk], total) * T.cast(b[j, kk], total)
                            else:
                                acc[i, j] += T.cast(a[i, kk], total) * T.cast(b[j, kk], total)
            for i, j in T.Parallel(64, 64):
                acc[i, j] = acc[i, j] * 2
            T.copy(acc, C[by * 64, bx * 64])

    return kernel


def traced(target: str = "cuda:sm_90a", **words: Any) -> Any:
    kernel, dtype = outer(**words), words.get("dtype", "float16")
    specs = [tilec.spec((128, 256), dtype)] * 2
    return kernel.compile(
        *specs, tilec.spec((128, 128), words.get("total", "float32")), target=target
    ).stages


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize(
    ("words", "instr"),
    [
        ({}, "wgmma"),
        ({"how": "turned"}, "wgmma"),
        ({"how": "part"}, "gemm"),
        ({"dtype": "float32"}, "simt"),
        ({"dtype": "int8", "total": "int32"}, "wgmma"),
    ],
    ids=str,
)
def test_they_are_products(words: Any, instr: str) -> None:
    stages = traced(**words)
    (line,) = [x for x in stages["infer_layouts"].splitlines() if " gemm %" in x]
    assert instr in line
    assert stages["tile"].count("parallel") == (2 if words.get("how") == "turned" else 1)


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("how", ["rounded", "more", "other"])
def test_what_is_none(how: str) -> None:
    """Products that are rounded to halves, more than a product, other elements."""
    assert "gemm" not in traced(how=how)["tile"]


def handed_on(how: str) -> Any:
    """A Bᵀ, whose tile is added to C, or summed along its rows, where it lies."""

    @tilec.kernel
    def kernel(A: T.Tensor((M, 32), "float16"), B: T.Tensor((N, 32), "float16"), C: T.Tensor):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((64, 32), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            T.copy(A[by * 64, 0], a)
            T.copy(B[bx * 64, 0], b)
            for kk in T.serial(32):
                for i, j in T.Parallel(64, 64):
                    acc[i, j] += T.cast(a[i, kk], "float32") * T.cast(b[j, kk], "float32")
            if how == "added":
                T.atomic_add(C[by * 64, bx * 64], acc)
            else:
                T.cumsum(acc, dim=1)
                T.copy(acc, C[by * 64, bx * 64])

    return kernel


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how", ["added", "summed"])
def test_whatever_takes_the_tile(how: str, target: str, rng: np.random.Generator) -> None:
    """All tile ops take a product's result: they say that they access boxes of it."""
    for m, n in ((64, 64), (70, 60), (1, 1)):
        a, b = (rng.integers(-3, 4, (e, 32)).astype("float16") for e in (m, n))
        c = np.ones((m, n), "float32")
        run(handed_on(how), target, a, b, c)
        want = a.astype(float) @ b.astype(float).T
        want = 1 + want if how == "added" else np.cumsum(want, 1)
        np.testing.assert_array_equal(c, want)
    if target != "cpu":
        specs = [tilec.spec((e, 32), "float16") for e in (70, 60)]
        made = handed_on(how).compile(*specs, tilec.spec((70, 60), "float32"), target=target)
        assert "gemm" in made.stages["tile"]


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how", ["", "turned", "part", "rounded", "other"])
@pytest.mark.parametrize(
    ("dtype", "total"), [("float16", "float32"), ("float32", "float32"), ("int8", "int32")]
)
@pytest.mark.parametrize(("m", "n", "k"), [(70, 66, 100), (64, 64, 64), (1, 1, 1), (3, 5, 0)])
def test_numbers(
    m: int, n: int, k: int, dtype: str, total: str, how: str, target: str, rng: np.random.Generator
) -> None:
    a, b = (rng.integers(-3, 4, s).astype(dtype) for s in ((m, k), (n, k)))
    c = np.full((m, n), 77, total)
    run(outer(dtype, total, how), target, a, b, c)
    if how == "part":
        keep = np.arange(k) % 32 < 31
        a, b = a[:, keep], b[:, keep]
    want = 2 * (a.astype(float) @ b.astype(float).T)
    if how == "other":  # rows of A by columns' numbers, within tiles
        wide = np.zeros((-(-m // 64) * 64, k))
        wide[:m] = a
        full = np.zeros((-(-n // 64) * 64, k))
        full[:n] = b
        blocks = wide.reshape(-1, 64, k)
        sums = [(blocks[y] * t).sum(1) for y in range(len(blocks)) for t in full.reshape(-1, 64, k)]
        grid = np.array(sums).reshape(len(blocks), -1)
        want = 2 * np.repeat(grid, 64, 0)[:m, :n]
    np.testing.assert_array_equal(c, want)
