"""Tiles whose elements come from computed places: convolutions written by hand, rows that an index
tensor names. They run ahead of the products that read them, and neighbours come at once."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_im2col import taps

import tilec
import tilec.language as T
from tilec.ir.errors import LaunchError

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

B, C, F, H, W, OH, OW, K, M, N, R = T.dynamic("B, C, F, H, W, OH, OW, K, M, N, R")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
PTX = ("cuda:sm_90a", "cuda:sm_80")
AHEAD = "ahead: a, by cp_async"


def convolution(
    kernel: int, stride: int, dilation: int, pad: int, depth: int = 32, late: bool = False
) -> Any:
    """One of NHWC images, in the words of a loop over elements; all sizes are known at run time.
    `late`: the places are divided out where they are known to be inside."""

    @tilec.kernel
    def by_hand(
        X: T.Tensor((B, H, W, C), "float16"),
        Wt: T.Tensor((kernel * kernel * C, F), "float16"),
        Y: T.Tensor((B * OH * OW, F), "float32"),
        like: T.Tensor((OH, OW), "int8"),
    ):
        with T.Kernel(T.ceildiv(F, 32), T.ceildiv(B * OH * OW, 64), threads=128) as (bx, by):
            a = T.alloc_shared((64, depth), "float16")
            b = T.alloc_shared((depth, 32), "float16")
            acc = T.alloc_fragment((64, 32), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(kernel * kernel * C, depth), num_stages=3):
                for i, j in T.Parallel(64, depth):
                    m = by * 64 + i
                    q = k * depth + j
                    row = m % (OH * OW) // OW if late else m // OW % OH
                    y = row * stride + q // (kernel * C) * dilation - pad
                    x = m % OW * stride + q // C % kernel * dilation - pad
                    inside = m < B * OH * OW and y >= 0 and y < H and x >= 0 and x < W
                    inside = inside and q < kernel * kernel * C
                    if late:
                        a[i, j] = T.if_then_else(inside, X[m // (OH * OW), y, x, q % C], 0)
                    else:
                        found = X[m // (OH * OW), y, x, q % C]
                        a[i, j] = T.if_then_else(inside, found, T.float16(0))
                T.copy(Wt[k * depth, bx * 32], b)
                T.gemm(a, b, acc)
            T.copy(acc, Y[by * 64, bx * 32])

    return by_hand


def images(
    channels: int, kernel: int, stride: int, dilation: int, pad: int, filters: int = 24
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Arguments, the result to be filled, and what is wanted."""
    rng = np.random.default_rng(channels)
    x = rng.standard_normal((2, 7, 6, channels)).astype(np.float16)
    w = rng.standard_normal((kernel * kernel * channels, filters)).astype(np.float16)
    reach = dilation * (kernel - 1) + 1
    oh, ow = ((e + 2 * pad - reach) // stride + 1 for e in x.shape[1:3])
    y = np.full((2 * oh * ow, filters), np.nan, np.float32)
    want = taps(x, kernel, stride, dilation, pad) @ w.astype(np.float64)
    return (x, w, y, np.zeros((oh, ow), np.int8)), want


def scalar_loads(ptx: str) -> int:
    return len(re.findall(r"ld\.global\S*\.(?:b16|u16)\b", ptx))


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "dilation", "pad", "depth"),
    [(16, 3, 1, 1, 1, 32), (8, 3, 2, 1, 0, 32), (32, 2, 1, 2, 3, 16), (5, 3, 1, 1, 1, 32),
     (24, 1, 1, 1, 0, 32)],
)  # fmt: skip
def test_convolutions(
    channels: int, kernel: int, stride: int, dilation: int, pad: int, depth: int, target: str
) -> None:
    given, want = images(channels, kernel, stride, dilation, pad)
    report = tilec.simulate(
        convolution(kernel, stride, dilation, pad, depth), *given, target=target
    )
    assert report.ok, str(report)
    np.testing.assert_allclose(given[2], want, atol=2e-2)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", PTX)
