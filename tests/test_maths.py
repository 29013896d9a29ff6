"""Functions of float32: their errors in ulp over the whole range, as their docstrings state them,
on the CPU, in the simulator and on a GPU; what the hardware's fast forms are off by."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir import semantics as num

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
N = T.dynamic("N")
ONE = [
    "exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan",
    "tanh", "sigmoid", "erf",
]  # fmt: skip
TWO = ["pow", "atan2"]


def stated(name: str, where: str) -> float:
    """The error that the docstring states."""
    found = re.search(rf"([\d.]+) ulp on {where}", getattr(T, name).__doc__)
    assert found is not None
    return float(found[1])


def kernel_of(name: str, two: bool = False, dtype: str = "float32") -> Any:
    function = getattr(T, name)

    @tilec.kernel
    def one(A: T.Tensor((N,), dtype), C: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, 256), threads=128) as b:
            for i in T.Parallel(256):
                C[b * 256 + i] = function(A[b * 256 + i])

    @tilec.kernel
    def of_two(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype), C: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, 256), threads=128) as b:
            for i in T.Parallel(256):
                C[b * 256 + i] = function(A[b * 256 + i], B[b * 256 + i])

    return of_two if two else one


def numbers(rng: np.random.Generator, count: int) -> np.ndarray:
    """Of the whole range, near 0, near 1, and where functions are used."""
    every = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    near = 1 + rng.standard_normal(count) * np.exp2(-rng.uniform(1, 24, count))
    some = [rng.uniform(-1, 1, count), rng.uniform(-100, 100, count), near]
    with np.errstate(all="ignore"):
        return np.concatenate([every, *some]).astype(np.float32)


def exact(name: str, *x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(num.function(name)(*(v.astype(np.float64) for v in x)))


def off(got: np.ndarray, want: np.ndarray, least: float = 0.0) -> float:
    """The largest error in ulp, of results that are no smaller than `least`; infinite where one is
    infinite or nan and the other is not."""
    with np.errstate(all="ignore"):
        rounded = want.astype(np.float32)
        unit = np.maximum(np.spacing(np.abs(rounded)).astype(np.float64), 2.0**-149)
        error = np.abs(got.astype(np.float64) - want) / unit
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    error = np.where(np.isfinite(rounded), error, np.where(same, 0, np.inf))
    return float(np.max(error[~(np.abs(want) < least)], initial=0.0))


def on_gpus(x: np.ndarray) -> np.ndarray:
    """Numbers that GPUs do not take for 0, nor for too far from it to have a sine."""
    return x[(np.abs(x) >= 2.0**-126) & (np.abs(x) <= 2.0**40)]


@pytest.mark.parametrize("name", ONE)
def test_on_the_cpu(name: str, rng: np.random.Generator) -> None:
    x = numbers(rng, 30_000)
    c = np.zeros_like(x)
    kernel_of(name)(x, c)
    assert off(c, exact(name, x)) <= stated(name, "the CPU")


@pytest.mark.parametrize("name", TWO)
def test_two_numbers_on_the_cpu(name: str, rng: np.random.Generator) -> None:
    x, y = numbers(rng, 20_000), rng.permutation(numbers(rng, 20_000))
    x = np.abs(x) if name == "pow" else x
    c = np.zeros_like(x)
    kernel_of(name, two=True)(x, y, c)
    assert off(c, exact(name, x, y)) <= stated(name, "the CPU")


@pytest.mark.covering(1)
@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_in_the_simulator(name: str, target: str, rng: np.random.Generator) -> None:
    given = [on_gpus(numbers(rng, 500))[:1500] for _ in range(1 + (name in TWO))]
    given[0] = np.abs(given[0]) if name == "pow" else given[0]
    c = np.zeros_like(given[0])
    report = tilec.simulate(kernel_of(name, name in TWO), *given, c, target=target)
    assert report.ok, report
    assert off(c, exact(name, *given), 2.0**-126) <= stated(name, "GPUs")


# --- fast forms -----------------------------------------------------------------------------------

Bound = Callable[..., np.ndarray]


def _relative(ulps: Callable[[np.ndarray], Any]) -> Bound:
    return lambda want, *x: ulps(np.abs(x[0])) * np.abs(want) * 2.0**-23


def _logarithm(want: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.where((x >= 0.5) & (x <= 2), 2.0**-21, 4 * np.abs(want) * 2.0**-23)


def _power(want: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.abs(want) * 2.0**-21 * (1 + np.abs(y) * (1 + np.abs(np.log2(x))))


# A fast form: what it computes, where it is measured, and its error by the docstring.
FAST: dict[str, tuple[str, tuple[tuple[float, float], ...], Bound]] = {
    "__exp": ("exp", ((-80, 80),), _relative(lambda x: 2 + x)),
    "__exp10": ("exp10", ((-36, 36),), _relative(lambda x: 2 + 3 * x)),
    "__log": ("log", ((1e-3, 50),), _logarithm),
    "__log2": ("log2", ((1e-3, 50),), _logarithm),
    "__log10": ("log10", ((1e-3, 50),), _logarithm),
    "__sin": ("sin", ((-math.pi, math.pi),), lambda want, x: np.full_like(want, 2.0**-20)),
    "__cos": ("cos", ((-math.pi, math.pi),), lambda want, x: np.full_like(want, 2.0**-20)),
    "__tan": ("tan", ((-1.5, 1.5),), lambda want, x: 2.0**-19 / np.cos(x) ** 2),
    "__tanh": ("tanh", ((-6, 6),), lambda want, x: np.abs(want) * 2.0**-10.9),
    "__pow": ("pow", ((1e-2, 20), (-8, 8)), _power),
    "fast_rcp": ("fast_rcp", ((0.01, 100),), _relative(lambda x: 1)),
}


def measured(name: str, rng: np.random.Generator, count: int) -> tuple[Any, ...]:
    kind, ranges, bound = FAST[name]
    given = [rng.uniform(*r, count).astype(np.float32) for r in ranges]
    want = exact(kind, *given)
    return given, want, bound(want, *(x.astype(np.float64) for x in given))


@pytest.mark.parametrize("name", FAST)
def test_fast_forms_on_the_cpu(name: str, rng: np.random.Generator) -> None:
    given, want, bound = measured(name, rng, 20_000)
    c = np.zeros_like(given[0])
    kernel_of(name, len(given) > 1)(*given, c)
    assert (np.abs(c - want) <= bound).all()


SPELLED = {
    "__exp": ("ex2.approx.ftz", "v_exp_f32"), "__exp10": ("ex2.approx.ftz", "v_exp_f32"),
    "__log": ("lg2.approx.ftz", "v_log_f32"), "__log2": ("lg2.approx.ftz", "v_log_f32"),
    "__log10": ("lg2.approx.ftz", "v_log_f32"), "__sin": ("sin.approx.ftz", "v_sin_f32"),
    "__cos": ("cos.approx.ftz", "v_cos_f32"), "__tan": ("cos.approx.ftz", "v_cos_f32"),
    "__tanh": ("tanh.approx.f32", "v_exp_f32"),
    "__pow": ("lg2.approx.ftz", "v_log_f32"), "fast_rcp": ("rcp.approx.ftz", "v_rcp_f32"),
}  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FAST)
def test_fast_forms_of_gpus(name: str, target: str, rng: np.random.Generator) -> None:
    """One instruction each, and the error that the docstring allows."""
    given, want, bound = measured(name, rng, 300)
    c = np.zeros_like(given[0])
    kernel = kernel_of(name, len(given) > 1)
    report = tilec.simulate(kernel, *given, c, target=target)
    assert report.ok, report
    assert (np.abs(c - want) <= bound).all()
    stage = "gcn" if target.startswith("hip") else "ptx"
    text = kernel.compile(*given, c, target=target).stages[stage]
    assert SPELLED[name][stage == "gcn"] in text


@pytest.mark.parametrize("name", ["__exp", "__sin", "fast_rcp"])
def test_fast_forms_of_halves(name: str) -> None:
    x = np.linspace(0.1, 3, 700).astype(np.float16)
    c = np.zeros_like(x)
    kernel_of(name, dtype="float16")(x, c)
    want = exact(FAST[name][0], x)
    assert (np.abs(c - want) <= np.abs(want) * 2.0**-10).all()


def test_fast_forms_of_what_has_none() -> None:
    with pytest.raises(tilec.CompileError, match="T.__exp is of float32 and halves") as caught:
        x = np.zeros(4)
        kernel_of("__exp", dtype="float64")(x, x.copy())
    assert caught.value.hint == "use T.exp"


# --- on a GPU -------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_on_a_gpu(torch: Any, name: str, rng: np.random.Generator) -> None:
    given = [on_gpus(numbers(rng, 50_000))[:150_000] for _ in range(1 + (name in TWO))]
    given[0] = np.abs(given[0]) if name == "pow" else given[0]
    on_device = [torch.from_numpy(x).cuda() for x in given]
    c = torch.zeros_like(on_device[0])
    kernel_of(name, name in TWO)(*on_device, c)
    assert off(c.cpu().numpy(), exact(name, *given), 2.0**-126) <= stated(name, "GPUs")


@pytest.mark.gpu
@pytest.mark.parametrize("name", FAST)
def test_fast_forms_on_a_gpu(torch: Any, name: str, rng: np.random.Generator) -> None:
    given, want, bound = measured(name, rng, 100_000)
    on_device = [torch.from_numpy(x).cuda() for x in given]
    c = torch.zeros_like(on_device[0])
    kernel_of(name, len(given) > 1)(*on_device, c)
    assert (np.abs(c.cpu().numpy() - want) <= bound).all()
