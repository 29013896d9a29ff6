"""Arrays of a kernel's module or closure: what is known of them when it is compiled may be asked,
and the kernel is compiled anew where that changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.errors import CompileError

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
N = 40
WEIGHTS: Any = np.zeros((3, 5), np.float32)


def asking() -> Any:
    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32")):
        for i in T.Parallel(N):
            found = WEIGHTS.shape[0] * 1000 + WEIGHTS.shape[1] * 100 + WEIGHTS.ndim * 10
            A[i] = T.cast(found + len(WEIGHTS), WEIGHTS.dtype)

    return kernel


def asking_for_the_shape() -> Any:
    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32")):
        for i in T.Parallel(N):
            rows, columns = WEIGHTS.shape
            A[i] = rows * 10 + columns

    return kernel


@pytest.fixture(params=["numpy", "torch"])
def made(request: pytest.FixtureRequest) -> Any:
    if request.param == "numpy":
        return lambda *shape: np.zeros(shape, np.float32)
    return lambda *shape: pytest.importorskip("torch").zeros(shape)


@pytest.mark.parametrize("target", TARGETS)
def test_numbers(target: str, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, a = asking(), np.zeros(N, np.float32)
    for rows in (3, 4, 3):
        monkeypatch.setitem(globals(), "WEIGHTS", made(rows, 5))
        run(kernel, target, a)
        np.testing.assert_array_equal(a, rows * 1000 + 520 + rows)


def test_a_shape_that_changes_in_place(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for form, wants in ((asking, (3523, 5325)), (asking_for_the_shape, (35, 53))):
        weights = made(3, 5)
        monkeypatch.setitem(globals(), "WEIGHTS", weights)
        kernel, a = form(), np.zeros(N, np.float32)
        for want in wants:
            for _ in range(3):
                kernel(a)
                np.testing.assert_array_equal(a, want)
            weights.resize_(5, 3) if hasattr(weights, "resize_") else weights.resize(5, 3)


def test_elements_do_not_count(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "WEIGHTS", made(3, 5))
    kernel, a = asking_for_the_shape(), np.zeros(N, np.float32)
    first = kernel.compile(a, target="cpu")
    WEIGHTS[0] += 1
    assert kernel.compile(a, target="cpu") is first
    monkeypatch.setitem(globals(), "WEIGHTS", made(3, 5))
    assert kernel.compile(a, target="cpu") is first


class Layer:
    def __init__(self, weights: Any) -> None:
        self.weights, self.inner = weights, None

    def kernel(self) -> Any:
        @tilec.kernel
        def kernel(A: T.Tensor((N,), "float32")):
            for i in T.Parallel(N):
                A[i] = self.weights.shape[0] * 10 + self.inner.weights.shape[1]

        return kernel


@pytest.mark.parametrize("target", TARGETS)
def test_of_an_attribute(target: str, made: Any) -> None:
    """Of the arrays that layers of a network hold; another one counts from the next call on."""
    layer, a = Layer(made(3, 5)), np.zeros(N, np.float32)
    layer.inner = Layer(made(2, 4))
    kernel = layer.kernel()
    run(kernel, target, a)
    np.testing.assert_array_equal(a, 34)
    layer.inner.weights = made(2, 6)
    run(kernel, target, a)
    np.testing.assert_array_equal(a, 36)
    layer.inner = Layer(made(2, 7))
    run(kernel, target, a)
    np.testing.assert_array_equal(a, 37)


def test_of_a_module_of_torch() -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(4, 9))

    net = Net()

    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32")):
        for i in T.Parallel(N):
            A[i] = net.weight.shape[0]

    a = np.zeros(N, np.float32)
    for rows in (4, 5, 4):
        net.weight = torch.nn.Parameter(torch.zeros(rows, 9))
        kernel(a)
        np.testing.assert_array_equal(a, rows)


def test_of_a_closure() -> None:
    table = np.zeros(7, np.float32)

    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32")):
        for i in T.Parallel(N):
            A[i] = sum(table.shape) + len(table)

    a = np.zeros(N, np.float32)
    kernel(a)
    np.testing.assert_array_equal(a, 14)


def test_elements_are_refused() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32")):
        for i in T.Parallel(N):
            A[i] = WEIGHTS[0, 0]

    with pytest.raises(CompileError, match="WEIGHTS is an ndarray, which a kernel cannot use"):
        kernel(np.zeros(N, np.float32))
