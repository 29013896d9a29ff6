"""Tiles whose extents the threads of a block cannot share evenly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.errors import ResourceError

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

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


@pytest.mark.covering(1)
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


@pytest.mark.parametrize(
    ("tile", "target", "padded"),
    [
        ((64, 72, 32), "hip:gfx942", "64x80"),  # heads of 72 numbers
        ((64, 40, 40), "hip:gfx942", "64x48"),  # steps of 40 are joined to 80
        ((24, 24, 24), "cuda:sm_80", "32x32"),
    ],
    ids=str,
)
def test_a_product_that_lacks_some_columns_has_matrix_instructions(
    tile: tuple[int, int, int], target: str, padded: str, rng: np.random.Generator
) -> None:
    given = arrays(70, 90, 50, rng)
    stages = product(*tile).compile(*given, target=target).stages
    assert f"fragment<{padded}xf32>" in stages["pad_tiles"]
    assert "simt" not in stages["select_gemm"]
    report = tilec.simulate(product(*tile), *given, target=target)
    assert not report.findings, str(report)
    check(*given)


@pytest.mark.parametrize(
    ("tile", "target", "padded", "instr"),
    [
        ((80, 112, 16), "cuda:sm_90a", "80x128", "wgmma.m64n80k16"),  # as C^T = B^T @ A^T
        ((112, 80, 16), "cuda:sm_90a", "128x80", "wgmma.m64n80k16"),
        ((96, 96, 16), "cuda:sm_90a", "96x96", "mma.m16n8k16"),  # squares would be too large
        ((80, 112, 16), "cuda:sm_80", "80x128", "mma.m16n8k16"),  # a part for each of four warps
    ],
    ids=str,
)
def test_a_tile_in_which_more_warps_have_work(
    tile: tuple[int, int, int], target: str, padded: str, instr: str, rng: np.random.Generator
) -> None:
    a, b, d, c = arrays(90, 120, 40, rng)
    kernel = product(*tile)
    stages = kernel.compile(a, b, d, c, target=target).stages
    assert f"acc = alloc fragment<{padded}xf32>" in stages["pad_tiles"]
    assert instr in stages["select_gemm"]
    report = tilec.simulate(kernel, a, b, d, c, target=target)
    assert report.ok, str(report)
    check(a, b, d, c)


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
@pytest.mark.parametrize("rows", [2, 5])
def test_few_rows_have_instructions(rows: int, target: str, rng: np.random.Generator) -> None:
    """They were multiplied by threads, as 16 rows are more than twice as many."""
    kernel, given = product(rows, 64, 32), arrays(rows + 1, 100, 70, rng)
    text = kernel.compile(*given, target=target).stages["select_gemm"]
    assert "instr=simt" not in text and "fragment<16x64xf32" in text
    if rows == 5:
        assert tilec.simulate(kernel, *given, target=target).ok
        check(*given)


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


@pytest.mark.parametrize("target", GPUS)
def test_what_a_fragment_has_more_is_not_read(target: str, rng: np.random.Generator) -> None:
    """What a loop over a fragment's own elements leaves has nothing beyond; a result's copy has."""

    @tilec.kernel
    def kernel(
        A: T.Tensor((100, 32), "float16"),
        C: T.Tensor((100, 100), "float32"),
        D: T.Tensor((100, 100), "float16"),
        E: T.Tensor((100, 100), "float16"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((100, 32), "float16")
            acc, more = (T.alloc_fragment((100, 100), "float32") for _ in range(2))
            half, less = (T.alloc_fragment((100, 100), "float16") for _ in range(2))
            T.copy(A, a)
            T.clear(acc)
            T.gemm(a, a, acc, transpose_B=True)
            for i, j in T.Parallel(100, 100):
                more[i, j] = acc[i, j] + 1
            T.copy(more, half)
            T.copy(more, C)
            T.copy(half, D)
            T.copy(acc, less)
            T.copy(less, E)

    a = rng.integers(-2, 3, (100, 32)).astype(np.float16)
    c, d, e = (np.zeros((100, 100), dtype) for dtype in (np.float32, np.float16, np.float16))
    report = tilec.simulate(kernel, a, c, d, e, target=target)
    assert report.ok, str(report)
    want = a.astype(np.float64) @ a.T.astype(np.float64)
    for got, expected in ((c, want + 1), (d, want + 1), (e, want)):
        np.testing.assert_array_equal(got, expected)
    padded = kernel.compile(a, c, d, e, target=target).stages["pad_tiles"]
    copied = [line for line in padded.splitlines() if " copy %" in line and "(128, 128)" in line]
    assert [line.split()[1].partition("[")[0] for line in copied] == ["%acc", "%less"]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("shape", [(16, 8, 16), (24, 16, 16)], ids=str)
def test_operands_in_fragments_have_zeros_beyond(
    shape: tuple[int, int, int], dtype: str, rng: np.random.Generator
) -> None:
    """What a product reads of them beyond their own extents, nobody has copied."""
    m, n, k = shape
    total = "float32" if dtype == "float16" else dtype

    @tilec.kernel
    def kernel(A: T.Tensor((m, k), dtype), B: T.Tensor((k, n), dtype), C: T.Tensor((m, n), total)):
        with T.Kernel(1, threads=64):
            a = T.alloc_fragment((m, k), dtype)
            b = T.alloc_fragment((k, n), dtype)
            acc = T.alloc_fragment((m, n), total)
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, acc, clear_accum=True)
            T.copy(acc, C)

    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    c = np.full((m, n), 77, total)
    report = tilec.simulate(kernel, a, b, c, target="hip:gfx942")
    assert report.ok, str(report)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), atol=1e-5)
    padded = kernel.compile(a, b, c, target="hip:gfx942").stages["pad_tiles"]
    grown, other = ("%a", "%b") if m % 16 else ("%b", "%a")
    assert f"fill {grown}[" in padded and f"fill {other}[" not in padded


@pytest.mark.parametrize("target", GPUS)
def test_a_product_of_a_part_of_a_fragment(target: str, rng: np.random.Generator) -> None:
    """Behind the part lies no room for the rows that the product would have more."""

    @tilec.kernel
    def kernel(
        A: T.Tensor((48, 16), "float16"),
        B: T.Tensor((16, 32), "float16"),
        C: T.Tensor((24, 32), "float32"),
    ):
        with T.Kernel(1, threads=64):
            a = T.alloc_fragment((48, 16), "float16")
            b = T.alloc_shared((16, 32), "float16")
            acc = T.alloc_fragment((24, 32), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a[24:48, :], b, acc, clear_accum=True)
            T.copy(acc, C)

    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((48, 16), (16, 32)))
    c = np.full((24, 32), 77, np.float32)
    report = tilec.simulate(kernel, a, b, c, target=target)
    assert report.ok, str(report)
    np.testing.assert_allclose(c, a[24:].astype(np.float64) @ b.astype(np.float64), atol=1e-5)
    assert "fragment<32x32" not in kernel.compile(a, b, c, target=target).stages["pad_tiles"]


def test_even_tiles_stay() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((96, 80), "float32"), C: T.Tensor((96, 80), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((96, 80), "float32")
            T.copy(A, x)
            T.copy(x, C)

    compiled = kernel.compile(*[tilec.spec((96, 80), "float32")] * 2, target="cuda:sm_80")
    assert "fragment<96x80xf32>" in compiled.stages["pad_tiles"]


def test_what_a_group_of_warps_steps_through_stays() -> None:
    """184 columns of the swapped product, which 128 threads could not hold; a plan has 256."""

    @tilec.kernel
    def kernel(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, 256), T.ceildiv(M, 184)) as (bx, by):
            a, b = T.alloc_shared((184, 32), "float16"), T.alloc_shared((32, 256), "float16")
            acc = T.alloc_fragment((184, 256), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 32)):
                T.copy(A[by * 184, k * 32], a)
                T.copy(B[k * 32, bx * 256], b)
                T.gemm(a, b, acc)
            T.copy(acc, C[by * 184, bx * 256])

    specs = [tilec.spec(s, "float16") for s in ((4000, 2008), (2008, 3000), (4000, 3000))]
    stages = kernel.compile(*specs, target="cuda:sm_90a").stages
    assert "acc = alloc fragment<184x256xf32>" in stages["pad_tiles"]
    assert "wgmma.m64n184k16" in stages["select_gemm"]


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
    def kernel(A: T.Tensor((140, 140), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((140, 140), "float32")
            T.copy(A, x)
            T.print(x)

    with pytest.raises(ResourceError, match="takes 1225 registers") as caught:
        kernel.compile(tilec.spec((140, 140), "float32"), target="cuda:sm_80")
    assert "multiples of 16" in caught.value.hint


def heads(dim: int, columns: int, safe: float | None = None, filled: bool = False) -> Any:
    """C = (Q K^T) V with heads of `dim` numbers, the first of a row's `columns`."""

    @tilec.kernel
    def kernel(
        Q: T.Tensor((64, columns), "float16"),
        K: T.Tensor((N, columns), "float16"),
        V: T.Tensor((N, dim), "float16"),
        C: T.Tensor((64, dim), "float16"),
    ):
        with T.Kernel(1, threads=128):
            q = T.alloc_shared((64, dim), "float16")
            k = T.alloc_shared((32, dim), "float16")
            v = T.alloc_shared((32, dim), "float16")
            s = T.alloc_fragment((64, 32), "float32")
            p = T.alloc_fragment((64, 32), "float16")
            o = T.alloc_fragment((64, dim), "float32")
            if safe is not None:
                T.annotate_safe_value({K: safe})
            T.copy(Q[:, 0:dim], q)
            T.clear(o)
            for n in T.Pipelined(T.ceildiv(N, 32), num_stages=2):
                if filled:
                    for i, j in T.Parallel(32, dim):
                        k[i, j] = T.if_then_else(n * 32 + i < N, K[n * 32 + i, j], 0)
                else:
                    T.copy(K[n * 32 : n * 32 + 32, 0:dim], k)
                T.copy(V[n * 32, 0], v)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(64, 32):
                    p[i, j] = T.if_then_else(n * 32 + j < N, s[i, j], 0)
                for i, j in T.Parallel(64, dim):
                    o[i, j] *= 0.5
                T.gemm(p, v, o)
            for i, j in T.Parallel(64, dim):
                o[i, j] += T.cast(j, "float32")
            T.copy(o, C)

    return kernel


