"""Numbers of Python's with a dtype, `T.cast(3.3, "float16")` outside of a kernel: what a kernel
computes with them, and that a dtype makes another kernel."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

N = T.dynamic("N")
TARGETS = ("cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942")


def scaled(dtype: str, number: float) -> Any:
    factor = T.Cast(dtype, number)
    width, half = T.cast(64, "int32"), T.float32(0.5)

    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float16"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, width), threads=64) as bx:
            for i in T.Parallel(64):
                B[bx * width + i] = A[bx * width + i] * factor + half

    return kernel


@pytest.mark.parametrize("target", TARGETS)
def test_products_have_the_dtype_of_both(target: str) -> None:
    a = np.random.default_rng(0).standard_normal(100).astype(np.float16)
    wants = {
        "float32": a.astype(np.float32) * np.float32(3.3) + np.float32(0.5),
        "float16": (a * np.float16(3.3)).astype(np.float32) + np.float32(0.5),
        "int32": (a * np.float16(3)).astype(np.float32) + np.float32(0.5),
    }
    for dtype, want in wants.items():
        kernel, b = scaled(dtype, 3.3), np.full(100, np.nan, np.float32)
        if target == "cpu":
            kernel(a, b)
        else:
            assert tilec.simulate(kernel, a, b, target=target).ok
        np.testing.assert_allclose(b, want, rtol=1e-5, atol=1e-6)
    made = scaled("float32", 3.3).compile(a, np.zeros(100, np.float32), target=target)
    assert "const 3.3, f32" in made.stages["tile"]


def test_they_are_numbers_of_pythons() -> None:
    three: Any = T.Cast("float16", 3.5)
    assert three == 3.5 and three.dtype == "float16" and type(-three) is float
    for again in (copy.deepcopy(three), pickle.loads(pickle.dumps(three))):
        assert again == 3.5 and again.dtype == "float16"
    assert T.Cast("float32", np.int64(3)) == 3.0 and T.bool(True) == 1
    seven: Any = T.int8(7.9)
    assert seven == 7 and isinstance(seven, int) and list(range(10))[seven] == 7


def test_what_is_no_number() -> None:
    for wrong in (lambda: T.Cast("float32", "a"), lambda: T.float32(), lambda: T.int8([1])):
        with pytest.raises(tilec.CompileError, match="converts numbers; outside of a kernel") as e:
            wrong()
        assert e.value.loc.file == __file__
    with pytest.raises(tilec.CompileError, match="unknown dtype 'float99'"):
        T.cast(1.0, "float99")
    with pytest.raises(tilec.CompileError, match="T.cast with round, sat or rbits means something"):
        T.cast(3.3, "float16", round="rz")
    large = T.int8(300)

    @tilec.kernel
    def kernel(A: T.Tensor((N,), "int8")):
        for i in T.Parallel(N):
            A[i] = large

    with pytest.raises(tilec.CompileError, match="300 does not fit int8"):
        kernel.compile(np.zeros(3, np.int8), target="cpu")
