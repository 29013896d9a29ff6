"""Tensors that a call may leave out, `W: T.Tensor((N,), dtype) = None`: the kernel knows at compile
time which are there, and each set of them is a variant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

M, N = T.dynamic("M, N")


@tilec.kernel
def affine(
    X: T.Tensor((M, N), "float32"),
    Y: T.Tensor((M, N), "float32"),
    W: T.Tensor((N,), "float32") = None,
    B: T.Tensor((N,), "float32") = None,
    scale: T.float32 = 1.0,
):
    with T.Kernel(T.ceildiv(N, 64), M, threads=64) as (bx, row):
        for i in T.Parallel(64):
            v = X[row, bx * 64 + i] * scale
            if W is not None:
                v *= W[bx * 64 + i]
            Y[row, bx * 64 + i] = v if B is None else v + B[bx * 64 + i]


@tilec.kernel(out=["Y"])
def normalised(
    X: T.Tensor((M, N), "float32"),
    W: T.Tensor((N,), "float32") = None,
    Y: T.Tensor((M, N), "float32") = None,
):
    for i in T.Parallel(M):
        total: T.float32 = 0
        for j in range(N):
            total += X[i, j] * X[i, j]
        for j in range(N):
            y = X[i, j] * T.rsqrt(total / N)
            Y[i, j] = y * W[j] if W is not None else y


@tilec.kernel
def in_two_steps(
    W: T.Tensor((N,), "float32") = None,
    X: T.Tensor((N,), "float32") = None,
    Y: T.Tensor((N,), "float32") = None,
):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            Y[i] = X[i]
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            Y[i] += 1.0 if W is None else W[i]


def arrays() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((3, 70), 70, 70))
    return x, w, b


def affine_of(x: Any, w: Any, b: Any, scale: float) -> np.ndarray:
    return x.astype(np.float64) * scale * (1 if w is None else w) + (0 if b is None else b)


@pytest.fixture(params=["numpy", "torch"])
def made(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    if request.param == "numpy":
        return lambda x: x
    return pytest.importorskip("torch").from_numpy


def test_each_set_of_tensors(made: Callable[[Any], Any]) -> None:
    x, w, b = arrays()
    for _ in range(4):  # the later ones go the generated way
        for given in (
            {},
            {"W": w},
            {"B": b, "scale": 3.0},
            {"W": w, "B": b},
            {"W": None, "scale": 0.5},
        ):
            y = np.full_like(x, np.nan)
            named = {k: made(v) if isinstance(v, np.ndarray) else v for k, v in given.items()}
            affine(made(x), made(y), **named)
            want = affine_of(x, given.get("W"), given.get("B"), given.get("scale", 1.0))
            np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
            y[:] = np.nan
            affine(made(x), made(y), None, made(b))
            np.testing.assert_allclose(y, affine_of(x, None, b, 1.0), rtol=1e-5, atol=1e-6)


def test_calls_without_them_go_the_generated_way(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, _ = arrays()
    y = np.empty_like(x)
    for _ in range(3):
        affine(x, y)
        affine(x, y, w)
    monkeypatch.setattr(tilec.Kernel, "_launch", None)  # whoever asks for it fails
    other = np.empty_like(x)
    affine(x, other)
    np.testing.assert_array_equal(other, x)
    affine(x, other, W=w)
    np.testing.assert_array_equal(other, x * w)


def test_they_are_no_parameters_of_the_variant() -> None:
    x, w, _ = arrays()
    y = np.empty_like(x)
    without, given = affine.compile(x, y, target="cuda:sm_90a"), affine.compile(x, y, w)
    assert "W" not in without.stages["tile"] and "W" in given.stages["tile"]
    affine.compile(x, y)(x, y, scale=2.0)
    np.testing.assert_array_equal(y, 2 * x)
    with pytest.raises(tilec.LaunchError, match="missing W"):
        given(x, y)


def test_of_mathematics_only_and_allocated(made: Callable[[Any], Any]) -> None:
    x, w, _ = arrays()
    want = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True))
    for _ in range(3):
        np.testing.assert_allclose(np.asarray(normalised(made(x))), want, rtol=1e-5)
        np.testing.assert_allclose(np.asarray(normalised(made(x), made(w))), want * w, rtol=1e-5)


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
def test_in_the_simulator(target: str) -> None:
    x, w, _ = arrays()
    for weights in (None, w):
        y = np.full_like(x, np.nan)
        assert tilec.simulate(affine, x, y, weights, target=target).ok
        np.testing.assert_allclose(y, affine_of(x, weights, None, 1.0), rtol=1e-5)


def test_the_first_parameter_of_several_kernels() -> None:
    _, x, w = arrays()
    for _ in range(4):
        for weights in (None, w[:64]):
            y = np.full(64, np.nan, np.float32)
            in_two_steps(weights, x[:64], y)
            want = x[:64] + (1 if weights is None else weights)
            np.testing.assert_allclose(y, want, rtol=1e-6)


def test_what_has_no_default_stays_asked_for() -> None:
    x, _, _ = arrays()
    with pytest.raises(tilec.LaunchError, match="X is None; expected X: Tensor"):
        affine(None, x)
    with pytest.raises(tilec.LaunchError, match="W: dimension 0: expected N = 70"):
        affine(x, x.copy(), np.ones(3, np.float32))


def test_an_operator_of_torch() -> None:
    torch = pytest.importorskip("torch")
    import tilec.torch

    operator = tilec.torch.register(normalised, "tests::normalised_or_weighted")
    x, w, _ = map(torch.from_numpy, arrays())
    want = x * torch.rsqrt((x * x).mean(1, keepdim=True))
    for weights in (None, w):
        torch.testing.assert_close(operator(x, weights), want if weights is None else want * w)
    schema = torch.ops.tests.normalised_or_weighted.default._schema
    assert str(schema).endswith("(Tensor X, Tensor? W=None) -> Tensor")
