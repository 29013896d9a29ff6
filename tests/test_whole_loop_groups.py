"""Iterations of whole loops that share in groups what they read: heads of one query are the rows of
T.gemm."""

import re

import numpy as np
import pytest
from simulated import products_in, run

import tilec.language as T
from tilec import kernel

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

B, S, H, G, K, D, E, N = T.dynamic("B, S, H, G, K, D, E, N")
TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
f16, f32, i8, i32 = "float16", "float32", "int8", "int32"


@kernel
def decoded(
    Q: T.Tensor((B, H, K), f16), W: T.Tensor((B, S, G, K), i8), V: T.Tensor((B, S, G, K), f16),
    ends: T.Tensor((B,), i32), Y: T.Tensor((B, H, K), f32), each: T.constexpr,
) -> None:  # fmt: skip
    for b, h in T.Parallel(B, H):
        most, total = -T.infinity("float32"), 0.0
        for s in range(S):
            if s < ends[b]:
                acc = 0.0
                for d in range(K):
                    acc += T.float32(Q[b, h, d]) * T.float32(W[b, s, h // each, d])
                most = T.max(most, acc * 0.01)
        for s in range(S):
            if s < ends[b]:
                acc = 0.0
                for d in range(K):
                    acc += T.float32(Q[b, h, d]) * T.float32(W[b, s, h // each, d])
                total += T.exp(acc * 0.01 - most)
        for d in range(K):
            out = 0.0
            for s in range(S):
                if s < ends[b]:
                    acc = 0.0
                    for e in range(K):
                        acc += T.float32(Q[b, h, e]) * T.float32(W[b, s, h // each, e])
                    out += T.exp(acc * 0.01 - most) * T.float32(V[b, s, h // each, d])
            Y[b, h, d] = out / total


@kernel
def largest(
    Q: T.Tensor((H, K), f16), W: T.Tensor((S, G, K), f16), L: T.Tensor((H + 1,), f32),
    each: T.constexpr,
) -> None:  # fmt: skip
    for h in T.Parallel(H):
        group = h // each
        most = -T.infinity("float32")
        for s in range(S):
            acc = 0.0
            for d in range(K):
                acc += T.float32(Q[h, d]) * T.float32(W[s, group, d])
            most = T.max(most, acc)
        L[h + h % each * 0] = most


@pytest.mark.parametrize("target", TARGETS)
def test_heads_of_a_group_are_rows(target: str) -> None:
    random = np.random.default_rng(0)
    q = random.standard_normal((2, 7, 24)).astype(f16)
    w = random.integers(-99, 99, (2, 70, 3, 24)).astype(i8)
    v = random.standard_normal((2, 70, 3, 24)).astype(f16)
    ends = np.array([66, 5], i32)
    v[1, 5:] = np.nan
    keys, values = (x.astype(np.float64).repeat(3, 2)[:, :, :7] for x in (w, v))
    logits = np.einsum("bhd,bshd->bhs", q.astype(np.float64), keys) * 0.01
    logits = np.where(np.arange(70) < ends[:, None, None], logits, -np.inf)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    want = np.einsum("bhs,bshd->bhd", p, np.nan_to_num(values)) / p.sum(-1)[..., None]
    y = np.full(want.shape, 77, f32)
    if target != "cpu":
        text = decoded.compile(q, w, v, ends, y, 3, target=target).stages["tile"]
        assert products_in(text) == 4
        assert "shared<64x32xf16>" in text or "shared<32x64xf16>" in text, "not in float32"
    run(decoded, target, q, w, v, ends, y, each=3)
    np.testing.assert_allclose(y, want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("target", TARGETS)
def test_what_may_store_beyond_the_last_head_is_no_group(target: str) -> None:
    random = np.random.default_rng(1)
    q, w = (random.standard_normal(shape).astype(f16) for shape in ((7, 24), (30, 3, 24)))
    keys = w.astype(np.float64).repeat(3, 1)[:, :7]
    want = np.einsum("hd,shd->hs", q.astype(np.float64), keys).max(-1)
    got = np.full(8, 77, f32)
    run(largest, target, q, w, got, each=3)
    np.testing.assert_allclose(got, [*want, 77], rtol=1e-3, atol=1e-3)


@kernel
def own_keys(
    Q: T.Tensor((B, H, K), f16), W: T.Tensor((B, H, S, K), f16), V: T.Tensor((B, H, S, K), f16),
    bias: T.Tensor((H,), f32), Y: T.Tensor((B, H, K), f32),
) -> None:  # fmt: skip
    for b, h in T.Parallel(B, H):
        most, total = -T.infinity("float32"), 0.0
        for s in range(S):
            acc = 0.0
            for d in range(K):
                acc += T.float32(Q[b, h, d]) * T.float32(W[b, h, s, d])
            most = T.max(most, acc - bias[h] * s)
        for s in range(S):
            acc = 0.0
            for d in range(K):
                acc += T.float32(Q[b, h, d]) * T.float32(W[b, h, s, d])
            total += T.exp(acc - bias[h] * s - most)
        for d in range(K):
            out = 0.0
            for s in range(S):
                acc = 0.0
                for e in range(K):
                    acc += T.float32(Q[b, h, e]) * T.float32(W[b, h, s, e])
                out += T.exp(acc - bias[h] * s - most) * T.float32(V[b, h, s, d])
            Y[b, h, d] = out / total


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
def test_a_head_with_keys_of_its_own_is_one_row(target: str) -> None:
    random = np.random.default_rng(2)
    q = random.standard_normal((2, 3, 24)).astype(f16)
    w, v = (random.standard_normal((2, 3, 70, 24)).astype(f16) for _ in range(2))
    bias, y = random.standard_normal(3).astype(f32) / 8, np.full(q.shape, 77, f32)
    logits = np.einsum("bhd,bhsd->bhs", q.astype(float), w.astype(float))
    logits -= bias[:, None] * np.arange(70)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    want = np.einsum("bhs,bhsd->bhd", p, v.astype(float)) / p.sum(-1)[..., None]
    if target != "cpu":
        made = own_keys.compile(q, w, v, bias, y, target=target)
        found = re.findall(r"\bgemm %(\w+).*%(\w+)", str(made.stages["tile"]))
        assert len({*found}) == 3 and len(found) >= 4  # of float32, on NVIDIA, by three of TF32
    run(own_keys, target, q, w, v, bias, y)
    np.testing.assert_allclose(y, want, rtol=2e-3, atol=2e-3)


@kernel
def upsampled(
    X: T.Tensor((B, H, S, D), f16), W: T.Tensor((D, N, 2, 2), f16),
    Y: T.Tensor((B, 2 * H, 2 * S, N), f32),
) -> None:  # fmt: skip
    """A transposed convolution."""
    for b, y, x, n in T.Parallel(B, 2 * H, 2 * S, N):
        acc = 0.0
        for c in range(D):
            acc += T.float32(X[b, y // 2, x // 2, c]) * T.float32(W[c, n, y % 2, x % 2])
        Y[b, y, x, n] = acc


@kernel
def grouped(
    X: T.Tensor((B, H, D), f16), W: T.Tensor((3, E, D), f16),
    Y: T.Tensor((B, H, D), f32),
) -> None:  # fmt: skip
    """A convolution in groups of E channels; there may be fewer in the last one."""
    for b, y, c in T.Parallel(B, H, D):
        acc = 0.0
        for r in range(3):
            for e in range(E):
                if 0 <= y + r - 1 < H:
                    acc += T.float32(X[b, y + r - 1, c // E * E + e]) * T.float32(W[r, e, c])
        Y[b, y, c] = acc


def halves(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(f16)


@pytest.mark.parametrize("target", TARGETS)
def test_products_of_indices_that_are_divided(target: str) -> None:
    """Rows and columns of tiles are parts of them: pixels of an image, and channels of a group."""
    x, w, y = halves(2, 5, 19, 20), halves(20, 18, 2, 2), np.full((2, 10, 38, 18), 77, f32)
    sizes = {"BM": 16, "BN": 16, "BK": 16}
    if target != "cpu":
        made = upsampled.compile(x, w, y, target=target, **sizes).stages["tile"]
        assert "copy %X[%b, %group, " in made and "(1, 1, 16, 16), %a_tile" in made
    run(upsampled, target, x, w, y, **sizes)
    want = np.einsum("byxc,cnrs->byrxsn", x.astype(float), w.astype(float)).reshape(y.shape)
    np.testing.assert_allclose(y, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("channels, width", [(48, 16), (40, 16)])
def test_channels_of_a_group_are_columns(channels: int, width: int, target: str) -> None:
    x, w = halves(2, 21, channels), halves(3, width, channels)
    y = np.full((2, 21, channels), 77, f32)
    run(grouped, target, x, w, y, BM=16, BN=16, BK=16)
    padded = np.pad(x.astype(float), [(0, 0), (1, 1), (0, -channels % width)])
    first = np.arange(channels) // width * width
    want = sum(padded[:, r : r + 21, first + e] * w[r, e] for r in range(3) for e in range(width))
    np.testing.assert_allclose(y, want, rtol=1e-3, atol=1e-3)
