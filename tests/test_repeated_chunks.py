"""Tiles that are an odd number of swizzle patterns wide: results leave in chunks, and blocks of a
cluster load parts for one another, that reach over one another."""

import numpy as np
import pytest
from simulated import run

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
    assert found is not None and found.matrices and found.transposed == turned
    written = sum(len(access) for chunk in found.registers for access in chunk)
    assert written > layout.size("reg")
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


def product(bm, bn, added=False, cluster=(1, 1), persistent=False):
    """A product whose tiles are an odd number of eights wide."""

    @tilec.kernel
    def narrow(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, bn), T.ceildiv(M, bm), threads=256) as (bx, by):
            T.annotate_schedule(
                specialise=True, store="tma", cluster=cluster, persistent=persistent
            )
            a = T.alloc_shared((bm, 64), "float16")
            b = T.alloc_shared((bn, 64), "float16")
            c = T.alloc_fragment((bm, bn), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
                T.copy(A[by * bm, k * 64], a)
                T.copy(B[bx * bn, k * 64], b)
                T.gemm(a, b, c, transpose_B=True)
            if added:
                T.atomic_add(C[by * bm, bx * bn], c)
            else:
                T.copy(c, C[by * bm, bx * bn])

    return narrow


@pytest.mark.covering(1)
@pytest.mark.parametrize("tile", [(128, 152), (128, 72), (184, 128), (128, 64)])
@pytest.mark.parametrize("shape", [(300, 320, 72), (1, 8, 8), (130, 304, 64)])
@pytest.mark.parametrize("added", [False, True])
def test_narrow_tiles_leave_by_tma(tile, shape, added):
    m, n, k = shape
    kernel = product(*tile, added=added)
    a, b, c = operands(m, n, k)
    c[:] = 0
    made = kernel.compile(a, b, c, target="cuda:sm_90a")
    by_tma = "cp.async.bulk.tensor.2d.global" in made.asm and "stmatrix" in made.asm
    assert by_tma or added
    assert added or not made.resources.spilled_bytes
    run(kernel, "cuda:sm_90a", a, b, c)
    close(a, b, c)


@pytest.mark.covering(1)
@pytest.mark.parametrize("cluster", [(1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("tile", [(128, 152), (184, 128), (184, 72)])
@pytest.mark.parametrize("persistent", [False, True])
def test_blocks_load_parts_that_overlap(tile, cluster, persistent):
    """Eight rows come by both blocks: a stage waits for the bytes of both parts."""
    kernel = product(*tile, cluster=cluster, persistent=persistent)
    a, b, c = operands(4 * tile[0] - 40, 4 * tile[1] - 24, 200)
    made = kernel.compile(a, b, c, target="cuda:sm_90a")
    assert "multicast::cluster" in made.asm and made.plan.cluster == (*cluster, 1)
    run(kernel, "cuda:sm_90a", a, b, c)
    close(a, b, c)


def operands(m, n, k):
    rng = np.random.default_rng(m + n)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (n, k)))
    return a, b, np.full((m, n), np.nan, np.float16)


def close(a, b, c):
    want = a.astype(np.float64) @ b.astype(np.float64).T
    assert np.linalg.norm(c - want) < 1e-3 * np.linalg.norm(want)
