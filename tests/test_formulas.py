"""Functions that are formulas of others: errors in ulp over the whole range of float32; arithmetic
with a rounding of the user's, against fractions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
N = T.dynamic("N")
SPECIAL = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-40, -1e-40, 3e38, -3e38, 0.5, 2, 88.7, -89.5]

ONE: dict[str, Any] = {
    "expm1": np.expm1, "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "atan": np.arctan, "asin": np.arcsin, "acos": np.arccos, "cbrt": np.cbrt,
    "nearbyint": np.rint, "erfc": np.vectorize(math.erfc),
}  # fmt: skip
TWO: dict[str, Any] = {"fmod": np.fmod, "copysign": np.copysign, "hypot": np.hypot}


def stated(name: str) -> float:
    """The error that the docstring states, in ulp."""
    doc = " ".join((getattr(T, name).__doc__ or "").split())
    if "Exact" in doc:
        return 0
    of_atan2 = "error of `T.atan2`" in doc
    found = re.search(r"(\d+) ulp", doc)
    return (1 if of_atan2 else 0) + (float(found[1]) if found else 0)


def of_one(name: str, dtype: str = "float32") -> Any:
    function = getattr(T, name)

    @tilec.kernel
    def kernel(A: T.Tensor((N,), dtype), C: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, 128), threads=128) as b:
            for i in T.Parallel(128):
                C[b * 128 + i] = function(A[b * 128 + i])

    return kernel


def of_two(name: str, second: str = "float32") -> Any:
    function = getattr(T, name)

    @tilec.kernel
    def kernel(
        A: T.Tensor((N,), "float32"), B: T.Tensor((N,), second), C: T.Tensor((N,), "float32")
    ):
        with T.Kernel(T.ceildiv(N, 128), threads=128) as b:
            for i in T.Parallel(128):
                C[b * 128 + i] = function(A[b * 128 + i], B[b * 128 + i])

    return kernel


def numbers(rng: np.random.Generator, count: int) -> np.ndarray:
    every = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    near = [rng.uniform(-1, 1, count), rng.uniform(-100, 100, count), 1 + rng.uniform(0, 9, count)]
    return np.concatenate([every, SPECIAL, *near]).astype(np.float32)


def ulps(got: np.ndarray, exact: np.ndarray) -> float:
    """The largest error; infinite where one is infinite or nan and the other is not."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        unit = np.maximum(np.spacing(np.abs(rounded)).astype(np.float64), 2.0**-149)
        error = np.abs(got.astype(np.float64) - exact) / unit
    finite = np.isfinite(rounded)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    return float(np.max(np.where(finite, error, np.where(same, 0, np.inf))))


@pytest.mark.parametrize("name", ONE)
def test_one_number(name: str, rng: np.random.Generator) -> None:
    x = numbers(rng, 50_000)
    c = np.zeros_like(x)
    of_one(name)(x, c)
    with np.errstate(all="ignore"):
        exact = ONE[name](x.astype(np.float64))
    assert ulps(c, exact) <= stated(name)


@pytest.mark.parametrize("name", TWO)
def test_two_numbers(name: str, rng: np.random.Generator) -> None:
    x, y = numbers(rng, 20_000), rng.permutation(numbers(rng, 20_000))
    x, y = (
        np.concatenate([v, w]).astype(np.float32)
        for v, w in ((x, np.repeat(SPECIAL, 15)), (y, np.tile(SPECIAL, 15)))
    )
    c = np.zeros_like(x)
    of_two(name)(x, y, c)
    with np.errstate(all="ignore"):
        exact = TWO[name](x.astype(np.float64), y.astype(np.float64))
    assert ulps(c, exact) <= stated(name)
    if name == "copysign":
        ours, theirs = np.signbit(c), np.signbit(exact)
        assert (ours == theirs)[~np.isnan(x)].all()


def test_powers_of_two(rng: np.random.Generator) -> None:
    x = numbers(rng, 20_000)
    n = rng.integers(-400, 400, len(x)).astype(np.int32)
    c = np.zeros_like(x)
    of_two("ldexp", "int32")(x, n, c)
    with np.errstate(all="ignore"):
        exact = np.ldexp(x.astype(np.float64), n)
    assert ulps(c, exact) <= 1
    normal = np.abs(exact) >= 2.0**-126
    assert ulps(c[normal], exact[normal]) <= 0.5


