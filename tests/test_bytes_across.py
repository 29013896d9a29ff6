"""Products of 8-bit elements that lie side by side along N (the values of attention in float8):
right, by single loads, which is said; along K threads load four at once. A wgmma takes them from
registers, each of which one thread loads: nothing is said."""

from __future__ import annotations

import re
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as T

DTYPES = {"int8": ("int32", np.int8), "float8_e4m3": ("float32", ml_dtypes.float8_e4m3fn)}


def product(dtype: str, turned: bool) -> Any:
    shape = (64, 96) if turned else (96, 64)

    @tilec.kernel
    def main(
        A: T.Tensor((128, 96), dtype), B: T.Tensor(shape, dtype), C: T.Tensor((128, 64), "float32")
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((128, 96), dtype), T.alloc_shared(shape, dtype)
            acc = T.alloc_fragment((128, 64), DTYPES[dtype][0])
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, acc, transpose_B=turned, clear_accum=True)
            T.copy(acc, C)

    return main


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cuda:sm_89", "cuda:sm_90a"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", [False, True])
def test_what_lies_across_is_said(
    dtype: str, turned: bool, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilec.ir.errors._warned", {})  # each line is warned of once
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, n).astype(DTYPES[dtype][1]) for n in ((128, 96), (96, 64)))
    given = [a, np.ascontiguousarray(b.T) if turned else b, np.full((128, 64), np.nan, np.float32)]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        made = product(dtype, turned).compile(*given, target=target)
    said = [str(w.message) for w in seen if issubclass(w.category, tilec.PerformanceWarning)]
    alone = not turned and target == "cuda:sm_89"
    assert len(said) == alone
    assert not alone or ("side by side along N" in said[0] and "transpose_B=True" in said[0])
    bytes_apart = re.findall(r"ld\.shared\.[bsu]8\b", made.stages["ptx"])
    assert bool(bytes_apart) == (not turned)
    assert tilec.simulate(product(dtype, turned), *given, target=target).ok
    np.testing.assert_array_equal(given[2], a.astype(float) @ b.astype(float))
