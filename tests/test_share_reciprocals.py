"""Tiles divided by a few numbers: products with reciprocals, and the quotients of IEEE 754."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.ops import Binary, Fma, If
from tilec.ir.parser import parse_func

pytestmark = pytest.mark.turns

M, N = T.dynamic("M, N")


def rows(threads: int = 128):
    @tilec.kernel
    def divided(A: T.Tensor((N, 64), "float32"), D: T.Tensor((N,), "float32"),
                B: T.Tensor((N, 64), "float32")):  # fmt: skip
        with T.Kernel(T.ceildiv(N, 32), threads=threads) as by:
            a = T.alloc_fragment((32, 64), "float32")
            d = T.alloc_fragment((32,), "float32")
            T.copy(A[by * 32, 0], a)
            T.copy(D[by * 32], d)
            for i, j in T.Parallel(32, 64):
                a[i, j] /= d[i]
            T.copy(a, B[by * 32, 0])

    return divided


def operands(n: int, seed: int, odd: bool) -> tuple[np.ndarray, np.ndarray]:
    """Quotients next to the middle of two floats, and of any; `odd`: all kinds of numbers too."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0x3F800000, 0x40000000, (n, 64), dtype=np.uint32)
    d = rng.integers(0x3F800000, 0x40000000, n, dtype=np.uint32).view(np.float32)
    a = d[:, None].astype(float) * (bits.view(np.float32).astype(float) + 2.0**-24)
    a = a.astype(np.float32) * rng.choice([-1, 1], (n, 64)).astype(np.float32)
    a[1::3] *= np.float32(2.0) ** rng.integers(-90, 60, a[1::3].shape).astype(np.float32)
    d[::2] *= np.float32(2.0) ** rng.integers(-24, 24, d[::2].shape).astype(np.float32)
    if odd:
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 1.2e-38, 3e38, 1.0],
                           np.float32)  # fmt: skip
        a[::5, ::7] = rng.choice(special, a[::5, ::7].shape)
        d[::4] = rng.choice(special, d[::4].shape)
        d[3::4] *= -1
    return a, d


def same(got: np.ndarray, a: np.ndarray, d: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        want = a / d[:, None]
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    assert (np.signbit(got) == np.signbit(want))[number].all()


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_one_reciprocal_for_a_row(target):
    """A thread divides once for each of its rows, or, in the other branch, each element."""
    a, d = operands(32, 0, False)
    compiled = rows().compile(a, d, a, target=target)
    body = parse_func(compiled.stages["share_reciprocals"]).body

    def divisions(block) -> int:
        return sum(isinstance(o, Binary) and o.kind == "div" for o in walk(block))

    (choice,) = [o for o in walk(body) if isinstance(o, If) and divisions(o.orelse)]
    assert divisions(choice.then) == 0 and divisions(choice.orelse) == 1  # of a loop written out
    assert sum(isinstance(o, Fma) for o in walk(choice.then)) == 3
    assert 1 <= divisions(body) - 1 <= 64 * 32 // 128 // 4  # each reciprocal serves four or more
    for n, odd in ((1, False), (33, False), (64, True)):
        a, d = operands(n, n, odd)
        b = np.full_like(a, np.nan)
        assert not tilec.simulate(rows(), a, d, b, target=target).findings
        same(b, a, d)


def test_on_the_cpu():
    for odd in (False, True):
        a, d = operands(70, 3, odd)
        b = np.empty_like(a)
        rows()(a, d, b)
        same(b, a, d)


def test_what_divides_still():
    """Divisors that differ for each element, and few of them."""

    @tilec.kernel
    def each(A: T.Tensor((1024,), "float32"), D: T.Tensor((1024,), "float32")):
        with T.Kernel(1, threads=64):
            a, d = T.alloc_fragment((1024,), "float32"), T.alloc_fragment((1024,), "float32")
            T.copy(A, a)
            T.copy(D, d)
            for i in T.Parallel(1024):
                a[i] /= d[i]
            T.copy(a, A)

    x = np.ones(1024, np.float32)
    stages = each.compile(x, x, target="cuda:sm_90a").stages
    assert "fma" not in stages["share_reciprocals"]


@pytest.mark.gpu
@pytest.mark.parametrize("odd", [False, True])
def test_quotients_on_a_gpu(odd):
    torch = pytest.importorskip("torch")
    n = 200_000
    a, d = operands(n, 5, odd)
    b = torch.full((n, 64), float("nan"), device="cuda")
    rows()(torch.from_numpy(a).cuda(), torch.from_numpy(d).cuda(), b)
    same(b.cpu().numpy(), a, d)


def by_a_number(threads: int = 128):
    @tilec.kernel
    def divided(A: T.Tensor((N, 2048), "float32"), D: T.Tensor((N,), "float32"),
                B: T.Tensor((N, 2048), "float32")):  # fmt: skip
        with T.Kernel(N, threads=threads) as r:
            a = T.alloc_fragment((2048,), "float32")
            T.copy(A[r, 0:2048], a)
            step = D[r] * 1.0
            for j in T.Parallel(2048):
                B[r, j] = T.round(a[j] / step)

    return divided


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
@pytest.mark.parametrize("odd", [False, True])
def test_one_reciprocal_of_a_number(target, odd):
    a, d = operands(96, 3, odd)
    a, d = a.reshape(3, 2048), d[:3]
    b = np.full_like(a, np.nan)
    report = tilec.simulate(by_a_number(), a, d, b, target=target)
    assert report.ok, report
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(b, np.rint(a / d[:, None]))
    stages = by_a_number().compile(a, d, b, target=target).stages
    body = parse_func(stages["share_reciprocals"]).body
    found = [o for o in walk(body) if isinstance(o, Binary) and o.kind == "div"]
    multiplied = sum(isinstance(o, Fma) for o in walk(body))
    assert len(found) == 1 + 4 and multiplied == 1 + 4 * 4  # of four neighbours at once


@pytest.mark.parametrize("target", ["cuda:sm_90a", "hip:gfx942"])
def test_what_comes_from_memory_is_read_first(target):
    """Rows that begin anywhere, and beyond whose end 0 is read; infinities divide."""

    @tilec.kernel
    def largest(X: T.Tensor((M, N), "float16"), Y: T.Tensor((M, 2), "float32"), t: T.float32):
        for i in T.Parallel(M):
            most, least = -T.infinity("float32"), T.infinity("float32")
            for j in range(N):
                most = T.max(most, X[i, j] / t)
                least = T.min(least, X[i, j] / t)
            Y[i, 0] = most
            Y[i, 1] = least

    x = np.random.default_rng(0).standard_normal((4, 1601)).astype(np.float16)
    x[1], x[2], x[3, 5] = -0.0, -np.abs(x[2]), np.inf
    for t in (np.float32(0.7), np.float32(-3), np.float32(1e-30)):
        y, want = np.full((4, 2), 77, np.float32), x.astype(np.float32) / t
        assert tilec.simulate(largest, x, y, t, target=target).ok
        np.testing.assert_array_equal(y, np.stack([want.max(1), want.min(1)], 1))
    body = parse_func(largest.compile(x, y, t, target=target).stages["share_reciprocals"]).body
    assert any(isinstance(o, Fma) for o in walk(body))
