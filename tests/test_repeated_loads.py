"""What the elements of a tile share is loaded once for all of them, with a guard as without."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

M, N, K = T.dynamic("M, N, K")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")


def program(group: int, written: bool = False) -> Any:
    """C = X W, of weights of a byte with a scale for each `group` of a row."""

    @tilec.kernel
    def kernel(
        X: T.Tensor((M, K), "float16"),
        W: T.Tensor((N, K), "int8"),
        S: T.Tensor((N, T.ceildiv(K, group)), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            x, w = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "int8")
            d, acc = T.alloc_fragment((64, 64), "float16"), T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=3):
                T.copy(X[by * 64, k * 64], x)
                T.copy(W[bx * 64, k * 64], w)
                for i, j in T.Parallel(64, 64):
                    d[i, j] = w[i, j] * S[bx * 64 + i, (k * 64 + j) // group]
                T.gemm(x, d, acc, transpose_B=True)
            T.copy(acc, C[by * 64, bx * 64])
            if written:
                S[0, 0] = 0.0

    return kernel


def held(rng: np.random.Generator, group: int) -> list[Any]:
    m, n, k = 40, 70, 200
    x = (rng.standard_normal((m, k)) / 8).astype(np.float16)
    w = rng.integers(-4, 5, (n, k), np.int8)
    scales = rng.integers(1, 9, (n, -(-k // group))).astype(np.float16) / 8
    return [x, w, scales, np.full((m, n), np.nan, np.float32)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("group", [16, 32, 64, 128, 24])
@pytest.mark.parametrize("target", TARGETS)
def test_scales_of_groups(target: str, group: int, rng: np.random.Generator) -> None:
    x, w, scales, c = held(rng, group)
    run(program(group), target, x, w, scales, c)
    weights = w * np.repeat(scales.astype(float), group, axis=1)[:, : w.shape[1]]
    np.testing.assert_allclose(c, x.astype(float) @ weights.T, rtol=2e-3, atol=2e-3)


@pytest.mark.covering(1)
@pytest.mark.parametrize("by", [16, 64, 128, 24, -16, -64, -24])
@pytest.mark.parametrize("target", TARGETS)
def test_quotients_of_places(target: str, by: int) -> None:
    @tilec.kernel
    def kernel(Q: T.Tensor((N,), "int32"), R: T.Tensor((N,), "int32")):
        with T.Kernel(T.ceildiv(N, 64), threads=64) as b:
            for i in T.Parallel(64):
                Q[b * 64 + i] = (b * 64 + i) // by
                R[b * 64 + i] = (b * 64 + i) % by

    q, r, places = np.zeros(200, np.int32), np.zeros(200, np.int32), np.arange(200)
    run(kernel, target, q, r)
    np.testing.assert_array_equal(q, places // by)
    np.testing.assert_array_equal(r, places % by)


@pytest.mark.usefixtures("no_ptxas")
@pytest.mark.parametrize(("group", "most"), [(16, 8), (32, 4), (64, 3), (128, 3)])
def test_loads_are_as_many_as_groups(group: int, most: int) -> None:
    """A thread's 32 weights of a step stand in two rows; the code has the loop's body up to five
    times (two versions of the fragment, and an odd iteration in front), and for each of them what
    iterations behind it read (`read_ahead`)."""
    specs = [
        ((1000, 4096), "float16"),
        ((5000, 4096), "int8"),
        ((5000, -(-4096 // group)), "float16"),
    ]
    args = [tilec.spec(*s) for s in specs] + [tilec.spec((1000, 5000), "float32")]
    compiled = program(group).compile(*args, target="cuda:sm_90a")
    count = len(re.findall(r"ld\.global\.nc\.b16", compiled.asm))
    assert 0 < count <= 10 * most
    written = program(group, written=True).compile(*args, target="cuda:sm_90a")
    assert not re.findall(r"ld\.global\.nc\.b16", written.asm)  # it may change meanwhile


@pytest.fixture
def no_ptxas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_PTXAS", "off")
