"""Parts of accumulators: each thread does what it holds of them, and nothing passes through shared
memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

TARGETS = ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"]
M, N, K = 64, 32, 32


def after_product(which: str) -> Any:
    """A kernel that does `which` with parts of an accumulator."""

    @tilec.kernel
    def kernel(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float32"),
        D: T.Tensor((M, N), "float32"),
        first: T.int32,
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((M, K), "float16"), T.alloc_shared((K, N), "float16")
            acc, sums = T.alloc_fragment((M, N), "float32"), T.alloc_fragment((M,), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, acc, clear_accum=True)
            T.reduce_sum(acc, sums, dim=1)
            if which == "copies":
                for r in T.serial(4):
                    T.copy(acc[r * 16 : r * 16 + 16, :], D[r * 16 : r * 16 + 16, :])
            elif which == "columns":
                T.copy(acc[:, 8:24], D[0:M, 8:24])
            elif which == "guarded":
                for r in range(2):
                    for i, j in T.Parallel(M, N):
                        if i < M // 2:
                            D[i + r * (M // 2), j] = acc[i + r * (M // 2), j] * 2.0
            elif which == "row":
                for j in T.Parallel(N):
                    D[first, j] = acc[first, j]
            elif which == "element":
                for i in T.Parallel(1):
                    D[first + i, 3] = acc[first + i, 3]
            elif which == "written":
                for i, j in T.Parallel(8, N):
                    acc[first + i, j] += D[first + i, j]
                T.fill(acc[40:48, :], 5.0)
                T.copy(D[48:56, :], acc[48:56, :])
            elif which == "scaled":
                for i, j in T.Parallel(8, 16):
                    D[i, j] = acc[first + i, 8 + j] * sums[i + first]
            elif which == "atomic":
                T.atomic_add(D[8:16, :], acc[first : first + 8, :])
            elif which == "shared":
                s = T.alloc_shared((8, N), "float16")
                T.copy(acc[first : first + 8, :], s)
                T.copy(s, D[8:16, :])
            elif which == "turned":  # the loops run along other dimensions: a copy of all of it
                for j, i in T.Parallel(N, 8):
                    D[first + i, j] = acc[first + i, j]
            elif which == "repeated":
                for i, j in T.Parallel(8, N):
                    D[first + i, j] = acc[first + i // 2, j]
            T.copy(acc, C)

    return kernel


def expected(which: str, c: Any, d: Any, first: int) -> None:
    part = slice(first, first + 8)
    match which:
        case "copies":
            d[:] = c
        case "columns":
            d[:, 8:24] = c[:, 8:24]
        case "guarded":
            d[:] = 2 * c
        case "row":
            d[first] = c[first]
        case "element":
            d[first, 3] = c[first, 3]
        case "written":
            c[part] += d[part]
            c[40:48] = 5
            c[48:56] = d[48:56]
        case "scaled":
            d[:8, :16] = c[part, 8:24] * c[part].sum(1, keepdims=True)
        case "atomic":
            d[8:16] += c[part]
        case "shared":
            d[8:16] = c[part]
        case "turned":
            d[part] = c[part]
        case "repeated":
            d[part] = np.repeat(c[first : first + 4], 2, axis=0)


WITHOUT_SCRATCH = (
    "copies", "columns", "guarded", "row", "element", "written", "scaled", "atomic", "shared",
    "turned",
)  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", [*TARGETS, "cpu"])
@pytest.mark.parametrize("which", [*WITHOUT_SCRATCH, "repeated"])
def test_parts_of_an_accumulator(which: str, target: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, s).astype("float16") for s in ((M, K), (K, N)))
    c, d = np.zeros((M, N), "float32"), rng.integers(-4, 5, (M, N)).astype("float32")
    wanted_c, wanted_d, first = a.astype("float32") @ b.astype("float32"), d.copy(), 21
    expected(which, wanted_c, wanted_d, first)
    kernel = after_product(which)
    if target == "cpu":
        kernel(a, b, c, d, first)
    else:
        report = tilec.simulate(kernel, a, b, c, d, first, target=target)
        assert not report.findings, report
        made = kernel.compile(a, b, c, d, first, target=target)
        through_shared = "%acc_converted = alloc shared" in made.stages["infer_layouts"]
        assert through_shared == (which not in WITHOUT_SCRATCH)
        assert "%sums = alloc shared" not in made.stages["infer_layouts"]
        written_out = "for.unroll" in made.stages["demote_fragments"]
        assert written_out == (which in ("copies", "guarded"))  # a thread knows what it holds
    np.testing.assert_array_equal(c, wanted_c)
    np.testing.assert_array_equal(d, wanted_d)


def seen_as(shape: tuple[int, ...], n: int) -> Any:
    """A kernel that works on an accumulator of 64 x n through a view."""
    last = len(shape) - 1

    @tilec.kernel
    def kernel(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, n), "float16"),
        C: T.Tensor((M, n), "float32"),
        D: T.Tensor(shape[:-1], "float32"),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((M, K), "float16"), T.alloc_shared((K, n), "float16")
            acc = T.alloc_fragment((M, n), "float32")
            seen, sums = T.reshape(acc, shape), T.alloc_fragment(shape[:-1], "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, acc, clear_accum=True)
            for i, j, k in T.Parallel(*shape):
                seen[i, j, k] = T.max(seen[i, j, k], 0.0) + j
            T.reduce_sum(seen, sums, dim=last)
            T.copy(sums, D)
            T.copy(acc, C)

    return kernel


# A view of 64 x n, and whether it is one of what threads hold.
VIEWS = {
    (64, 2, 32): (64, True),
    (64, 3, 32): (96, True),
    (16, 4, 64): (64, True),
    (4, 16, 48): (48, True),
    (64, 8, 4): (32, True),
    (64, 32, 3): (96, False),
    (8, 4, 128): (64, False),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", [*TARGETS, "cpu"])
@pytest.mark.parametrize("shape", VIEWS)
def test_views_of_an_accumulator(shape: tuple[int, ...], target: str) -> None:
    n, held = VIEWS[shape]
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, s).astype("float16") for s in ((M, K), (K, n)))
    c, d = np.zeros((M, n), "float32"), np.zeros(shape[:-1], "float32")
    product = (a.astype("float32") @ b.astype("float32")).reshape(shape)
    wanted = np.maximum(product, 0) + np.arange(shape[1], dtype="float32")[:, None]
    kernel = seen_as(shape, n)
    if target == "cpu":
        kernel(a, b, c, d)
    else:
        report = tilec.simulate(kernel, a, b, c, d, target=target)
        assert not report.findings, report
        laid_out = kernel.compile(a, b, c, d, target=target).stages["infer_layouts"]
        assert ("%acc_converted = alloc shared" in laid_out) == (not held)
    np.testing.assert_array_equal(c.reshape(shape), wanted)
    np.testing.assert_array_equal(d, wanted.sum(-1))
