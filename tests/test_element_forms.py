"""Element loops of programs as others write them: what their branches share, elements that they
gather, taps that lie beyond an edge, tiles that stick out of rows, and rows that are short."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

B, C, S, H, D, M, N, L = T.dynamic("B, C, S, H, D, M, N, L")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")


@tilec.kernel
def rotated(
    X: T.Tensor((S, H, D), "float16"), cos: T.Tensor((S, D), "float16"),
    sin: T.Tensor((S, D), "float16"), Y: T.Tensor((S, H, D), "float16"),
):  # fmt: skip
    for s, h, e in T.Parallel(S, H, D):
        half = D // 2
        if e < half:
            other = -T.float32(X[s, h, (e + half) % D])
        else:
            other = T.float32(X[s, h, (e + half) % D])
        Y[s, h, e] = T.float32(X[s, h, e]) * T.float32(cos[s, e]) + other * T.float32(sin[s, e])


@tilec.kernel
def either(
    X: T.Tensor((M, D), "float32"), Z: T.Tensor((M, D), "float32"), Y: T.Tensor((M, D), "float32")
):
    """Branches that have nothing in common, each for eight neighbours or more."""
    for i, e in T.Parallel(M, D):
        if e % 16 < 8:
            Y[i, e] = T.sqrt(T.abs(X[i, e])) / (1.0 + X[i, e] * X[i, e])
        else:
            Y[i, e] = T.exp(Z[i, e])
        Y[i, e] = Y[i, e] + 1.0


@tilec.kernel
def embedded(
    ids: T.Tensor((M,), "int64"), W: T.Tensor((N, D), "float16"), P: T.Tensor((M, D), "float16"),
    Y: T.Tensor((M, D), "float16"),
):  # fmt: skip
    for i, e in T.Parallel(M, D):
        Y[i, e] = W[ids[i], e] + P[i, e]


@tilec.kernel
def unfolded(X: T.Tensor((H, D), "float32"), Y: T.Tensor((9, H * D), "float32")):
    for k, p in T.Parallel(9, H * D):
        y = p // D + k // 3 - 1
        x = p % D + k % 3 - 1
        if y < 0 or y >= H or x < 0 or x >= D:
            Y[k, p] = 0.0
        else:
            Y[k, p] = X[y, x]


@tilec.kernel
def causal(
    X: T.Tensor((C, L), "float32"), W: T.Tensor((C, 4), "float32"), Y: T.Tensor((C, L), "float32")
):
    for c, t in T.Parallel(C, L):
        s = 0.0
        for k in range(4):
            if t + k - 3 >= 0:
                s += X[c, t + k - 3] * W[c, k]
        Y[c, t] = s


@tilec.kernel
def weighted(
    X: T.Tensor((M, N), "float32"), W: T.Tensor((N,), "float32"), Y: T.Tensor((M, N), "float32")
):
    for i, j in T.Parallel(M, N):
        Y[i, j] = X[i, j] * W[j]


@tilec.kernel
def centred(X: T.Tensor((B, C, L), "float32"), Y: T.Tensor((B, C, L), "float32")):
    """Sums over short rows of many images."""
    for c in T.Parallel(C):
        s = 0.0
        for b in range(B):
            for l in range(L):
                s += X[b, c, l]
        for b in range(B):
            for l in range(L):
                Y[b, c, l] = X[b, c, l] - s / (B * L)


@tilec.kernel
def averages(X: T.Tensor((C, H, D), "float16"), Y: T.Tensor((C,), "float32")):
    for c in T.Parallel(C):
        s = 0.0
        for y in range(H):
            for x in range(D):
                s += X[c, y, x]
        Y[c] = s / (H * D)


def stages(kernel: Any, *specs: Any) -> Any:
    given = [tilec.spec(*s) for s in specs]
    return kernel.compile(*given, target="cuda:sm_90a").stages


# --- branches ---


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "shape", [(3, 5, 120), (1, 1, 2), (2, 18, 6), (2, 3, 256), (2, 3, 7), (1, 0, 4)]
)
@pytest.mark.parametrize("target", TARGETS)
def test_what_both_branches_load(target: str, shape: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal(shape).astype(np.float16)
    cos, sin = (rng.standard_normal(shape[::2]).astype(np.float16) for _ in range(2))
    y = np.full_like(x, np.nan)
    run(rotated, target, x, cos, sin, y)
    at = np.arange(shape[2])
    other = np.roll(x.astype(float), -(shape[2] // 2), 2)
    other = np.where(at < shape[2] // 2, -other, other)
    want = x.astype(float) * cos[:, None] + other * sin[:, None]
    np.testing.assert_allclose(y, want, rtol=2e-3, atol=2e-3)


def test_both_branches_load_once() -> None:
    """In vectors: of each element one load stood in each branch."""
    x, row = ((512, 28, 120), "float16"), ((512, 120), "float16")
    found = stages(rotated, x, row, row, x)
    loop = found["join_stores"]
    assert loop.count("load %X") == 2 * loop.count("parallel (") and "types=" not in loop
    assert not re.search(r"ld\.global\.nc\.b16|st\.global\.b16", found["ptx"])


@pytest.mark.parametrize("target", TARGETS)
def test_neighbours_that_go_the_same_way(target: str, rng: np.random.Generator) -> None:
    for shape in ((5, 48), (3, 16), (1, 1), (2, 41)):
        x, z = (rng.standard_normal(shape, np.float32) for _ in range(2))
        y = np.full(shape, np.nan, np.float32)
        run(either, target, x, z, y)
        a, b = x.astype(float), z.astype(float)
        first = np.arange(shape[1]) % 16 < 8
        want = np.where(first, np.sqrt(np.abs(a)) / (1 + a * a), np.exp(b)) + 1
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


def test_branches_hold_vectors() -> None:
    @tilec.kernel
    def halves(
        X: T.Tensor((M, D), "float16"),
        Z: T.Tensor((M, D), "float32"),
        Y: T.Tensor((M, D), "float32"),
    ):
        for i, e in T.Parallel(M, D):
            v: T.float32 = 1.0
            if i % 2 == 0:
                if e % 8 < 4:
                    v = T.sqrt(Z[i, e])
            Y[i, e] = v * X[i, e]

    text = stages(halves, ((512, 512), "float16"), *[((512, 512), "float32")] * 2)["ptx"]
    assert "ld.global.nc.v4.b32" in text and "ld.global.nc.b32" not in text


# --- gathered elements ---


@pytest.mark.covering(1)
@pytest.mark.parametrize("size", [(5, 70), (33, 64), (1, 1), (9, 7), (40, 130)])
@pytest.mark.parametrize("target", TARGETS)
def test_gathered_rows(target: str, size: tuple[int, int], rng: np.random.Generator) -> None:
    """Also of rows that there are not, which are 0."""
    w = rng.standard_normal((11, size[1])).astype(np.float16)
    ids, p = rng.integers(-2, 13, size[0]), rng.standard_normal(size).astype(np.float16)
    y = np.full(size, np.nan, np.float16)
    run(embedded, target, ids, w, p, y)
    there = (ids >= 0) & (ids < 11)
    want = np.where(there[:, None], w[ids % 11].astype(float), 0) + p
    np.testing.assert_allclose(y, want, rtol=2e-3, atol=2e-3)


def test_places_are_loaded_together() -> None:
    """Before what they are the places of; a tile inside its tensors asks about those alone."""
    tile = ((4096, 770), "float16")
    specs = ((4096,), "int64"), ((50000, 770), "float16"), tile, tile
    fast = stages(embedded, *specs)["unroll_loads"].split("orelse")[0]
    loads = re.findall(r"mem_load %(\w+),.*", fast)
    guards = dict(re.findall(r"mem_load %(\w+),.*?(guard=)", fast))
    assert loads.index("W") > len(loads) - 1 - loads[::-1].index("ids")
    assert loads.count("ids") > 1 and guards == {"W": "guard="}
    assert fast.rindex("mem_load") < fast.index("mem_store")


# --- edges ---


@pytest.mark.covering(1)
@pytest.mark.parametrize("size", [(5, 7), (1, 1), (16, 33), (3, 128)])
@pytest.mark.parametrize("target", TARGETS)
def test_beyond_an_image(target: str, size: tuple[int, int], rng: np.random.Generator) -> None:
    x = rng.standard_normal(size, np.float32)
    y = np.full((9, x.size), np.nan, np.float32)
    run(unfolded, target, x, y)
    p = np.pad(x, 1)
    want = [p[k // 3 : k // 3 + size[0], k % 3 : k % 3 + size[1]].ravel() for k in range(9)]
    np.testing.assert_array_equal(y, np.array(want))


def test_one_store_where_bounds_are_joined_by_or() -> None:
    loop = stages(unfolded, ((63, 65), "float32"), ((9, 63 * 65), "float32"))["join_stores"]
    assert loop.count("store %Y") == 1


@pytest.mark.covering(1)
@pytest.mark.parametrize("size", [(5, 70), (1, 1), (33, 2), (2, 1030)])
@pytest.mark.parametrize("target", TARGETS)
def test_taps(target: str, size: tuple[int, int], rng: np.random.Generator) -> None:
    """What is no number counts where it is inside, and nothing before the first element."""
    x, w = rng.standard_normal(size, np.float32), rng.standard_normal((size[0], 4), np.float32)
    w[0, 0] = np.inf
    x[-1, -1] = np.nan
    y = np.zeros(size, np.float32)
    run(causal, target, x, w, y)
    with np.errstate(invalid="ignore"):
        wide = [x[:, : max(size[1] - 3 + k, 0)] * w[:, k : k + 1].astype(float) for k in range(4)]
        want = sum(np.pad(t, ((0, 0), (size[1] - t.shape[1], 0))) for t in wide)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


def test_taps_have_no_branches() -> None:
    size = (512, 2047), "float32"
    text = stages(causal, size, ((512, 4), "float32"), size)["join_stores"]
    assert "types=(f32)" not in text and text.count("select") == 3  # t itself is always there


@pytest.mark.parametrize(
    "columns, tile",
    [(301, "32, 64"), (770, "32, 64"), (768, "8, 256"), (1025, "8, 256"), (120, "16, 128")],
)
def test_tiles_stick_out_by_little(columns: int, tile: str) -> None:
    size = (512, columns), "float32"
    text = stages(weighted, size, ((columns,), "float32"), size)["tile"]
    assert f"parallel ({tile}) body" in text


def test_the_number_of_a_block_is_no_sum_with_a_sign() -> None:
    """Nor is what it is divided by 0: of no rows there is no block, and nothing to complain of."""
    x, row = ((512, 28, 120), "float16"), ((512, 120), "float16")
    text = stages(rotated, x, row, row, x)["ptx"]
    assert text.count("div.u32") == 2 and "div.s32" not in text
    none = np.zeros((0, 9), np.float32)
    run(weighted, "cpu", none, np.zeros(9, np.float32), none.copy())


# --- loops over tiles at an edge ---


@tilec.kernel
def summed(X: T.Tensor((M, N), "float32"), Y: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 64), threads=256) as bn:
        acc = T.alloc_fragment((32, 64), "float32")
        s = T.alloc_fragment((64,), "float32")
        T.clear(acc)
        for k in range(T.ceildiv(M, 32)):
            for i, j in T.Parallel(32, 64):
                acc[i, j] += X[k * 32 + i, bn * 64 + j]
        T.reduce_sum(acc, s, dim=0)
        T.copy(s, Y[bn * 64])


@pytest.mark.covering(1)
@pytest.mark.parametrize("size", [(203, 77), (1, 1), (260, 64), (129, 130), (31, 3)])
@pytest.mark.parametrize("target", TARGETS)
def test_sums_at_an_edge(target: str, size: tuple[int, int], rng: np.random.Generator) -> None:
    x, y = rng.standard_normal(size, np.float32), np.full(size[1], np.nan, np.float32)
    run(summed, target, x, y)
    np.testing.assert_allclose(y, x.sum(0, dtype=float), rtol=1e-4, atol=1e-4)


def test_loads_at_an_edge_are_on_their_way_together() -> None:
    """All tiles of the last columns are at an edge: their block took three times as long."""
    text = stages(summed, ((20011, 3001), "float32"), ((3001,), "float32"))["unroll_loads"]
    loads = [line for line in text.splitlines() if "mem_load %X" in line]
    assert len(loads) == 10 and sum("guard=" in line for line in loads) == 5


# --- short rows ---


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", [(9, 3, 812), (1, 1, 1), (17, 2, 513), (5, 2, 1030), (3, 2, 300)])
@pytest.mark.parametrize("target", TARGETS)
def test_sums_over_images(target: str, shape: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal(shape, np.float32)
    y = np.full_like(x, np.nan)
    run(centred, target, x, y)
    want = x - x.mean((0, 2), dtype=float)[:, None]
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


def test_a_tile_has_rows_of_several_images() -> None:
    """One row at a time, of a block alone on its multiprocessor, waited for each."""
    text = stages(centred, *[((32, 96, 812), "float32")] * 2)["tile"]
    assert "parallel (1, 8192) body" in text and "parallel (1, 1024)" not in text
    assert "threads=512" in text


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", [(9, 15, 17), (1, 1, 1), (70, 7, 40), (3, 33, 5)])
@pytest.mark.parametrize("target", TARGETS)
def test_averages(target: str, shape: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal(shape).astype(np.float16)
    y = np.full(shape[0], np.nan, np.float32)
    run(averages, target, x, y)
    np.testing.assert_allclose(y, x.mean((1, 2), dtype=float), rtol=1e-4, atol=1e-5)


def test_lanes_lie_side_by_side_along_divided_indices() -> None:
    """A lane had four neighbours, so that each load of a warp lay on sixteen sectors."""

    @tilec.kernel
    def doubled(X: T.Tensor((M, L), "float32"), Y: T.Tensor((M, L), "float32")):
        with T.Kernel(T.ceildiv(M * L, 1024), threads=256) as block:
            for t in T.Parallel(1024):
                e = block * 1024 + t
                if e < M * L:
                    Y[e // L, e % L] = 2 * X[e // L, e % L]

    text = stages(doubled, *[((320, 1023), "float32")] * 2)["infer_layouts"]
    assert "layout=layout<blocked(1024, 32, 8, 1)>" in text