HEADS: dict[str, tuple[int, int, dict[str, Any], bool]] = {
    "40": (40, 40, {}, True),
    "72": (72, 72, {}, True),
    "by threads": (72, 72, {"filled": True}, True),
    "of wider rows": (40, 48, {}, False),  # what is behind them counts
    "another safe value": (40, 40, {"safe": 1.0}, False),
    "8": (8, 8, {}, False),
    "even": (48, 48, {}, True),
}


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
@pytest.mark.parametrize("dim, columns, words, wide", HEADS.values(), ids=HEADS)
def test_heads_that_the_wide_instruction_does_not_step_through(
    dim: int,
    columns: int,
    words: dict[str, Any],
    wide: bool,
    target: str,
    rng: np.random.Generator,
) -> None:
    q, k = (rng.integers(-2, 3, (n, columns)).astype(np.float16) for n in (64, 75))
    v, c = rng.integers(-2, 3, (75, dim)).astype(np.float16), np.full((64, dim), 77, np.float16)
    kernel = heads(dim, columns, **words)
    report = tilec.simulate(kernel, q, k, v, c, target=target, schedules=3)
    assert not report.findings, str(report)
    s, want = q[:, :dim].astype(float) @ k[:, :dim].T.astype(float), np.zeros((64, dim))
    for n in range(0, 75, 32):
        want = want / 2 + s[:, n : n + 32] @ v[n : n + 32]
    np.testing.assert_allclose(c, want + np.arange(dim), rtol=1e-3, atol=1e-2)
    chosen = kernel.compile(q, k, v, c, target=target).stages["select_gemm"]
    assert (chosen.count("wgmma") >= 2) == (wide and target == "cuda:sm_90a")