@pytest.mark.parametrize(("channels", "bytes"), [(16, 16), (24, 16), (12, 8), (5, 0)])
def test_as_wide_as_the_channels_allow(channels: int, bytes: int, target: str) -> None:
    """16 bytes of neighbours come at once where the rows of X are whole 16 bytes, though no size is
    a compile-time one, 8 where they are whole 8; others come element by element."""
    given, _ = images(channels, 3, 1, 1, 1)
    made = convolution(3, 1, 1, 1).plan_launch(target, None, given, {}).variant
    ptx = made.stages["ptx"]
    asynchronous = re.findall(r"cp\.async\.c[ag]\.shared\.global\S* \[.*?\], *\[.*?\], *(\d+)", ptx)
    assert (AHEAD in made.stages["plan"]) == (str(bytes) in asynchronous) == bool(bytes)
    assert bool(scalar_loads(ptx)) == (bytes == 0)


@pytest.mark.parametrize("target", TARGETS)
def test_what_was_divided_by_before_is_not_zero(target: str) -> None:
    """Places that are divided out in a branch alone."""
    given, want = images(16, 3, 1, 1, 1)
    kernel = convolution(3, 1, 1, 1, late=True)
    made = kernel.plan_launch(target, None, given, {}).variant
    assert AHEAD in made.stages["plan"] or target.startswith("hip")
    assert re.search(r"= gather %X", made.stages["recognise_gathers"])
    report = tilec.simulate(kernel, *given, target=target)
    assert report.ok, str(report)
    np.testing.assert_allclose(given[2], want, atol=2e-2)


