"""Loops inside of whole loops that end where their iteration says: triangles, lengths of rows and
of batches."""

from typing import Any

import numpy as np
import pytest
from simulated import products_in, run

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

B, S, K, M = T.dynamic("B, S, K, M")
TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
f16, f32, i32 = "float16", "float32", "int32"

CAUSAL = True
n = "what a name of a loop's own is outside of it"


@tilec.kernel
def growing(Q: T.Tensor((S, K), f16), W: T.Tensor((S, K), f16), L: T.Tensor((S,), f32)) -> None:
    for i in T.Parallel(S):
        most = -T.infinity("float32")
        for s in range(i + 1):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[i, k], f32) * T.cast(W[s, k], f32)
            most = T.max(most, acc)
        L[i] = most


@tilec.kernel
def at_most(Q: T.Tensor((M, K), f16), W: T.Tensor((S, K), f16), L: T.Tensor((M,), f32)) -> None:
    for i in T.Parallel(M):
        total = 0.0
        for s in range(T.min(i + 30, S)):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[i, k], f32) * T.cast(W[s, k], f32)
            total += acc
        L[i] = total


@tilec.kernel
def chosen(Q: T.Tensor((S, K), f16), W: T.Tensor((S, K), f16), L: T.Tensor((S,), f32)) -> None:
    for i in T.Parallel(S):
        most = -T.infinity("float32")
        for s in range(i + 1 if CAUSAL else S):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[i, k], f32) * T.cast(W[s, k], f32)
            most = T.max(most, acc)
        L[i] = most


@tilec.kernel
def of_lengths(
    Q: T.Tensor((M, K), f16), W: T.Tensor((S, K), f16), ends: T.Tensor((M,), i32),
    L: T.Tensor((M,), f32), A: T.Tensor((M,), i32),
) -> None:  # fmt: skip
    for i in T.Parallel(M):
        best, at = -T.infinity("float32"), -1
        n = ends[i]
        for s in range(n):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[i, k], f32) * T.cast(W[s, k], f32)
            if acc > best:
                best = acc
                at = s
        L[i] = best
        A[i] = at


@tilec.kernel
def of_batches(
    Q: T.Tensor((B, M, K), f16), W: T.Tensor((B, S, K), f16), ends: T.Tensor((B,), i32),
    P: T.Tensor((B, M, S), f32),
) -> None:  # fmt: skip
    for b, i in T.Parallel(B, M):
        most, total = -T.infinity("float32"), 0.0
        for s in range(ends[b]):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[b, i, k], f32) * T.cast(W[b, s, k], f32)
            most = T.max(most, acc)
        for s in range(ends[b]):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[b, i, k], f32) * T.cast(W[b, s, k], f32)
            total += T.exp(acc - most)
        for s in range(ends[b]):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[b, i, k], f32) * T.cast(W[b, s, k], f32)
            P[b, i, s] = T.exp(acc - most) / total


@tilec.kernel
def of_sums(
    Q: T.Tensor((M, K), f16), W: T.Tensor((S, K), f16), ends: T.Tensor((M,), i32),
    L: T.Tensor((M,), f32),
) -> None:  # fmt: skip
    for i in T.Parallel(M):
        most = -T.infinity("float32")
        n = ends[i]
        for s in range(S):
            acc = 0.0
            for k in range(n):
                acc += T.cast(Q[i, k], f32) * T.cast(W[s, k], f32)
            most = T.max(most, acc)
        L[i] = most


@tilec.kernel
def of_both(Q: T.Tensor((S, K), f16), W: T.Tensor((S, K), f16), L: T.Tensor((S,), f32)) -> None:
    for i in T.Parallel(S):
        total = 0.0
        for s in range(i + 1):
            for t in range(s + 1):
                acc = 0.0
                for k in range(K):
                    acc += T.cast(Q[i, k], f32) * T.cast(W[t, k], f32)
                total += acc
        L[i] = total


