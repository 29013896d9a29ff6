"""How many neighbours of a row a thread holds, by what rows' strides allow; and quotients whose
last bits nobody sees."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
M, N = T.dynamic("M, N")


def add(dtype: str, form: str, width: int | None = None):
    @tilec.kernel
    def loop(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 8), threads=128) as (bx, by):
            for i, j in T.Parallel(8, 128, coalesced_width=width):
                y, x = by * 8 + i, bx * 128 + j
                C[y, x] = A[y, x] + B[y, x]

    @tilec.kernel
    def tile(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 8), threads=128) as (bx, by):
            a = T.alloc_fragment((8, 128), dtype)
            b = T.alloc_fragment((8, 128), dtype)
            T.copy(A[by * 8, bx * 128], a)
            T.copy(B[by * 8, bx * 128], b)
            for i, j in T.Parallel(8, 128):
                a[i, j] += b[i, j]
            T.copy(a, C[by * 8, bx * 128])

    return {"loop": loop, "tile": tile}[form]


def layout(kernel: tilec.Kernel, *specs: object, target: str = "cuda:sm_90a") -> set[str]:
    """What a thread holds side by side, in each layout of the kernel."""
    text = kernel.compile(*specs, target=target).stages["infer_layouts"]
    return set(re.findall(r"blocked\([0-9x]+, \d+, \d+, (\d+)\)", text))


@pytest.mark.covering(2)
@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("form", ["loop", "tile"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "dtype, row, wide",
    [
        ("float32", 128, "4"),
        ("float32", 129, "1"),
        ("float32", 130, "2"),
        ("float16", 128, "8"),
        ("float16", 129, "1"),
        ("float16", 130, "2"),
        ("float16", 132, "4"),
        ("uint8", 129, "1"),
    ],
)
def test_neighbours_of_a_row(form: str, target: str, dtype: str, row: int, wide: str):
    specs = [tilec.spec((16, row - 1), dtype, strides=(row, 1))] * 3
    assert layout(add(dtype, form), *specs, target=target) == {wide}


def test_a_width_that_is_asked_for_is_kept():
    specs = [tilec.spec((16, 128), "float32")] * 3
    assert layout(add("float32", "loop", width=2), *specs) == {"2"}


def test_one_odd_row_decides_where_it_costs_more_than_it_saves():
    wide, odd = tilec.spec((16, 128), "float32"), tilec.spec((16, 128), "float32", strides=(129, 1))
    assert layout(add("float32", "loop"), wide, wide, odd) == {"1"}
    half, odd = tilec.spec((16, 128), "uint8"), tilec.spec((16, 128), "uint8", strides=(132, 1))
    assert layout(add("uint8", "loop"), half, half, odd) == {"4"}


@pytest.mark.parametrize("form", ["loop", "tile"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_warp_touches_its_rows_side_by_side(form: str, dtype: str):
    """Sums are right, and no access moves more sectors than rows that begin anywhere must."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal((9, 387)).astype(dtype)[:, :385] for _ in range(3))
    report = tilec.simulate(add(dtype, form), a, b, c, target="cuda:sm_90a")
    assert report.ok, report
    np.testing.assert_array_equal(c, a + b)
    moved = sum(line.sectors for line in report.counts.lines)
    least = 3 * a.nbytes / 32
    assert least <= moved <= 1.5 * least


def gate(dtype: str, out: str):
    @tilec.kernel
    def kernel(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype), C: T.Tensor((M, N), out)):
        with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 8), threads=128) as (bx, by):
            for i, j in T.Parallel(8, 128):
                y, x = by * 8 + i, bx * 128 + j
                a = T.cast(A[y, x], "float32")
                C[y, x] = a / (1.0 + T.exp(-a)) * T.cast(B[y, x], "float32")

    return kernel


@pytest.mark.parametrize("out, word", [("float16", "div.full"), ("float32", "div.rn")])
def test_quotients_are_as_exact_as_what_they_end_in(out: str, word: str):
    specs = [tilec.spec((16, 128), "float16")] * 2 + [tilec.spec((16, 128), out)]
    ptx = gate("float16", out).compile(*specs, target="cuda:sm_90a").stages["ptx"]
    assert set(re.findall(r"div\.\w+(?=\.f32)", ptx)) == {word}
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((8, 128)).astype("float16") for _ in range(2))
    c = np.empty((8, 128), out)
    assert tilec.simulate(gate("float16", out), a, b, c, target="cuda:sm_90a").ok
    x = a.astype(np.float64)
    np.testing.assert_allclose(c, x / (1 + np.exp(-x)) * b, rtol=2e-3, atol=1e-6)


