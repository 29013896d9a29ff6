"""Tiles that copies fill part by part: several pages of a cache, rows that are named one by one.
They run ahead of the products that read them, as a tile of one copy does."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

R, S, I, M = T.dynamic("R, S, I, M")
D, BN = 64, 64
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942")


def scores(
    page: int, kept: str = "float16", loop: Any = T.unroll, safe: float = 0.0, lists: bool = False
) -> Any:
    """Q Kᵀ of keys in pages, by rows of the table."""
    how: dict[str, Any] = {"order": (0, 1, 2, 3), "stage": (0, 1, 1, 1)} if lists else {}

    @tilec.kernel
    def by_pages(
        Q: T.Tensor((M, D), "float16"),
        K: T.Tensor((R, page, D), "float16"),
        Table: T.Tensor((I,), "int32"),
        O: T.Tensor((M, D), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, 64), threads=128) as by:
            if safe:
                T.annotate_safe_value({K: safe})
            q, k = T.alloc_shared((64, D), "float16"), T.alloc_shared((BN, D), kept)
            s, p = T.alloc_fragment((64, BN), "float32"), T.alloc_fragment((64, BN), kept)
            o = T.alloc_fragment((64, D), "float32")
            T.copy(Q[by * 64, 0], q)
            T.clear(o)
            for n in T.Pipelined(T.ceildiv(I * page, BN), num_stages=2, **how):
                for c in loop(BN // page):
                    row = Table[n * (BN // page) + c]
                    if page > 1:
                        T.copy(K[row, :, :], k[c * page : (c + 1) * page, :])
                    else:
                        T.copy(K[row, 0, :], k[c, :])
                if kept == "float16":
                    T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                    T.copy(s, p)
                else:
                    for i, j in T.Parallel(64, BN):
                        p[i, j] = q[i, j]
                T.gemm(p, k, o)
            T.copy(o, O[by * 64, 0])

    return by_pages


def arrays(page: int, keys: int = 150) -> tuple[list[Any], np.ndarray]:
    """Arguments and what is wanted; entries of the table that name no page give zeros."""
    rng = np.random.default_rng(page)
    pages = -(-keys // page)
    q = rng.standard_normal((70, D)).astype(np.float16)
    k = rng.standard_normal((pages, page, D)).astype(np.float16)
    table = rng.permutation(pages).astype(np.int32)
    table[[0, -1]] = -1, pages + 3
    behind = [0] * (-pages % (BN // page))  # what is read behind the table's end
    named = [*table, *behind]
    held = [k[i].astype(float) if 0 <= i < pages else np.zeros((page, D)) for i in named]
    keys_held = np.concatenate(held)
    want = (q.astype(float) @ keys_held.T).astype(np.float16).astype(float) @ keys_held
    return [q, k, table, np.full((70, D), np.nan, np.float32)], want


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("loop", [T.unroll, T.serial])
@pytest.mark.parametrize("page", [1, 8, 16, 32])
@pytest.mark.parametrize("target", TARGETS)
def test_pages_run_ahead(page: int, loop: Any, target: str) -> None:
    given, want = arrays(page)
    kernel = scores(page, loop=loop)
    made = kernel.compile(*given, target=target)
    assert " gather " in made.stages["recognise_gathers"]
    assert "ahead: k" in made.stages["plan"]
    if target != "hip:gfx942":
        assert made.stages["ptx"].count("cp.async.wait_group")
    report = tilec.simulate(kernel, *given, target=target)
    assert report.ok, report
    np.testing.assert_allclose(given[3], want, atol=0.01 * np.abs(want).max())


@pytest.mark.parametrize("page", [1, 16])
def test_on_the_cpu(page: int) -> None:
    given, want = arrays(page)
    scores(page)(*given)
    np.testing.assert_allclose(given[3], want, atol=0.01 * np.abs(want).max())


def written_out(read_between: bool = False) -> Any:
    """As `scores` of pages of 32 keys, with two copies; `read_between`: what the first of them
    brings is read in front of the second."""

    @tilec.kernel
    def by_two_pages(
        Q: T.Tensor((M, D), "float16"),
        K: T.Tensor((R, 32, D), "float16"),
        Table: T.Tensor((I,), "int32"),
        O: T.Tensor((M, D), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, 64), threads=128) as by:
            q, k = T.alloc_shared((64, D), "float16"), T.alloc_shared((BN, D), "float16")
            s, p = T.alloc_fragment((64, BN), "float32"), T.alloc_fragment((64, BN), "float16")
            o = T.alloc_fragment((64, D), "float32")
            T.copy(Q[by * 64, 0], q)
            T.clear(o)
            for n in T.Pipelined(T.ceildiv(I, 2), num_stages=2):
                first, second = Table[2 * n], Table[2 * n + 1]
                T.copy(K[second, :, :], k[32:64, :])
                if read_between:
                    T.copy(k, O[by * 64, 0])
                T.copy(K[first, :, :], k[0:32, :])
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                T.copy(s, p)
                T.gemm(p, k, o)
            T.copy(o, O[by * 64, 0])

    return by_two_pages


@pytest.mark.parametrize("target", TARGETS)
def test_copies_that_are_written_out(target: str) -> None:
    given, want = arrays(32)
    made = written_out().compile(*given, target=target)
    text = made.stages["join_parts"]
    assert text.count("copy %K") == 0 and "select" in text
    assert "ahead: k" in made.stages["plan"]
    assert tilec.simulate(written_out(), *given, target=target).ok
    np.testing.assert_allclose(given[3], want, atol=0.01 * np.abs(want).max())


def test_what_is_read_between_stays() -> None:
    made = written_out(read_between=True).compile(*arrays(32)[0], target="cuda:sm_80")
    assert made.stages["join_parts"].count("copy %K") == 2


def test_in_the_order_that_its_author_wants() -> None:
    given, want = arrays(16)
    made = scores(16, lists=True).compile(*given, target="cuda:sm_80")
    assert "ahead: k" in made.stages["plan"]
    assert tilec.simulate(scores(16, lists=True), *given, target="cuda:sm_80").ok
    np.testing.assert_allclose(given[3], want, atol=0.01 * np.abs(want).max())


def test_a_tile_of_a_wider_dtype_is_as_narrow_as_its_numbers() -> None:
    """Rows of float16 in a tile of float32 (`narrow_operands`) are gathered as those in its own."""
    given, _ = arrays(16)
    kernel = scores(16, kept="float32")
    made = kernel.compile(*given, target="cuda:sm_90a")
    assert " gather " in made.stages["recognise_gathers"]
    assert tilec.simulate(kernel, *given, target="cuda:sm_90a").ok
    got = given[3].copy()
    kernel(*given)
    np.testing.assert_allclose(got, given[3], rtol=1e-4, atol=1e-3)


def test_what_stays_and_is_said() -> None:
    """Rows that are not there are no zeros."""
    (given, _), how = arrays(16), {"safe": 1.0}
    with pytest.warns(tilec.PerformanceWarning, match="cannot run ahead.*a part of k"):
        made = scores(16, **how).compile(*given, target="cuda:sm_90a")
    assert " gather " not in made.stages["recognise_gathers"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert tilec.simulate(scores(16, **how), *given, target="cuda:sm_90a").ok
