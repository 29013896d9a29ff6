"""linearize_offsets: indices that are taken apart and put together again."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

GPUS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
THREADS = 64
Shape = tuple[int, int, int, int]


def scaled(shape: Shape, order: str) -> Any:
    """A tensor times a number of its channel's, stored in another order of dimensions."""
    n, c, h, w = shape
    total = n * c * h * w
    made = tuple(shape["nchw".index(d)] for d in order)

    @tilec.kernel
    def kernel(
        X: T.Tensor(shape, "float32"), S: T.Tensor((c,), "float32"), Y: T.Tensor(made, "float32")
    ):
        with T.Kernel(T.ceildiv(total, THREADS), threads=THREADS) as b:
            at = b * THREADS + T.get_thread_binding(0)
            if at < total:
                x, rest = at % w, at // w
                y = rest % h
                channel, image = rest // h % c, rest // h // c
                value = X[image, channel, y, x] * S[channel]
                if order == "nchw":
                    Y[image, channel, y, x] = value
                elif order == "nhwc":
                    Y[image, y, x, channel] = value
                else:
                    Y[x, y, channel, image] = value

    return kernel, np.full(made, np.nan, np.float32)


@pytest.mark.covering(2)
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 4, 8, 16), (3, 1, 1, 9), (5, 6, 2, 1)])
@pytest.mark.parametrize("order", ["nchw", "nhwc", "whcn"])
@pytest.mark.parametrize("target", [*GPUS, "cpu"])
def test_numbers(target: str, order: str, shape: Shape, rng: np.random.Generator) -> None:
    x = rng.standard_normal(shape).astype(np.float32)
    s = rng.standard_normal(shape[1]).astype(np.float32)
    kernel, y = scaled(shape, order)
    run(kernel, target, x, s, y)
    want = (x * s[:, None, None]).transpose(["nchw".index(d) for d in order])
    np.testing.assert_array_equal(y, want)


def divisions(kernel: Any, *arrays: Any, name: str = "linearize_offsets") -> int:
    """How many there are in what is computed for a GPU."""
    text = str(kernel.compile(*arrays, target="cuda:sm_90a").stages[name])
    return len(re.findall(r"binary\.(floordiv|mod)", text))


def test_what_is_left_of_quotients() -> None:
    x, s = np.zeros((2, 3, 5, 7), np.float32), np.zeros(3, np.float32)
    kernel, y = scaled((2, 3, 5, 7), "nchw")
    assert divisions(kernel, x, s, y, name="lower_parallel") >= 6
    assert divisions(kernel, x, s, y) == 3, "the channel's number alone"
    text = str(kernel.compile(x, s, y, target="cuda:sm_90a").stages["simplify-2"])
    (at,) = re.findall(r"cast (%at), i64", text)
    (load,) = re.findall(r"mem_load %X, (%\w+),", text)
    (store,) = re.findall(r"mem_store %Y, (%\w+),", text)
    assert load == store and f"{load} = cast {at}, i64" in text
    kernel, y = scaled((2, 3, 5, 7), "whcn")
    text = str(kernel.compile(x, s, y, target="cuda:sm_90a").stages["simplify-2"])
    (load,) = re.findall(r"mem_load %X, (%\w+),", text)
    assert f"{load} = cast %at, i64" in text, "only where it is stored is made of parts"


@tilec.kernel
def shifted(X: T.Tensor((6, 5), "int32"), Y: T.Tensor((6, 5), "int32"), by: T.int32):
    """Of numbers below 0, too: quotients are rounded down."""
    with T.Kernel(1, threads=64):
        t = T.get_thread_binding(0)
        at = t - 20 + by
        if at // 5 >= -4 and at < 10:
            row, column = at // 5 + 4, at % 5
            Y[row, column] = X[row, column] + at


@tilec.kernel
def regrouped(X: T.Tensor((24,), "int32"), Y: T.Tensor((4, 6), "int32")):
    """Quotients that do not go together."""
    with T.Kernel(1, threads=24):
        t = T.get_thread_binding(0)
        Y[t // 6, t % 6] = X[t // 8 * 8 + t % 8]
        T.sync_threads()
        Y[t % 4, t // 4] = Y[t % 4, t // 4] + X[t // 5 + t % 3]


@tilec.kernel
def apart(X: T.StridedTensor((3, 4), (10, 2), "int32"), Y: T.Tensor((12,), "int32")):
    with T.Kernel(1, threads=12):
        t = T.get_thread_binding(0)
        Y[t] = X[t // 4, t % 4]


@pytest.mark.parametrize("target", [*GPUS, "cpu"])
def test_other_ways(target: str, rng: np.random.Generator) -> None:
    x = rng.integers(-99, 99, (6, 5)).astype(np.int32)
    y = np.zeros_like(x)
    run(shifted, target, x, y, 0)
    at = np.arange(-20, 10).reshape(6, 5)
    np.testing.assert_array_equal(y, x + at)
    x, y = rng.integers(-99, 99, 24).astype(np.int32), np.zeros((4, 6), np.int32)
    run(regrouped, target, x, y)
    want = x.reshape(4, 6).copy()
    for t in range(24):
        want[t % 4, t // 4] += x[t // 5 + t % 3]
    np.testing.assert_array_equal(y, want)
    x, y = rng.integers(-99, 99, (3, 10)).astype(np.int32), np.zeros(12, np.int32)
    run(apart, target, x[:, :8:2], y)
    np.testing.assert_array_equal(y, x[:, :8:2].reshape(-1))
    if target == "cuda:sm_90a":
        assert divisions(shifted, np.zeros((6, 5), np.int32), np.zeros((6, 5), np.int32), 0) <= 2


def test_long_chains() -> None:
    """Thousands of quotients of one another compile as others do."""

    @tilec.kernel
    def kernel(X: T.Tensor((64,), "int32"), Y: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding(0)
            at = t
            for _ in range(300):
                at = (at + 1) % 63 // 1 + at // 62
            Y[t] = X[at]

    x = np.zeros(64, np.int32)
    kernel.compile(x, x, target="cuda:sm_90a")
