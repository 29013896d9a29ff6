"""Tensors for which programs give None, because what they were compiled for does not use them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.tilelang as tilelang
import tilec.tilelang.language as T

# mypy: ignore-errors


@tilelang.jit
def shifted(n: int, with_mask: bool, keep: bool):
    rows = T.dynamic("rows")

    @T.prim_func
    def main(
        x: T.Tensor((rows, n), "float32"),
        mask: T.Tensor((rows,), "bool"),
        y: T.Tensor((rows, n), "float32"),
        sums: T.Tensor((rows,), "float32"),
    ):
        with T.Kernel(rows, threads=32) as row:
            found = T.alloc_fragment((n,), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.copy(x[row, :], found)
            if with_mask:
                for i in T.Parallel(n):
                    found[i] = T.if_then_else(mask[row], found[i] + 1, found[i])
            T.copy(found, y[row, :])
            if keep:
                T.reduce_sum(found, total, dim=0)
                sums[row] = total[0]

    return main


@tilelang.jit
def eager(x, bias, n: int):
    x: T.Tensor((n,), "float32")
    bias: T.Tensor((n,), "float32")
    y = T.empty((n,), "float32")
    with T.Kernel(1, threads=32):
        for i in T.Parallel(n):
            y[i] = x[i] if bias is None else x[i] + bias[i]
    return y


def wanted(x: np.ndarray, mask: Any) -> np.ndarray:
    return x.astype(np.float64) + (0 if mask is None else mask[:, None])


def test_each_set_of_tensors() -> None:
    x = np.random.default_rng(0).standard_normal((5, 48)).astype(np.float32)
    mask = np.array([1, 0, 1, 1, 0], bool)
    for _ in range(3):  # the later ones go the generated way
        for m in (mask, None):
            for keep in (True, False):
                y, sums = np.empty_like(x), np.empty(5, np.float32)
                shifted(48, m is not None, keep)(x, m, y, sums if keep else None)
                np.testing.assert_allclose(y, wanted(x, m), rtol=1e-6)
                if keep:
                    np.testing.assert_allclose(sums, wanted(x, m).sum(1), rtol=1e-5, atol=1e-5)


def test_an_eager_program() -> None:
    x, bias = np.arange(40, dtype=np.float32), np.ones(40, np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(eager(x, None, 40), x)
        np.testing.assert_array_equal(eager(x, bias, 40), x + 1)


def test_launches_without_them_go_the_generated_way(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((3, 32), np.float32)
    kernel = shifted(32, False, False)
    for _ in range(3):
        kernel(x, None, np.empty_like(x), None)
    monkeypatch.setattr(tilec.Kernel, "_launch", None)  # whoever asks for it fails
    y = np.empty_like(x)
    kernel(x, None, y, None)
    np.testing.assert_array_equal(y, x)


def test_one_that_is_used() -> None:
    x = np.ones((3, 32), np.float32)
    with pytest.raises(tilec.CompileError, match="None cannot be indexed"):
        shifted(32, True, False)(x, None, np.empty_like(x), None)


def test_in_the_simulator() -> None:
    x = np.random.default_rng(0).standard_normal((5, 48)).astype(np.float32)
    y = np.empty_like(x)
    kernel = shifted(48, False, False).kernel
    assert tilec.simulate(kernel, x, None, y, None, target="cuda:sm_90a").ok
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "hip:gfx942"])
def test_the_larger_of_two_sizes_is_a_size(target: str) -> None:
    """Of a grid, and of what a call allocates."""
    m, n = T.dynamic("m, n")
    most, least = T.max(m, n), T.min(8, T.max(m, n, 3))

    @T.prim_func
    def main(
        x: T.Tensor((m,), "float32"), y: T.Tensor((n,), "float32"), z: T.Tensor((most,), "float32")
    ):
        with T.Kernel(T.max(m, n), threads=32) as b:
            for _i in T.Parallel(1):
                z[b] = T.if_then_else(b < m, x[b], 0) + T.if_then_else(b < n, y[b], 0) + least

    for a, b in ((5, 12), (12, 5), (2, 1)):
        x, y = np.arange(a, dtype=np.float32), np.arange(b, dtype=np.float32)
        want = np.zeros(max(a, b)) + min(8, max(a, b, 3))
        want[:a] += x
        want[:b] += y
        z = np.zeros(max(a, b), np.float32)
        if target == "cpu":
            np.testing.assert_array_equal(tilelang.compile(main, out_idx=2)(x, y), want)
        else:
            assert tilec.simulate(tilelang.compile(main).kernel, x, y, z, target=target).ok
            np.testing.assert_array_equal(z, want)
    assert tilelang.compile(main).params[2].shape == [4096]
    assert T.max(3, 5) == 5 and T.min(3, 5, 2) == 2


@tilelang.jit
def weighted(n: int):
    """Names of tensors that stand for numbers in a loop, and a view of what may not be there."""
    rows, many, two = T.dynamic("rows, many, two")

    @T.prim_func
    def main(
        x: T.Tensor((rows, n), "float32"),
        w: T.Tensor((many, two), "float32"),
        sf: T.Tensor((rows,), "float32"),
    ):
        with T.Kernel(rows, threads=32) as row:
            flat = T.reshape(w, (many * two,))
            for k in T.serial(2):
                for i in T.Parallel(n):
                    if i + k < n:
                        x[row, i] += sf[row] + (0 if w is None else flat[row])
                for i in T.Parallel(2):
                    if i == k:
                        sf, other = T.float32(k) + 1, T.float32(i)
                        x[row, i] += sf + other

    return main


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
@pytest.mark.parametrize("given", [True, False])
def test_names_of_tensors_in_a_loop(target: str, given: bool) -> None:
    x, sf = np.zeros((3, 8), np.float32), np.arange(3, dtype=np.float32)
    w = np.arange(6, dtype=np.float32).reshape(3, 2) if given else None
    kernel = weighted(8)
    if target == "cpu":
        kernel(x, w, sf)
    else:
        assert tilec.simulate(kernel.kernel, x, w, sf, target=target).ok
    each = sf + (w.ravel()[:3] if given else 0)
    want = np.stack([each * 2] * 8, 1)
    want[:, 7] -= each
    want[:, 0] += 1
    want[:, 1] += 3
    np.testing.assert_array_equal(x, want)
