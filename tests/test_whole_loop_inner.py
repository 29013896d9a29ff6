"""Sums of products inside of the loops of whole loops: what goes along rows of them is done over
tiles of T.gemm."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulated import products_in, run

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

B, H, S, N, K, M = T.dynamic("B, H, S, N, K, M")
TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
f16, f32, i8, i32 = "float16", "float32", "int8", "int32"


@tilec.kernel
def weights(
    Q: T.Tensor((B, H, S, K), f16), W: T.Tensor((B, H, N, K), f16),
    P: T.Tensor((B, H, S, N), f16), scale: T.float32,
) -> None:  # fmt: skip
    for b, h, s in T.Parallel(B, H, S):
        most = -T.infinity("float32")
        for t in range(N):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[b, h, s, k], f32) * T.cast(W[b, h, t, k], f32)
            most = T.max(most, acc * scale)
        total = 0.0
        for t in range(N):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[b, h, s, k], f32) * T.cast(W[b, h, t, k], f32)
            total += T.exp(acc * scale - most)
        for t in range(N):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[b, h, s, k], f32) * T.cast(W[b, h, t, k], f32)
            P[b, h, s, t] = T.exp(acc * scale - most) / total


@tilec.kernel
def shared_heads(
    Q: T.Tensor((S, 4, K), f32), W: T.Tensor((N, 2, K), f32), L: T.Tensor((S, 4), f32)
) -> None:
    for s, h in T.Parallel(S, 4):
        own = h // 2
        most: T.float32 = -T.infinity("float32")
        for t in range(N):
            score: T.float32 = 0
            for k in range(K):
                score += Q[s, h, k] * W[t, own, k]
            most = T.max(most, score)
        L[s, h] = most


@tilec.kernel
def log_sum(
    X: T.Tensor((M, K), f16), W: T.Tensor((N, K), f16), V: T.Tensor((N,), f32),
    L: T.Tensor((M,), f32),
) -> None:  # fmt: skip
    for i in T.Parallel(M):
        most = -T.infinity("float32")
        total = 0.0
        for j in range(N):
            acc: T.float32 = V[j]
            for k in range(K):
                acc += T.cast(X[i, k], f32) * T.cast(W[j, k], f32)
            new = T.max(most, acc)
            total = total * T.exp(most - new) + T.exp(acc - new)
            most = new
        L[i] = most + T.log(total)


@tilec.kernel
def cross_entropy(
    X: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), Y: T.Tensor((M,), i32),
    L: T.Tensor((M,), f32),
) -> None:  # fmt: skip
    for i in T.Parallel(M):
        most, total, own = -T.infinity("float32"), 0.0, 0.0
        for j in range(N):
            acc = T.float32(0)
            for k in range(K):
                acc += T.cast(X[i, k], f32) * T.cast(W[k, j], f32)
            most = T.max(most, acc)
            if j == Y[i]:
                own = acc
        for j in range(N):
            acc = T.float32(0)
            for k in range(K):
                acc += T.cast(X[i, k], f32) * T.cast(W[k, j], f32)
            total += T.exp(acc - most)
        L[i] = most + T.log(total) - own


@tilec.kernel
def nearest(X: T.Tensor((M, K), i8), C: T.Tensor((N, K), i8), A: T.Tensor((M,), i32)) -> None:
    for i in T.Parallel(M):
        best, at = T.int32(-(2**31)), 0
        for j in range(N):
            dot: T.int32 = 0
            for k in range(K):
                dot += T.int32(X[i, k]) * T.int32(C[j, k])
            if dot > best:
                best = dot
                at = j
        A[i] = at


@tilec.kernel
def normalised(
    X: T.Tensor((B, M, K), f16), W: T.Tensor((N, K), f16), G: T.Tensor((N,), f32),
    Y: T.Tensor((B, M, N), f16),
) -> None:  # fmt: skip
    for b, i in T.Parallel(B, M):
        total, square = 0.0, 0.0
        for j in range(N):
            y = 0.0
            for k in range(K):
                y += T.cast(X[b, i, k], f32) * T.cast(W[j, k], f32)
            total += y
            square += y * y
        mean = total / N
        scale = T.rsqrt(square / N - mean * mean + 1e-5)
        for j in range(N):
            y = 0.0
            for k in range(K):
                y += T.cast(X[b, i, k], f32) * T.cast(W[j, k], f32)
            Y[b, i, j] = (y - mean) * scale * G[j]


@tilec.kernel
def gated_running(
    X: T.Tensor((M, K), f16), W: T.Tensor((N, K), f16), V: T.Tensor((N, K), f16),
    Y: T.Tensor((M, N), f32),
) -> None:  # fmt: skip
    for i in T.Parallel(M):
        total = 0.0
        for j in range(N):
            gate, up = 0.0, 0.0
            for k in range(K):
                x = T.cast(X[i, k], f32)
                gate += x * T.cast(W[j, k], f32)
                up += x * T.cast(V[j, k], f32)
            total += T.max(gate, 0) * up
            Y[i, j] = total


def numbers(dtype: str, *shape: int) -> np.ndarray:
    random = np.random.default_rng(shape)
    if dtype == i8:
        return random.integers(-99, 99, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def log_sums(x: np.ndarray) -> np.ndarray:
    return np.log(np.exp(x).sum(-1))


def norm(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


CHOSEN = np.arange(70, dtype=i32) * 3 % 45

CASES: dict[str, tuple[Any, list[np.ndarray], Callable[..., np.ndarray], str, int]] = {
    "attention weights": (
        weights, [numbers(f16, 1, 2, 37, 24), numbers(f16, 1, 2, 70, 24)],
        lambda q, w: softmax(np.einsum("bhsk,bhtk->bhst", q, w) * 0.25), f16, 3,
    ),
    "rows that are not last": (
        shared_heads, [numbers(f32, 35, 4, 20), numbers(f32, 19, 2, 20)],
        lambda q, w: np.einsum("shk,thk->sht", q, w.repeat(2, 1)).max(-1), f32, 1,
    ),
    "log of sums": (
        log_sum, [numbers(f16, 37, 300), numbers(f16, 45, 300), numbers(f32, 45)],
        lambda x, w, v: log_sums(x @ w.T + v), f32, 2,
    ),
    "cross entropy": (
        cross_entropy, [numbers(f16, 70, 24), numbers(f16, 24, 45), CHOSEN],
        lambda x, w, y: log_sums(x @ w) - (x @ w)[np.arange(70), y.astype(int)], f32, 2,
    ),
    "nearest": (
        nearest, [numbers(i8, 37, 40), numbers(i8, 130, 40)],
        lambda x, c: (x @ c.T).argmax(-1), i32, 1,
    ),
    "layer norm": (
        normalised, [numbers(f16, 2, 3, 24), numbers(f16, 45, 24), numbers(f32, 45)],
        lambda x, w, g: norm(x @ w.T) * g, f16, 2,
    ),
    "running sum of two": (
        gated_running, [numbers(f16, 37, 24), numbers(f16, 70, 24), numbers(f16, 70, 24)[::-1]],
        lambda x, w, v: (np.maximum(x @ w.T, 0) * (x @ v.T)).cumsum(-1), f32, 2,
    ),
}  # fmt: skip


@pytest.fixture(params=TARGETS)
def target(request: Any) -> Any:
    return request.param


def check(
    target: str,
    kernel: Any,
    operands: list[np.ndarray],
    want: np.ndarray,
    dtype: str,
    products: int,
    single: float = 1e-4,
) -> None:
    operands = [np.ascontiguousarray(o) for o in operands]
    more = (0.25,) if kernel is weights else ()
    c = np.full(want.shape, 77, dtype)
    if target != "cpu":
        made = kernel.compile(*operands, c, *more, target=target)
        assert products_in(made.stages["tile"]) == products, target
    run(kernel, target, *operands, c, *more)
    close = {f16: 1e-2, f32: 1e-2 if operands[0].dtype == f32 else single, i32: 0}[dtype]
    np.testing.assert_allclose(c, want, rtol=close, atol=close * np.abs(want).max(initial=0))


@pytest.mark.parametrize("kernel, operands, wanted, dtype, products", CASES.values(), ids=CASES)
def test_rows_of_products_are_tiles(
    target: str,
    kernel: Any,
    operands: list[np.ndarray],
    wanted: Callable[..., np.ndarray],
    dtype: str,
    products: int,
) -> None:
    wide = [o.astype(np.int64 if o.dtype.kind == "i" else np.float64) for o in operands]
    check(target, kernel, operands, wanted(*wide), dtype, products)


@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (1, 70, 17), (70, 1, 0), (0, 5, 5)])
def test_sizes_of_one_and_of_none(target: str, m: int, n: int, k: int) -> None:
    x, w, v = numbers(f16, m, k), numbers(f16, n, k), numbers(f32, n)
    want = log_sums(x.astype(np.float64) @ w.T.astype(np.float64) + v)
    check(target, log_sum, [x, w, v], want, f32, 2)


@tilec.kernel
def attention(
    Q: T.Tensor((B, S, K), f16), W: T.Tensor((B, N, K), f16), V: T.Tensor((B, N, M), f16),
    Y: T.Tensor((B, S, M), f32),
) -> None:  # fmt: skip
    for b, s, e in T.Parallel(B, S, M):
        most = -T.infinity("float32")
        for t in range(N):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[b, s, k], f32) * T.cast(W[b, t, k], f32)
            most = T.max(most, acc * 0.25)
        total, out = 0.0, 0.0
        for t in range(N):
            score = 0.0  # another name for the same
            for k in range(K):
                score += T.cast(Q[b, s, k], f32) * T.cast(W[b, t, k], f32)
            p = T.exp(score * 0.25 - most)
            v = T.cast(V[b, t, e], f32)
            total += p
            out += p * v
        Y[b, s, e] = out / total


@tilec.kernel
def attention_of_rows(
    Q: T.Tensor((B, S, K), f16), W: T.Tensor((B, N, K), f16), V: T.Tensor((B, N, M), f16),
    Y: T.Tensor((B, S, M), f32),
) -> None:  # fmt: skip
    for b, s in T.Parallel(B, S):
        most, total = -T.infinity("float32"), 0.0
        for t in range(N):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[b, s, k], f32) * T.cast(W[b, t, k], f32)
            new = T.max(most, acc * 0.25)
            total = total * T.exp(most - new) + T.exp(acc * 0.25 - new)
            most = new
        for e in range(M):
            out = 0.0
            for t in range(N):
                acc = 0.0
                for k in range(K):
                    acc += T.cast(Q[b, s, k], f32) * T.cast(W[b, t, k], f32)
                out += T.exp(acc * 0.25 - most) / total * T.cast(V[b, t, e], f32)
            Y[b, s, e] = out


@tilec.kernel
def gated_mlp(
    X: T.Tensor((S, K), f16), G: T.Tensor((K, N), f16), U: T.Tensor((K, N), f16),
    D: T.Tensor((N, M), f16), Y: T.Tensor((S, M), f32),
) -> None:  # fmt: skip
    for i, j in T.Parallel(S, M):
        out = 0.0
        for f in range(N):
            gate = 0.0
            for k in range(K):
                gate += T.cast(X[i, k], f32) * T.cast(G[k, f], f32)
            up = 0.0
            for k in range(K):
                up += T.cast(X[i, k], f32) * T.cast(U[k, f], f32)
            out += T.max(gate, 0) * up * T.cast(D[f, j], f32)
        Y[i, j] = out


def scores(q: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.einsum("bsk,btk->bst", q, w) * 0.25


TWO_IN_ONE: dict[str, tuple[Any, list[np.ndarray], Callable[..., np.ndarray], str, int]] = {
    "attention": (
        attention, [numbers(f16, 1, 37, 24), numbers(f16, 1, 70, 24), numbers(f16, 1, 70, 150)],
        lambda q, w, v: softmax(scores(q, w)) @ v, f32, 3,
    ),
    "attention of rows": (
        attention_of_rows,
        [numbers(f16, 2, 70, 24), numbers(f16, 2, 19, 24), numbers(f16, 2, 19, 20)],
        lambda q, w, v: softmax(scores(q, w)) @ v, f32, 4,
    ),
    "gated": (
        gated_mlp,
        [numbers(f16, 37, 40), numbers(f16, 40, 70), numbers(f16, 70, 40).T, numbers(f16, 70, 19)],
        lambda x, g, u, d: (np.maximum(x @ g, 0) * (x @ u)) @ d, f32, 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "kernel, operands, wanted, dtype, products", TWO_IN_ONE.values(), ids=TWO_IN_ONE
)
def test_columns_share_the_sums_inside(
    target: str,
    kernel: Any,
    operands: list[np.ndarray],
    wanted: Callable[..., np.ndarray],
    dtype: str,
    products: int,
) -> None:
    want = wanted(*(o.astype(np.float64) for o in operands))
    check(target, kernel, operands, want, dtype, products, 2e-3)


@tilec.kernel
def over_images(
    X: T.Tensor((B, H, S, K), f16), W: T.Tensor((N, H, K), f16), Y: T.Tensor((B, N), f32)
) -> None:
    for b, j in T.Parallel(B, N):
        most = -T.infinity("float32")
        for y in range(H):
            for x in range(S):
                acc = 0.0
                for k in range(K):
                    acc += T.cast(X[b, y, x, k], f32) * T.cast(W[j, y, k], f32)
                most = T.max(most, acc)
        Y[b, j] = most


def test_loops_in_one_another_around_a_sum(target: str) -> None:
    x, w = numbers(f16, 2, 5, 19, 24), numbers(f16, 30, 5, 24)
    want = np.einsum("bhsk,nhk->bhsn", x.astype(np.float64), w.astype(np.float64)).max((1, 2))
    check(target, over_images, [x, w], want, f32, 1)


@tilec.kernel
def padded_weights(
    Q: T.Tensor((S, K), f16), W: T.Tensor((N, K), f16), keep: T.Tensor((N,), i32),
    P: T.Tensor((S, N), f32),
) -> None:  # fmt: skip
    for s in T.Parallel(S):
        most, total = -T.infinity("float32"), 0.0
        for t in range(N):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[s, k], f32) * T.cast(W[t, k], f32)
            acc = T.if_then_else(keep[t] != 0, acc, -T.infinity("float32"))
            most = T.max(most, acc)
        for t in range(N):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[s, k], f32) * T.cast(W[t, k], f32)
            acc = T.if_then_else(keep[t] != 0, acc, -T.infinity("float32"))
            total += T.exp(acc - most)
        for t in range(N):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[s, k], f32) * T.cast(W[t, k], f32)
            acc = T.if_then_else(keep[t] != 0, acc, -T.infinity("float32"))
            P[s, t] = T.exp(acc - most) / total


def test_a_sum_that_is_chosen_keeps_its_dtype(target: str) -> None:
    q, w, keep = numbers(f16, 37, 24), numbers(f16, 45, 24), np.arange(45, dtype=i32) % 3
    logits = q.astype(np.float64) @ w.T.astype(np.float64)
    want = softmax(np.where(keep != 0, logits, -np.inf))
    check(target, padded_weights, [q, w, keep], want, f32, 3)


@tilec.kernel
def in_place(Q: T.Tensor((S, K), f16), W: T.Tensor((N, K), f16), P: T.Tensor((S, N), f32)) -> None:
    for s in T.Parallel(S):
        most, total = -T.infinity("float32"), 0.0
        for t in range(N):
            acc = 0.0
            for k in range(K):
                acc += T.cast(Q[s, k], f32) * T.cast(W[t, k], f32)
            P[s, t] = acc
            most = T.max(most, acc)
        for t in range(N):
            P[s, t] = T.exp(P[s, t] - most)
            total += P[s, t]
        for t in range(N):
            P[s, t] /= total


def test_what_is_stored_is_read_again_by_its_own_rows(target: str) -> None:
    q, w = numbers(f16, 70, 24), numbers(f16, 150, 24)
    want = softmax(q.astype(np.float64) @ w.T.astype(np.float64))
    check(target, in_place, [q, w], want, f32, 1)


@tilec.kernel
def rows_inside(
    X: T.Tensor((B, M, K), f16), Y: T.Tensor((B, N, K), f16), Z: T.Tensor((M, N), f16),
    S: T.Tensor((B,), f32),
) -> None:  # fmt: skip
    for b in T.Parallel(B):
        total = 0.0
        for i in range(M):
            for j in range(N):
                acc = 0.0
                for k in range(K):
                    acc += T.cast(X[b, i, k], f32) * T.cast(Y[b, j, k], f32)
                total += acc * T.cast(Z[i, j], f32)
        S[b] = total


def test_sums_none_of_whose_rows_are_iterations_are_loops(target: str) -> None:
    x, y, z = numbers(f16, 3, 18, 20), numbers(f16, 3, 33, 20), numbers(f16, 18, 33)
    want = np.einsum("bik,bjk,ij->b", *(a.astype(np.float64) for a in (x, y, z)))
    check(target, rows_inside, [x, y, z], want, f32, 0)


@tilec.kernel
def chosen_gradient(
    X: T.Tensor((M, N), f32), Y: T.Tensor((M,), i32), G: T.Tensor((M, N), f32)
) -> None:
    for i in T.Parallel(M):
        most, total = -T.infinity("float32"), 0.0
        for j in range(N):
            most = T.max(most, X[i, j])
        for j in range(N):
            total += T.exp(X[i, j] - most)
        for j in range(N):
            p = T.exp(X[i, j] - most) / total
            if j == Y[i]:
                p -= 1.0
            G[i, j] = p / M


@tilec.kernel
def huber(X: T.Tensor((M, N), f32), Y: T.Tensor((M, N), f32), L: T.Tensor((M,), f32)) -> None:
    for i in T.Parallel(M):
        total = 0.0
        for j in range(N):
            d = T.abs(X[i, j] - Y[i, j])
            if d < 1:
                total += 0.5 * d * d
            else:
                total += d - 0.5
        L[i] = total


@tilec.kernel
def ridge(X: T.Tensor((K, N), f32), G: T.Tensor((N, N), f32)) -> None:
    for i, j in T.Parallel(N, N):
        acc = 0.0
        for k in range(K):
            acc += X[k, i] * X[k, j]
        if i == j:
            acc += 0.5
        G[i, j] = acc


def test_what_a_condition_chooses_or_adds_is_done_over_tiles(target: str) -> None:
    x, y, chosen = numbers(f32, 12, 70), numbers(f32, 12, 70)[::-1].copy(), CHOSEN[:12].copy()
    wide, other = x.astype(np.float64), y.astype(np.float64)
    gradient = (softmax(wide) - np.eye(70)[chosen]) / 12
    d = np.abs(wide - other)
    losses = np.where(d < 1, 0.5 * d * d, d - 0.5).sum(-1)
    gram = wide.T @ wide + 0.5 * np.eye(70)
    for kernel, operands, want, form in (
        (chosen_gradient, (x, chosen), gradient, "reduce"),
        (huber, (x, y), losses, "reduce"),
        (ridge, (x,), gram, "gemm"),
    ):
        c = np.full(want.shape, 77, f32)
        run(kernel, target, *operands, c)
        np.testing.assert_allclose(c, want, rtol=1e-2, atol=1e-2 * np.abs(want).max())
        if target != "cpu":
            assert form in kernel.compile(*operands, c, target=target).stages["tile"], target
