"""split_fragments: fragments that short loops index along a dimension stay in registers."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from form_help import SM90, tile_func
from simulated import run_compiled

import tilec
import tilec.language as T
from tilec.ir.printer import print_block
from tilec.ir.verify import verify
from tilec.passes.split_fragments import split_fragments

pytestmark = pytest.mark.usefixtures("unassembled")

TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")
ROWS = T.dynamic("ROWS")


def program(how: str, many: int = 4) -> Any:
    """Y[n, o] = sum over q of A[n, q, o] X[n, q], in several ways."""

    @tilec.kernel
    def kernel(
        A: T.Tensor((ROWS, many, many), "float32"),
        X: T.Tensor((ROWS, many, 100), "float32"),
        Y: T.Tensor((ROWS, many, 100), "float32"),
    ):
        with T.Kernel(ROWS, threads=64) as n:
            a = T.alloc_fragment((many, many), "float32")
            x, y = (T.alloc_fragment((many, 100), "float32") for _ in "xy")
            T.copy(A[n, 0, 0], a)
            T.copy(X[n, 0, 0], x)
            if how == "inside":
                for o, i in T.Parallel(many, 100):
                    y[o, i] = 0.0
                    for q in T.serial(many):
                        y[o, i] += a[q, o] * x[q, i]
            elif how == "around":
                T.clear(y)
                for o in T.serial(many):
                    for q in range(many):
                        for i in T.Parallel(100):
                            y[o, i] += a[q, o] * x[q, i]
            elif how == "guarded":  # one index more than there are
                T.clear(y)
                for q in range(many + 1):
                    for o, i in T.Parallel(many, 100):
                        if q > 0:
                            y[o, i] += a[q - 1, o] * x[q - 1, i]
            elif how == "carried":
                T.clear(y)
                s = 0.0
                for q in range(many):
                    s = s * 0.0 + q
                    for o, i in T.Parallel(many, 100):
                        y[o, i] += a[q, o] * x[q, i] + (s - q)
            elif how == "sums":  # what a reduction reads stays one
                s = T.alloc_fragment((many,), "float32")
                T.clear(y)
                T.reduce_sum(x, s, dim=1)
                for q in range(many):
                    for o, i in T.Parallel(many, 100):
                        y[o, i] += a[q, o] * x[q, i]
            T.copy(y, Y[n, 0, 0])

    return kernel


def held(rng: np.random.Generator, many: int) -> list[np.ndarray]:
    a, x = rng.random((3, many, many), np.float32), rng.random((3, many, 100), np.float32)
    return [a, x, np.full_like(x, np.nan)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how", ["inside", "around", "guarded", "carried", "sums"])
def test_numbers(how: str, target: str, rng: np.random.Generator) -> None:
    a, x, y = held(rng, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error" if how != "sums" else "ignore")  # "kept in shared memory"
        run_compiled(program(how), target, a, x, y)
    np.testing.assert_allclose(y, np.einsum("nqo,nqi->noi", a.astype(float), x), rtol=1e-5)


@pytest.mark.parametrize(
    ("how", "split"),
    [("inside", "ax"), ("around", "axy"), ("guarded", "ax"), ("carried", "ax"), ("sums", "")],
)
def test_which_are_split(how: str, split: str, rng: np.random.Generator) -> None:
    after = split_fragments(tile_func(program(how), dict(zip("AXY", held(rng, 4)))), SM90)
    verify(after)
    assert split_fragments(after, SM90) is after
    text = print_block(after.body)
    for name in "axy":
        assert (f"%{name} = alloc fragment" in text) == (name not in split)
    if how == "around":  # what it is multiplied by has become numbers
        assert "fragment<1xf32>" not in text and "fragment<4" not in text


def test_long_dimensions_stay(rng: np.random.Generator) -> None:
    func = tile_func(program("around", 9), dict(zip("AXY", held(rng, 9))))
    assert split_fragments(func, SM90) is func
