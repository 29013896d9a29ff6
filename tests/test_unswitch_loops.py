"""unswitch_loops: where blocks differ in the tensor from which a tile comes, each has its loop."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

M, N, K = T.dynamic("M, N, K")


@tilec.kernel
def projections(
    X: T.Tensor((M, K), "float16"), Q: T.Tensor((N, K), "float16"), V: T.Tensor((64, K), "float16"),
    to: T.Tensor((1,), "int32"), C: T.Tensor((M, N + 64), "float32"),
    how: T.constexpr = "", BK: T.constexpr = 32,
):  # fmt: skip
    with T.Kernel(T.ceildiv(N, 64) + 1, T.ceildiv(M, 64), threads=128) as (bx, by):
        x, w = T.alloc_shared((64, BK), "float16"), T.alloc_shared((64, BK), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        last = T.ceildiv(N, 64)
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=2):
            T.copy(X[by * 64, k * BK], x)
            odd = T.if_then_else(how == "turn", k % 2, 0)
            if bx + odd < last:
                T.copy(Q[bx * 64, k * BK], w)
            elif how != "one side":
                T.copy(V[0, k * BK], w)
            T.gemm(x, w, acc, transpose_B=True)
        if bx < last:
            T.copy(acc, C[by * 64, bx * 64])
        else:
            T.copy(acc, C[by * 64, N])


def arrays(rng: np.random.Generator, k: int) -> list[np.ndarray]:
    x, q, v = ((rng.standard_normal((n, k)) / 8).astype(np.float16) for n in (70, 128, 64))
    return [x, q, v, np.zeros(1, np.int32), np.full((70, 192), np.nan, np.float32)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("k", [8, 104, 256])
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_numbers(target: str, k: int, rng: np.random.Generator) -> None:
    a = arrays(rng, k)
    run_compiled(projections, target, *a)
    x, q, v = (e.astype(float) for e in a[:3])
    np.testing.assert_allclose(a[4], np.hstack([x @ q.T, x @ v.T]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_both_tiles_run_ahead(target: str, rng: np.random.Generator, recwarn) -> None:
    made = projections.compile(*arrays(rng, 256), target=target)
    ahead = [x for x in made.stages["plan"].splitlines() if "ahead: " in x]
    assert len(ahead) == 4 and not any("not ahead" in x for x in ahead)
    assert made.stages["tile"].count("for.pipelined") == 2 and not recwarn.list
    if target == "cuda:sm_90a":  # in steps of whole lines, too
        assert all("by tma" in x for x in ahead) and "shared<64x64xf16>" in made.stages["tile"]


@pytest.mark.parametrize("how", ["turn", "one side"])
@pytest.mark.filterwarnings("ignore::tilec.PerformanceWarning")
def test_what_follows_from_an_iteration_stays(how: str, rng: np.random.Generator) -> None:
    made = projections.compile(*arrays(rng, 256), target="cuda:sm_90a", how=how)
    assert made.stages["tile"].count("for.pipelined") == 1
