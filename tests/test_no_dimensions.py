"""Tensors without dimensions: a loss, a scale, a count that another kernel has left."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

N = T.dynamic("N")
TARGETS = ["cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"]


@tilec.kernel
def scaled(X: T.Tensor((N,), "float32"), s: T.Tensor((), "float32"), Y: T.Tensor((N,), "float32")):
    for i in T.Parallel(N):
        Y[i] = X[i] * s + (s if s > X[i] else 0)


@tilec.kernel
def counted(n: T.Tensor((), "int32"), Y: T.Tensor((N,), "int32"), last: T.Tensor((), "int32")):
    assert n.shape == () and n.strides == ()
    with T.Kernel(1, threads=32):
        for i in T.serial(n):
            Y[i] = n[()] - i
            last[()] = i
        for _ in T.Parallel(1):
            last[()] += 10


@tilec.kernel
def summed(X: T.Tensor((N,), "float32")):
    total = T.empty((), "float32")
    with T.Kernel(1, threads=64):
        x = T.alloc_fragment((128,), "float32")
        s = T.alloc_fragment((1,), "float32")
        T.copy(X[0:128], x)
        T.reduce_sum(x, s, dim=0)
        for i in T.Parallel(1):
            total[()] = s[i]
    return total


@pytest.mark.parametrize("target", TARGETS)
def test_a_bare_name_is_the_number(target: str, rng: np.random.Generator) -> None:
    x, s = rng.integers(-9, 9, 70).astype(np.float32), np.array(3, np.float32)
    y = np.zeros_like(x)
    run_compiled(scaled, target, x, s, y)
    assert (y == x * 3 + np.where(x < 3, 3, 0)).all()


@pytest.mark.parametrize("target", TARGETS)
def test_written_and_read(target: str) -> None:
    y, last = np.zeros(9, np.int32), np.array(-1, np.int32)
    run_compiled(counted, target, np.array(5, np.int32), y, last)
    assert [*y] == [5, 4, 3, 2, 1, 0, 0, 0, 0] and last == 14


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_call_makes(target: str, rng: np.random.Generator) -> None:
    x = rng.integers(-9, 9, 100).astype(np.float32)
    if target == "cpu":
        made = summed(x)
    else:
        report = tilec.simulate(summed, x, target=target)
        assert report.ok, report
        (made,) = report.outputs.values()
    assert made.shape == () and made == x.sum()


def test_an_array_with_dimensions_is_refused() -> None:
    x = np.zeros(4, np.float32)
    with pytest.raises(tilec.LaunchError, match="s: expected 0 dimensions, got 1"):
        scaled(x, x[:1], x)
