"""What stands in variables may say where copies come from: it is known before plans are ranked."""

from __future__ import annotations

import numpy as np

import tilec
import tilec.language as T

SM90 = "cuda:sm_90a"
M, N, K, G = T.dynamic("M, N, K, G")


@tilec.kernel
def groups(
    X: T.Tensor((M, K), "float16"),
    W: T.Tensor((G, N, K), "float16"),
    ends: T.Tensor((G + 1,), "int32"),
    Y: T.Tensor((M, N), "float16"),
) -> None:
    """Rows ends[g] to ends[g + 1] by W[g]; a block looks for its tile's group."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64) + G, threads=128) as (bn, tile):
        x = T.alloc_shared((64, 64), "float16")
        w = T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        own, first, before = (T.alloc_var("int32") for _ in range(3))
        own, first, before = -1, 0, 0
        for g in T.serial(G):
            n = T.ceildiv(ends[g + 1] - ends[g], 64)
            if tile >= before and tile < before + n:
                own = g
                first = ends[g] + (tile - before) * 64
            before += n
        if own >= 0:
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
                T.copy(X[first, k * 64], x)
                T.copy(W[own, bn * 64 : bn * 64 + 64, k * 64 : k * 64 + 64], w)
                T.gemm(x, w, acc, transpose_B=True)
            for i, j in T.Parallel(64, 64):
                if first + i < ends[own + 1]:
                    Y[first + i, bn * 64 + j] = acc[i, j]


def test_tiles_that_a_loop_looks_up_come_by_tma(rng: np.random.Generator) -> None:
    shapes = (8192, 4096), (8, 4096, 4096), (9,), (8192, 4096)
    dtypes = "float16", "float16", "int32", "float16"
    specs = [tilec.spec(s, d) for s, d in zip(shapes, dtypes)]
    made = groups.compile(*specs, target=SM90)
    assert made.plan.specialise and made.stages["plan"].count(", by tma") == 2
    x, w = (rng.standard_normal(s).astype(np.float16) for s in ((150, 72), (3, 80, 72)))
    ends, y = np.array([0, 40, 40, 150], np.int32), np.empty((150, 80), np.float16)
    report = tilec.simulate(groups, x, w, ends, y, target=SM90)
    assert report.ok, report
    want = [x[i:j].astype(float) @ w[g].T for g, (i, j) in enumerate(zip(ends, ends[1:]))]
    np.testing.assert_allclose(y, np.concatenate(want), rtol=2e-3, atol=2e-2)
