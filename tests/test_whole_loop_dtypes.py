"""Variables of loops over whole tensors that begin with a number and no dtype: what is folded into
them is folded as into those that say theirs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

M, N = T.dynamic("M, N")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")
HEADER = """
import math
import tilec
import tilec.language as T

M, N, K = T.dynamic("M, N, K")
LEAST = -1e30

@tilec.kernel
"""
Text = tuple[str, dict[str, str]]

# `name@` begins the variables, whose dtypes are said or not.
ROWS = 'def kernel(X: T.Tensor((M, N), "{0}"), Y: T.Tensor((M, N), "{0}")):\n'
PROGRAMS: dict[str, Text] = {
    "softmax": (
        ROWS
        + """
    for i in T.Parallel(M):
        most@ = LEAST
        for j in range(N):
            most = T.max(most, X[i, j])
        total@ = 0.0
        for j in range(N):
            total += T.exp(T.float32(X[i, j]) - most)
        for j in range(N):
            Y[i, j] = T.exp(T.float32(X[i, j]) - most) / total
""",
        {"most": "T.float32", "total": "T.float32"},
    ),
    "layer norm": (
        ROWS
        + """
    for i in T.Parallel(M):
        mean@ = 0.0
        for j in range(N):
            mean += X[i, j]
        mean = mean / N
        square@ = 0.0
        for j in range(N):
            square = square + (X[i, j] - mean) * (X[i, j] - mean)
        for j in range(N):
            Y[i, j] = (X[i, j] - mean) * T.rsqrt(square / N + 1e-5)
""",
        {"mean": "T.float32", "square": "T.float32"},
    ),
    "variance": (
        ROWS
        + """
    for i in T.Parallel(M):
        mean@ = 0.0
        square@ = 0.0
        for j in range(N):
            mean += X[i, j]
            square += T.float32(X[i, j]) * T.float32(X[i, j])
        mean = mean / N
        square = square / N - mean * mean
        for j in range(N):
            Y[i, j] = (X[i, j] - mean) * T.rsqrt(square + 1e-5)
""",
        {"mean": "T.float32", "square": "T.float32"},
    ),
    "columns": (
        ROWS
        + """
    for j in T.Parallel(N):
        total@ = -0.0
        for i in range(M):
            if X[i, j] > 0:
                total += X[i, j]
        Y[0, j] = total
""",
        {"total": "T.float32"},
    ),
}


def reference(name: str, x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    if name == "softmax":
        e = np.exp(x - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)
    if name in ("layer norm", "variance"):
        centred = x - x.mean(1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    return np.where(x > 0, x, 0).sum(0, keepdims=True)


@pytest.fixture
def kernels(tmp_path: Path) -> Callable[[Text, str], list[Any]]:
    def made(text: Text, dtype: str) -> list[Any]:
        """The kernel without dtypes, and with them."""
        found = []
        for said in (False, True):
            source = text[0].replace("{0}", dtype)
            for name, its in text[1].items():
                source = source.replace(f"{name}@", f"{name}: {its}" if said else name)
            path = tmp_path / f"program_{said}.py"
            path.write_text(HEADER + source)
            spec = importlib.util.spec_from_file_location(f"program_{said}", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            found.append(module.kernel)
        return found

    return made


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("target", TARGETS)
def test_dtypes_need_not_be_said(
    target: str, name: str, dtype: str, kernels: Any, rng: np.random.Generator
) -> None:
    """The code is that of the program that says them, and so are the numbers."""
    x = rng.standard_normal((9, 300)).astype(dtype)
    y = np.full((9, 300), np.nan, dtype)
    want = reference(name, x)
    plain, said = kernels(PROGRAMS[name], dtype)
    run(plain, target, x, y)
    near = 2e-5 if dtype == "float32" else 4e-3
    np.testing.assert_allclose(y[: len(want)].astype(float), want, rtol=near, atol=near)
    if target != "cpu":
        stages = [k.compile(x, y, target=target).stages["lower_parallel"] for k in (plain, said)]
        assert stages[0] == stages[1] and ("shuffle" in stages[0] or name == "columns")


FOUND: dict[str, Text] = {
    "place": (
        """def kernel(X: T.Tensor((M, N), "{0}"), Y: T.Tensor((M, 4), "float32")):
    for i in T.Parallel(M):
        best@ = LEAST
        at@ = -1
        for j in range(N):
            if X[i, j] > best:
                best = X[i, j]
                at = j
        Y[i, 0] = best
        Y[i, 1] = at
