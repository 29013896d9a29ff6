"""Matrices of odd rows without gaps are walked over as one row: what is, what is not, and that the
numbers are right."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.errors import LaunchError

pytestmark = pytest.mark.usefixtures("unassembled")

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
L, M, N = T.dynamic("L, M, N")


def loop(dtype: str, out: str = "", tile: tuple[int, int] = (8, 128)):
    rows, columns = tile

    @tilec.kernel
    def kernel(
        A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype), C: T.Tensor((M, N), out or dtype)
    ):
        with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows), threads=128) as (bx, by):
            for i, j in T.Parallel(rows, columns):
                y, x = by * rows + i, bx * columns + j
                C[y, x] = A[y, x] - B[y, x]

    return kernel


def tile(dtype: str, space: str = "fragment"):
    @tilec.kernel
    def kernel(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, 8), T.ceildiv(N, 192), threads=64) as (by, bx):
            a = (
                T.alloc_shared((8, 192), dtype)
                if space == "shared"
                else T.alloc_fragment((8, 192), dtype)
            )
            b = T.alloc_fragment((8, 192), dtype)
            c = T.alloc_fragment((8, 192), dtype)
            T.copy(A[by * 8, bx * 192], a)
            T.copy(B[by * 8, bx * 192], b)
            T.clear(c)
            for i, j in T.Parallel(8, 192):
                if a[i, j] != b[i, j]:
                    c[i, j] = a[i, j] - b[i, j]
            T.copy(c, C[by * 8, bx * 192])

    return kernel


@tilec.kernel
def scaled_batch(
    A: T.Tensor((L, M, N), "float16"),
    B: T.Tensor((L, M, N), "float16"),
    C: T.Tensor((L, M, N), "float16"),
    s: T.Tensor((4,), "float16"),
    f: T.float16,
):
    with T.Kernel((N + 63) // 64, L, T.ceildiv(M, 4), threads=64) as (bx, bz, by):
        for i, j in T.Parallel(4, 64):
            y = by * 4 + i
            C[bz, y, bx * 64 + j] = (A[bz, y, bx * 64 + j] - B[bz, y, bx * 64 + j]) * s[2] * f


@tilec.kernel
def whole_rows(
    A: T.Tensor((M, 37), "float16"),
    B: T.Tensor((M, 37), "float16"),
    C: T.Tensor((M, 37), "float16"),
):
    with T.Kernel(T.ceildiv(M, 16), threads=64) as by:
        for i, j in T.Parallel(16, 40):
            C[by * 16 + i, j] = A[by * 16 + i, j] - B[by * 16 + i, j]


def guarded(form: str):
    @tilec.kernel
    def kernel(
        A: T.Tensor((M, N), "float16"),
        B: T.Tensor((M, N), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 8), threads=128) as (bx, by):
            for i, j in T.Parallel(8, 128):
                y = by * 8 + i
                x = bx * 128 + j
                if form == "both":
                    if y < M and x < N:
                        C[y, x] = A[y, x] - B[y, x]
                elif form == "one":
                    if N > x:
                        C[y, x] = A[y, x] - B[y, x]
                elif form == "nested":
                    if y <= M - 1:
                        if A[y, x] != B[y, x] and x < N:
                            C[y, x] = A[y, x] - B[y, x]
                        else:
                            C[y, x] = 0
                else:
                    if y < M and x < N - 1:
                        C[y, x] = A[y, x] - B[y, x]

    return kernel


def is_flat(compiled: tilec.CompiledKernel) -> bool:
    return "elements A" in compiled.stages["flatten_rows"]


def check(kernel: tilec.Kernel, shape: tuple[int, ...], target: str, *rest: object) -> None:
    rng = np.random.default_rng(len(shape))
    dtype, out = ([p.dtype.name for p in kernel.signature.parameters[:3]][i] for i in (0, 2))
    a, b = (rng.integers(-9, 9, shape).astype(dtype) for _ in range(2))
    c = np.full(shape, 77, out)
    report = tilec.simulate(kernel, a, b, c, *rest, target=target)
    assert report.ok, report
    np.testing.assert_array_equal(c, (a - b).astype(out))


def accesses(compiled: tilec.CompiledKernel) -> set[str]:
    """The widths of the accesses where a tile lies inside."""
    fast = compiled.stages["lower_parallel"].split("orelse")[0]
    return set(re.findall(r"lanes=(\d+)", fast)) or {"1"}


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "dtype, row, wide", [("float16", 129, "8"), ("float32", 387, "4"), ("int8", 131, "8")]
)
def test_odd_rows_are_taken_in_wide_pieces(dtype: str, row: int, wide: str, target: str):
    dense = tilec.spec((9, row), dtype)
    gaps = tilec.spec((9, row), dtype, strides=(row + 2, 1))
    for kernel in (loop(dtype), tile(dtype)):
        compiled = kernel.compile(dense, dense, dense, target=target)
        assert is_flat(compiled) and accesses(compiled) == {wide}
        compiled = kernel.compile(dense, gaps, dense, target=target)
        assert not is_flat(compiled) and wide not in accesses(compiled)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(1, 1), (9, 129), (17, 7), (3, 1027), (40, 1)])
def test_numbers_are_right(shape: tuple[int, int], target: str):
    check(loop("float16"), shape, target)
    check(tile("float16"), shape, target)


def test_numbers_are_right_in_other_forms():
    check(loop("int8", "int32"), (13, 131), "cuda:sm_90a")
    check(loop("float32", "float16", (3, 100)), (13, 131), "cuda:sm_90a")
    check(tile("float32", "shared"), (13, 131), "cuda:sm_90a")
    check(whole_rows, (50, 37), "cuda:sm_90a")
    check(loop("float16", tile=(1, 1024)), (50, 3), "cuda:sm_90a")  # 49 of 50 blocks are left
    s = np.array([0, 0, 2, 0], "float16")
    check(scaled_batch, (3, 5, 67), "cuda:sm_90a", s, 0.5)
    specs = [tilec.spec((3, 5, 67), "float16")] * 3
    compiled = scaled_batch.compile(*specs, tilec.spec((4,), "float16"), target="cuda:sm_90a")
    assert is_flat(compiled) and accesses(compiled) == {"4"}


@pytest.mark.parametrize("form", ["both", "one", "nested", "less"])
def test_guards_that_ask_for_the_tensor_s_bounds(form: str):
    kernel, spec = guarded(form), tilec.spec((9, 129), "float16")
    compiled = kernel.compile(spec, spec, spec, target="cuda:sm_90a")
    assert is_flat(compiled) == (form in ("both", "one"))
    if is_flat(compiled):
        assert accesses(compiled) == {"8"}
    a, b = np.ones((9, 129), "float16"), np.full((9, 129), 3, "float16")
    c = np.full((9, 129), 5, "float16")
    assert tilec.simulate(kernel, a, b, c, target="cuda:sm_90a").ok
    assert (c[:, :-1] == -2).all() and (c[:, -1] == (5 if form == "less" else -2)).all()


def differing(form: str):
    """Kernels that need to know where in its row an element lies, and such like."""

    @tilec.kernel
    def bias(
        A: T.Tensor((M, N), "float16"), B: T.Tensor((N,), "float16"), C: T.Tensor((M, N), "float16")
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 4), threads=64) as (bx, by):
            for i, j in T.Parallel(4, 64):
                C[by * 4 + i, bx * 64 + j] = A[by * 4 + i, bx * 64 + j] - B[bx * 64 + j]

    @tilec.kernel
    def column(
        A: T.Tensor((M, N), "float16"), B: T.Tensor((N,), "float16"), C: T.Tensor((M, N), "float16")
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 4), threads=64) as (bx, by):
            for i, j in T.Parallel(4, 64):
                x = bx * 64 + j
                C[by * 4 + i, x] = T.if_then_else(x % 2 == 0, A[by * 4 + i, x], B[0])

    @tilec.kernel
    def part(
        A: T.Tensor((M, N), "float16"), B: T.Tensor((N,), "float16"), C: T.Tensor((M, N), "float16")
    ):
        with T.Kernel(N // 64, T.ceildiv(M, 4), threads=64) as (bx, by):
            for i, j in T.Parallel(4, 64):
                C[by * 4 + i, bx * 64 + j] = A[by * 4 + i, bx * 64 + j] - B[0]

    @tilec.kernel
    def moved(
        A: T.Tensor((M, N), "float16"), B: T.Tensor((N,), "float16"), C: T.Tensor((M, N), "float16")
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 4), threads=64) as (bx, by):
            for i, j in T.Parallel(4, 64):
                C[by * 4 + i, bx * 64 + j] = A[by * 4 + i, bx * 64 + j + 1] - B[0]

    @tilec.kernel
    def operands_swapped(
        A: T.Tensor((M, N), "float16"), B: T.Tensor((N,), "float16"), C: T.Tensor((M, N), "float16")
    ):
        with T.Kernel(T.ceildiv(M, 8), T.ceildiv(M, 8), threads=64) as (bx, by):
            for i, j in T.Parallel(8, 8):
                C[by * 8 + i, bx * 8 + j] = A[bx * 8 + j, by * 8 + i] - B[0]

    return locals()[form]


@pytest.mark.parametrize("form", ["bias", "column", "part", "moved", "operands_swapped"])
def test_what_depends_on_the_row_is_left_alone(form: str):
    shape = (67, 67) if form == "operands_swapped" else (5, 131)
    specs = tilec.spec(shape, "float16"), tilec.spec((shape[1],), "float16")
    compiled = differing(form).compile(*specs, tilec.spec(shape, "float16"), target="cuda:sm_90a")
    assert not is_flat(compiled)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(1, 9, s).astype("float16") for s in (shape, shape[1:]))
    c = np.zeros(shape, "float16")
    assert tilec.simulate(differing(form), a, b, c, target="cuda:sm_90a").ok
    x = np.arange(shape[1])
    want = {
        "bias": a - b,
        "column": np.where(x % 2 == 0, a, b[0]),
        "part": np.where(x < shape[1] // 64 * 64, a - b[0], 0),
        "moved": np.pad(a, ((0, 0), (0, 1)))[:, 1:] - b[0],
        "operands_swapped": a.T - b[0],
    }
    np.testing.assert_array_equal(c, want[form])


def test_a_grid_of_the_launch():
    @tilec.kernel
    def kernel(A: T.Tensor((M, N), "float16")):
        with T.Kernel(threads=64) as (bx, by):
            for i, j in T.Parallel(8, 64):
                A[by * 8 + i, bx * 64 + j] = 1

    a = np.zeros((9, 129), "float16")
    assert tilec.simulate(kernel, a, grid=(2, 1), target="cuda:sm_90a").ok
    assert (a[:8, :128] == 1).all() and a.sum() == 8 * 128


def test_tensors_that_overlap_and_tensors_the_call_makes():
    @tilec.kernel
    def twice(A: T.Tensor((M, N), "float16")):
        C = T.empty((M, N), "float16")
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 8), threads=64) as (bx, by):
            for i, j in T.Parallel(8, 64):
                C[by * 8 + i, bx * 64 + j] = A[by * 8 + i, bx * 64 + j] * 2
        return C

    for row in (129, 256):
        compiled = twice.compile(tilec.spec((9, row), "float16"), target="cuda:sm_90a")
        assert is_flat(compiled) and accesses(compiled) == {"8"}
    a = np.arange(9 * 129, dtype="float16").reshape(9, 129)
    b = np.ones_like(a)
    want = a - b
    report = tilec.simulate(loop("float16"), a, b, a, target="cuda:sm_90a")
    assert report.ok, report
    np.testing.assert_array_equal(a, want)


def test_an_address_that_is_less_aligned():
    whole = np.arange(9 * 129 + 2, dtype="float16")
    a = whole[2:].reshape(9, 129)
    b, c = np.ones_like(a), np.zeros_like(a)
    assert tilec.simulate(loop("float16"), a, b, c, target="cuda:sm_90a").ok
    np.testing.assert_array_equal(c, a - b)


def test_a_variant_for_rows_without_gaps_refuses_others():
    def given(row: int, offset: int = 0) -> list[np.ndarray]:
        parts = [np.zeros(9 * row + 8, "float16")[offset:][: 9 * row] for _ in range(3)]
        return [x.reshape(9, row)[:, :129] for x in parts]

    kernel, dense = loop("float16"), tilec.spec((9, 129), "float16")
    compiled = kernel.compile(dense, dense, dense, target="cuda:sm_90a")
    for arrays, words in (
        (given(131), r"A: this variant was compiled for rows without gaps .*strides \(131, 1\)"),
        (given(129, 2), "A: this variant was compiled for .* divisible by 16 bytes, got .* by 4"),
    ):
        call = kernel.plan_launch("cuda:sm_90a", None, arrays, {}).call
        with pytest.raises(LaunchError, match=words):
            compiled._check_facts(replace(call, device="cuda"))
    gaps = tilec.spec((9, 129), "float16", strides=(131, 1))
    compiled = kernel.compile(dense, gaps, dense, target="cuda:sm_90a")  # needs nothing of A
    call = kernel.plan_launch("cuda:sm_90a", None, given(131), {}).call
    compiled._check_facts(replace(call, device="cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 1), (9, 129), (2047, 33), (50, 3), (511, 1023)])
def test_on_the_gpu(shape: tuple[int, int]):
    """Nothing behind the last row is touched either."""
    import torch

    size = shape[0] * shape[1]
    a, b = (torch.randn(shape, device="cuda").half() for _ in range(2))
    whole = torch.full((size + 64,), 7.0, device="cuda", dtype=torch.float16)
    for kernel in (
        loop("float16"),
        tile("float16"),
        guarded("both"),
        loop("float16", tile=(1, 512)),
    ):
        whole.fill_(7.0)
        kernel(a, b, whole[:size].view(shape))
        assert torch.equal(whole[:size].view(shape), a - b) and bool((whole[size:] == 7.0).all())
