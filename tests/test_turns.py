"""What warpgroups take that wait for products (`tilec/tune/cost.py`), and what tiles of different
length do: as numbers, also of loops that are no attention."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import tilec
import tilec.language as T
from tests.test_work import GPUS, numbers_of
from tilec.tune.cost import in_turns
from tilec.tune.rank import Candidate, Ranked

SM90 = "cuda:sm_90a"
M, N = T.dynamic("M, N")
F16 = "float16"


@tilec.kernel
def filtered(Q: T.Tensor((M, 64), F16), K: T.Tensor((N, 64), F16), O: T.Tensor((M, 64), F16)):
    """Two products and a square between them; nothing is folded, there is no exponential."""
    with T.Kernel(T.ceildiv(M, 128)) as bx:
        q, k = T.alloc_shared((128, 64), F16), T.alloc_shared((64, 64), F16)
        s, p = T.alloc_fragment((128, 64), "float32"), T.alloc_fragment((128, 64), F16)
        o = T.alloc_fragment((128, 64), "float32")
        T.copy(Q[bx * 128, 0], q)
        T.clear(o)
        for n in T.Pipelined(T.ceildiv(N, 64), num_stages=2):
            T.copy(K[n * 64, 0], k)
            T.gemm(q, k, s, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(128, 64):
                s[i, j] = s[i, j] * s[i, j]
            T.copy(s, p)
            T.gemm(p, k, o)
        T.copy(o, O[bx * 128, 0])


@tilec.kernel
def triangular(A: T.Tensor((M, M), F16), B: T.Tensor((M, N), F16), C: T.Tensor((M, N), F16)):
    """A product with the lower half of A."""
    with T.Kernel(T.ceildiv(M, 128), T.ceildiv(N, 128)) as (bx, by):
        a, b = T.alloc_shared((128, 64), F16), T.alloc_shared((64, 128), F16)
        c = T.alloc_fragment((128, 128), "float32")
        T.clear(c)
        for k in T.Pipelined((bx + 1) * 2, num_stages=3):
            T.copy(A[bx * 128, k * 64], a)
            T.copy(B[k * 64, by * 128], b)
            T.gemm(a, b, c)
        T.copy(c, C[bx * 128, by * 128])


def ranked(kernel: Any, *shapes: tuple[int, int]) -> list[Ranked]:
    specs = [tilec.spec(shape, F16) for shape in shapes]
    return [r for r in kernel.recommend(*specs, target=SM90, topk=500) if r.estimate is not None]


def test_one_stream_takes_the_sum_and_many_the_larger() -> None:
    assert in_turns(300, 200, 100, 1) == pytest.approx(600)
    assert in_turns(300, 200, 100, 200) == pytest.approx(300, rel=0.01)
    # Two and three at two units that are as busy: one of n + 1 turns is idle.
    assert in_turns(100, 100, 0, 2) == pytest.approx(150)
    assert in_turns(100, 100, 0, 3) == pytest.approx(400 / 3)
    for products, others, delay in itertools.product((50, 300), (0, 40, 700), (0, 90)):
        took = [in_turns(products, others, delay, n) for n in range(1, 9)]
        assert all(b < a + 1e-9 for a, b in itertools.pairwise(took))
        assert took[-1] >= max(products, others) - 1e-9


@pytest.mark.parametrize("target", GPUS)
def test_what_threads_do_between_two_products(target: str) -> None:
    specs = [tilec.spec((n, 64), F16) for n in (256, 640, 256)]
    mixed = numbers_of(filtered, specs, target=target).mixed
    each = 128 * 64  # a multiplication and a conversion
    assert (mixed.issued, mixed.special, mixed.folds) == (10 * 2 * each, 0, 0)
    assert (mixed.waited, mixed.stored) == (20, 0)


def test_warpgroups_hide_what_others_wait_for() -> None:
    """The same tile by one warpgroup and by two: none but they differ."""
    took = {
        r.plan.threads: r.estimate.seconds
        for r in reversed(ranked(filtered, (8192, 64), (8192, 64), (8192, 64)))
        if r.plan and r.plan.name == "specialised persistent" and r.estimate
    }
    assert took[256] < 0.85 * took[128]


@pytest.mark.parametrize("name", ["specialised persistent", "specialised"])
def test_uneven_tiles_count_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """2176 tiles of 2 to 32 iterations on 132 multiprocessors are 16.5 mean ones for each. As the
    longest begin first, that is about what they take, in place of 17 whole rounds; a block for
    each tile is no more even."""

    def least() -> float:
        rs = ranked(triangular, (2048, 2048), (2048, 17408), (2048, 17408))
        return min(r.estimate.seconds for r in rs if r.estimate and r.plan and r.plan.name == name)

    uneven = least()
    monkeypatch.setattr(Candidate, "_uneven", lambda *_, **__: 1.0)
    even = least()
    monkeypatch.setattr(Candidate, "_uneven", lambda *_, **__: 17 * 132 / 2176)
    assert even < uneven < 0.99 * least()