""",
        {"best": "T.float32", "at": "T.int32"},
    ),
    "ends": (
        """def kernel(X: T.Tensor((M, N), "{0}"), Y: T.Tensor((M, 4), "float32")):
    for i in T.Parallel(M):
        low@ = math.inf
        high@ = float("-inf")
        for j in range(N):
            x = X[i, j]
            low = T.min(low, x)
            high = max(high, x)
        Y[i, 0] = low
        Y[i, 1] = high
""",
        {"low": "T.float32", "high": "T.float32"},
    ),
    "signs": (
        """def kernel(X: T.Tensor((M, N), "{0}"), Y: T.Tensor((M, 4), "float32")):
    for i in T.Parallel(M):
        up@ = 0.0
        down@ = 0.0
        any@ = False
        every@ = True
        for j in range(N):
            if X[i, j] > 0:
                up += X[i, j]
            else:
                down -= X[i, j]
            if X[i, j] > 2.5:
                any = True
            every = every and X[i, j] < 3
        Y[i, 0] = up
        Y[i, 1] = down
        Y[i, 2] = any
        Y[i, 3] = every
""",
        {"up": "T.float32", "down": "T.float32", "any": "T.bool", "every": "T.bool"},
    ),
}


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("target", TARGETS)
def test_what_is_found(
    target: str, name: str, dtype: str, kernels: Any, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((6, 500)).astype(dtype)
    y = np.full((6, 4), np.nan, np.float32)
    plain, said = kernels(FOUND[name], dtype)
    run(plain, target, x, y)
    wide = x.astype(np.float64)
    want = {
        "place": (wide.max(1), wide.argmax(1)),
        "ends": (wide.min(1), wide.max(1)),
        "signs": (
            np.where(wide > 0, wide, 0).sum(1),
            -np.where(wide > 0, 0, wide).sum(1),
            (wide > 2.5).any(1),
            (wide < 3).all(1),
        ),
    }[name]
    for n, column in enumerate(want):
        np.testing.assert_allclose(y[:, n], column, rtol=1e-6 if name != "signs" else 1e-4)
    if target == "cuda:sm_90a":
        stages = [k.compile(x, y, target=target).stages["lower_parallel"] for k in (plain, said)]
        assert stages[0] == stages[1] and "shuffle" in stages[0]


INTS: dict[str, Text] = {
    "how many": (
        """def kernel(X: T.Tensor((M, N), "{0}"), Y: T.Tensor((M,), "int32")):
    for i in T.Parallel(M):
        n@ = 0
        for j in range(N):
            if X[i, j] > 1:
                n += 1
        Y[i] = n * 3
""",
        {"n": "T.int32"},
    ),
    "sum": (
        """def kernel(X: T.Tensor((M, N), "{0}"), Y: T.Tensor((M,), "int32")):
    for i in T.Parallel(M):
        n@ = 0
        for j in range(N):
            n += X[i, j]
        Y[i] = n