@tilec.kernel
def causal(
    Q: T.Tensor((B, S, K), f16), W: T.Tensor((B, S, K), f16), V: T.Tensor((B, S, M), f16),
    Y: T.Tensor((B, S, M), f32),
) -> None:  # fmt: skip
    for b, i in T.Parallel(B, S):
        end = i + 1
        most, total = -T.infinity("float32"), 0.0
        for s in range(end):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[b, i, k], f32) * T.cast(W[b, s, k], f32)
            new = T.max(most, acc * 0.25)
            total = total * T.exp(most - new) + T.exp(acc * 0.25 - new)
            most = new
        for e in range(M):
            out = 0.0
            for s in range(end):
                acc = 0.0
                for k in range(K):
                    acc += T.cast(Q[b, i, k], f32) * T.cast(W[b, s, k], f32)
                out += T.exp(acc * 0.25 - most) * T.cast(V[b, s, e], f32)
            Y[b, i, e] = out / total


@tilec.kernel
def masked(
    Q: T.Tensor((B, S, K), f16), W: T.Tensor((B, S, K), f16), V: T.Tensor((B, S, M), f16),
    ends: T.Tensor((B,), i32), Y: T.Tensor((B, S, M), f32),
) -> None:  # fmt: skip
    for b, i, e in T.Parallel(B, S, M):
        most, total, out = -T.infinity("float32"), 0.0, 0.0
        for s in range(S):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[b, i, k], f32) * T.cast(W[b, s, k], f32)
            if s <= i and s < ends[b]:
                most = T.max(most, acc * 0.25)
        for s in range(S):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[b, i, k], f32) * T.cast(W[b, s, k], f32)
            if s <= i:
                if s < ends[b]:
                    p = T.exp(acc * 0.25 - most)
                    total += p
                    out += p * T.cast(V[b, s, e], f32)
        Y[b, i, e] = out / total


@tilec.kernel
def decoded(
    Q: T.Tensor((B, M, K), f16), W: T.Tensor((B, S, K), f16), V: T.Tensor((B, S, K), f16),
    ends: T.Tensor((B,), i32), Y: T.Tensor((B, M, K), f32),
) -> None:  # fmt: skip
    for b, i in T.Parallel(B, M):
        most, total = -T.infinity("float32"), 0.0
        for s in range(ends[b]):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[b, i, k], f32) * T.cast(W[b, s, k], f32)
            most = T.max(most, acc * 0.25)
        for s in range(ends[b]):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[b, i, k], f32) * T.cast(W[b, s, k], f32)
            total += T.exp(acc * 0.25 - most)
        for e in range(K):
            out = 0.0
            for s in range(ends[b]):
                acc = 0.0
                for k in range(K):
                    acc += T.cast(Q[b, i, k], f32) * T.cast(W[b, s, k], f32)
                out += T.exp(acc * 0.25 - most) * T.cast(V[b, s, e], f32)
            Y[b, i, e] = out / total


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(f16)


def before(ends: np.ndarray, columns: int) -> np.ndarray:
    """Which of so many columns there are."""
    return np.arange(columns) < ends[..., None]


def most_of(logits: np.ndarray, ends: np.ndarray) -> np.ndarray:
    return np.where(before(ends, logits.shape[-1]), logits, -np.inf).max(-1, initial=-np.inf)


@pytest.fixture(params=TARGETS)
def target(request: Any) -> Any:
    return request.param


