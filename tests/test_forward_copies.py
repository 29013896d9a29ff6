"""What says which tiles a loop brings may lie in a buffer that was copied on chip: a row of a block
mask, a page table, the indices of a gather. The tiles run ahead as if the tensor were read."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from simulated import run, run_compiled

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

M, N, K, P, I, J = T.dynamic("M, N, K, P, I, J")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")
GPUS = TARGETS[:3]


def masked(space: str, store: bool = False) -> Any:
    """The sum of the products of the blocks of A and B that a row of a mask has; `store`: the
    kernel writes other rows of the mask, too."""
    alloc = T.alloc_shared if space == "shared" else T.alloc_fragment

    @tilec.kernel
    def some_blocks(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        Mask: T.Tensor((I, 8), "int8"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
            acc, mask = T.alloc_fragment((64, 64), "float32"), alloc((8,), "int8")
            T.clear(acc)
            T.copy(Mask[by, :], mask)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
                if mask[k] != 0:
                    T.copy(A[by * 64, k * 32], a)
                    T.copy(B[k * 32, bx * 64], b)
                    T.gemm(a, b, acc)
            T.copy(acc, C[by * 64, bx * 64])
            if store:
                Mask[by + 2, bx] = T.int8(0)

    return some_blocks


@tilec.kernel
def pages(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((P, 32, N), "float16"),
    Table: T.Tensor((I, 1, 6), "int64"),
    C: T.Tensor((M, N), "float32"),
):
    """B's rows lie in pages, of which each row of the table names six."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
        acc, table = T.alloc_fragment((64, 64), "float32"), T.alloc_shared((2, 3), "int32")
        T.clear(acc)
        for half in T.serial(2):
            T.copy(Table[by, 0, half * 3 : half * 3 + 3], table[1, :])
        flat = T.alloc_shared((6,), "int32")
        T.copy(Table[by, 0, :], flat)
        for k in T.Pipelined(6, num_stages=2):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[flat[k], 0:32, bx * 64 : bx * 64 + 64], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * 64, bx * 64])


@tilec.kernel
def gathered(
    A: T.Tensor((P, K), "float16"),
    B: T.Tensor((N, K), "float16"),
    Ids: T.Tensor((M,), "int32"),
    C: T.Tensor((M, N), "float32"),
):
    """Rows of A by indices that lie in shared memory."""
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 64), threads=128) as (bx, by):
        a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 32), "float16")
        acc, ids = T.alloc_fragment((64, 32), "float32"), T.alloc_shared((64,), "int32")
        T.clear(acc)
        T.copy(Ids[by * 64 : by * 64 + 64], ids)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            for i, j in T.Parallel(64, 32):
                a[i, j] = A[ids[i], k * 32 + j]
            T.copy(B[bx * 32, k * 32], b)
            T.gemm(a, b, acc, transpose_B=True)
        T.copy(acc, C[by * 64, bx * 32])


