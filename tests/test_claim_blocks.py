"""Blocks of a persistent kernel take tiles of different length as they come: which kernels do, and
what they compute, in the simulator, with more tiles than blocks and with fewer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from benchmarks.attention_kernels import forward
from tilec import spec
from tilec.passes.block_order import takes_as_they_come

SM90 = "cuda:sm_90a"
M, N, I = T.dynamic("M, N, I")
WORDS = (("specialise", True), ("persistent", True), ("overlap", True))


def compiled(causal: bool, **words: Any) -> Any:
    kernel = forward(64, causal, 256, tuple(words.items()))
    return kernel.compile(*[spec((2, 512, 4, 64), "float16")] * 4, target=SM90, BM=128, BN=64)


@pytest.mark.parametrize(
    ("causal", "words", "claimed"),
    [
        (True, {"specialise": True, "persistent": True}, True),
        (False, {"specialise": True, "persistent": True}, False),
        (True, {"specialise": True, "persistent": False}, False),
        (True, {"specialise": True, "persistent": True, "consumers": "pingpong"}, False),
    ],
)
def test_only_uneven_tiles_are_taken(causal: bool, words: dict[str, Any], claimed: bool) -> None:
    if words.get("consumers") == "pingpong":
        kernel = forward(64, causal, 128, tuple(words.items()))
        given = [spec((2, 512, 4, 64), "float16")] * 4
        found = kernel.compile(*given, target=SM90, BM=64, BN=64)
    else:
        found = compiled(causal, **words)
    text = str(found.stages["insert_sync"])
    assert ("next_tile" in text and "atomic %tiles_taken" in text) is claimed
    assert ("for.persistent" in text) is (words["persistent"] and not claimed)


def test_who_can_ask() -> None:
    assert takes_as_they_come(True, 1, (1, 1, 1))
    assert not takes_as_they_come(False, 1, (1, 1, 1))
    assert not takes_as_they_come(True, 2, (1, 1, 1))
    assert not takes_as_they_come(True, 1, (2, 1, 1))


@pytest.mark.parametrize(("length", "resident"), [(300, 2), (100, 8)])
def test_each_tile_is_done_once(length: int, resident: int) -> None:
    shape = (1, length, 2, 64)
    rng = np.random.default_rng(length)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for _ in range(3))
    o = np.full(shape, np.nan, np.float16)
    kernel = forward(64, True, 256, WORDS)
    report = tilec.simulate(
        kernel, q, k, v, o, target=SM90, BM=128, BN=64, resident_blocks=resident, schedules=2
    )
    assert not report.findings
    a, b, c = (x.astype(np.float64) for x in (q, k, v))
    s = np.einsum("bihd,bjhd->bhij", a, b) / 8
    s = np.where(np.tril(np.ones((length, length), bool)), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    want = np.einsum("bhij,bjhd->bihd", p / p.sum(-1, keepdims=True), c)
    np.testing.assert_allclose(o, want, atol=3e-3)


def conditional() -> Any:
    """Sums of the blocks of a row that are chosen; later rows have more to choose from."""

    @tilec.kernel
    def chosen_sums(
        A: T.Tensor((M, M), "float16"),
        B: T.Tensor((64, M), "float16"),
        Chosen: T.Tensor((I, I), "int8"),
        C: T.Tensor((M, 64), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
            T.annotate_schedule(specialise=True, persistent=True, stages=2)
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(bx + 1, num_stages=2):
                if Chosen[bx, k] != 0:
                    T.copy(A[bx * 64, k * 64], a)
                    T.copy(B[0, k * 64], b)
                    T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[bx * 64, 0])

    return chosen_sums


def test_conditions_of_a_tile_are_asked_by_whole_warps() -> None:
    """The lanes of the producer's warp are told which tile the first one has got."""
    m, blocks = 448, 7
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((rows, m)).astype(np.float16) for rows in (m, 64))
    chosen = (rng.random((blocks, blocks)) < 0.5).astype(np.int8)
    chosen[3] = 0
    c = np.full((m, 64), np.nan, np.float32)
    kernel = conditional()
    text = str(kernel.compile(a, b, chosen, c, target=SM90).stages["batch_conditions"])
    producer = text[text.index("scope producer") :]
    assert "atomic %tiles_taken" in producer
    assert producer.count("shuffle %") == 1 and "shuffle_xor" in producer
    report = tilec.simulate(kernel, a, b, chosen, c, target=SM90, resident_blocks=2, schedules=2)
    assert not report.findings
    seen = np.kron(np.tril(chosen), np.ones((64, 64)))
    want = (a.astype(np.float64) * seen) @ b.astype(np.float64).T
    np.testing.assert_allclose(c, want, rtol=1e-3, atol=1e-2)