@pytest.mark.parametrize("name", ["sinh", "acosh", "atan", "cbrt"])
def test_halves_are_rounded_once(name: str) -> None:
    x = np.arange(0, 1 << 16, dtype=np.uint16).view(np.float16)
    c = np.zeros_like(x)
    of_one(name, "float16")(x, c)
    with np.errstate(all="ignore"):
        exact = ONE[name](x.astype(np.float64))
        rounded = exact.astype(np.float16)
        off = np.abs(c.astype(np.float64) - exact) / np.spacing(np.abs(rounded)).astype(np.float64)
    assert np.nanmax(np.where(np.isfinite(rounded), off, 0)) <= 0.51
    assert (np.isnan(c) == np.isnan(rounded)).all()


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_in_the_simulator(name: str, target: str, rng: np.random.Generator) -> None:
    x, y = (rng.uniform(0.1, 3, 200).astype(np.float32) for _ in range(2))
    c = np.zeros_like(x)
    kernel, given = (of_one(name), (x, c)) if name in ONE else (of_two(name), (x, y, c))
    assert not tilec.simulate(kernel, *given, target=target).findings
    exact = ({**ONE, **TWO}[name])(*(v.astype(np.float64) for v in given[:-1]))
    ok = np.isfinite(exact)
    assert ulps(c[ok], exact[ok]) <= stated(name) + 4  # exp, log and atan2 are the target's


# --- roundings ------------------------------------------------------------------------------------

ROUNDED: dict[str, tuple[int, Callable[..., Fraction]]] = {
    "ieee_add": (2, lambda a, b: a + b),
    "ieee_sub": (2, lambda a, b: a - b),
    "ieee_mul": (2, lambda a, b: a * b),
    "ieee_fdiv": (2, lambda a, b: a / b),
    "ieee_fmaf": (3, lambda a, b, c: a * b + c),
    "ieee_frcp": (1, lambda a: 1 / a),
}
ROOTS = {"ieee_fsqrt": lambda r, a: r * r - a, "ieee_frsqrt": lambda r, a: r * r * a - 1}


def rounding(name: str, count: int, mode: str) -> Any:
    function = getattr(T, name)

    @tilec.kernel
    def kernel(A: T.Tensor((3, N), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 128), threads=128) as b:
            for i in T.Parallel(128):
                at = b * 128 + i
                given = (A[0, at], A[1, at], A[2, at])
                C[at] = function(*given[:count], rounding_mode=mode)

    return kernel


def operands(rng: np.random.Generator) -> np.ndarray:
    every = rng.integers(0, 2**32, 1500, dtype=np.uint32).view(np.float32)
    x = np.concatenate([every[np.isfinite(every)], rng.standard_normal(500)])
    x = np.stack([rng.permutation(x) for _ in range(3)]).astype(np.float32)
    edges = [[0, 1, -1], [1, -1, 0], [1, 1e-30, -1], [3e38, 3e38, -1], [1e-45, 0.5, 0], [5, 3, -15]]
    return np.concatenate([x, np.array(edges, np.float32).T], 1)


def side(c: np.float32, exact: Fraction, mode: str) -> bool:
    """Whether `c` is the number next to `exact` on the side of the mode."""

    def above(x: np.float32) -> bool:
        return x > 0 if np.isinf(x) else Fraction(float(x)) > exact

    def below(x: np.float32) -> bool:
        return x < 0 if np.isinf(x) else Fraction(float(x)) < exact

    with np.errstate(all="ignore"):
        down, up = (np.nextafter(c, np.float32(s)) for s in (-np.inf, np.inf))
    toward = {"ru": "up", "rd": "down"}.get(mode, "down" if exact > 0 else "up")
    if toward == "up":
        return not below(c) and (bool(below(down)) or down == c)
    return not above(c) and (bool(above(up)) or up == c)


@pytest.mark.parametrize("mode", ["rz", "ru", "rd"])
@pytest.mark.parametrize("name", ROUNDED)
def test_roundings(name: str, mode: str, rng: np.random.Generator) -> None:
    count, of = ROUNDED[name]
    x = operands(rng)
    c = np.zeros(x.shape[1], np.float32)
    rounding(name, count, mode)(x, c)
    for given, found in zip(x[:count].T, c):
        if name in ("ieee_fdiv", "ieee_frcp") and given[-1] == 0:
            assert not np.isfinite(found)
        else:
            exact = of(*(Fraction(float(v)) for v in given))
            assert side(found, exact, mode), (given, found)


