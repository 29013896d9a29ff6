"""Results whose rows are no multiple of a chunk, which leave through shared memory and TMA."""

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.layout import chunks, wgmma_c

M, N, K = T.dynamic("M, N, K")


@pytest.mark.parametrize("columns", [72, 88, 152, 184])
@pytest.mark.parametrize("turned", [False, True])
def test_chunks_reach_back_over_one_another(columns, turned):
    """Rows that are no multiple of a chunk: the last one begins in the one before, and each
    register is where its matrix is. 256x152 left by single words, which spilled, and
    2000x5000x1000 took 57 us on an H200."""
    layout = wgmma_c(columns).transpose() if turned else wgmma_c(columns)
    assert chunks(layout, 16, True, once=True) is None
    found = chunks(layout, 16, True)
    assert found is not None and found.repeats and found.matrices and found.transposed == turned
    assert len(found.origins) == (-(-columns // 16) if turned else -(-columns // 64))
    seen = set()
    pairs = [(r, c) for c in (0, 8) for r in (0, 8)]
    for (y, x), chunk in zip(found.origins, found.registers):
        for (i, j), access in zip(found.places, chunk):
            for (r, c), first, second in zip(pairs, access[::2], access[1::2]):
                step = (1, 0) if turned else (0, 1)
                at = y + i + r, x + j + c
                assert layout(reg=first) == at
                assert layout(reg=second) == (at[0] + step[0], at[1] + step[1])
            seen |= {*access}
    assert seen == {*range(layout.size("reg"))}


@tilec.kernel
def narrow(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((N, K), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr = 128,
    BN: T.constexpr = 152,
    ADDED: T.constexpr = False,
):
    """A product whose tiles are an odd number of eights wide."""
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=256) as (bx, by):
        T.annotate_schedule(specialise=True, store="tma")
        a = T.alloc_shared((BM, 64), "float16")
        b = T.alloc_shared((BN, 64), "float16")
        c = T.alloc_fragment((BM, BN), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
            T.copy(A[by * BM, k * 64], a)
            T.copy(B[bx * BN, k * 64], b)
            T.gemm(a, b, c, transpose_B=True)
        if ADDED:
            T.atomic_add(C[by * BM, bx * BN], c)
        else:
            T.copy(c, C[by * BM, bx * BN])


@pytest.mark.parametrize("tile", [(128, 152), (128, 72), (184, 128), (128, 64)])
@pytest.mark.parametrize("shape", [(300, 320, 72), (1, 8, 8), (130, 304, 64)])
def test_narrow_tiles_leave_by_tma(tile, shape):
    m, n, k = shape
    rng = np.random.default_rng(m + n)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (n, k)))
    for added in (False, True):
        c = np.zeros((m, n), np.float16)
        config = {"BM": tile[0], "BN": tile[1], "ADDED": added}
        made = narrow.compile(a, b, c, target="cuda:sm_90a", **config)
        by_tma = "cp.async.bulk.tensor.2d.global" in made.asm and "stmatrix" in made.asm
        assert by_tma or added
        assert added or not made.resources.spilled_bytes
        tilec.simulate(narrow, a, b, c, target="cuda:sm_90a", **config)
        want = a.astype(np.float64) @ b.astype(np.float64).T
        assert np.linalg.norm(c - want) < 1e-3 * np.linalg.norm(want)
