"""Tiles whose extents the threads of a block cannot share evenly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.errors import ResourceError

pytestmark = pytest.mark.usefixtures("unassembled")

M, N, K = T.dynamic("M, N, K")
GPUS = ("cuda:sm_80", "hip:gfx942")


def product(bm: int, bn: int, bk: int, a_rows: bool = True, filled: bool = False) -> Any:
    """Rows of A are copied, or transposed or `filled` by threads; a bias is added, and large
    elements are left out, in the loop that threads share the accumulator in."""

    @tilec.kernel
    def kernel(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        D: T.Tensor((N,), "float32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, bn), T.ceildiv(M, bm), threads=128) as (bx, by):
            a = T.alloc_shared((bm, bk) if a_rows else (bk, bm), "float16")
            b = T.alloc_shared((bk, bn), "float16")
            acc = T.alloc_fragment((bm, bn), "float32")
            bias = T.alloc_fragment((bn,), "float32")
            T.clear(acc)
            T.copy(D[bx * bn], bias)
            for k in T.Pipelined(T.ceildiv(K, bk), num_stages=2):
                if a_rows and not filled:
                    T.copy(A[by * bm, k * bk], a)
                else:
                    for i, j in T.Parallel(bm, bk):
                        if a_rows:
                            a[i, j] = A[by * bm + i, k * bk + j]
                        else:
                            a[j, i] = A[by * bm + i, k * bk + j]
                T.copy(B[k * bk, bx * bn], b)
                T.gemm(a, b, acc, transpose_A=not a_rows)
            for i, j in T.Parallel(bm, bn):
                acc[i, j] = acc[i, j] + bias[j]
                if acc[i, j] > 30.0:
                    acc[i, j] = 0.0
            T.copy(acc, C[by * bm, bx * bn])

    return kernel


def arrays(m: int, n: int, k: int, rng: np.random.Generator) -> list[np.ndarray]:
    a = rng.integers(0, 3, (m, k)).astype(np.float16)
    b = rng.integers(0, 3, (k, n)).astype(np.float16)
    return [a, b, rng.integers(0, 9, n).astype(np.float32), np.full((m, n), 77, np.float32)]


def check(a: np.ndarray, b: np.ndarray, d: np.ndarray, c: np.ndarray) -> None:
    want = a.astype(np.float32) @ b.astype(np.float32) + d
    np.testing.assert_array_equal(c, np.where(want > 30, 0, want))


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize(
    ("tile", "words"),
    [((17, 33, 16), {}), ((17, 33, 20), {"a_rows": False}), ((33, 17, 16), {"filled": True})],
    ids=str,
)
def test_products(
    tile: tuple[int, int, int], words: dict[str, bool], target: str, rng: np.random.Generator
) -> None:
    given = arrays(20, 40, 40, rng)
    report = tilec.simulate(product(*tile, **words), *given, target=target)
    assert not report.findings, str(report)
    check(*given)


@pytest.mark.parametrize("tile", [(100, 100, 32), (17, 33, 16), (1, 7, 3)], ids=str)
def test_products_on_the_cpu(tile: tuple[int, int, int], rng: np.random.Generator) -> None:
    given = arrays(120, 130, 70, rng)
    product(*tile)(*given)
    check(*given)


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_a_hundred_by_a_hundred_has_matrix_instructions(target: str) -> None:
    specs = [tilec.spec((200, 64), "float16"), tilec.spec((64, 300), "float16")]
    specs += [tilec.spec((300,), "float32"), tilec.spec((200, 300), "float32")]
    compiled = product(100, 100, 32).compile(*specs, target=target)
    laid = compiled.stages["pad_tiles"]
    assert "fragment<128x128xf32>" in laid and "shared<128x32xf16>" in laid
    assert "mma" in compiled.stages["select_gemm"] or "mfma" in compiled.stages["select_gemm"]
    assert "simt" not in compiled.stages["select_gemm"]


@pytest.mark.parametrize("shape", [(17, 33), (1, 1001), (3, 1000), (100, 100)], ids=str)
def test_element_loops(shape: tuple[int, int], rng: np.random.Generator) -> None:
    @tilec.kernel
    def kernel(A: T.Tensor(shape, "float32"), C: T.Tensor(shape, "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment(shape, "float32")
            y = T.alloc_fragment(shape, "float32")
            T.copy(A, x)
            T.copy(x, y)
            for i, j in T.Parallel(*shape):
                y[i, j] = y[i, j] * 2.0 + x[i, j]
            T.copy(y, C)

    a, c = rng.random(shape, np.float32), np.zeros(shape, np.float32)
    report = tilec.simulate(kernel, a, c, target="cuda:sm_80")
    assert not report.findings, str(report)
    np.testing.assert_allclose(c, 3 * a, rtol=1e-6)


def test_even_tiles_stay() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((96, 80), "float32"), C: T.Tensor((96, 80), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((96, 80), "float32")
            T.copy(A, x)
            T.copy(x, C)

    compiled = kernel.compile(*[tilec.spec((96, 80), "float32")] * 2, target="cuda:sm_80")
    assert "fragment<96x80xf32>" in compiled.stages["pad_tiles"]


def test_a_row_of_a_fragment_is_a_loop_of_one_dimension(rng: np.random.Generator) -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((1, 256), "float32"), C: T.Tensor((1, 256), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((1, 256), "float32")
            T.copy(A, x)
            for j in T.Parallel(256):
                C[0, j] = x[0, j] * 2.0

    a, c = rng.random((1, 256), np.float32), np.zeros((1, 256), np.float32)
    assert not tilec.simulate(kernel, a, c, target="cuda:sm_80").findings
    np.testing.assert_array_equal(c, 2 * a)


def test_an_odd_tile_that_stays_is_refused_for_its_extents() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((100, 100), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((100, 100), "float32")
            T.copy(A, x)
            T.print(x)

    with pytest.raises(ResourceError, match="takes 625 registers") as caught:
        kernel.compile(tilec.spec((100, 100), "float32"), target="cuda:sm_80")
    assert "multiples of 16" in caught.value.hint
