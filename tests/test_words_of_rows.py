"""Weights whose words hold rows of a column (`words[k // 8, n] >> 4 * (k % 8) & 15`, as GPTQ packs
them) decoded into a shared tile: a thread reads a word once for all of its rows, and what has two
versions in shared memory fits into it, under every plan."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.codegen.ptxas import run_ptxas
from tilec.support.tools import find_ptxas

M, N, K, P, G = T.dynamic("M, N, K, P, G")
BITS = {"int32": 4, "uint8": 4, "uint16": 8}


def product(packed: str, tile: tuple[int, int, int] = (16, 64, 64), threads: int = 128) -> Any:
    """A product with weights of so many rows in a word."""
    bm, bn, bk = tile
    bits = BITS[packed]
    rows = np.dtype(packed).itemsize * 8 // bits

    @tilec.kernel
    def kernel(
        A: T.Tensor((M, K), "float16"), W: T.Tensor((P, N), packed),
        S: T.Tensor((G, N), "float16"), Z: T.Tensor((G, N), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, bn), T.ceildiv(M, bm), threads=threads) as (bx, by):
            a, made = T.alloc_shared((bm, bk), "float16"), T.alloc_shared((bk, bn), "float16")
            words = T.alloc_shared((bk // rows, bn), packed)
            acc = T.alloc_fragment((bm, bn), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, bk)):
                T.copy(A[by * bm, k * bk], a)
                T.copy(W[k * bk // rows, bx * bn], words)
                for i, j in T.Parallel(bk, bn):
                    q = (T.int32(words[i // rows, j]) >> (bits * (i % rows))) & ((1 << bits) - 1)
                    g = (k * bk + i) // 64
                    made[i, j] = (T.cast(q, "float16") - Z[g, bx * bn + j]) * S[g, bx * bn + j]
                T.gemm(a, made, acc)
            T.copy(acc, C[by * bm, bx * bn])

    return kernel


def operands(packed: str, m: int, n: int, k: int) -> tuple[Any, ...]:
    """Arrays, with NaN where the product will be, and what it will be."""
    rng, bits = np.random.default_rng(m * n + k), BITS[packed]
    rows = np.dtype(packed).itemsize * 8 // bits
    q = rng.integers(0, 1 << bits, (k, n))
    words = sum(q[i::rows] << bits * i for i in range(rows))
    words = words.astype(np.uint32 if packed == "int32" else packed).view(packed)
    a = rng.integers(-2, 3, (m, k)).astype(np.float16)
    groups = -(-k // 64)
    s, z = (rng.integers(1, 4, (groups, n)).astype(np.float16) for _ in range(2))
    weights = (q - np.repeat(z, 64, 0)[:k].astype(int)) * np.repeat(s, 64, 0)[:k].astype(int)
    return a, words, s, z, np.full((m, n), np.nan, np.float32), a.astype(int) @ weights


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu"])
@pytest.mark.parametrize("packed", BITS)
@pytest.mark.parametrize("size", [(16, 64, 192), (5, 72, 128), (1, 8, 64), (33, 57, 320)])
def test_the_numbers(target: str, packed: str, size: tuple[int, int, int]) -> None:
    *arrays, wanted = operands(packed, *size)
    run(product(packed), target, *arrays)
    np.testing.assert_array_equal(arrays[-1], wanted)


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize(
    "packed, lanes, stores", [("int32", 4, 8), ("uint8", 16, 4), ("uint16", 8, 2)]
)
@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80"])
def test_a_word_is_read_once(target: str, packed: str, lanes: int, stores: int) -> None:
    """For all of its rows, with neighbours, by a vector that is stored by so many."""
    *arrays, _ = operands(packed, 16, 64, 192)
    made = product(packed).compile(*arrays, target=target)
    text = str(made.stages["lower_parallel"])
    read = re.findall(r"mem_load %words\S*, \S+, lanes=(\d+)", text)
    stored = re.findall(r"mem_store %made\S*, (\S+), ", text)
    assert {*read} == {str(lanes)} and len(stored) == len(read) * stores


@pytest.mark.usefixtures("unassembled")
def test_every_plan_has_room_for_two_versions() -> None:
    """Of the tile that threads fill; groups that take turns have one each."""
    given = operands("int32", 256, 256, 1024)[:-1]
    kernel = product("int32", (128, 256, 64), 256)
    found = [r.plan for r in tilec.recommend(kernel, *given, topk=20, target="cuda:sm_90a")]
    two = 0
    for plan in found[:2]:
        made = kernel.compile_with_plan(plan, *given, target="cuda:sm_90a")
        two += "made_other" in made.resources.buffers
        assert made.resources.shared_bytes <= 232448
    assert two and found[0].specialise
    kernel = product("int32", (64, 128, 64), 128)
    plans = [r.plan for r in tilec.recommend(kernel, *given, topk=20, target="cuda:sm_90a")]
    turns = next(p for p in plans if p.consumer_groups == 2)
    made = kernel.compile_with_plan(turns, *given, target="cuda:sm_90a")
    assert "made_other" not in made.resources.buffers


def test_fields_of_two_words_are_halves_of_one() -> None:
    """Neighbours of a row have their bytes brought together: no shift, and one mask for both."""
    *arrays, _ = operands("int32", 128, 128, 1024)
    made = product("int32", (128, 128, 64), 256).compile(*arrays, target="cuda:sm_90a")
    ptx = str(made.stages["ptx"])
    assert ptx.count("prmt.b32") >= 16 and len(re.findall(r"lop3\.b32.*0xEA", ptx)) >= 16
    assert "cvt.rn.f16.s32" not in ptx and ptx.count("fma.rn.f16 ") >= 16
    ptxas = find_ptxas()
    if ptxas is not None:
        report = run_ptxas(ptxas, ptx, "sm_90a")
        assert not report.spilled_bytes and not report.advisories


ORDER = np.array([4 * (j % 8 // 2 + 4 * (j % 2)) for j in range(8)])  # of AWQ's fields


@tilec.kernel
def columns(
    A: T.Tensor((M, K), "float16"), W: T.Tensor((K, P), "int32"), S: T.Tensor((G, N), "float16"),
    Z: T.Tensor((G, P), "int32"), C: T.Tensor((M, N), "float32"),
):  # fmt: skip
    """Words of columns, as AWQ packs them, less words of zero points: two warpgroups fill a tile in
    two versions, by loops that `read_ahead` has cut into groups of eight."""
    with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 128), threads=256) as (bx, by):
        T.annotate_schedule(specialise=True, persistent=False, stages=3)
        a, made = T.alloc_shared((128, 64), "float16"), T.alloc_shared((64, 128), "float16")
        words = T.alloc_shared((64, 16), "int32")
        acc = T.alloc_fragment((128, 128), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 64)):
            T.copy(A[by * 128, k * 64], a)
            T.copy(W[k * 64, bx * 16], words)
            for i, j in T.Parallel(64, 128):
                shift = 4 * ((j % 8) // 2 + 4 * (j % 2))
                q, g = (words[i, j // 8] >> shift) & 15, (k * 64 + i) // 64
                z = (Z[g, (bx * 128 + j) // 8] >> shift) & 15
                made[i, j] = T.cast(q - z, "float16") * S[g, bx * 128 + j]
            T.gemm(a, made, acc)
        T.copy(acc, C[by * 128, bx * 128])


@pytest.mark.parametrize("trips", [1, 2, 5])
def test_columns_have_two_versions(trips: int) -> None:
    rng = np.random.default_rng(trips)
    m, n, k = 130, 160, 64 * trips
    w, z = (rng.integers(-(2**31), 2**31, (r, n // 8)).astype(np.int32) for r in (k, trips))
    a = rng.integers(-2, 3, (m, k)).astype(np.float16)
    s, c = rng.integers(1, 4, (trips, n)).astype(np.float16), np.full((m, n), np.nan, np.float32)
    q, zeros = (
        ((x[:, np.arange(n) // 8] >> np.tile(ORDER, n // 8)) & 15).astype(int) for x in (w, z)
    )
    weights = (q - np.repeat(zeros, 64, 0)) * np.repeat(s, 64, 0).astype(int)
    made = columns.compile(a, w, s, z, c, target="cuda:sm_90a")
    assert "made_other" in made.resources.buffers
    run(columns, "cuda:sm_90a", a, w, s, z, c)
    np.testing.assert_array_equal(c, a.astype(int) @ weights)


@pytest.mark.parametrize("rows, columns, threads", [(72, 40, 128), (104, 72, 96), (8, 8, 32)])
def test_tiles_that_threads_do_not_divide(rows: int, columns: int, threads: int) -> None:
    @tilec.kernel
    def kernel(W: T.Tensor((rows // 8, columns), "int32"), Y: T.Tensor((rows, columns), "float16")):
        with T.Kernel(1, threads=threads):
            words = T.alloc_shared((rows // 8, columns), "int32")
            T.copy(W, words)
            for i, j in T.Parallel(rows, columns):
                Y[i, j] = T.cast((words[i // 8, j] >> (4 * (i % 8))) & 15, "float16")

    words = np.random.default_rng(1).integers(-(2**31), 2**31, (rows // 8, columns))
    y = np.full((rows, columns), np.nan, np.float16)
    run(kernel, "cuda:sm_90a", words.astype(np.int32), y)
    wanted = (np.repeat(words, 8, 0) >> (4 * (np.arange(rows) % 8))[:, None]) & 15
    np.testing.assert_array_equal(y, wanted)