def computed(how: str) -> Any:
    """As `gathered`, of indices that threads compute: tokens have two of them each, and behind the
    50th there are none."""

    @tilec.kernel
    def rows_of(
        A: T.Tensor((P, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        Ids: T.Tensor((M,), "int32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 64), threads=128) as (bx, by):
            a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 32), "float16")
            acc, ids = T.alloc_fragment((64, 32), "float32"), T.alloc_shared((64,), "int32")
            T.clear(acc)
            for i in T.Parallel(64):
                ids[i] = T.if_then_else(by * 64 + i < 50, Ids[by * 64 + i] // 2, -1)
            if how == "changed":
                ids[3] = 0
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
                for i, j in T.Parallel(64, 32):
                    a[i, j] = T.if_then_else(ids[i] >= 0, A[ids[i], k * 32 + j], 0)
                T.copy(B[bx * 32, k * 32], b)
                T.gemm(a, b, acc, transpose_B=True)
            T.copy(acc, C[by * 64, bx * 32])

    return rows_of


def given(kind: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Arguments with a poisoned result, and what is wanted."""
    rng = np.random.default_rng(len(kind))
    half = lambda *shape: rng.standard_normal(shape).astype(np.float16)  # noqa: E731
    wide = lambda x: x.astype(np.float64)  # noqa: E731
    if kind == "gathered":
        a, b = half(9, 72), half(40, 72)
        ids = rng.integers(0, 9, 70).astype(np.int32)
        rest, want = [b, ids], wide(a)[ids] @ wide(b).T
    elif kind == "computed":
        a, b = half(9, 72), half(40, 72)
        ids = rng.integers(0, 18, 70).astype(np.int32)
        rows = wide(a)[ids // 2] * (np.arange(70) < 50)[:, None]
        rest, want = [b, ids], rows @ wide(b).T
    elif kind == "pages":
        a, b = half(100, 192), half(7, 32, 72)
        table = rng.integers(0, 7, (2, 1, 6)).astype(np.int64)
        want = np.concatenate(
            [wide(a)[64 * i : 64 * i + 64] @ wide(b)[table[i, 0]].reshape(192, 72) for i in (0, 1)]
        )
        rest = [b, table]
    else:
        a, b = half(100, 250), half(250, 72)
        mask = (rng.random((4, 8)) < 0.5).astype(np.int8)
        seen = np.repeat(np.repeat(mask[:2], 64, 0)[:100], 32, 1)[:, :250]
        rest, want = [b, mask], (wide(a) * seen) @ wide(b)
    return [a, *rest, np.full(want.shape, np.nan, np.float32)], want


PROGRAMS = {
    "shared mask": (lambda: masked("shared"), "a: a, by", "mask"),
    "mask": (lambda: masked("fragment"), "a: a, by", "mask"),
    "pages": (lambda: pages, "a: a, by", "flat"),
    "gathered": (lambda: gathered, "a: a, by", "ids"),
    "computed": (lambda: computed(""), "a: a, by", "ids"),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", PROGRAMS)
def test_numbers(kind: str, target: str) -> None:
    arrays, want = given(kind.split()[-1])
    run(PROGRAMS[kind][0](), target, *arrays)
    np.testing.assert_allclose(arrays[-1], want, atol=0.05)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("kind", PROGRAMS)
def test_tiles_run_ahead_and_the_buffer_is_gone(kind: str, target: str) -> None:
    arrays, _ = given(kind.split()[-1])
    made = PROGRAMS[kind][0]().plan_launch(target, None, arrays, {}).variant
    assert "not ahead" not in made.stages["plan"]
    assert made.stages["plan"].count("ahead: ") == 2
    buffer = PROGRAMS[kind][2]
    assert f"%{buffer} = alloc" in made.stages["recognise_idioms"]
    assert f"%{buffer} = alloc" not in made.stages["forward_copies"]


@pytest.mark.parametrize("target", GPUS)
def test_what_the_kernel_writes_is_read_where_the_author_has_it(target: str) -> None:
    arrays, want = given("mask")
    kernel = masked("shared", store=True)
    made = kernel.plan_launch(target, None, arrays, {}).variant
    assert "%mask = alloc" in made.stages["forward_copies"]
    run(kernel, target, *arrays)
    np.testing.assert_allclose(arrays[-1], want, atol=0.05)


def test_what_is_changed_behind_the_loop_that_fills_it_is_not_computed_again() -> None:
    arrays, want = given("computed")
    kernel = computed("changed")
    made = kernel.plan_launch("cuda:sm_90a", None, arrays, {}).variant
    assert "%ids = alloc" in made.stages["forward_copies"]
    run(kernel, "cuda:sm_90a", *arrays)
    a, b = (x.astype(np.float64) for x in arrays[:2])
    want[[3, 67]] = a[0] @ b.T
    np.testing.assert_allclose(arrays[-1], want, atol=0.05)


def norm(rows: int, dtype: str = "float16", times: int = 1) -> Any:
    """Rows scaled by weights that each block copies to shared memory, `times` times over."""

    @tilec.kernel
    def scaled(
        X: T.Tensor((M, N), "float32"),
        W: T.Tensor((N,), dtype),
        Y: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, rows), threads=128) as b:
            w, x = T.alloc_shared((256,), dtype), T.alloc_fragment((rows, 256), "float32")
            mean = T.alloc_fragment((rows,), "float32")
            T.copy(W[0], w)
            T.copy(X[b * rows, 0], x)
            T.reduce_sum(x, mean, dim=1)
            for _ in T.serial(times):
                for i, j in T.Parallel(rows, 256):
                    x[i, j] = (x[i, j] - mean[i] / N) * T.cast(w[j], "float32")
            T.copy(x, Y[b * rows, 0])

    return scaled


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("rows", "times", "gone"), [(1, 1, True), (4, 1, False), (1, 2, False)], ids=str
)
def test_weights_that_a_loop_reads_once_are_not_staged(
    rows: int, times: int, gone: bool, target: str
) -> None:
    """With several rows, or times, the copy on chip is read more often than the tensor."""
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((7, 250), "float32"), rng.standard_normal(250).astype("float16")
    y = np.full_like(x, np.nan)
    want, mean = x.astype("float64"), x.astype("float64").mean(1, keepdims=True)
    for _ in range(times):
        want = (want - mean) * w
    kernel = norm(rows, times=times)
    made = kernel.plan_launch(target, None, [x, w, y], {}).variant
    run(kernel, target, x, w, y)
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)
    assert ("%w = alloc" not in made.stages["forward_copies"]) == gone


def packed(how: str) -> Any:
    """C = A W^T of weights of four bits, which are read out of a fragment of bytes."""

    @tilec.kernel
    def kernel(
        A: T.Tensor((M, K), "float16"),
        W: T.Tensor((N, J), "uint8"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            a, w = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 32), "uint8")
            held = T.alloc_fragment((64, 32), "uint8")
            d, acc = T.alloc_fragment((64, 64), "float16"), T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
                T.copy(A[by * 64, k * 64], a)
                T.copy(W[bx * 64, k * 32], w)
                T.copy(w, held)
                if how == "overwritten":
                    T.fill(w, 0)
                for i, j in T.Parallel(64, 64):
                    d[i, j] = T.cast((held[i, j // 2] >> (4 * (j % 2))) & 15, "float16")
                T.gemm(a, d, acc, transpose_B=True)
            T.copy(acc, C[by * 64, bx * 64])

    return kernel


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how", ["kept", "overwritten"])
def test_what_registers_cannot_be_indexed_as(
    how: str, target: str, rng: np.random.Generator
) -> None:
    a = (rng.standard_normal((70, 160)) / 8).astype(np.float16)
    w = rng.integers(0, 256, (90, 80)).astype(np.uint8)
    c = np.full((70, 90), np.nan, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error" if how == "kept" else "ignore")  # "is kept in shared memory"
        run_compiled(packed(how), target, a, w, c)
    weights = np.stack([w & 15, w >> 4], -1).reshape(90, 160).astype(float)
    np.testing.assert_allclose(c, a.astype(float) @ weights.T, rtol=2e-3, atol=2e-3)
    if target != "cpu":
        stages = packed(how).compile(a, w, c, target=target).stages
        assert ("%held" in stages["forward_copies"]) == (how == "overwritten")
