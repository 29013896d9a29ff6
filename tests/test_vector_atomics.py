"""Sums in global memory of several neighbours at once: `red.global.add.v2.f32` of sm_90, and pairs
of halves."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

M, N = T.dynamic("M, N")
TARGETS = ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"]


@tilec.kernel
def added_product(
    A: T.Tensor((64, 32), "float16"),
    B: T.Tensor((32, 32), "float16"),
    C: T.Tensor((M, N), "float32"),
):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 64), threads=128) as (bx, by):
        a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 32), "float16")
        acc = T.alloc_fragment((64, 32), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, acc, clear_accum=True)
        T.atomic_add(C[by * 64, bx * 32], acc)


@tilec.kernel
def added_rows(A: T.Tensor((M, N), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 128), M, threads=32) as (bx, by):
        for j in T.Parallel(128):
            T.atomic_add(C[bx * 128 + j], A[by, bx * 128 + j])


@tilec.kernel
def looked_at(
    A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32"), D: T.Tensor((M, N), "float32")
):
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(4, 64):
            D[i, j] = T.atomic_add(C[i, j], A[i, j], return_prev=True)


def vectors(made: Any) -> set[str]:
    return set(re.findall(r"red\.relaxed\.gpu\.global\.add\S+", made.stages["llvm"]))


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(64, 32), (130, 64), (50, 30), (1, 1), (70, 33), (64, 96)])
def test_a_tile_is_added(shape: tuple[int, int], target: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, s).astype("float16") for s in ((64, 32), (32, 32)))
    c = rng.integers(-4, 5, shape).astype("float32")
    tile = a.astype("float32") @ b.astype("float32")
    wanted = c + np.tile(tile, (3, 3))[: shape[0], : shape[1]]
    report = tilec.simulate(added_product, a, b, c, target=target)
    assert not report.findings, report
    np.testing.assert_array_equal(c, wanted)
    pairs = target == "cuda:sm_90a" and shape[1] % 2 == 0
    made = added_product.compile(a, b, c, target=target)
    assert vectors(made) == ({"red.relaxed.gpu.global.add.v2.f32"} if pairs else set())


@pytest.mark.parametrize("shape", [(7, 256), (3, 130), (2, 129), (1, 2)])
def test_neighbours_of_a_thread(shape: tuple[int, int]) -> None:
    a = np.random.default_rng(0).integers(-4, 5, shape).astype("float32")
    c = np.ones(shape[1], "float32")
    report = tilec.simulate(added_rows, a, c, target="cuda:sm_90a")
    assert not report.findings, report
    np.testing.assert_array_equal(c, 1 + a.sum(0))
    made = added_rows.compile(a, c, target="cuda:sm_90a")
    width = {2: "v2", 0: "v4"}.get(shape[1] % 4)
    assert vectors(made) == ({f"red.relaxed.gpu.global.add.{width}.f32"} if width else set())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("columns", [256, 132, 130, 129])
def test_pairs_of_halves(columns: int, dtype: str) -> None:
    @tilec.kernel
    def halves(A: T.Tensor((M, N), dtype), C: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, 256), M, threads=32) as (bx, by):
            for j in T.Parallel(256):
                T.atomic_add(C[bx * 256 + j], A[by, bx * 256 + j])

    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    a = np.random.default_rng(0).integers(-4, 5, (5, columns)).astype(kind)
    c = np.ones(columns, kind)
    report = tilec.simulate(halves, a, c, target="cuda:sm_90a")
    assert not report.findings, report
    np.testing.assert_array_equal(c.astype(float), 1 + a.astype(float).sum(0))
    short = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    width = {256: ".v4", 132: ".v2"}.get(columns, "")
    made = halves.compile(a, c, target="cuda:sm_90a")
    assert vectors(made) == {f"red.relaxed.gpu.global.add.noftz{width}.{short}x2"}


def test_who_looks_at_what_was_there_adds_alone() -> None:
    a = np.random.default_rng(0).integers(-4, 5, (4, 64)).astype("float32")
    c, d = np.ones((4, 64), "float32"), np.zeros((4, 64), "float32")
    report = tilec.simulate(looked_at, a, c, d, target="cuda:sm_90a")
    assert not report.findings, report
    np.testing.assert_array_equal(d, np.ones((4, 64)))
    np.testing.assert_array_equal(c, a + 1)
    assert not vectors(looked_at.compile(a, c, d, target="cuda:sm_90a"))


def test_a_plain_store_beside_sums_is_a_race() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((M, N), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(2, threads=32) as bx:
            if bx == 0:
                for j in T.Parallel(128):
                    T.atomic_add(C[j], A[bx, j])
            else:
                for j in T.Parallel(128):
                    C[j] = 0.0

    a, c = np.ones((2, 128), "float32"), np.zeros(128, "float32")
    report = tilec.simulate(kernel, a, c, target="cuda:sm_90a")
    assert vectors(kernel.compile(a, c, target="cuda:sm_90a"))
    assert any(f.kind == "data race" for f in report.findings), report


def scattered(each: int, width: int, guarded: bool = False) -> Any:
    """Rows that a list names get the sums of those of A, `each` elements in one iteration."""

    @tilec.kernel
    def kernel(
        A: T.Tensor((M, width), "float32"),
        rows: T.Tensor((M,), "int32"),
        C: T.Tensor((M, width), "float32"),
    ):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(4, 64 // each):
                if guarded:
                    for n in T.unroll(each):
                        if each * j + n < 62:
                            T.atomic_add(C[rows[i], each * j + n], A[i, each * j + n])
                elif each == 4:
                    T.atomic_addx4(C[rows[i], 4 * j], A[i, 4 * j])
                elif each == 2:
                    row = rows[i]
                    T.atomic_add(C[row, 2 * j], A[i, 2 * j])
                    T.atomic_add(C[row, 2 * j + 1], A[i, 2 * j + 1])
                else:
                    for n in T.unroll(each):
                        T.atomic_add(C[rows[i], each * j + n], A[i, each * j + n])

    return kernel


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("each", "width", "found"),
    [(4, 64, "v4"), (2, 64, "v4"), (2, 66, "v2"), (3, 63, ""), (4, 66, "v2")],
)
@pytest.mark.parametrize("target", TARGETS)
def test_neighbours_of_one_statement(each: int, width: int, found: str, target: str) -> None:
    """Where rows begin at multiples of as many, sums of one iteration, too, are one instruction."""
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (4, width)).astype("float32")
    rows, c = np.array([2, 0, 2, 1], "int32"), np.ones((4, width), "float32")
    kernel, covered = scattered(each, width), 64 // each * each
    report = tilec.simulate(kernel, a, rows, c, target=target)
    assert not report.findings, report
    want = np.ones((4, width))
    np.add.at(want[:, :covered], rows, a[:, :covered])
    np.testing.assert_array_equal(c, want)
    found = found if target == "cuda:sm_90a" else ""
    name = f"red.relaxed.gpu.global.add.{found}.f32"
    assert vectors(kernel.compile(a, rows, c, target=target)) == ({name} if found else set())


def test_neighbours_under_conditions_of_their_own() -> None:
    a, rows = np.ones((4, 62), "float32"), np.arange(4, dtype="int32")
    c, kernel = np.zeros((4, 62), "float32"), scattered(4, 62, guarded=True)
    report = tilec.simulate(kernel, a, rows, c, target="cuda:sm_90a")
    assert not report.findings, report
    np.testing.assert_array_equal(c, a)
    assert not vectors(kernel.compile(a, rows, c, target="cuda:sm_90a"))
