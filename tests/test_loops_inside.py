"""Loops inside of loops over elements: neighbours run them together, and load once what they
share."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")
N, L, TAPS, F = 8, 64, 12, 32


def convolution(how: str) -> Any:
    """O[n, l, f] = sum over k of X[n, l + k] W[k, f], in forms of the loop over k."""

    @tilec.kernel
    def kernel(
        X: T.Tensor((N, L), "float16"),
        W: T.Tensor((TAPS, F), "float16"),
        O: T.Tensor((N, L, F), "float32"),
        taps: T.int32,
    ):
        with T.Kernel(N // 4, L // 16, threads=64) as (bn, bl):
            x, w = T.alloc_shared((4, 16 + TAPS), "float16"), T.alloc_shared((TAPS, F), "float16")
            o = T.alloc_fragment((4, 16, F), "float32")
            T.copy(X[bn * 4, bl * 16], x)
            T.copy(W, w)
            T.clear(o)
            for i, j, f in T.Parallel(4, 16, F):
                if how == "known":
                    for k in T.serial(TAPS):
                        o[i, j, f] += T.cast(x[i, j + k], "float32") * w[k, f]
                elif how == "run time":
                    for k in T.serial(taps):
                        o[i, j, f] += T.cast(x[i, j + k], "float32") * w[k, f]
                elif how == "conditions":
                    for k in T.serial(TAPS):
                        if j + k < 16:
                            o[i, j, f] += T.cast(x[i, j + k], "float32") * w[k, f]
                elif how == "of each":  # neighbours go different ways
                    for k in T.serial(f % taps + 1):
                        if k != f:
                            o[i, j, f] += T.cast(x[i, j + k], "float32") * w[k, f]
                elif how == "nested":
                    for k in T.serial(3):
                        for m in T.serial(4):
                            o[i, j, f] += T.cast(x[i, j + k * 4 + m], "float32") * w[k * 4 + m, f]
                elif how == "stored":
                    for k in T.serial(taps):
                        O[bn * 4 + i, bl * 16 + j, f] = T.cast(x[i, j + k], "float32") * w[k, f]
            if how != "stored":
                T.copy(o, O[bn * 4, bl * 16, 0])

    return kernel


def expected(how: str, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    padded = np.pad(x.astype(float), ((0, 0), (0, TAPS)))
    parts = np.stack([padded[:, k : k + L, None] * w[k].astype(float) for k in range(TAPS)])
    k, j, f = np.arange(TAPS)[:, None, None, None], np.arange(L)[:, None], np.arange(F)
    if how == "conditions":
        parts = np.where(j % 16 + k < 16, parts, 0)
    if how == "of each":
        parts = np.where((k <= f % TAPS) & (k != f), parts, 0)
    return parts[-1] if how == "stored" else parts.sum(0)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how", ["known", "run time", "conditions", "of each", "nested", "stored"])
def test_numbers(how: str, target: str, rng: np.random.Generator) -> None:
    x, w = rng.random((N, L)).astype(np.float16), rng.random((TAPS, F)).astype(np.float16)
    o = np.full((N, L, F), np.nan, np.float32)
    run(convolution(how), target, x, w, o, TAPS)
    np.testing.assert_allclose(o, expected(how, x, w), rtol=1e-5)


@pytest.mark.parametrize("how", ["known", "run time", "nested"])
def test_what_elements_share_is_loaded_once(how: str) -> None:
    """A thread's 32 elements are four groups of eight neighbours: eight weights at once for all."""
    specs = [tilec.spec((N, L), "float16"), tilec.spec((TAPS, F), "float16")]
    made = convolution(how).compile(
        *specs, tilec.spec((N, L, F), "float32"), 4, target="cuda:sm_90a"
    )
    loads = re.findall(r"ld\.shared(\.v4)?\.b(?:16|32)", made.asm)
    assert loads.count(".v4") <= 3 and 0 < len(loads) <= 16