@tilec.kernel
def shared_out(X: T.Tensor((M, 16), "float16"), Y: T.Tensor((32, 16), "float32"), n: T.int32):
    """Row i // n of X, if there is an n."""
    with T.Kernel(1, threads=128) as _:
        a, b = T.alloc_shared((32, 16), "float16"), T.alloc_shared((16, 16), "float16")
        acc = T.alloc_fragment((32, 16), "float32")
        T.clear(acc)
        for k in T.Pipelined(2, num_stages=2):
            for i, j in T.Parallel(32, 16):
                a[i, j] = T.if_then_else(n > 0, X[(i + k) // n, j], 0)
            for i, j in T.Parallel(16, 16):
                b[i, j] = T.if_then_else(i == j, 1, 0)
            T.gemm(a, b, acc)
        T.copy(acc, Y)


@pytest.mark.parametrize("target", ("cpu", *TARGETS))
@pytest.mark.parametrize("n", [0, 3])
def test_what_may_be_zero_is_divided_by_in_any_case(n: int, target: str) -> None:
    x = np.random.default_rng(0).standard_normal((33, 16)).astype(np.float16)
    y = np.full((32, 16), 7, np.float32)
    if target == "cpu":
        shared_out(x, y, n)
    else:
        report = tilec.simulate(shared_out, x, y, n, target=target)
        assert report.ok, str(report)
        made = shared_out.plan_launch(target, None, (x, y, n), {}).variant
        assert " = gather " in made.stages["recognise_gathers"]
    rows = np.arange(32)
    want = x[rows // n] + x[(rows + 1) // n].astype(np.float64) if n else np.zeros((32, 16))
    np.testing.assert_allclose(y, want, atol=1e-2)


def parted(branch: bool) -> Any:
    """Rows of images, R to an image; `branch`: whose number is divided out where they are there."""

    @tilec.kernel
    def kernel(
        X: T.Tensor((B, R, K), "float16"),
        like: T.Tensor((N,), "int8"),
        Y: T.Tensor((32, 32), "float32"),
    ):
        with T.Kernel(1, threads=128) as _:
            a, b = T.alloc_shared((32, 32), "float16"), T.alloc_shared((32, 32), "float16")
            acc = T.alloc_fragment((32, 32), "float32")
            T.clear(acc)
            for i, j in T.Parallel(32, 32):
                b[i, j] = T.if_then_else(i == j, 1, 0)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
                for i, j in T.Parallel(32, 32):
                    if branch:
                        c = k * 32 + j
                        a[i, j] = T.if_then_else(c < K, X[i // N, i % N % (N + 1), c], 0)
                    else:
                        a[i, j] = X[i // N, i % N, k * 32 + j]
                T.gemm(a, b, acc)
            T.copy(acc, Y)

    return kernel


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("branch", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 5, 40])
def test_places_are_divided_out_by_products(rows: int, branch: bool, target: str) -> None:
    """What divides is there before the loop, so is its reciprocal; x // 0 and x % 0 are 0."""
    rng = np.random.default_rng(rows)
    x = rng.integers(-3, 4, (7, max(rows, 2), 24)).astype(np.float16)
    given = x, np.zeros(rows, np.int8), np.full((32, 32), np.nan, np.float32)
    kernel = parted(branch)
    report = tilec.simulate(kernel, *given, target=target)
    assert report.ok, str(report)
    want = np.zeros((32, 32))
    for i in range(32):
        image, row = (i // rows, i % rows) if rows else (0, 0)
        if image < 7:
            want[i, :24] = x[image, row]
    np.testing.assert_array_equal(given[2], want)
    made = kernel.plan_launch(target, None, given, {}).variant
    gather = made.stages["recognise_gathers"]
    assert gather.count("reciprocal=") == (3 if branch else 2)
    if target in PTX:
        assert AHEAD in made.stages["plan"]


def test_a_variant_for_some_channels_refuses_others() -> None:
    kernel = convolution(3, 1, 1, 1)
    wide = kernel.plan_launch("cuda:sm_90a", None, images(16, 3, 1, 1, 1)[0], {}).variant
    call = kernel.plan_launch("cuda:sm_90a", None, images(17, 3, 1, 1, 1)[0], {}).call
    with pytest.raises(LaunchError, match="X: this variant was compiled for"):
        wide._check_facts(replace(call, device="cuda"))


def test_the_product_runs_while_copies_are_started() -> None:
    given, _ = images(64, 3, 1, 1, 1, filters=32)
    made = convolution(3, 1, 1, 1, 64).plan_launch("cuda:sm_90a", None, given, {}).variant
    text = made.stages["expand_pipeline"]
    loop = text[text.index("for.pipelined") :]
    product = loop.index("asynchronous=true")
    started = loop.index("engine=cp_async", product)
    assert product < started < loop.index("wgmma_wait")
    assert tilec.simulate(convolution(3, 1, 1, 1, 64), *given, target="cuda:sm_90a").ok


@tilec.kernel
def rows_by_index(
    X: T.Tensor((M, K), "float16"),
    ids: T.Tensor((R,), "int32"),
    Wt: T.Tensor((N, K), "float16"),
    Y: T.Tensor((R, N), "float32"),
):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(R, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 32), "float16")
        acc = T.alloc_fragment((64, 32), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            for i, j in T.Parallel(64, 32):
                a[i, j] = X[ids[by * 64 + i], k * 32 + j]
            T.copy(Wt[bx * 32, k * 32], b)
            T.gemm(a, b, acc, transpose_B=True)
        T.copy(acc, Y[by * 64, bx * 32])


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("depth", [96, 72, 75])
def test_rows_that_an_index_names(depth: int, target: str) -> None:
    """Names of no row give zeros."""
    rng = np.random.default_rng(depth)
    x, w = (rng.standard_normal((n, depth)).astype(np.float16) for n in (50, 40))
    ids, y = rng.integers(-3, 55, 100).astype(np.int32), np.full((100, 40), np.nan, np.float32)
    given = x, ids, w, y
    report = tilec.simulate(rows_by_index, *given, target=target)
    assert report.ok, str(report)
    rows = np.where(((ids >= 0) & (ids < 50))[:, None], x[np.clip(ids, 0, 49)], 0)
    np.testing.assert_allclose(y, rows.astype(np.float64) @ w.T.astype(np.float64), atol=1e-2)
    if target in PTX and depth % 8 == 0:
        made = rows_by_index.plan_launch(target, None, given, {}).variant
        assert AHEAD in made.stages["plan"]


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("masked", [True, False])
def test_rows_that_get_longer_are_gathered(target: str, masked: bool) -> None:
    """72 columns are no multiple of wgmma's 16: the tile gets 80, of which eight are 0."""

    @tilec.kernel
    def kernel(
        X: T.Tensor((M, 72), "float16"),
        ids: T.Tensor((R,), "int32"),
        Y: T.Tensor((R, R), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 72), "float16")
            b = T.alloc_shared((64, 72), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            for i, j in T.Parallel(64, 72):
                b[i, j] = X[ids[i], j]
            for k in T.Pipelined(T.ceildiv(R, 64), num_stages=2):
                for i, j in T.Parallel(64, 72):
                    if masked:
                        a[i, j] = T.if_then_else(ids[k * 64 + i] > 3, X[ids[k * 64 + i], j], 0)
                    else:
                        a[i, j] = X[ids[k * 64 + i], j]
                T.gemm(a, b, acc, transpose_B=True, clear_accum=True)
                T.copy(acc, Y[k * 64, 0])

    rng = np.random.default_rng(5)
    x = rng.integers(-3, 4, (50, 72)).astype(np.float16)
    ids = rng.integers(0, 50, 100).astype(np.int32)
    y = np.zeros((100, 100), np.float32)
    report = tilec.simulate(kernel, x, ids, y, target=target)
    assert report.ok, str(report)
    rows = x[ids].astype(np.float32)
    kept = rows * (ids > 3)[:, None] if masked else rows
    np.testing.assert_array_equal(y[:, :64], kept @ rows[:64].T)
    stages = kernel.compile(x, ids, y, target=target).stages
    assert (AHEAD in stages["plan"]) == (target in PTX)
    if target == "cuda:sm_90a":
        assert "instr=wgmma" in stages["select_gemm"]


def gathers(kernel: Any, *given: Any) -> bool:
    made = kernel.plan_launch("cuda:sm_90a", None, given, {}).variant
    return " = gather " in made.stages["recognise_gathers"]


def loop_of(element: Any, keeps: bool = False, writes: bool = False, stages: int = 2) -> Any:
    """A kernel that fills a tile with what `element` makes of X, its row and column."""

    @tilec.kernel
    def filled(X: T.Tensor((128, 256), "float16"), Y: T.Tensor((128, 64), "float32")):
        with T.Kernel(2, threads=128) as by:
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((32, 64), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            T.fill(b, 1)
            for k in T.Pipelined(8, num_stages=stages):
                for i, j in T.Parallel(64, 32):
                    if keeps:
                        a[i, j] = a[i, j] + element(X, by * 64 + i, k * 32 + j)
                    else:
                        a[i, j] = element(X, by * 64 + i, k * 32 + j)
                T.gemm(a, b, acc)
                if writes:
                    X[by * 64, k] = T.float16(0)
            T.copy(acc, Y[by * 64, 0])

    return filled


def test_what_is_a_gather() -> None:
    x, y = np.ones((128, 256), np.float16), np.empty((128, 64), np.float32)

    def turned(X: Any, row: Any, column: Any) -> Any:
        return X[127 - row, column]

    def masked(X: Any, row: Any, column: Any) -> Any:
        return T.if_then_else(row != 5, X[row // 2, column], T.float16(0))

    assert gathers(loop_of(turned), x, y)
    assert gathers(loop_of(masked), x, y)
    assert gathers(loop_of(turned, stages=0), x, y)  # of a loop with products the least
    assert not gathers(loop_of(turned, writes=True), x, y)
    assert not gathers(loop_of(turned, keeps=True), x, y)
    assert not gathers(loop_of(lambda X, row, column: X[127 - row, column] * 2), x, y)
    assert not gathers(loop_of(lambda X, row, column: X[127 - row, 255 - column]), x, y)  # narrow
    ones = loop_of(lambda X, r, c: T.if_then_else(r != 5, X[r // 2, c], T.float16(1)))
    assert not gathers(ones, x, y)  # cp.async brings zeros
    odd = loop_of(lambda X, r, c: T.if_then_else(c % 3 == 0, X[r // 2, c], T.float16(0)))
    assert not gathers(odd, x, y)  # neighbours differ


@pytest.mark.parametrize("target", TARGETS)
def test_masks_of_elements_are_kept(target: str) -> None:
    """Conditions that differ between neighbours, and other numbers than 0 for those left out."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((128, 256)).astype(np.float16)
    rows, columns = np.arange(128)[:, None], np.arange(256)[None]
    cases = [
        (lambda X, r, c: T.if_then_else(c % 3 == 0, X[r // 2, c], T.float16(0)),
         np.where(columns % 3 == 0, x[rows // 2, columns], 0)),
        (lambda X, r, c: T.if_then_else(r % 3 == 0, X[r // 2, c], T.float16(1)),
         np.where(rows % 3 == 0, x[rows // 2, columns], 1)),
        (lambda X, r, c: T.if_then_else(r % 3 == 0, X[r // 2, c // 64 * 64 + c % 64], T.float16(0)),
         np.where(rows % 3 == 0, x[rows // 2, columns], 0)),
    ]  # fmt: skip
    for element, want in cases:
        y = np.full((128, 64), np.nan, np.float32)
        assert tilec.simulate(loop_of(element), x, y, target=target).ok
        total = want.astype(np.float64).sum(1, keepdims=True)
        np.testing.assert_allclose(y, np.broadcast_to(total, y.shape), atol=2e-2)
