"""Indices of 64 bits: kernels of tensors with more than 2**31 elements are what those of smaller
ones are. A loop's index is widened before it is used, and stays the loop's index."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec import spec
from tilec.ir.parser import parse_func
from tilec.ir.printer import print_block
from tilec.passes.simplify import simplify
from tilec.target import TARGETS

GPUS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
M, N, K = T.dynamic("M, N, K")

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors are taken for large ones."""
    monkeypatch.setattr("tilec.jit.specialise.is_wide", lambda tensor: True)


def test_the_index_of_one_iteration_is_not_folded() -> None:
    body = """
      %s = alloc fragment<1xf32>
      parallel (1) body(%o: i32) {
        %w = cast %o, i64
        %x = load %s[%w] : f32
        store %s[%w], %x
        yield
      }
      yield"""
    func = parse_func(
        f"kernel @f {{}} () grid {{ %c1 = const 1, i32 yield [%c1] }} body {{ {body} }}"
    )
    assert "load %s[%w]" in print_block(simplify(func, TARGETS["cuda:sm_90a"]).body)


@tilec.kernel
def row_sums(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M,), "float32")):
    for i in T.Parallel(M):
        total: T.float32 = 0
        for j in range(N):
            total += X[i, j]
        Y[i] = total


@tilec.kernel
def places(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M,), "int64")):
    for i in T.Parallel(M):
        best: T.float32 = -T.infinity("float32")
        at: T.int64 = 0
        for j in range(N):
            if X[i, j] > best:
                best = X[i, j]
                at = j
        Y[i] = at


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("kernel, dtype", [(row_sums, "float32"), (places, "int64")])
def test_folds_of_long_rows_stay_in_registers(kernel: Any, dtype: str, target: str) -> None:
    """Of 2**32 columns and of 2**20: blocks share rows, and what they hold needs no more memory."""
    large, small = (
        kernel.compile(spec((3, n), "float32"), spec((3,), dtype), target=target)
        for n in (2**32 + 6, 2**20 + 6)
    )
    assert {*large.resources.buffers} == {*small.resources.buffers}


@pytest.mark.turns
@pytest.mark.parametrize("target", GPUS)
def test_folds_of_long_rows(
    target: str, wide: None, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = importlib.import_module("tilec.jit.build")
    monkeypatch.setattr(build, "blocks_at_once", lambda target: 8)  # they are simulated at once
    x = rng.integers(-9, 9, (2, 70000)).astype(np.float32)
    y, at = np.zeros(2, np.float32), np.zeros(2, np.int64)
    assert tilec.simulate(row_sums, x, y, target=target).ok
    assert tilec.simulate(places, x, at, target=target).ok
    np.testing.assert_array_equal(y, x.sum(1))
    np.testing.assert_array_equal(at, x.argmax(1))


@tilec.kernel
def epilogue(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    R: T.Tensor((M, N), "float32"),
    C: T.Tensor((M, N), "float32"),
    D: T.Tensor((M, N), "float32"),
):
    """Two results beside a residual: an accumulator that is worked on in slices."""
    with T.Kernel(T.ceildiv(N, 256), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 256), "float16")
        c = T.alloc_fragment((64, 256), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 256], b)
            T.gemm(a, b, c)
        for i, j in T.Parallel(64, 256):
            C[by * 64 + i, bx * 256 + j] = T.max(c[i, j] + R[by * 64 + i, bx * 256 + j], 0)
            D[by * 64 + i, bx * 256 + j] = c[i, j] * R[by * 64 + i, bx * 256 + j]


@pytest.mark.parametrize("target", GPUS)
def test_slices_of_an_accumulator(wide: None, target: str, rng: np.random.Generator) -> None:
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((70, 40), (40, 270)))
    r = rng.integers(-9, 9, (70, 270)).astype(np.float32)
    c, d = np.zeros_like(r), np.zeros_like(r)
    sliced = epilogue.compile(a, b, r, c, d, target=target).stages["hoist_accesses"]
    assert "c_part" in sliced
    assert tilec.simulate(epilogue, a, b, r, c, d, target=target).ok
    product = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(c, np.maximum(product + r, 0))
    np.testing.assert_array_equal(d, product * r)
