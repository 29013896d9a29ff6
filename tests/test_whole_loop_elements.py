"""Whole loops as tiles of elements: short rows, strides between neighbours, short loops inside."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

B, S, H, D, M, N = T.dynamic("B, S, H, D, M, N")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")
WEIGHTS = (3, 5, 7, 11)


@tilec.kernel
def products(
    X: T.Tensor((S, H, D), "float32"), Z: T.Tensor((S, H, D), "float32"),
    Y: T.Tensor((S, H, D), "float32"),
):  # fmt: skip
    """Of complex numbers, whose parts are neighbours."""
    for s, h, d in T.Parallel(S, H, D // 2):
        a, b = X[s, h, 2 * d], X[s, h, 2 * d + 1]
        p, q = Z[s, h, 2 * d], Z[s, h, 2 * d + 1]
        Y[s, h, 2 * d] = a * p - b * q
        Y[s, h, 2 * d + 1] = a * q + b * p


@tilec.kernel
def neighbours(A: T.Tensor((M, N), "uint8"), Y: T.Tensor((M, N), "int32")):
    for i, j in T.Parallel(M, N):
        n: T.int32 = 0
        for d in range(9):
            if d != 4:
                n += A[(i + d // 3 - 1 + M) % M, (j + d % 3 - 1 + N) % N]
        Y[i, j] = n


@tilec.kernel
def in_groups(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, 2), "float32")):
    """A loop whose extent is a name of the iteration's own."""
    for i, g in T.Parallel(M, 2):
        n = N // 2
        s: T.float32 = 0
        for k in range(n):
            s += X[i, g * n + k] * (k + 1)
        Y[i, g] = s


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", [(2, 3, 128), (1, 1, 2), (3, 33, 66), (2, 0, 4), (2, 5, 7)])
@pytest.mark.parametrize("target", TARGETS)
def test_parts_of_numbers(target: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    x, z = (rng.standard_normal(shape, np.float32) for _ in range(2))
    y = np.zeros(shape, np.float32)
    run(products, target, x, z, y)
    n = shape[-1] // 2 * 2
    u, v = (t[..., 0:n:2].astype(float) + 1j * t[..., 1:n:2] for t in (x, z))
    want = np.zeros(shape)
    want[..., 0:n:2], want[..., 1:n:2] = (u * v).real, (u * v).imag
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "heads, width, tile", [(32, 128, "32, 64"), (2, 64, "2, 32"), (64, 1024, "8, 256")]
)
def test_a_tile_is_as_wide_as_rows_are(heads: int, width: int, tile: str) -> None:
    specs = [tilec.spec((512, heads, width), "float32")] * 3
    stages = products.compile(*specs, target="cuda:sm_90a").stages
    assert f"{tile}) body(" in stages["tile"]
    fast = stages["ptx"][: stages["ptx"].index("st.global")]
    assert fast.count("ld.global.nc.v4.b32") >= 2 and "ld.global.nc.b32" not in fast
    assert "st.global.v4" in stages["ptx"]


def test_several_rows_are_loaded_before_one_is_stored() -> None:
    specs = [tilec.spec((512, 32, 128), "float32")] * 3
    text = products.compile(*specs, target="cuda:sm_90a").stages["ptx"]
    assert text[: text.index("st.global")].count("ld.global.nc.v4") == 4


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", [(7, 9), (1, 1), (33, 70), (2, 2), (3, 0)])
@pytest.mark.parametrize("target", TARGETS)
def test_short_loops_are_written_out(target: str, shape: tuple[int, int]) -> None:
    a = np.random.default_rng(1).integers(0, 9, shape).astype(np.uint8)
    y = np.full(shape, -1, np.int32)
    run(neighbours, target, a, y)
    rolls = ((r, c) for r in (-1, 0, 1) for c in (-1, 0, 1) if r or c)
    np.testing.assert_array_equal(y, sum(np.roll(a.astype(int), rc, (0, 1)) for rc in rolls))
    if target != "cpu":
        specs = tilec.spec(shape, "uint8"), tilec.spec(shape, "int32")
        text = neighbours.compile(*specs, target=target).stages["tile"]
        assert "parallel (" in text and "for." not in text


@pytest.mark.parametrize("target", TARGETS)
def test_extents_of_an_iteration_stay(target: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 26), np.float32)
    y = np.full((5, 2), np.nan, np.float32)
    run(in_groups, target, x, y)
    want = (x.astype(float).reshape(5, 2, 13) * np.arange(1, 14)).sum(2)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


