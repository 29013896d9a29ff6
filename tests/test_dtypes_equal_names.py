"""A dtype equals its name, wherever Python asks: in lists, sets, dicts and their methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

NUMBERS = {"float16": 1, "float32": 2}
BY_DTYPE = {T.float16: 1, T.float32: 2}


@tilec.kernel
def told(A: T.Tensor((8,), "int32"), dtype: T.constexpr):
    halves = [T.float16, T.int8]
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((4,), dtype)
        found = (
            dtype in halves,
            dtype in ("float16",),
            dtype in {T.float16},
            dtype == "float16" and "float16" == dtype and not dtype != T.float16,
            tile.dtype in ["float16", "int8"],
            (dtype, 1) in [("float16", 1)],
            {("float16", 1): True}.get((dtype, 1), False),
            NUMBERS[dtype] == BY_DTYPE[dtype] == 1,
        )
        for n in T.unroll(8):
            A[n] = T.int32(found[n])


@pytest.mark.parametrize("dtype, number", [("float16", 1), ("float32", 0)])
def test_in_kernels(dtype: str, number: int) -> None:
    options: tuple[Any, ...] = (dtype, getattr(T, dtype))
    for given in options:
        a = np.full(8, -1, np.int32)
        told(a, dtype=given)
        np.testing.assert_array_equal(a, number)


def test_outside() -> None:
    assert T.float16 == "float16" != T.float32 and hash(T.float16) == hash("float16")
    assert T.float16 != "half" and T.float16 != np.dtype("float16")
    assert "float16" in [T.float16] and T.float32 in NUMBERS
