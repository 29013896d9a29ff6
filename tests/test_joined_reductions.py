"""Reductions along rows of a fragment's view that are several of the fragment's, and fragments that
are wider copies of a shared tile."""

import ml_dtypes
import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

TARGETS = ["cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"]
WANTED = {
    "sum": lambda x: x.sum(-1),
    "max": lambda x: x.max(-1),
    "abssum": lambda x: np.abs(x).sum(-1),
    "absmax": lambda x: np.abs(x).max(-1),
}


def reduced(shape, view, kind, clear):
    reduce = getattr(T, f"reduce_{kind}")
    few = view[:-1]

    @tilec.kernel
    def rows(X: T.Tensor(shape, "float32"), Y: T.Tensor(few, "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment(shape, "float32")
            y = T.alloc_fragment(few, "float32")
            T.copy(X, x)
            T.fill(y, 3)
            reduce(T.view(x, view), y, dim=len(few), clear=clear)
            T.copy(y, Y)

    return rows


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", WANTED)
@pytest.mark.parametrize(
    ("shape", "view"),
    [
        ((64, 128), (16, 512)),
        ((12, 8), (3, 32)),
        ((6, 4, 8), (6, 32)),
        ((6, 4, 8), (3, 64)),
        ((8, 6, 4), (8, 2, 12)),
        ((3, 8, 5), (6, 20)),
    ],
    ids=str,
)
def test_rows_that_are_several(shape, view, kind, target):
    """No fragment is kept in shared memory for it but the small one of sums."""
    rng = np.random.default_rng(len(kind) + shape[0])
    for clear in (True, False):
        kernel = reduced(shape, view, kind, clear)
        x = rng.standard_normal(shape).astype(np.float32)
        y = np.full(view[:-1], np.nan, np.float32)
        run(kernel, target, x, y)
        want = WANTED[kind](x.astype(np.float64).reshape(view))
        if not clear:
            want = want + 3 if kind.endswith("sum") else np.maximum(want, 3)
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
        if target != "cpu":
            made = kernel.compile(x, y, target=target)
            assert "x" not in made.resources.buffers


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("written", [False, True])
def test_wider_copies_of_shared_tiles(target, written):
    """Rows that other threads hold are read where the tile was copied from, unless it has changed:
    32 KB less in a backward pass of mamba3."""
    C, R, N = 8, 4, 64

    @tilec.kernel
    def kernel(
        Q: T.Tensor((C * R, N), "bfloat16"),
        W: T.Tensor((C * R, R), "float32"),
        Y: T.Tensor((C * R, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((C * R, N), "bfloat16")
            q = T.alloc_fragment((C * R, N), "float32")
            y = T.alloc_fragment((C * R, N), "float32")
            T.copy(Q, tile)
            T.copy(tile, q)
            if written:
                T.fill(tile, 0)
            T.clear(y)
            groups = T.view(q, (C, R, N))
            for r in T.serial(R):
                for i, n in T.Parallel(C * R, N):
                    y[i, n] += W[i, r] * groups[i // R, r, n]
            T.copy(y, Y)

    rng = np.random.default_rng(3)
    q = rng.standard_normal((C * R, N)).astype(ml_dtypes.bfloat16)
    w = rng.standard_normal((C * R, R)).astype(np.float32)
    y = np.full((C * R, N), np.nan, np.float32)
    run(kernel, target, q, w, y)
    groups = q.astype(np.float64).reshape(C, R, N)
    want = np.einsum("crs,csn->crn", w.astype(np.float64).reshape(C, R, R), groups)
    np.testing.assert_allclose(y, want.reshape(C * R, N), rtol=1e-5, atol=1e-5)
    if target != "cpu":
        assert ("q" in kernel.compile(q, w, y, target=target).resources.buffers) == written