def test_a_sum_may_cancel_what_a_quotient_rounds():
    @tilec.kernel
    def rest(A: T.Tensor((N,), "float16"), C: T.Tensor((N,), "float16")):
        with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
            for j in T.Parallel(128):
                a = T.cast(A[bx * 128 + j], "float32")
                C[bx * 128 + j] = a / 3.0 - a

    ptx = rest.compile(*[tilec.spec((128,), "float16")] * 2, target="cuda:sm_90a").stages["ptx"]
    assert "div.rn.f32" in ptx and "div.full" not in ptx


def streamed(rows: int, columns: int, threads: int, dtype: str = "float16"):
    @tilec.kernel
    def kernel(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows), threads=threads) as (bx, by):
            a = T.alloc_fragment((rows, columns), dtype)
            b = T.alloc_fragment((rows, columns), dtype)
            T.copy(A[by * rows, bx * columns], a)
            T.copy(B[by * rows, bx * columns], b)
            for i, j in T.Parallel(rows, columns):
                x = T.cast(a[i, j], "float32")
                a[i, j] = x / (1.0 + T.exp(-x)) * T.cast(b[i, j], "float32")
            T.copy(a, C[by * rows, bx * columns])

    return kernel


@pytest.mark.parametrize("tile", [(32, 128, 256), (16, 256, 128), (4, 1024, 256)])
def test_enough_threads_load_at_the_same_time(tile: tuple[int, int, int]):
    """On an H200 at 8192x8192: 2.2 to 3.3 TB/s with the registers that the assembler takes of
    itself, 4.1 to 4.2 with these."""
    compiled = streamed(*tile).compile(
        *[tilec.spec((256, 2048), "float16")] * 3, target="cuda:sm_90a"
    )
    used = compiled.resources
    if used.registers is None:
        pytest.skip("no ptxas")
    assert used.blocks_per_sm is not None and used.blocks_per_sm * used.threads >= 640
    assert used.spilled_bytes == 0
    both = re.search(r"if %\S+ then \{(.*?)orelse", compiled.stages["simplify-2"], re.S)
    assert both is not None  # what both tensors bring is under way before either is waited for
    assert "mem_load %A" in both[1] and "mem_load %B" in both[1]
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((33, 1025)).astype("float16") for _ in range(2))
    c = np.full_like(a, np.nan)
    assert tilec.simulate(streamed(*tile), a, b, c, target="cuda:sm_90a").ok
    x = a.astype(np.float64)
    np.testing.assert_allclose(c, x / (1 + np.exp(-x)) * b, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_short_loops_that_load_are_unrolled(target: str):
    @tilec.kernel
    def row_sums(A: T.Tensor((M, N), "float32"), S: T.Tensor((M,), "float32")):
        with T.Kernel(T.ceildiv(M, 32), threads=64) as by:
            tile = T.alloc_shared((32, 64), "float32")
            s = T.alloc_fragment((32,), "float32")
            T.copy(A[by * 32, 0], tile)
            T.clear(s)
            for i in T.Parallel(32):
                for j in T.serial(N):
                    s[i] += tile[i, j]
            T.copy(s, S[by * 32])

    specs = tilec.spec((64, 64), "float32"), tilec.spec((64,), "float32")
    stages = row_sums.compile(*specs, target=target).stages
    loads = stages["llvm"].count("load float, ptr addrspace(3)")
    assert stages["llvm-opt"].count("load float, ptr addrspace(3)") >= loads + 7
    for n in (0, 1, 7, 8, 64):
        a = np.random.default_rng(n).standard_normal((40, n)).astype("float32")
        s = np.full(40, np.nan, "float32")
        assert tilec.simulate(row_sums, a, s, target=target).ok
        np.testing.assert_allclose(s, a.sum(1, dtype="float64"), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(8191, 1), (1, 8193), (511, 1023), (33, 130), (128, 256)])
@pytest.mark.parametrize("form", ["loop", "tile"])
def test_rows_of_any_length_on_the_gpu(form: str, shape: tuple[int, int], dtype: str):
    import torch

    a, b = (torch.randn(shape, device="cuda").to(getattr(torch, dtype)) for _ in range(2))
    c = torch.full_like(a, float("nan"))
    add(dtype, form)(a, b, c)
    assert torch.equal(c, a + b)
