"""Overlapping iterations that also read tiles which TMA cannot bring: threads copy these ahead, and
the iteration that stands in front of the loop waits for its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from form_help import SM90, tile_func
from mutant_operators import change_at, sites

import tilec
import tilec.language as T
from tilec.ir.core import Func, walk
from tilec.ir.errors import InternalError
from tilec.ir.ops import Alloc, Barrier, Copy, CpAsyncWait
from tilec.ir.schedule import Plan
from tilec.passes import run_plan
from tilec.passes.check_schedule import check_schedule

M, N = T.dynamic("M, N")
OVERLAP = Plan("overlap", specialise=True, overlap=True, stages=3, threads=128)


def biased(
    Q: T.Tensor((M, 64), "float16"),
    K: T.Tensor((N, 64), "float16"),
    Bias: T.Tensor((N,), "float32"),
    Weights: T.Tensor((N,), "float32"),
    O: T.Tensor((M, 64), "float32"),
):
    """O = (relu(Q Kᵀ + Bias) Weights) K: begins of `Bias` and `Weights` are any multiple of 4 bytes
    where N is odd."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        T.annotate_schedule(overlap=True, specialise=True)
        q, k, v = (T.alloc_shared((n, 64), "float16") for n in (64, 32, 32))
        bias, weights = T.alloc_shared((32,), "float32"), T.alloc_shared((32,), "float32")
        s, p = T.alloc_fragment((64, 32), "float32"), T.alloc_fragment((64, 32), "float16")
        o = T.alloc_fragment((64, 64), "float32")
        T.clear(o)
        T.copy(Q[bx * 64, 0], q)
        for n in T.Pipelined(T.ceildiv(N, 32), num_stages=3):
            T.copy(K[n * 32, 0], k)
            T.copy(K[n * 32, 0], v)
            T.copy(Bias[n * 32], bias)
            T.copy(Weights[n * 32], weights)
            T.gemm(q, k, s, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(64, 32):
                s[i, j] = T.max(s[i, j] + bias[j], 0) * weights[j] / 64
            T.copy(s, p)
            T.gemm(p, v, o)
        T.copy(o, O[bx * 64, 0])


def arrays(rng: np.random.Generator, m: int, n: int) -> dict[str, np.ndarray]:
    """Vectors that begin 4 bytes behind a multiple of 16."""
    q, k = (rng.standard_normal((x, 64)).astype(np.float16) for x in (m, n))
    bias, weights = (rng.standard_normal(n + 1).astype(np.float32)[1:] for _ in range(2))
    return {"Q": q, "K": k, "Bias": bias, "Weights": weights, "O": np.full((m, 64), np.nan, "f4")}


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("keys", [1, 31, 64, 97, 130, 225])
def test_threads_wait_for_what_they_copy(keys: int, rng: np.random.Generator) -> None:
    """One to eight iterations, more and fewer than there are stages."""
    held = arrays(rng, 70, keys)
    kernel = tilec.kernel(biased)
    report = tilec.simulate(kernel, *held.values(), target="cuda:sm_90a")
    assert report.ok, report
    q, k, bias, weights = (held[n].astype(np.float64) for n in ("Q", "K", "Bias", "Weights"))
    want = np.maximum(q @ k.T + bias, 0) * weights / 64 @ k
    assert np.abs(held["O"] - want).max() <= 4e-3 * (1 + np.abs(want).max())


def scheduled(rng: np.random.Generator) -> Func:
    kept: dict[str, Func] = {}
    held = arrays(rng, 128, 97)
    run_plan(tile_func(biased, held), SM90, OVERLAP, kept.__setitem__)
    assert kept["arrange"].attrs["arranged"]
    return kept["insert_sync"]


def in_front(func: Func) -> list[Copy]:
    """The copies of vectors for the iteration in front of the loop, into a ring's first stage by
    the ring's own name."""
    rings = {o.result for o in walk(func.body) if isinstance(o, Alloc)}
    copies = [o for o in walk(func.body) if isinstance(o, Copy) and o.dest.buffer in rings]
    return [o for o in copies if o.dest.buffer.name in ("bias", "weights")]


def test_the_first_iteration_copies_for_itself(rng: np.random.Generator) -> None:
    func = scheduled(rng)
    first = in_front(func)
    assert len(first) == 2 and all(o.engine == "threads" and not o.ahead for o in first)
    others = [o for o in walk(func.body) if isinstance(o, Copy) and o.engine == "cp_async"]
    assert len(others) >= 4 and not any(o in first for o in others)


def test_the_verifier_sees_the_first_iteration(rng: np.random.Generator) -> None:
    """Copies that nobody waits for, and fewer waits and barriers than it takes."""
    func = scheduled(rng)
    assert check_schedule(func, SM90) is func
    broken = []
    for i, o in enumerate(sites(func)):
        if o in in_front(func):
            broken.append(change_at(func, i, lambda o: [replace(o, engine="cp_async")]))
        elif isinstance(o, CpAsyncWait):
            broken.append(change_at(func, i, lambda _: []))
            broken.append(change_at(func, i, lambda o: [replace(o, pending=o.pending + 1)]))
    assert len(broken) >= 4
    for one in broken:
        with pytest.raises(InternalError, match="the schedule is wrong"):
            check_schedule(one, SM90)


def test_the_verifier_misses_no_barrier(rng: np.random.Generator) -> None:
    func = scheduled(rng)
    inside = [i for i, o in enumerate(sites(func)) if isinstance(o, Barrier) and o.id is not None]
    found = 0
    for i in inside:
        try:
            check_schedule(change_at(func, i, lambda _: []), SM90)
        except InternalError:
            found += 1
    assert found >= 2, (found, len(inside))
