"""Divisions in loops, by numbers that are there before them, are products with reciprocals."""

from __future__ import annotations

import re

import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

N, B, H, W, C, E, Q, R, S, O = T.dynamic("N, B, H, W, C, E, Q, R, S, O")
TARGETS = "cuda:sm_90a", "cuda:sm_80", "hip:gfx942"


@tilec.kernel
def parted(
    A: T.Tensor((2, 64), "int32"),
    P: T.Tensor((2, 64), "int32"),
    first: T.int32,
    d: T.int32,
    n: T.int32,
):
    by = T.max(d, 0)
    begin = T.min(T.max(first, 0), 2**31 - 4096)
    with T.Kernel(1, threads=32):
        for k in T.serial(n):
            for i in T.Parallel(64):
                A[k, i] = (begin + i) // by + k
                P[k, i] = (begin + i) % by + k // by


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("d", [-3, 0, 1, 2, 7, 641, 65535, 65536, 2**30 + 1, 2**31 - 1])
def test_quotients(target: str, d: int) -> None:
    """By 0 they are 0, as everywhere. What goes with the loop's index is left."""
    by = max(d, 0)
    for first in (0, 600, max(d - 40, 0), 2**31 - 4096):
        quotients, parts = np.full((2, 64), 77, np.int32), np.full((2, 64), 77, np.int32)
        run_compiled(parted, target, quotients, parts, first, d, 2)
        x, k = min(first, 2**31 - 4096) + np.arange(64), np.arange(2)[:, None]
        want = (x // by, x % by, k // by) if by else (0 * x, 0 * x, 0 * k)
        np.testing.assert_array_equal(quotients, want[0] + k)
        np.testing.assert_array_equal(parts, want[1] + want[2])
    made = parted.compile(quotients, parts, first, d, 2, target=target)
    text = made.stages["invert_divisors"].split(" for.serial")
    divisions = [re.findall(r"binary\.(?:floordiv|mod) .*", x) for x in text]
    assert len(divisions[0]) == 1, "the reciprocal, before the loop"
    assert {"reciprocal=" in x for x in divisions[1]} == {False, True}
    assert all(("%k," in x) != ("reciprocal=" in x) for x in divisions[1])


@tilec.kernel
def conv(
    X: T.Tensor((B, H, W, C), "float16"),
    V: T.Tensor((R, S, C, O), "float16"),
    Y: T.Tensor((B, E, Q, O), "float32"),
):
    for b, y, x, n in T.Parallel(B, E, Q, O):
        acc = 0.0
        for r in range(R):
            for s in range(S):
                for c in range(C):
                    if 0 <= y + r - 1 < H and 0 <= x + s - 1 < W:
                        acc += T.cast(X[b, y + r - 1, x + s - 1, c], "float32") * T.cast(
                            V[r, s, c, n], "float32"
                        )
        Y[b, y, x, n] = acc


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cpu", *TARGETS])
def test_pixels_of_odd_channels(target: str, rng: np.random.Generator) -> None:
    """Gathered one by one: where a thread's pixels lie is computed before the loop over taps."""
    x, v = (rng.standard_normal(s).astype(np.float16) for s in ((2, 7, 5, 33), (3, 3, 33, 20)))
    y = np.full((2, 7, 5, 20), np.nan, np.float32)
    run_compiled(conv, target, x, v, y)
    padded, want = np.pad(x.astype(float), ((0, 0), (1, 1), (1, 1), (0, 0))), 0.0
    for r in range(3):
        for s in range(3):
            want = want + padded[:, r : r + 7, s : s + 5] @ v[r, s].astype(float)
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)
    if target == "cuda:sm_90a":
        made = conv.compile(x, v, y, target=target)
        loop = made.stages["ptx"].split(".pragma")[1].split("wgmma.wait")[0]
        assert (
            "ld.global" in loop and "div.s32" not in loop and "mul.hi" not in loop.split("ld.g")[2]
        )
