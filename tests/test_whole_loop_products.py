"""Sums of products of whole tensors in the ways that people write them: each is a tiled T.gemm."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

B, H, M, N, K = T.dynamic("B, H, M, N, K")
TARGETS = ("cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
f16, f32, i8, i32 = "float16", "float32", "int8", "int32"
TILES = {"BM": 32, "BN": 32, "BK": 32}


@tilec.kernel
def linear(
    X: T.Tensor((B, M, K), f16), W: T.Tensor((N, K), f16), Y: T.Tensor((B, M, N), f16)
) -> None:
    for b, i, j in T.Parallel(B, M, N):
        acc: T.float32 = 0
        for k in range(K):
            acc += T.cast(X[b, i, k], f32) * T.cast(W[j, k], f32)
        Y[b, i, j] = acc


@tilec.kernel
def many_weights(
    X: T.Tensor((M, K), f32), W: T.Tensor((B, K, N), f32), Y: T.Tensor((B, M, N), f32)
) -> None:
    for b, i, j in T.Parallel(B, M, N):
        acc: T.float32 = 0
        for k in range(K):
            acc += X[i, k] * W[b, k, j]
        Y[b, i, j] = acc


@tilec.kernel
def linear_4d(
    X: T.Tensor((B, H, M, K), f16), W: T.Tensor((K, N), f16), Y: T.Tensor((B, H, M, N), f16)
) -> None:
    for b, h, i, j in T.Parallel(B, H, M, N):
        acc: T.float32 = 0
        for k in range(K):
            acc += T.cast(X[b, h, i, k], f32) * T.cast(W[k, j], f32)
        Y[b, h, i, j] = T.max(acc, 0)


@tilec.kernel
def named(
    A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), S: T.Tensor((M,), f32),
    C: T.Tensor((M, N), f16),
) -> None:  # fmt: skip
    for i, j in T.Parallel(M, N):
        scale = S[i] * 2
        acc: T.float32 = 0
        for k in range(K):
            a: T.float32 = A[i, k]
            w = T.cast(W[k, j], f32)
            both = a * w
            acc += both
        C[i, j] = acc * scale


@tilec.kernel
def one_is_cast(
    A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), C: T.Tensor((M, N), f32)
) -> None:
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for k in range(K):
            acc += T.cast(A[i, k], f32) * W[k, j]
        C[i, j] = acc


@tilec.kernel
def starts_as_bias(
    A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), V: T.Tensor((N,), f16),
    C: T.Tensor((M, N), f16),
) -> None:  # fmt: skip
    for i, j in T.Parallel(M, N):
        acc: T.float32 = V[j]
        for k in range(K):
            a, w = T.cast(A[i, k], f32), T.cast(W[k, j], f32)
            acc += a * w
        C[i, j] = acc


@tilec.kernel
def starts_as_a_cast(
    A: T.Tensor((M, K), i8), W: T.Tensor((N, K), i8), V: T.Tensor((N,), i8),
    C: T.Tensor((M, N), i32),
) -> None:  # fmt: skip
    for i, j in T.Parallel(M, N):
        first = V[j]
        acc = T.cast(first, i32) * 1
        total = T.int32(acc - 7)
        for k in range(K):
            total = T.int32(A[i, k]) * T.int32(W[j, k]) + total
        C[i, j] = total + acc


@tilec.kernel
def gated(
    A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), V: T.Tensor((K, N), f16),
    C: T.Tensor((M, N), f16),
) -> None:  # fmt: skip
    for i, j in T.Parallel(M, N):
        gate: T.float32 = 0
        up: T.float32 = 0
        for k in range(K):
            a = T.cast(A[i, k], f32)
            gate += a * T.cast(W[k, j], f32)
            up += a * T.cast(V[k, j], f32)
        C[i, j] = T.max(gate, 0) * up


@tilec.kernel
def two_products(
    A: T.Tensor((M, K), f16), W: T.Tensor((N, K), f16), D: T.Tensor((M, K), f16),
    V: T.Tensor((K, N), f16), C: T.Tensor((M, N), f32),
) -> None:  # fmt: skip
    for i, j in T.Parallel(M, N):
        acc = 0.0
        for k in range(K):
            acc += T.cast(A[i, k], f32) * T.cast(W[j, k], f32)
            acc += T.cast(V[k, j], f32) * T.cast(D[i, k], f32)
        C[i, j] = acc


@tilec.kernel
def variable(A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), C: T.Tensor((M, N), f16)) -> None:
    for i, j in T.Parallel(M, N):
        acc = T.alloc_var(f32)
        acc = 0
        for k in range(K):
            acc += T.float32(W[k, j]) * T.float32(A[i, k])
        C[i, j] = acc


@tilec.kernel
def in_place(A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), C: T.Tensor((M, N), f32)) -> None:
    for i, j in T.Parallel(M, N):
        C[i, j] = 1.5
        for k in range(K):
            C[i, j] += T.cast(A[i, k], f32) * T.cast(W[k, j], f32)


@tilec.kernel
def added_to(A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), C: T.Tensor((M, N), f32)) -> None:
    for i, j in T.Parallel(M, N):
        for k in range(K):
            C[i, j] += T.cast(A[i, k], f32) * T.cast(W[k, j], f32)


@tilec.kernel
def fused(A: T.Tensor((M, K), f32), W: T.Tensor((K, N), f32), C: T.Tensor((M, N), f32)) -> None:
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for k in range(K):
            acc = T.fma(A[i, k], W[k, j], acc)
        C[i, j] = acc


@tilec.kernel
def scores(
    Q: T.Tensor((B, M, 8, K), f16), W: T.Tensor((B, N, 8, K), f16), S: T.Tensor((B, 8, M, N), f16)
) -> None:
    for b, h, i, j in T.Parallel(B, 8, M, N):
        acc: T.float32 = 0
        for k in range(K):
            acc += T.cast(Q[b, i, h, k], f32) * T.cast(W[b, j, h, k], f32)
        S[b, h, i, j] = acc * 0.125


@tilec.kernel
def values(
    P: T.Tensor((B, 8, M, K), f16), V: T.Tensor((B, K, 2, N), f16), Y: T.Tensor((B, M, 8, N), f16)
) -> None:
    for b, h, i, j in T.Parallel(B, 8, M, N):
        own = h // 4
        acc: T.float32 = 0
        for k in range(K):
            acc += T.cast(P[b, h, i, k], f32) * T.cast(V[b, k, own, j], f32)
        Y[b, i, h, j] = acc


@tilec.kernel
def experts(
    X: T.Tensor((B, M, K), f16), W: T.Tensor((3, K, N), f16), E: T.Tensor((B,), i32),
    Y: T.Tensor((B, M, N), f16),
) -> None:  # fmt: skip
    for b, i, j in T.Parallel(B, M, N):
        acc: T.float32 = 0
        for k in range(K):
            acc += T.cast(X[b, i, k], f32) * T.cast(W[E[b], k, j], f32)
        Y[b, i, j] = acc


@tilec.kernel
def chosen(
    A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), V: T.Tensor((N, K), f16),
    C: T.Tensor((M, N), f16), turned: T.constexpr = False,
) -> None:  # fmt: skip
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for k in range(K):
            acc += T.cast(A[i, k], f32) * T.cast(V[j, k] if turned else W[k, j], f32)
        C[i, j] = acc


@tilec.kernel
def two_indices(
    X: T.Tensor((B, M, H, K), f16), W: T.Tensor((H, K, N), f16), Y: T.Tensor((B, M, N), f16)
) -> None:
    for b, i, j in T.Parallel(B, M, N):
        acc: T.float32 = 0
        for h in range(H):
            for k in range(K):
                acc += T.cast(X[b, i, h, k], f32) * T.cast(W[h, k, j], f32)
        Y[b, i, j] = acc


@tilec.kernel
def convolution(
    X: T.Tensor((B, M + 2, H + 2, K), f16), W: T.Tensor((3, 3, K, N), f16),
    Y: T.Tensor((B, M, H, N), f16),
) -> None:  # fmt: skip
    for b, p, q, n in T.Parallel(B, M, H, N):
        acc: T.float32 = 0
        for r, s in T.grid(3, 3):
            for c in range(K):
                acc += T.cast(X[b, p + r, q + s, c], f32) * T.cast(W[r, s, c, n], f32)
        Y[b, p, q, n] = acc


@tilec.kernel
def channels_first(
    X: T.Tensor((B, K, M + 2, H + 2), f16), W: T.Tensor((N, K, 3, 3), f16),
    Y: T.Tensor((B, N, M, H), f16),
) -> None:  # fmt: skip
    for b, n, p, q in T.Parallel(B, N, M, H):
        acc: T.float32 = 0
        for c in range(K):
            for r in range(3):
                for s in range(3):
                    acc += T.cast(X[b, c, p + r, q + s], f32) * T.cast(W[n, c, r, s], f32)
        Y[b, n, p, q] = T.max(acc, 0)


def numbers(dtype: str, *shape: int) -> np.ndarray:
    random = np.random.default_rng(shape)
    if dtype in (i8, i32):
        return random.integers(-128, 127, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def slid(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    m, h = x.shape[1] - 2, x.shape[2] - 2
    parts = (x[:, r : r + m, s : s + h] @ w[r, s] for r in range(3) for s in range(3))
    return np.sum([*parts], axis=0)


CASES: dict[str, tuple[Any, list[np.ndarray], Callable[..., np.ndarray], str]] = {
    "linear": (
        linear, [numbers(f16, 3, 37, 43), numbers(f16, 35, 43)], lambda x, w: x @ w.T, f16
    ),
    "many weights": (
        many_weights, [numbers(f32, 37, 43), numbers(f32, 2, 43, 33)], lambda x, w: x @ w, f32
    ),
    "linear, 4-D": (
        linear_4d, [numbers(f16, 2, 3, 35, 40), numbers(f16, 40, 48)],
        lambda x, w: np.maximum(x @ w, 0), f16,
    ),
    "named": (
        named, [numbers(f16, 33, 45), numbers(f16, 45, 35), numbers(f32, 33)],
        lambda a, w, s: a @ w * s[:, None] * 2, f16,
    ),
    "one is cast": (
        one_is_cast, [numbers(f16, 33, 45), numbers(f16, 45, 35)], lambda a, w: a @ w, f32
    ),
    "bias": (
        starts_as_bias, [numbers(f16, 33, 45), numbers(f16, 45, 35), numbers(f16, 35)],
        lambda a, w, v: a @ w + v, f16,
    ),
    "bias of int8": (
        starts_as_a_cast, [numbers(i8, 33, 45), numbers(i8, 35, 45), numbers(i8, 35)],
        lambda a, w, v: a @ w.T + 2 * v - 7, i32,
    ),
    "gated": (
        gated, [numbers(f16, 33, 45), numbers(f16, 45, 35), numbers(f16, 45, 35)[::-1].copy()],
        lambda a, w, v: np.maximum(a @ w, 0) * (a @ v), f16,
    ),
    "two products": (
        two_products,
        [numbers(f16, 33, 45), numbers(f16, 35, 45), numbers(f16, 33, 45)[::-1].copy(),
         numbers(f16, 45, 35)],
        lambda a, w, d, v: a @ w.T + d @ v, f32,
    ),
    "variable": (
        variable, [numbers(f16, 33, 45), numbers(f16, 45, 35)], lambda a, w: a @ w, f16
    ),
    "in place": (
        in_place, [numbers(f16, 33, 45), numbers(f16, 45, 35)], lambda a, w: a @ w + 1.5, f32
    ),
    "added to": (
        added_to, [numbers(f16, 33, 45), numbers(f16, 45, 35)], lambda a, w: a @ w + 77, f32
    ),
    "fma": (fused, [numbers(f32, 33, 45), numbers(f32, 45, 35)], lambda a, w: a @ w, f32),
    "scores": (
        scores, [numbers(f16, 2, 33, 8, 24), numbers(f16, 2, 35, 8, 24)],
        lambda q, w: np.einsum("bihk,bjhk->bhij", q, w) / 8, f16,
    ),
    "values": (
        values, [numbers(f16, 2, 8, 33, 40), numbers(f16, 2, 40, 2, 24)],
        lambda p, v: np.einsum("bhik,bkhj->bihj", p, v.repeat(4, 2)), f16,
    ),
    "experts": (
        experts,
        [numbers(f16, 4, 33, 40), numbers(f16, 3, 40, 24), np.array([2, 0, 2, 1], np.int32)],
        lambda x, w, e: x @ w[e.astype(int)], f16,
    ),
    "two indices": (
        two_indices, [numbers(f16, 2, 33, 3, 21), numbers(f16, 3, 21, 35)],
        lambda x, w: np.einsum("bihk,hkj->bij", x, w), f16,
    ),
    "convolution": (
        convolution, [numbers(f16, 2, 5, 36, 24), numbers(f16, 3, 3, 24, 40)], slid, f16
    ),
    "channels first": (
        channels_first, [numbers(f16, 2, 24, 5, 36), numbers(f16, 40, 24, 3, 3)],
        lambda x, w: np.maximum(
            slid(x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0)).transpose(0, 3, 1, 2), 0
        ), f16,
    ),
}  # fmt: skip


def check(
    kernel: Any, operands: list[np.ndarray], want: np.ndarray, dtype: str, target: str
) -> None:
    loose = {f16: 2e-2, f32: 1e-4, i32: 0}[dtype]
    if target != "cpu" and dtype == f32 and operands[0].dtype == np.float32:
        loose = 1e-2
    c = np.full(want.shape, 77, dtype)
    made = kernel.compile(*operands, c, target=target, **TILES)
    assert "gemm" in made.stages["tile"]
    run(kernel, target, *operands, c, **TILES)
    np.testing.assert_allclose(c, want, rtol=loose, atol=loose * np.abs(want).max())


@pytest.mark.usefixtures("unassembled")
@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel, operands, wanted, dtype", CASES.values(), ids=CASES)
def test_written_otherwise_it_is_a_product(
    kernel: Any, operands: list[np.ndarray], wanted: Callable[..., np.ndarray], dtype: str,
    target: str,
) -> None:  # fmt: skip
    wide = [o.astype(np.int64 if o.dtype.kind == "i" else np.float64) for o in operands]
    check(kernel, operands, wanted(*wide), dtype, target)


@pytest.mark.usefixtures("unassembled")
@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("turned", [False, True])
def test_an_operand_that_a_constant_chooses(turned: bool, target: str) -> None:
    a, w, v = numbers(f16, 33, 45), numbers(f16, 45, 35), numbers(f16, 35, 45)
    want = a.astype(np.float64) @ (v.T if turned else w)
    c = np.full((33, 35), 77, f16)
    made = chosen.compile(a, w, v, c, turned, target=target, **TILES)
    assert "gemm" in made.stages["tile"]
    run(chosen, target, a, w, v, c, turned, **TILES)
    np.testing.assert_allclose(c, want, rtol=2e-2, atol=2e-2 * np.abs(want).max())


@tilec.kernel
def padded(
    X: T.Tensor((B, M, H, K), f16), W: T.Tensor((3, 3, K, N), f16), Y: T.Tensor((B, M, H, N), f16)
) -> None:
    for b, p, q, n in T.Parallel(B, M, H, N):
        acc: T.float32 = 0
        for r, s in T.grid(3, 3):
            for c in range(K):
                acc += T.cast(X[b, p + r - 1, q + s - 1, c], f32) * T.cast(W[r, s, c, n], f32)
        Y[b, p, q, n] = acc


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("target", TARGETS)
def test_what_is_out_of_bounds_counts_as_zero(target: str) -> None:
    x, w = numbers(f16, 2, 3, 34, 24), numbers(f16, 3, 3, 24, 40)
    around = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    check(padded, [x, w], slid(around, w.astype(np.float64)), f16, target)


@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (1, 70, 3), (70, 1, 0), (0, 5, 5), (5, 5, 0)])
def test_sizes_of_one_and_of_none(m: int, n: int, k: int) -> None:
    for kernel, x, w, c in (
        (linear, numbers(f16, 2, m, k), numbers(f16, n, k), np.full((2, m, n), 77, f16)),
        (added_to, numbers(f16, m, k), numbers(f16, k, n), np.full((m, n), 77, f32)),
    ):
        product = x.astype(np.float64) @ (w.T if kernel is linear else w)
        for target in ("cpu", "cuda:sm_90a"):
            c[:] = 77
            run(kernel, target, x, w, c, **TILES)
            want = product + 77 * (kernel is added_to)
            np.testing.assert_allclose(c, want, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "b, m, others", [(70, 1, "M"), (1, 70, "B"), (4000, 500, "B"), (90000, 500, "M")]
)
def test_tiles_go_along_rows_that_fill_them(b: int, m: int, others: str) -> None:
    """And the grid is one that can be launched: it has 65535 blocks for the others at most."""
    x, w, y = (tilec.spec(shape, f16) for shape in ((b, m, 8), (24, 8), (b, m, 24)))
    made = linear.compile(x, w, y, target="cuda:sm_90a", **TILES).stages["tile"]
    assert "gemm" in made and re.search(rf"yield \[%\d+, %\d+, %{others}\]", made)
    if b * m < 100:
        x, w, y = numbers(f16, b, m, 8), numbers(f16, 24, 8), np.full((b, m, 24), 77, f16)
        run(linear, "cuda:sm_90a", x, w, y, **TILES)
        np.testing.assert_allclose(y, x.astype(np.float64) @ w.T, rtol=2e-2, atol=2e-2)


@tilec.kernel
def cosines(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
    """A product by its syntax, of no operand with two sides: threads add it up."""
    for by, bx, u, v in T.Parallel(M // 8, N // 8, 8, 8):
        acc = 0.0
        for y in range(8):
            for x in range(8):
                side = T.cos(T.cast((2 * y + 1) * u, "float32") * 0.19)
                other = T.cos(T.cast((2 * x + 1) * v, "float32") * 0.19)
                acc += X[by * 8 + y, bx * 8 + x] * side * other
        Y[by * 8 + u, bx * 8 + v] = acc


def test_tiles_that_no_loop_takes_are_not_chosen() -> None:
    """All of their values are one kernel, which is traced once."""
    args = tilec.spec((1080, 1928), "float32"), tilec.spec((1080, 1928), "float32")
    made = cosines.compile(*args, target="cuda:sm_90a")
    assert [p.name for p in cosines.parameters[2:]] == ["BM", "BN", "BK"]
    assert "gemm" not in made.stages["tile"] and "idle=" in made.stages["tile"]
    (chooser,) = cosines.choices._choosers.values()
    assert len(chooser._candidates) == 1


def test_what_a_loop_stores_leaves_by_tma() -> None:
    """As the tuner ranks what the compiler makes of a loop that stores a tile, a copy: else no plan
    with clusters is left. On an H200 3000x5000x1288 took 93 us, as tiles 72."""
    specs = [tilec.spec(s, f16) for s in ((1, 3000, 1288), (5000, 1288), (1, 3000, 5000))]
    first = linear.recommend(*specs, target="cuda:sm_90a")[0]
    assert first.plan is not None and first.plan.staged_store, str(first)


@tilec.kernel
def two_products(
    A: T.Tensor((M, K, 2), f32), W: T.Tensor((K, N, 2), f32), Y: T.Tensor((M, N, 2), f32)
) -> None:
    for i, j in T.Parallel(M, N):
        real: T.float32 = 0
        imaginary: T.float32 = 0
        for k in range(K):
            real += A[i, k, 0] * W[k, j, 0] - A[i, k, 1] * W[k, j, 1]
            imaginary += A[i, k, 0] * W[k, j, 1] + A[i, k, 1] * W[k, j, 0]
        Y[i, j, 0] = real
        Y[i, j, 1] = imaginary


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("target", TARGETS)
def test_several_products_are_added_at_once(target: str) -> None:
    """Of complex numbers, here."""
    rng = np.random.default_rng(3)
    a, w = (rng.standard_normal(s).astype(f32) for s in ((37, 45, 2), (45, 20, 2)))
    y = np.full((37, 20, 2), 77, f32)
    made = two_products.compile(a, w, y, target=target, **TILES).stages["tile"]
    assert made.count("gemm") == 4
    run(two_products, target, a, w, y, **TILES)
    want = (a[..., 0] + 1j * a[..., 1].astype(np.complex128)) @ (w[..., 0] + 1j * w[..., 1])
    np.testing.assert_allclose(y[..., 0], want.real, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(y[..., 1], want.imag, rtol=1e-4, atol=1e-4)


@tilec.kernel
def correlations(
    X: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), Y: T.Tensor((M, N), f32)
) -> None:
    for i, j in T.Parallel(M, N):
        xy: T.float32 = 0
        x: T.float32 = 0
        y: T.float32 = 0
        xx: T.float32 = 1
        yy: T.float32 = 1
        for k in range(K):
            a: T.float32 = X[i, k]
            b = T.cast(W[k, j], f32)
            xy += a * b
            x += a
            y -= b
            xx += a * a
            yy += b * b
        Y[i, j] = (xy + x * y / K) / (xx * yy)


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("target", TARGETS)
def test_sums_of_one_operand_alone(target: str) -> None:
    """They are added up from its tiles, on the way of the product."""
    rng = np.random.default_rng(3)
    a, w = (rng.standard_normal(s).astype(f16) for s in ((37, 45), (45, 20)))
    y = np.full((37, 20), 77, f32)
    made = correlations.compile(a, w, y, target=target, **TILES).stages["tile"]
    assert made.count("gemm") == 1 and "tensor W" in made
    run(correlations, target, a, w, y, **TILES)
    a, w = a.astype(np.float64), w.astype(np.float64)
    own = np.outer((a * a).sum(1) + 1, (w * w).sum(0) + 1)
    want = (a @ w - np.outer(a.sum(1), w.sum(0)) / 45) / own
    np.testing.assert_allclose(y, want, rtol=1e-3, atol=1e-5)
