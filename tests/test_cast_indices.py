"""Indices, bounds and conditions that are casts: what a cast cuts off (a fraction, upper bits, a
sign) is missing from what follows of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.affine import Affine
from tilec.ir.analysis import Facts
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Param, Value
from tilec.ir.loc import UNKNOWN
from tilec.ir.ops import Cast, Yield
from tilec.ir.types import FLOAT32, INT32, INT64, ScalarType

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
N = T.dynamic("N")
ROWS = np.arange(32 * 64, dtype="float32").reshape(32, 64) + 1
LINE = np.arange(512, dtype="float32") + 1
FLOATS = np.linspace(-3.9, 3.9, 64).astype("float32")
LONG = np.array([5, (1 << 32) + 7, -(3 << 32), (9 << 32) + 15] * 16, "int64")


@tilec.kernel
def truncated(X: T.Tensor((N,), "float32"), Y: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            Y[i] = X[T.int32((i - 32) * T.float32(0.3)) + 10]


@tilec.kernel
def rounded(X: T.Tensor((N,), "float32"), Y: T.Tensor((256,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(256):
            Y[i] = X[T.int32(T.float16(i + 3900)) - 3900]


@tilec.kernel
def narrowed(
    X: T.Tensor((N,), "float32"), K: T.Tensor((64,), "int64"), Y: T.Tensor((64,), "int64")
):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            Y[i] = K[i] - T.int64(T.int32(K[i])) + T.int64(X[T.int32(K[i])])


@tilec.kernel
def negative_as_unsigned(X: T.Tensor((N,), "float32"), Y: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            if T.uint32(i - 32) < 20:
                Y[i] = X[i - 32]
            else:
                Y[i] = T.float32(T.int32(T.bool(i - 7)) + T.int32(T.int8(i + 100)))


@tilec.kernel
def copied(X: T.Tensor((N, 64), "float32"), Y: T.Tensor((8, 64), "float32")):
    with T.Kernel(8, threads=64) as b:
        rows = T.alloc_shared((64,), "float32")
        T.copy(X[T.int32(T.float32(b) * 0.7), 0:64], rows)
        T.copy(rows, Y[b, 0:64])


@tilec.kernel
def pipelined(X: T.Tensor((N, 64), "float32"), Y: T.Tensor((8, 64), "float32")):
    with T.Kernel(8, threads=64) as b:
        row = T.alloc_shared((64,), "float32")
        total = T.alloc_fragment((64,), "float32")
        T.clear(total)
        for k in T.Pipelined(6, num_stages=3):
            T.copy(X[T.int32(T.float32(k) * 0.7) + T.int32(T.uint8(k * 60 + b) // 16), 0:64], row)
            for i in T.Parallel(64):
                total[i] += row[i]
        T.copy(total, Y[b, 0:64])


@tilec.kernel
def counted(
    X: T.Tensor((N,), "float32"), F: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")
):
    for i in T.Parallel(64):
        total = 0.0
        for k in range(T.int32(F[i])):
            total += X[k]
        Y[i] = total


def _negative(x: Any) -> Any:
    i = np.arange(64)
    other = (i != 7).astype("int32") + (i + 100).astype("int8")
    return np.where((i >= 32) & (i < 52), x[np.clip(i - 32, 0, 20)], other)


def _sum_of_rows(x: Any) -> Any:
    first = [int(np.float32(k) * np.float32(0.7)) for k in range(6)]
    return [sum(x[at + (k * 60 + b) % 256 // 16] for k, at in enumerate(first)) for b in range(8)]


CASES: tuple[tuple[Any, tuple[Any, ...], Callable[..., Any]], ...] = (
    (truncated, (LINE,), lambda x: x[(np.arange(-32, 32) * np.float32(0.3)).astype("int32") + 10]),
    (rounded, (LINE,), lambda x: x[np.arange(3900, 4156).astype("float16").astype("int32") - 3900]),
    (narrowed, (LINE, LONG), lambda x, k: k - k.astype("int32") + x[k.astype("int32")]),
    (negative_as_unsigned, (LINE,), _negative),
    (copied, (ROWS,), lambda x: x[(np.arange(8) * np.float32(0.7)).astype("int32")]),
    (pipelined, (ROWS,), _sum_of_rows),
    (counted, (LINE, FLOATS), lambda x, f: [x[: max(int(v), 0)].sum() for v in f]),
)  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel,given,expected", CASES, ids=[c[0].name for c in CASES])
def test_what_a_cast_cuts_off_is_missing(
    kernel: Any, given: tuple[Any, ...], expected: Callable[..., Any], target: str
) -> None:
    want = np.asarray(expected(*given))
    out = np.full(want.shape, -1, "int64" if kernel is narrowed else "float32")
    run(kernel, target, *given, out)
    np.testing.assert_array_equal(out, want)


def test_what_a_cast_cuts_off_is_in_no_sum() -> None:
    """An int of a float is an unknown of its own, the low bits of a number that was read, too; of a
    size they are taken to be all."""
    x, n, k = (Value(ScalarType(t), s) for t, s in ((FLOAT32, "x"), (INT64, "n"), (INT64, "k")))
    b = Builder(UNKNOWN)
    casts = [b.value(Cast, v, INT32) for v in (x, n, k)]
    wide = b.value(Cast, casts[2], INT64)
    b.emit(Yield)
    grid = Builder(UNKNOWN)
    grid.emit(Yield, ())
    params = (Param(x, "scalar", "x"), Param(n, "size", "A", 0), Param(k, "scalar", "k"))
    facts = Facts(Func("f", params, grid.block(), b.block(), loc=UNKNOWN))
    assert facts.form(casts[0]) == Affine.of(casts[0])
    assert facts.form(casts[1]) == Affine.of(n)
    assert facts.form(casts[2]) == facts.form(wide) == Affine.of(casts[2])
    assert facts.range(casts[0]) == facts.range(casts[2]) == INT32.limits