def check(
    kernel: Any, target: str, operands: list[np.ndarray], *want: np.ndarray, products: int
) -> None:
    got = [np.full(w.shape, 77, i32 if w.dtype.kind == "i" else f32) for w in want]
    if target != "cpu":
        made = kernel.compile(*operands, *got, target=target)
        assert products_in(made.stages["tile"]) == products
    run(kernel, target, *operands, *got)
    for g, w in zip(got, want):
        np.testing.assert_allclose(g, w, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("size", [1, 140])
def test_loops_end_where_rows_say(target: str, size: int) -> None:
    q, w = numbers(size, 8), numbers(size, 8)[::-1].copy()
    logits = q.astype(np.float64) @ w.T.astype(np.float64)
    own = np.arange(size) + 1
    check(growing, target, [q, w], most_of(logits, own), products=1)
    q, other = q[:70], numbers(45, 8)
    check(chosen, target, [q, w[:70]], most_of(logits[:70, :70], own[:70]), products=1)
    logits = q.astype(np.float64) @ other.T.astype(np.float64)
    want = np.where(before(own[:70] + 29, 45), logits, 0).sum(-1)
    check(at_most, target, [q, other], want, products=1)


def test_loops_end_where_lengths_of_rows_say(target: str) -> None:
    q, w = numbers(37, 24), numbers(70, 24)
    ends = (np.arange(37) * 37 % 71).astype(i32)
    held = np.where(before(ends, 70), q.astype(np.float64) @ w.T.astype(np.float64), -np.inf)
    where = np.where(ends, held.argmax(-1), -1)
    check(of_lengths, target, [q, w, ends], held.max(-1), where, products=1)


def test_loops_end_where_batches_say(target: str) -> None:
    q, w, ends = numbers(4, 37, 24), numbers(4, 70, 24), np.array([70, 1, 0, 65], i32)
    w[1:, 66:] = np.nan  # where nobody reads
    held = before(ends, 70)[:, None]
    zeros = np.where(held.transpose(0, 2, 1), w, 0).astype(np.float64)
    logits = np.where(held, q.astype(np.float64) @ zeros.transpose(0, 2, 1), -np.inf)
    e = np.exp(logits - logits.max(-1, keepdims=True, initial=-1e30))
    want = np.where(held, e / np.maximum(e.sum(-1, keepdims=True), 1e-30), 77)
    check(of_batches, target, [q, w, ends], want, products=3)


def attended(q: np.ndarray, w: np.ndarray, v: np.ndarray, held: np.ndarray) -> np.ndarray:
    held = np.broadcast_to(held, (*q.shape[:2], w.shape[1]))
    there = held.any(1)[..., None]
    q, w, v = q.astype(np.float64), np.where(there, w, 0.0), np.where(there, v, 0.0)
    logits = np.where(held, q @ w.transpose(0, 2, 1) * 0.25, -np.inf)
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e @ v / e.sum(-1, keepdims=True)


def test_attention_goes_as_far_as_its_rows(target: str) -> None:
    q, w, v = numbers(2, 70, 24), numbers(2, 70, 24) * 2, numbers(2, 70, 20)
    below, ends = before(np.arange(70) + 1, 70)[None], np.array([70, 30], i32)
    check(causal, target, [q, w, v], attended(q, w, v, below), products=4)
    w[1, 30:] = v[1, 30:] = np.nan
    held = below & before(ends, 70)[:, None]
    check(masked, target, [q, w, v, ends], attended(q, w, v, held), products=3)
    q, v = q[:, :5].copy(), numbers(2, 70, 24)
    v[1, 30:] = np.inf
    want = attended(q, w, v, before(ends, 70)[:, None])
    check(decoded, target, [q, w, v, ends], want, products=4)


def test_other_ends(target: str) -> None:
    """Of the sums themselves: masks of an operand; of loops around: threads go along them."""
    q, w, ends = numbers(21, 24), numbers(21, 24)[::-1].copy(), (np.arange(21) % 25).astype(i32)
    short = np.where(before(ends, 24), q, 0).astype(np.float64) @ w.T.astype(np.float64)
    check(of_sums, target, [q, w, ends], short.max(-1), products=1)
    own = np.arange(21) + 1
    sums = np.cumsum(q.astype(np.float64) @ w.T.astype(np.float64), -1)
    want = np.where(before(own, 21), sums, 0).sum(-1)
    check(of_both, target, [q, w], want, products=0)