@tilec.kernel
def gathered_and_reduced(
    A: T.Tensor((5, 5, 7), "float32"),
    B: T.Tensor((5, 5, 7), "float32"),
    C: T.Tensor((5, 5), "float32"),
):
    with T.Kernel(1, threads=256):
        x = T.alloc_fragment((5, 5, 7), "float32")
        y = T.alloc_shared((5, 5, 7), "float32")
        s = T.alloc_fragment((5, 5), "float32")
        T.copy(A, x)
        for i, j, k in T.Parallel(5, 5, 7):
            x[i, j, k] += 1
        for i, j, k in T.Parallel(5, 5, 7):
            y[i, j, k] = x[(k + 1) % 5, k // 2, (j + 1) % 7]
        T.reduce_max(x, s, dim=2)
        T.copy(y, B)
        T.copy(s, C)


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
def test_what_goes_to_shared_memory_stays_as_large_as_it_is(
    target: str, rng: np.random.Generator
) -> None:
    a = rng.integers(-9, 9, (5, 5, 7)).astype(np.float32)
    b, c = np.zeros_like(a), np.zeros((5, 5), np.float32)
    with pytest.warns(tilec.PerformanceWarning, match=r"x \(fragment \(5, 5, 7\) float32\)"):
        report = tilec.simulate(gathered_and_reduced, a, b, c, target=target)
    assert not report.findings, str(report)  # nothing beyond its extents is read
    i, j, k = np.indices(a.shape)
    assert (b == a[(k + 1) % 5, k // 2, (j + 1) % 7] + 1).all() and (c == a.max(2) + 1).all()
    made = gathered_and_reduced.compile(a, b, c, target=target)
    assert "shared<5x5x7xf32>" in made.stages["demote_fragments"]