@pytest.mark.parametrize("mode", ["rz", "ru", "rd"])
@pytest.mark.parametrize("name", ROOTS)
def test_roots(name: str, mode: str, rng: np.random.Generator) -> None:
    x = np.abs(operands(rng))
    x[0, :100] = np.arange(1, 101) ** 2
    c = np.zeros(x.shape[1], np.float32)
    rounding(name, 1, mode)(x, c)
    for a, found in zip(x[0], c):
        if a == 0:
            continue
        with np.errstate(all="ignore"):
            ends = [np.nextafter(found, np.float32(s)) for s in (-np.inf, np.inf)]
        off, lower, upper = (
            ROOTS[name](Fraction(float(r)), Fraction(float(a))) for r in (found, *ends)
        )
        assert (off >= 0 > lower) if mode == "ru" else (off <= 0 < upper), (a, found)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [*ROUNDED, *ROOTS])
def test_all_targets_agree(name: str, target: str, rng: np.random.Generator) -> None:
    count = ROUNDED[name][0] if name in ROUNDED else 1
    x = np.abs(operands(rng)[:, -300:])
    for mode in ("rn", "ru"):
        here, there = np.zeros(300, np.float32), np.zeros(300, np.float32)
        rounding(name, count, mode)(x, here)
        assert not tilec.simulate(rounding(name, count, mode), x, there, target=target).findings
        np.testing.assert_array_equal(here, there)


def test_an_unknown_rounding() -> None:
    x, c = np.ones((3, 4), np.float32), np.ones(4, np.float32)
    with pytest.raises(tilec.CompileError, match="rounding_mode of T.ieee_add is the str 'up'"):
        rounding("ieee_add", 2, "up")(x, c)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_on_the_gpu(name: str, rng: np.random.Generator, torch: Any) -> None:
    x, y = (rng.uniform(-3, 3, 5000).astype(np.float32) for _ in range(2))
    given = (x,) if name in ONE else (x, y)
    c = torch.zeros(5000, device="cuda")
    kernel = of_one(name) if name in ONE else of_two(name)
    kernel(*(torch.from_numpy(v).cuda() for v in given), c)
    with np.errstate(all="ignore"):
        exact = ({**ONE, **TWO}[name])(*(v.astype(np.float64) for v in given))
    ok = np.isfinite(exact)
    assert ulps(c.cpu().numpy()[ok], exact[ok]) <= stated(name) + 4


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["rn", "rz", "ru", "rd"])
@pytest.mark.parametrize("name", [*ROUNDED, *ROOTS])
def test_roundings_on_the_gpu(name: str, mode: str, rng: np.random.Generator, torch: Any) -> None:
    count = ROUNDED[name][0] if name in ROUNDED else 1
    x = np.abs(operands(rng))
    c = np.zeros(x.shape[1], np.float32)
    rounding(name, count, mode)(x, c)
    d = torch.zeros(x.shape[1], device="cuda")
    rounding(name, count, mode)(torch.from_numpy(x).cuda(), d)
    np.testing.assert_array_equal(d.cpu().numpy(), c)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_halves_away_from_zero(dtype: str, rng: np.random.Generator) -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype), C: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, 128), threads=128) as b:
            for i in T.Parallel(128):
                B[b * 128 + i] = T.round(A[b * 128 + i], "ties-away-from-zero")
                C[b * 128 + i] = T.round(A[b * 128 + i], rounding_mode="ties-to-even")

    halves = np.array([0.5, -0.5, 1.5, -2.5, 0.3, -0.3, 0.0, -0.0, np.inf, -np.inf, 1001.5])
    a = np.concatenate([halves, rng.standard_normal(100) * 50, [0.49999997, np.nan]]).astype(dtype)
    exact = a.astype(np.float64)
    for target in ("cpu", *TARGETS):
        b, c = np.zeros_like(a), np.zeros_like(a)
        if target == "cpu":
            kernel(a, b, c)
        else:
            assert tilec.simulate(kernel, a, b, c, target=target).ok
        away = np.copysign(np.floor(abs(exact) + 0.5), exact)
        np.testing.assert_array_equal(b, away.astype(dtype))
        np.testing.assert_array_equal(np.signbit(b), np.signbit(a))
        np.testing.assert_array_equal(c, np.rint(a))


def test_a_rounding_that_there_is_not() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=8):
            for i in T.Parallel(8):
                A[i] = T.round(A[i], "up")

    with pytest.raises(tilec.CompileError, match="rounding_mode of T.round is the str 'up'") as e:
        kernel.compile(tilec.spec((8,), "float32"), target="cpu")
    assert "ties-away-from-zero" in str(e.value)
