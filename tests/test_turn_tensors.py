"""Transposed views are taken as their arrays lie: TMA and vectors bring their tiles, which are
transposed in their place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T
from tilec.layout import make_swizzled_layout

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

M, N, K, L = T.dynamic("M, N, K, L")
TARGETS = "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"


@tilec.kernel
def layer(
    X: T.Tensor((L, M, K), "float16"), W: T.Tensor((L, N, K), "float16"),
    R: T.Tensor((L, M, N), "float32"), C: T.Tensor((L, M, N), "float32"), how: T.constexpr = "",
):  # fmt: skip
    """C = X Wᵀ + R, divided by the sum of R's row in the tile."""
    with T.Kernel(T.ceildiv(N, 48), T.ceildiv(M, 64), L, threads=128) as (bx, by, bz):
        x, w = T.alloc_shared((64, 64), "float16"), T.alloc_shared((48, 64), "float16")
        acc, total = T.alloc_fragment((64, 48), "float32"), T.alloc_fragment((64,), "float32")
        r = T.alloc_fragment((64, 48), "float32")
        T.annotate_min_blocks_per_sm(1)  # these very blocks: none are joined
        if how == "annotated":
            T.annotate_layout({w: make_swizzled_layout(w)})
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
            T.copy(X[bz, by * 64, k * 64], x)
            T.copy(W[bz, bx * 48, k * 64], w)
            T.gemm(x, w, acc, transpose_B=True)
        T.copy(R[bz, by * 64, bx * 48], r)
        if how == "twice":  # of two tensors, of which one is as it is written
            T.copy(X[bz, bx * 48, 0], w)
            T.gemm(x, w, acc, transpose_B=True)
        T.reduce_sum(r, total, dim=1)
        for i, j in T.Parallel(64, 48):
            acc[i, j] = (acc[i, j] + r[i, j]) / (1.0 + total[i])
        T.copy(acc, C[bz, by * 64, bx * 48])


def arrays(rng: np.random.Generator, l: int, m: int, n: int, k: int, turned: str) -> list[Any]:
    """Of which those in `turned` have neighbours along their second dimension."""
    shapes = {"X": (l, m, k), "W": (l, n, k), "R": (l, m, n), "C": (l, m, n)}
    made = []
    for name, shape in shapes.items():
        of = rng.random([shape[d] for d in (0, 2, 1)] if name in turned else shape)
        array = of.astype(np.float16 if name in "XW" else np.float32)
        made.append(array.transpose(0, 2, 1) if name in turned else array)
    return made


def compiled(turned: str, how: str = "") -> Any:
    l, m, n, k = 2, 2048, 1024, 512
    specs = []
    for name, (rows, columns) in {"X": (m, k), "W": (n, k), "R": (m, n), "C": (m, n)}.items():
        strides = (rows * columns, *((1, rows) if name in turned else (columns, 1)))
        specs.append(
            tilec.spec((l, rows, columns), "float16" if name in "XW" else "float32", strides)
        )
    return layer.compile(*specs, target="cuda:sm_90a", how=how)


def test_tma_brings_tiles_as_they_lie() -> None:
    made = compiled("WRC")
    order = "(0, 2, 1)"
    text = made.stages["tile"]
    assert f'turned=(("W", {order}), ("R", {order}), ("C", {order}))' in text
    assert "%w = alloc shared<64x48xf16>" in text and "%x = alloc shared<64x64xf16>" in text
    (product,) = [line for line in text.splitlines() if " gemm %" in line]
    assert "transpose" not in product
    assert "reduce %r[%c0, %c0], (48, 64), %total[%c0], (64), 0, sum" in text
    assert text.count("parallel (64, 48)") == 2, "what leaves for C does so in a loop"
    maps = [p.tensor_map for p in made.image.params if p.tensor_map]
    assert {(m.tensor, m.dims) for m in maps} == {("X", (2, 1, 0)), ("W", (1, 2, 0))}
    assert "wgmma" in made.stages["infer_layouts"]


@pytest.mark.filterwarnings("ignore:.*cannot run ahead")
@pytest.mark.parametrize("how", ["annotated", "twice"])
def test_tiles_that_cannot_be_turned(how: str) -> None:
    """The author has said how they lie, or another tensor is brought there as it is."""
    assert "turned" not in compiled("W", how).stages["tile"]


@pytest.mark.parametrize("target", ["cpu", *TARGETS])
@pytest.mark.parametrize("turned", ["XW", "XWRC"])
def test_numbers(target: str, turned: str, rng: np.random.Generator) -> None:
    x, w, r, c = arrays(rng, 2, 71, 66, 40, turned)
    run_compiled(layer, target, x, w, r, c)
    np.testing.assert_allclose(c, expected(x, w, r), rtol=2e-3)


def expected(x: Any, w: Any, r: Any) -> Any:
    want = x.astype(float) @ w.astype(float).transpose(0, 2, 1) + r
    for n in range(0, r.shape[2], 48):
        want[..., n : n + 48] /= 1 + r[..., n : n + 48].sum(-1, keepdims=True)
    return want


@pytest.mark.parametrize("kind", ["backwards", "repeated", "overlapping", "one", "none", "apart"])
def test_views_of_other_strides(kind: str, rng: np.random.Generator) -> None:
    x, w, r, c = arrays(rng, 1, 3, 1 if kind == "one" else 9, 0 if kind == "none" else 40, "WRC")
    flat = np.ascontiguousarray(rng.random(2000), np.float16)
    match kind:
        case "backwards":
            w = w[:, :, ::-1]
        case "repeated":
            w = np.broadcast_to(w[:, :, :1], w.shape)
        case "overlapping":
            w = np.lib.stride_tricks.as_strided(flat, w.shape, (2, 2, 6))
        case "apart":  # no row ends, or begins, at 16 bytes
            w = flat[:1440].reshape(1, 40, 36)[:, :, 1:10].transpose(0, 2, 1)
            r = rng.random((1, 9, 5)).astype(np.float32)[:, :, 1:4].transpose(0, 2, 1)
    run_compiled(layer, "cuda:sm_90a", x, w, r, c)
    np.testing.assert_allclose(c, expected(x, w, r), rtol=2e-3)


def test_rows_that_end_within_16_bytes_are_not_stored_to_by_tma(rng: np.random.Generator) -> None:
    @tilec.kernel
    def copied(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
            x = T.alloc_shared((32, 32), "float32")
            T.copy(X[by * 32, bx * 32], x)
            T.copy(x, Y[by * 32, bx * 32])

    x, whole = rng.random((36, 40)).astype(np.float32), np.zeros((36, 40), np.float32)
    y = whole[:, :33].T
    run_compiled(copied, "cuda:sm_90a", x[:, :33].T, y)
    np.testing.assert_array_equal(y, x[:, :33].T)
    assert not whole[:, 33:].any()
    text = copied.compile(x.T, whole.T, target="cuda:sm_90a").stages["select_copies"]
    assert "tma_store" in text and "parallel" not in text, "both lie alike: a tile of rows"


def test_elements_of_a_loop_are_vectors(rng: np.random.Generator) -> None:
    """No product: both lie the same way, and so does the loop."""

    @tilec.kernel
    def added(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
        for i, j in T.Parallel(M, N):
            Y[i, j] = X[i, j] + 1.0

    x, y = rng.random((36, 68)).astype(np.float32), np.zeros((36, 68), np.float32)
    run_compiled(added, "cuda:sm_90a", x.T, y.T)
    np.testing.assert_array_equal(y, x + 1)