""",
        {"n": "T.int32"},
    ),
}


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
@pytest.mark.parametrize("name", INTS)
@pytest.mark.parametrize("target", TARGETS)
def test_ints(target: str, name: str, dtype: str, kernels: Any, rng: np.random.Generator) -> None:
    x = rng.integers(0, 120, (5, 900)).astype(dtype)
    y = np.full(5, -1, np.int32)
    plain, said = kernels(INTS[name], dtype)
    run(plain, target, x, y)
    wide = x.astype(np.int64)
    np.testing.assert_array_equal(y, (wide > 1).sum(1) * 3 if name == "how many" else wide.sum(1))
    if target == "cuda:sm_90a":
        stages = [k.compile(x, y, target=target).stages["lower_parallel"] for k in (plain, said)]
        assert stages[0] == stages[1] and "shuffle" in stages[0]


@tilec.kernel
def of_doubles(X: T.Tensor((4, 700), "float64"), Y: T.Tensor((4,), "float64")):
    for i in T.Parallel(4):
        total = 0.0
        for j in range(700):
            total += X[i, j]
        Y[i] = total


@tilec.kernel
def of_wide_ints(X: T.Tensor((4, 700), "int64"), Y: T.Tensor((4,), "int64")):
    for i in T.Parallel(4):
        total = 0
        for j in range(700):
            total += X[i, j]
        Y[i] = total


@tilec.kernel
def renamed(X: T.Tensor((4, 700), "float16"), Y: T.Tensor((4,), "float32")):
    """`total` is another name for a number of half the bits in the end."""
    for i in T.Parallel(4):
        total = 0.0
        for j in range(700):
            total += X[i, j]
        total = T.float16(total)
        Y[i] = total + T.float16(0.0009765625)


@tilec.kernel
def of_halves(X: T.Tensor((4, 3000), "float16"), Y: T.Tensor((4,), "float16")):
    """An int to which halves are added is a half."""
    for i in T.Parallel(4):
        total = 0
        for j in range(3000):
            total += X[i, j]
        Y[i] = total


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_wider_stays_so(target: str, rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((4, 700)), np.full(4, np.nan)
    run(of_doubles, target, x, y)
    np.testing.assert_allclose(y, x.sum(1), rtol=1e-12)
    n, sums = rng.integers(-(1 << 60), 1 << 60, (4, 700)), np.full(4, -1)
    run(of_wide_ints, target, n, sums)
    np.testing.assert_array_equal(sums, n.sum(1))
    half, out = np.ones((4, 700), np.float16), np.full(4, np.nan, np.float32)
    run(renamed, target, half, out)
    np.testing.assert_array_equal(out, np.float32(np.float16(700) + np.float16(0.0009765625)))
    halves, lost = np.ones((4, 3000), np.float16), np.full(4, np.nan, np.float16)
    run(of_halves, target, halves, lost)
    np.testing.assert_array_equal(lost, np.float16(2048))  # to which one more adds nothing


@tilec.kernel
def product(
    A: T.Tensor((40, 33), "float32"),
    B: T.Tensor((33, 50), "float32"),
    C: T.Tensor((40, 50), "float32"),
):
    for i, j in T.Parallel(40, 50):
        acc = 0
        for k in range(33):
            acc += A[i, k] * B[k, j]
        C[i, j] = acc


@tilec.kernel
def of_channels(
    X: T.Tensor((6, 70, 5, 9), "float32"),
    Mean: T.Tensor((70,), "float32"),
    Var: T.Tensor((70,), "float32"),
):
    for c in T.Parallel(70):
        total = 0.0
        squares = T.float32(0)
        for n, h, w in T.grid(6, 5, 9):
            total += X[n, c, h, w]
            squares += X[n, c, h, w] * X[n, c, h, w]
        total /= 270
        Mean[c] = total
        Var[c] = squares / 270 - total * total


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.parametrize("target", TARGETS)
def test_products_and_grids(target: str, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((40, 33), (33, 50)))
    c = np.full((40, 50), np.nan, np.float32)
    run(product, target, a, b, c)
    np.testing.assert_allclose(c, a.astype(float) @ b, rtol=1e-4, atol=1e-4)
    x = rng.standard_normal((6, 70, 5, 9)).astype(np.float32)
    mean, var = (np.full(70, np.nan, np.float32) for _ in range(2))
    run(of_channels, target, x, mean, var)
    np.testing.assert_allclose(mean, x.astype(float).mean((0, 2, 3)), atol=1e-6)
    np.testing.assert_allclose(var, x.astype(float).var((0, 2, 3)), rtol=1e-5)
    if target == "cuda:sm_90a":
        assert "gemm" in product.compile(a, b, c, target=target).stages["tile"]
        stage = of_channels.compile(x, mean, var, target=target).stages["lower_parallel"]
        assert "shuffle" in stage  # a warp, or more, for each channel


@tilec.kernel
def taps(
    X: T.Tensor((2, 200, 256), "float16"),
    W: T.Tensor((4, 256), "float16"),
    Y: T.Tensor((2, 197, 256), "float32"),
):
    for b, t, c in T.Parallel(2, 197, 256):
        acc = 0.0
        for k in range(4):
            acc += T.float32(X[b, t + k, c]) * T.float32(W[k, c])
        Y[b, t, c] = acc


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.parametrize("target", TARGETS)
def test_a_few_rows_of_many_columns_are_a_threads_own(
    target: str, rng: np.random.Generator
) -> None:
    x, w = (rng.standard_normal(s).astype(np.float16) for s in ((2, 200, 256), (4, 256)))
    y = np.full((2, 197, 256), np.nan, np.float32)
    compiled = taps.compile(x, w, y, target=target)
    assert "barrier" not in compiled.stages["tile"] and "alloc" not in compiled.stages["tile"]
    if target in ("cpu", "cuda:sm_90a"):
        run(taps, target, x, w, y)
        windows = np.lib.stride_tricks.sliding_window_view(x.astype(float), 4, 1)
        np.testing.assert_allclose(y, (windows * w.T.astype(float)).sum(-1), rtol=1e-5, atol=1e-5)


@tilec.kernel
def of_doubles_in_grids(X: T.Tensor((3, 40, 9), "float64"), Y: T.Tensor((3, 2), "float64")):
    for i in T.Parallel(3):
        total = 0.0
        most = -1e30
        for j, k in T.grid(40, 9):
            total += X[i, j, k]
            if X[i, j, k] > most:
                most = X[i, j, k]
        Y[i, 0] = total
        Y[i, 1] = most


@tilec.kernel
def of_wide_ints_in_loops(X: T.Tensor((3, 40, 3, 3), "int64"), Y: T.Tensor((3,), "int64")):
    for i in T.Parallel(3):
        total = 0
        for j in range(40):
            for k in range(3):
                for n in range(3):
                    if X[i, j, k, n] > 0:
                        total += X[i, j, k, n]
        Y[i] = total


@pytest.mark.parametrize("target", TARGETS)
def test_loops_in_one_another_settle_as_one_does(target: str, rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((3, 40, 9)), np.full((3, 2), np.nan)
    run(of_doubles_in_grids, target, x, y)
    np.testing.assert_allclose(y.T, [x.sum((1, 2)), x.max((1, 2))], rtol=1e-12)
    n, sums = rng.integers(-(1 << 50), 1 << 50, (3, 40, 3, 3)), np.full(3, -1)
    run(of_wide_ints_in_loops, target, n, sums)
    np.testing.assert_array_equal(sums, np.where(n > 0, n, 0).sum((1, 2, 3)))


@tilec.kernel
def of_few(
    X: T.Tensor((70, 4, 256), "float16"),
    N: T.Tensor((70, 4, 256), "int8"),
    Y: T.Tensor((70, 256), "float32"),
    Z: T.Tensor((70, 256), "float32"),
    S: T.Tensor((70, 256), "int32"),
):
    for i, j in T.Parallel(70, 256):
        total = 0.0
        ema = 0.0
        n = 0
        for k in range(4):
            total += X[i, k, j]
            ema = ema * 0.75 + X[i, k, j]
            n += N[i, k, j]
        Y[i, j] = total
        Z[i, j] = ema
        S[i, j] = n


@pytest.mark.parametrize("target", TARGETS)
def test_few_iterations_round_as_many_do(target: str, rng: np.random.Generator) -> None:
    """Sums of halves are of 32 bits, those of bytes do not wrap around, however short they are."""
    x = rng.standard_normal((70, 4, 256)).astype(np.float16)
    n = rng.integers(90, 128, x.shape).astype(np.int8)
    y, z = (np.full((70, 256), np.nan, np.float32) for _ in range(2))
    s = np.full((70, 256), -1, np.int32)
    run(of_few, target, x, n, y, z, s)
    wide = x.astype(float)
    np.testing.assert_allclose(y, wide.sum(1), rtol=1e-6, atol=1e-6)
    weights = 0.75 ** np.arange(3, -1, -1)
    np.testing.assert_allclose(z, (wide * weights[:, None]).sum(1), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(s, n.sum(1, dtype=np.int32))


@tilec.kernel
def turned_into_floats(
    X: T.Tensor((7, 301), "int8"), R: T.Tensor((7,), "float32"), Y: T.Tensor((7, 4), "float32")
):
    for i in T.Parallel(7):
        count = 0
        total = T.int32(0)
        most = 0
        odd = T.float16(0)
        for j in range(301):
            if X[i, j] > 0:
                count += 1
            total += X[i, j]
            most = max(most, X[i, j])
            if X[i, j] % 2 != 0:
                odd += 1
        count /= 2
        total = total * 0.25
        most += R[i]
        odd = odd * R[i]
        Y[i, 0] = count
        Y[i, 1] = total
        Y[i, 2] = most
        Y[i, 3] = odd


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_counted_may_become_a_float(target: str, rng: np.random.Generator) -> None:
    x = rng.integers(-9, 100, (7, 301)).astype(np.int8)
    r = rng.standard_normal(7).astype(np.float32)
    y = np.full((7, 4), np.nan, np.float32)
    run(turned_into_floats, target, x, r, y)
    wide = x.astype(float)
    want = [(wide > 0).sum(1) / 2, wide.sum(1) / 4, wide.max(1) + r, (wide % 2 != 0).sum(1) * r]
    np.testing.assert_allclose(y.T, want, rtol=1e-6)


@tilec.kernel
def norm_of_doubles(X: T.Tensor((M, N), "float64"), Y: T.Tensor((M, N), "float64")):
    for i in T.Parallel(M):
        mean = 0.0
        for j in range(N):
            mean += X[i, j]
        mean = mean / N
        square = 0.0
        for j in range(N):
            x = X[i, j] - mean
            square += x * x
        for j in range(N):
            Y[i, j] = (X[i, j] - mean) / T.sqrt(square / N + 1e-12)


@tilec.kernel
def norm_of_said_doubles(X: T.Tensor((M, N), "float64"), Y: T.Tensor((M, N), "float64")):
    for i in T.Parallel(M):
        mean: T.float64 = 0.0
        for j in range(N):
            mean += X[i, j]
        mean = mean / N
        square: T.float64 = 0.0
        for j in range(N):
            x = X[i, j] - mean
            square += x * x
        for j in range(N):
            Y[i, j] = (X[i, j] - mean) / T.sqrt(square / N + 1e-12)


@tilec.kernel
def doubles_and_halves(
    X: T.Tensor((M, N), "float16"), W: T.Tensor((N,), "float64"), Y: T.Tensor((M,), "float64")
):
    for i in T.Parallel(M):
        total = 0.0  # of float32
        for j in range(N):
            total += T.cast(X[i, j], "float32")
        other = 0.0
        for j in range(N):
            other += X[i, j] * W[j] - total
        Y[i] = other


@pytest.mark.parametrize("target", TARGETS)
def test_doubles(target: str, rng: np.random.Generator) -> None:
    """Float64 where all that is folded is: loops go along tiles as those of a variable that says
    so; beside it what is folded may be float32."""
    x, w = rng.standard_normal((5, 700)) + 3, rng.standard_normal(700)
    y, sums, half = np.full((5, 700), np.nan), np.full(5, np.nan), x.astype(np.float16)
    run(norm_of_doubles, target, x, y)
    rows = x - x.mean(1, keepdims=True)
    np.testing.assert_allclose(y, rows / np.sqrt((rows**2).mean(1, keepdims=True)), rtol=1e-9)
    run(doubles_and_halves, target, half, w, sums)
    wide = half.astype(float)
    want = (wide * w - wide.sum(1, keepdims=True)).sum(1)
    np.testing.assert_allclose(sums, want, rtol=1e-5)
    if target == "cuda:sm_90a":
        both = (norm_of_doubles, norm_of_said_doubles)
        stages = [k.compile(x, y, target=target).stages["lower_parallel"] for k in both]
        assert stages[0] == stages[1].replace("norm_of_said_doubles", "norm_of_doubles")
        assert "shuffle" in stages[0]
        made = doubles_and_halves.compile(half, w, sums, target=target)
        assert "shuffle" in made.stages["lower_parallel"]