def differences(first: int, dtype: str, kernel_block: bool) -> Any:
    """A short loop whose index is computed with, and beyond both ends of a row."""

    @tilec.kernel
    def whole(X: T.Tensor((5, 4), dtype), Y: T.Tensor((5,), "int32"), Z: T.Tensor((5,), "int32")):
        for i in T.Parallel(5):
            y: T.int32 = 0
            z: T.int32 = 0
            for j in range(4):
                y += X[i, j - first] * (1 + j)
                z += X[i, j] * (j * 100) + (X[i, j + 2] << (j - 1)) * WEIGHTS[j]
                z += sum(WEIGHTS[:j]) * math.factorial(j)  # known to Python, too
            Y[i] = y
            Z[i] = z

    @tilec.kernel
    def block(X: T.Tensor((5, 4), dtype), Y: T.Tensor((5,), "int32"), Z: T.Tensor((5,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(5):
                y: T.int32 = 0
                z: T.int32 = 0
                for j in T.unroll(4):
                    y += X[i, j - first] * (1 + j) + 0 * WEIGHTS[j ^ 1]
                    z += X[i, j] * (j * 100) + (X[i, j + 2] << (j - 1)) * WEIGHTS[-1 - (3 - j)]
                    z += sum(WEIGHTS[:j]) * math.factorial(j)
                Y[i] = y
                Z[i] = z

    return block if kernel_block else whole


@pytest.mark.parametrize("dtype", ["int8", "int32"])
@pytest.mark.parametrize("kernel_block", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_an_index_that_is_written_out_is_a_number_of_run_time(
    target: str, kernel_block: bool, dtype: str
) -> None:
    """Below 0 it does not count from the end, its dtype is not that of the other operand, and
    neither a shift nor an element that does not exist is refused."""
    x = np.random.default_rng(2).integers(1, 7, (5, 4)).astype(dtype)
    y, z = (np.full(5, -1, np.int32) for _ in range(2))
    kernel = differences(1, dtype, kernel_block)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tilec.CompileWarning)
        run(kernel, target, x, y, z)
    wide = x.astype(int)
    np.testing.assert_array_equal(y, wide[:, :-1] @ np.arange(2, 5))
    shifted = wide[:, 3] * WEIGHTS[1]  # of j = 0 the shift gives 0, beyond 1 there is nothing
    looked_up = sum(sum(WEIGHTS[:j]) * math.factorial(j) for j in range(4))
    np.testing.assert_array_equal(z, wide @ (np.arange(4) * 100) + shifted + looked_up)
    stage = kernel.compile(x, y, z, target="cpu").stages["tile"]
    assert "parallel (" in stage and "for." not in stage


@tilec.kernel
def told_in_the_body(X):
    rows, columns, step = T.const("rows, columns, step")
    X: T.StridedTensor((rows, columns), (step, 1), "float32")
    Y = T.empty((rows,), "float32")
    for i in T.Parallel(rows):
        total: T.float32 = 0
        for j in range(columns):
            total += X[i, j]
        Y[i] = total
    return Y


@tilec.kernel
def at_pointers(x: T.ptr, y: T.ptr, rows: T.int32, columns: T.int32):
    X = T.make_tensor(x, (rows, columns), "float32")
    Y = T.make_tensor(y, (columns, rows), "float32")
    for i, j in T.Parallel(rows, columns):
        Y[j, i] = X[i, j] + 1


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_tensors_that_the_body_tells(target: str, rng: np.random.Generator) -> None:
    x = rng.integers(-9, 9, (5, 303)).astype(np.float32)
    y = np.full((303, 5), np.nan, np.float32)
    run(at_pointers, target, x, y, *x.shape)
    np.testing.assert_array_equal(y, x.T + 1)
    if target == "cpu":
        found = told_in_the_body(x[:, :300])
    else:
        report = tilec.simulate(told_in_the_body, x[:, :300], target=target)
        assert report.ok, report
        (found,) = report.outputs.values()
    np.testing.assert_array_equal(found, x[:, :300].sum(axis=1))


@tilec.kernel
def in_order(X: T.Tensor((M, 6), "float32"), Y: T.Tensor((M, 6), "float32")):
    for r in T.Parallel(M):
        v = [X[r, k] for k in range(6)]
        for p in range(6):
            for q in range(p % 2, 5, 2):
                v[q], v[q + 1] = T.min(v[q], v[q + 1]), T.max(v[q], v[q + 1])
        for k in range(6):
            Y[r, k] = v[k]


@pytest.mark.parametrize("target", TARGETS)
def test_lists_in_loops_whose_bounds_depend_on_others(
    target: str, rng: np.random.Generator
) -> None:
    """The loop is traced again, written out, and is the same then: it took forever."""
    x, y = rng.integers(0, 9, (33, 6)).astype(np.float32), np.full((33, 6), np.nan, np.float32)
    run(in_order, target, x, y)
    np.testing.assert_array_equal(y, np.sort(x, axis=1))
