"""Python's own functions of numbers, and those of `math`, of what is known at run time only."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulated import run, traced

import tilec
import tilec.language as T

M, N, K = T.dynamic("M, N, K")
TARGETS = ("cpu", "cuda:sm_80", "hip:gfx942")


def applied(function: Callable[[Any], Any], given: str, made: str) -> tilec.Kernel:
    @tilec.kernel
    def kernel(X: T.Tensor((N,), given), Y: T.Tensor((N,), made)):
        with T.Kernel(T.ceildiv(N, 64), threads=64) as bx:
            for i in T.Parallel(64):
                Y[bx * 64 + i] = function(X[bx * 64 + i])

    return kernel


# By what they are: the function, the dtype that it is given, the one of what it gives.
OF_NUMBERS: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "int": (lambda x: int(x), "float32", "int32"),
    "int of a uint8": (lambda x: int(x) - 128, "uint8", "int32"),
    "int of an int64": (lambda x: int(x * (1 << 40)), "int64", "int64"),
    "int of a float64": (lambda x: int(x * 1e12), "float64", "int64"),
    "float": (lambda x: float(x) / 2, "int32", "float32"),
    "float of a float64": (lambda x: float(x + 1e-12), "float64", "float64"),
    "bool": (lambda x: bool(round(x)), "float32", "bool"),
    "halves": (lambda x: round(x * 0.5), "int32", "float32"),
    "by name": (lambda x: round(number=x), "float32", "float32"),
    "digits": (lambda x: round(x, 2), "float64", "float64"),
    "pow": (lambda x: pow(abs(x), 1.5), "float32", "float32"),
    "divmod": (lambda x: divmod(x, 3)[0] * 100 + divmod(x, 3)[1], "int32", "int32"),
    "divmod of floats": (lambda x: sum(divmod(x, -1.5)), "float32", "float32"),
    "roundings": (
        lambda x: math.floor(x) + 10 * math.ceil(x) + 100 * math.trunc(x), "float32", "float32",
    ),
    "roundings of ints": (lambda x: math.floor(x) + math.ceil(x), "int32", "int32"),
    "roots": (lambda x: math.sqrt(abs(x)) + math.cbrt(x), "float32", "float32"),
    "of an int": (lambda x: math.sqrt(x * x) + math.exp(x), "int32", "float32"),
    "logarithms": (
        lambda x: math.log(x * x + 1) + math.log(x * x + 1, 3) + math.log2(x * x + 1)
        + math.log10(x * x + 1) + math.log1p(x * x), "float32", "float32",
    ),
    "exponentials": (
        lambda x: math.exp(x) + math.exp2(x) + math.expm1(x), "float32", "float32",
    ),
    "angles": (
        lambda x: math.sin(x) + math.cos(x) + math.tan(x) + math.atan(x) + math.atan2(x, 2.0)
        + math.asin(x / 20) + math.acos(x / 20), "float32", "float32",
    ),
    "hyperbolic": (
        lambda x: math.sinh(abs(x)) + math.cosh(x) + math.tanh(x) + math.asinh(x)
        + math.acosh(1 + x * x) + math.atanh(x / 20), "float32", "float32",
    ),
    "error function": (lambda x: math.erf(x), "float32", "float32"),
    "of two": (
        lambda x: math.pow(2, x) + math.fmod(x, 1.5) + math.copysign(2.0, x) + math.ldexp(x, 3)
        + math.erfc(x),
        "float32", "float32",
    ),
    "lengths": (
        lambda x: math.hypot(x, 2.0) + math.hypot(x, 1.0, 3.0) + math.fabs(x), "float32", "float32",
    ),
    "degrees": (lambda x: math.degrees(x) + math.radians(x), "float32", "float32"),
    "powers of ints": (lambda x: (x % 5) ** 5 + (x % 3) ** 13, "int32", "int32"),
    "which numbers": (
        lambda x: math.isnan(x) or math.isinf(x) or not math.isfinite(x), "float32", "bool",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_numbers(name: str, rng: np.random.Generator) -> None:
    function, given, made = OF_NUMBERS[name]
    x = (rng.standard_normal(70) * 3 if given.startswith("float") else np.arange(-35, 35)).astype(
        given
    )
    expected = np.array([function(v.item()) for v in x], made)
    for target in TARGETS:
        y = np.zeros(70, made)
        run(applied(function, given, made), target, x, y)
        tolerance = 1e-12 if made == "float64" else 1e-5
        np.testing.assert_allclose(y, expected, tolerance, tolerance, err_msg=target)


def test_a_half_stays_one() -> None:
    stages = (
        applied(lambda x: math.exp(x), "float16", "float16")
        .compile(tilec.spec((64,), "float16"), tilec.spec((64,), "float16"), target="cpu")
        .stages
    )
    assert "unary.exp" in stages["tile"] and "f32" not in stages["tile"]


@tilec.kernel
def by_python(
    X: T.Tensor((M, K), "float16"), W: T.Tensor((K, N), "float16"), Y: T.Tensor((M, N), "float32")
):
    for i, j in T.Parallel(M, N):
        total = 0.0
        for k in range(K):
            total += float(X[i, k]) * float(W[k, j])
        Y[i, j] = math.exp(total)


@tilec.kernel
def by_words(
    X: T.Tensor((M, K), "float16"), W: T.Tensor((K, N), "float16"), Y: T.Tensor((M, N), "float32")
):
    for i, j in T.Parallel(M, N):
        total = 0.0
        for k in range(K):
            total += T.float32(X[i, k]) * T.float32(W[k, j])
        Y[i, j] = T.exp(total)


@tilec.kernel
def rows_by_python(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
    for i in T.Parallel(M):
        total = 0.0
        for j in range(N):
            total += math.exp(X[i, j])
        for j in range(N):
            Y[i, j] = math.exp(X[i, j]) / total


@tilec.kernel
def rows_by_words(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
    for i in T.Parallel(M):
        total = 0.0
        for j in range(N):
            total += T.exp(X[i, j])
        for j in range(N):
            Y[i, j] = T.exp(X[i, j]) / total


@pytest.mark.parametrize(
    "kernels, dtypes",
    [
        ((by_python, by_words), ("float16", "float16", "float32")),
        ((rows_by_python, rows_by_words), ("float32", "float32")),
    ],
)
def test_whole_loops_know_them(kernels: tuple[tilec.Kernel, ...], dtypes: tuple[str, ...]) -> None:
    specs = [tilec.spec((70, 70), dtype) for dtype in dtypes]
    made = [traced(k, *specs, target="cuda:sm_90a") for k in kernels]
    assert made[0].replace(kernels[0].__name__, kernels[1].__name__) == made[1]


def test_a_float_of_a_float64_is_one() -> None:
    @tilec.kernel
    def product(
        X: T.Tensor((M, K), "float64"),
        W: T.Tensor((K, N), "float64"),
        Y: T.Tensor((M, N), "float64"),
    ):
        for i, j in T.Parallel(M, N):
            total = 0.0
            for k in range(K):
                total += float(X[i, k]) * float(W[k, j])
            Y[i, j] = total

    x, y = np.full((16, 16), 1 + 1e-12), np.zeros((16, 16))
    product(x, np.eye(16), y)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(
    "function, said",
    [
        (lambda x: pow(x, 2, 3), "pow: too many positional arguments"),
        (lambda x: math.sqrt(x, x), "math.sqrt: too many positional arguments"),
        (lambda x: math.gamma(x), "is only known at run time"),
        (lambda x: complex(x), "complex cannot be called in a kernel"),
    ],
)
def test_refused(function: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(tilec.CompileError) as caught:
        applied(function, "float32", "float32").compile(*[tilec.spec((64,), "float32")] * 2)
    assert said in caught.value.message
    assert caught.value.loc.file == __file__