def by_counts() -> Any:
    """Sums of products of a tile with as many others as a tensor says."""

    @tilec.kernel
    def counted_products(
        A: T.Tensor((M, 64), "float16"),
        B: T.Tensor((N, 64), "float16"),
        Counts: T.Tensor((I,), "int32"),
        C: T.Tensor((M, 64), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
            T.annotate_schedule(specialise=True, persistent=True)
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A[bx * 64, 0], a)
            T.clear(c)
            for k in T.Pipelined(Counts[bx], num_stages=2):
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c, transpose_B=True)
            for i, j in T.Parallel(64, 64):
                C[bx * 64 + i, j] = c[i, j]

    return counted_products


COUNTS = [2, 0, 0, 1, 0, 0, 0, 3, 0, 1, 0, 0]


def test_a_tile_without_an_iteration_holds_its_operand_for_all_warps() -> None:
    """Where no product comes, a warp that is ahead must not free what the others wait for: each
    warp of the four frees it, where one would do for operands of a product that certainly comes."""
    m = 64 * len(COUNTS)
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal((rows, 64)).astype(np.float16) for rows in (m, 192))
    counts = np.array(COUNTS, np.int32)
    c = np.full((m, 64), np.nan, np.float32)
    kernel = by_counts()
    given = a, b, counts, c
    text = str(kernel.compile(*given, target=SM90).stages["insert_sync"])
    assert "mbarrier_init %ring0_empty, 4\n" in text  # the tile
    assert "mbarrier_init %ring1_empty, 1\n" in text  # what the loop brings
    report = tilec.simulate(kernel, *given, target=SM90, resident_blocks=2, schedules=4)
    assert not report.findings
    sums = np.stack([b[: 64 * n].astype(np.float64).reshape(-1, 64, 64).sum(0) for n in COUNTS])
    want = np.einsum("tik,tjk->tij", a.astype(np.float64).reshape(-1, 64, 64), sums)
    np.testing.assert_allclose(c, want.reshape(m, 64), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("kernel", "claimed"), [(by_counts(), True), (conditional(), True), (forward(64, False), False)]
)
def test_ranges_and_conditions_from_memory_are_uneven(kernel: Any, claimed: bool) -> None:
    x = spec((768, 64), "float16")
    match kernel.name:
        case "counted_products":
            given = [x, x, spec((12,), "int32"), spec((768, 64), "float32")]
        case "chosen_sums":
            given = [spec((768, 768), "float16"), spec((64, 768), "float16")]
            given += [spec((12, 12), "int8"), spec((768, 64), "float32")]
        case _:
            given = [spec((2, 512, 4, 64), "float16")] * 4
    found = kernel.compile(*given, target=SM90)
    assert ("atomic %tiles_taken" in str(found.stages["insert_sync"])) is claimed


def test_blocks_that_share_a_multiprocessor_take_tiles_too() -> None:
    x = spec((4, 4096, 16, 64), "float16")
    words = (("persistent", True), ("specialise", True), ("overlap", True))
    found = forward(64, True, 128, words).compile(x, x, x, x, target=SM90, BM=64, BN=64)
    assert found.resources.blocks_per_sm > 1
    assert "atomic %tiles_taken" in str(found.stages["insert_sync"])
