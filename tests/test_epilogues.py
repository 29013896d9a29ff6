"""Fragments on their way into and out of registers: numbers under every road, and what the roads
are made of.

Conversions between fragment layouts, 16-byte accesses after shuffles, stores staged for TMA, and
epilogues of products as users write them."""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from epilogue_programs import EPILOGUES, Arrays, Epilogue
from form_help import GFX942, GPUS, SM80, SM90, aligned, close, lower, on_cpu, tile_func
from frontend_help import ops as of
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_interp import run_threads

import tilec.language as T
from tilec.codegen import assemble, emit
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Param, Region, Value
from tilec.ir.errors import ResourceError
from tilec.ir.layout import (
    CHUNK_ROWS,
    MMA_C,
    Digit,
    Layout,
    blocked,
    chunks,
    conversion,
    exchange,
    mfma_c,
    wgmma_c,
    widened,
)
from tilec.ir.loc import Loc
from tilec.ir.ops import (
    Alloc,
    Barrier,
    Const,
    Copy,
    MemLoad,
    MemStore,
    ShuffleXor,
    Stmatrix,
    TmaStore,
    Yield,
)
from tilec.ir.schedule import Plan
from tilec.ir.types import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT8,
    INT32,
    BufferType,
    DType,
    VectorType,
)
from tilec.ir.verify import verify
from tilec.passes import EXPAND
from tilec.passes.select_copies import select_copies
from tilec.support.tools import find_ptxas
from tilec.target import Target
from tilec.tune.plans import plans

NUMPY = {
    FLOAT32: np.float32,
    FLOAT16: np.float16,
    BFLOAT16: ml_dtypes.bfloat16,
    INT8: np.int8,
    INT32: np.int32,
}
HERE = Loc(__file__, 1, 1, 2)
SMALL: dict[str, Any] = {"BM": 64, "BN": 64, "BK": 32, "threads": 128}
LARGE: dict[str, Any] = {"BM": 128, "BN": 128, "BK": 64, "threads": 256}
ROADS = ("specialised persistent", "specialised persistent, direct stores", "plain")


def lowered(func: Func, target: Target, names: tuple[str, ...] = ROADS) -> list[tuple[Plan, Func]]:
    """The function under the first plan of each name that fits."""
    found: dict[str, tuple[Plan, Func]] = {}
    for plan in plans(func, target):
        if plan.name in names and plan.name not in found:
            try:
                found[plan.name] = plan, lower(func, target, plan)
            except ResourceError:
                continue
    assert found
    return list(found.values())


def widths(func: Func, kind: type[MemLoad] | type[MemStore], name: str) -> set[int]:
    """Bytes of the accesses to a buffer."""
    found = set()
    for o in of(func, kind):
        v, t = (o.dest, o.value.type) if isinstance(o, MemStore) else (o.source, o.result.type)
        if v.name == name:
            found.add((t.lanes if isinstance(t, VectorType) else 1) * v.dtype.bits // 8)
    return found


# --- products with epilogues ---


def arrays_of(e: Epilogue, m: int, n: int, k: int, skip: int = 0) -> Arrays:
    """Random operands; the rows of a result and of a residual lie `skip` elements further apart
    than they are long (negative: the base is also off by one element)."""
    rng = np.random.default_rng(m * n + k)
    sizes = {"m": m, "n": n, "k": k}
    out: dict[str, Any] = {"A": aligned(rng.standard_normal((m, k)).astype(np.float16))}
    if not any(name == "G" for name, _, _ in e.others):
        out["B"] = aligned(rng.standard_normal((k, n)).astype(np.float16))
    for name, dims, dtype in e.others:
        if not dims:
            out[name] = np.float32(3.7)
            continue
        shape = [sizes[d] for d in dims]
        if len(shape) == 2 and skip:
            shape[-1] += abs(skip)
        values = rng.standard_normal(shape) * (9 if dtype == np.int8 else 1)
        whole = aligned(values.astype(dtype))
        if len(shape) == 2 and skip:
            start = 1 if skip < 0 else 0
            whole = whole[:, start : start + sizes[dims[-1]]]
        out[name] = whole
    return out


def copied(arrays: Arrays) -> Arrays:
    """The same numbers at the same strides and alignment."""
    out: dict[str, Any] = {}
    for name, a in arrays.items():
        base = a.base if isinstance(a, np.ndarray) and a.ndim == 2 else None
        if base is None or base.ndim != 2 or base.shape == a.shape:
            out[name] = aligned(a) if isinstance(a, np.ndarray) else a
            continue
        start = (a.ctypes.data - base.ctypes.data) // a.itemsize
        out[name] = aligned(base)[:, start : start + a.shape[1]]
    return out


def wanted(e: Epilogue, arrays: Arrays) -> Arrays:
    exact = {
        k: a.astype(np.float64) if isinstance(a, np.ndarray) else float(a)
        for k, a in arrays.items()
    }
    return e.want(**exact)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", GPUS, ids=str)
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name: str, target: Target) -> None:
    """Ragged tiles of aligned rows: right under every road, and no narrow access inside."""
    e = EPILOGUES[name]
    arrays = arrays_of(e, 72, 144, 40)
    want = wanted(e, arrays)
    for plan, done in lowered(tile_func(e.function, arrays, **SMALL), target):
        held = copied(arrays)
        run_threads(done, target, held, 2)
        for key, value in want.items():
            close(held[key], value, e.tolerance)
        staged = {o.map.type.tensor for o in of(done, TmaStore)}
        assert not staged or plan.staged_store
        for key in set(want) - staged:
            assert 16 in widths(done, MemStore, key), (plan.name, key)
        if "D" in arrays:
            assert 16 in widths(done, MemLoad, "D")
        if plan.staged_store and name != "in_place":
            assert staged == set(want), "a store that could leave by TMA did not"
            if next(o for o in of(done, TmaStore)).source.dtype.bits == 16:
                assert of(done, Stmatrix)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", GPUS, ids=str)
@pytest.mark.parametrize(
    ("name", "skip", "bytes"),
    [
        ("residual", 8, 16),
        ("residual", 5000, 16),
        ("residual", 4, 8),
        ("residual", 1, 2),
        ("swiglu", -8, 2),
        ("silu_row_column", 2, 8),
        ("two_results", 24, 16),
        ("transposed", 10, 16),
    ],
)
def test_rows_further_apart(name: str, skip: int, bytes: int, target: Target) -> None:
    """Distances of rows that are multiples of fewer bytes take narrower accesses, never wrong
    ones."""
    e = EPILOGUES[name]
    arrays = arrays_of(e, 70, 96, 24, skip)
    want = wanted(e, arrays)
    for _, done in lowered(tile_func(e.function, arrays, **SMALL), target, ROADS[1:]):
        held = copied(arrays)
        run_threads(done, target, held, 2)
        for key, value in want.items():
            close(held[key], value, e.tolerance)
        assert max(widths(done, MemStore, "C")) == bytes


@pytest.mark.covering(1)
@pytest.mark.parametrize("size", [(1, 1, 1), (65, 63, 17), (64, 8, 8)])
@pytest.mark.parametrize("name", ["relu_bias", "residual", "swiglu", "through_shared"])
def test_odd_sizes(name: str, size: tuple[int, int, int]) -> None:
    e = EPILOGUES[name]
    arrays = arrays_of(e, *size)
    want = wanted(e, arrays)
    for target in (SM90, SM80):
        for _, done in lowered(
            tile_func(e.function, arrays, **SMALL), target, ROADS[:1] + ROADS[2:]
        ):
            held = copied(arrays)
            run_threads(done, target, held, 2)
            for key, value in want.items():
                close(held[key], value, e.tolerance)


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues_on_the_cpu(name: str) -> None:
    e = EPILOGUES[name]
    arrays = arrays_of(e, 70, 133, 40)
    scalars = {k: v for k, v in arrays.items() if not isinstance(v, np.ndarray)}
    tensors = {k: v for k, v in arrays.items() if isinstance(v, np.ndarray)}
    held = on_cpu(e.function, tensors, **scalars, **SMALL)
    for key, value in wanted(e, arrays).items():
        close(held[key], value, e.tolerance)


COUNTED = ("plain", "relu_bias", "swiglu", "residual")


@pytest.mark.parametrize("name", EPILOGUES)
def test_code_of_epilogues(name: str, request: pytest.FixtureRequest) -> None:
    """128x128 tiles of 256 threads (two accumulators for the gated one): no spills, no serialised
    wgmma, and hardly more traffic than the plain store. Usually both roads of those whose accesses
    are counted; the others take one, in turn."""
    e = EPILOGUES[name]
    arrays = arrays_of(e, 256, 256, 64)
    both = name in COUNTED or request.config.getoption("--every-cell")
    roads = ROADS[:2] if both else ROADS[(turn := [*EPILOGUES].index(name) % 2) : turn + 1]
    for plan, done in lowered(tile_func(e.function, arrays, **LARGE), SM90, roads):
        made = assemble(emit(done, SM90), SM90)
        assert made.advisories == ()
        if find_ptxas():
            assert made.spilled_bytes == 0
        text = made.asm
        assert ".local" not in text
        if plan.staged_store and name in COUNTED:
            assert text.count("stmatrix.sync") == 8 and "st.global" not in text
            assert text.count("cvt.rn.f16x2.f32") == 32 and "cvt.rn.f16.f32" not in text
        if not plan.staged_store and name in COUNTED:
            # 64 results of each thread: 8 stores inside, 8 for tiles that cross an edge.
            assert text.count("st.global.v4") == 16
            loads = text.count("ld.global.nc.v4") if name == "residual" else 0
            assert text.count("shfl.sync.bfly") == 32 + 2 * loads


@pytest.mark.parametrize(
    ("name", "slices"), [("residual", 2), ("silu_row_column", 4), ("two_results", 4)]
)
def test_slices(name: str, slices: int) -> None:
    """128 accumulators of each thread leave no room for whole tiles of operands or for a second
    result: one slice of columns after the other, through one staging buffer."""
    e = EPILOGUES[name]
    arrays = arrays_of(e, 120, 264, 24)
    wide = {**LARGE, "BN": 256, "BK": 32}
    func = tile_func(e.function, arrays, **wide)
    ((_, done),) = lowered(func, SM90, ROADS[:1])
    held = copied(arrays)
    run_threads(done, SM90, held, 2)
    for key, value in wanted(e, arrays).items():
        close(held[key], value, e.tolerance)
    boxes = [o for o in of(done, TmaStore) if o.map.type.tensor == "C"]
    assert len(boxes) == slices and len({o.source for o in boxes}) == 1
    for _, direct in lowered(func, SM90, ROADS[:2]):
        made = assemble(emit(direct, SM90), SM90)
        assert made.advisories == () and ".local" not in made.asm


# --- other programs ---

ROWS, COLUMNS = T.dynamic("ROWS, COLUMNS")


def turned(
    X: T.Tensor((ROWS, COLUMNS), "float16"),
    Y: T.Tensor((COLUMNS, ROWS), "float32"),
):
    with T.Kernel(T.ceildiv(COLUMNS, 32), T.ceildiv(ROWS, 64), threads=128) as (bx, by):
        tile = T.alloc_fragment((64, 32), "float16")
        T.copy(X[by * 64, bx * 32], tile)
        for i, j in T.Parallel(64, 32):
            Y[bx * 32 + j, by * 64 + i] = tile[i, j] * 2.0


def chained(
    X: T.Tensor((ROWS, COLUMNS), "float16"),
    W: T.Tensor((64, 64), "float16"),
    Y: T.Tensor((ROWS, COLUMNS), "float16"),
):
    """A row-major fragment and a product's result in one chain."""
    with T.Kernel(T.ceildiv(ROWS, 64), threads=128) as (by,):
        x = T.alloc_fragment((64, 64), "float16")
        x_s = T.alloc_shared((64, 64), "float16")
        w_s = T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.copy(X[by * 64, 0], x)
        for i, j in T.Parallel(64, 64):
            x[i, j] = T.max(x[i, j], 0)
        T.copy(x, x_s)
        T.copy(W, w_s)
        T.clear(acc)
        T.gemm(x_s, w_s, acc)
        for i, j in T.Parallel(64, 64):
            acc[i, j] = acc[i, j] + x[i, j]
        T.copy(acc, Y[by * 64, 0])


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", GPUS, ids=str)
@pytest.mark.parametrize("shape", [(64, 32), (130, 70), (1, 33), (72, 64)])
def test_a_transpose_through_fragments(shape: tuple[int, int], target: Target) -> None:
    rng = np.random.default_rng(5)
    x = aligned(rng.standard_normal(shape).astype(np.float16))
    arrays = {"X": x, "Y": aligned(np.full(shape[::-1], np.nan, np.float32))}
    for _, done in lowered(tile_func(turned, arrays), target):
        held = copied(arrays)
        run_threads(done, target, held)
        np.testing.assert_array_equal(held["Y"], x.T.astype(np.float32) * 2)


@pytest.mark.parametrize("target", GPUS, ids=str)
def test_a_chain_of_two_layouts(target: Target) -> None:
    rng = np.random.default_rng(6)
    x = aligned(rng.standard_normal((130, 64)).astype(np.float16))
    w = aligned(rng.standard_normal((64, 64)).astype(np.float16))
    arrays = {"X": x, "W": w, "Y": aligned(np.full((130, 64), np.nan, np.float16))}
    r = np.maximum(x, 0).astype(np.float64)
    for _, done in lowered(tile_func(chained, arrays), target):
        held = copied(arrays)
        run_threads(done, target, held)
        close(held["Y"], r @ w.astype(np.float64) + r)


# --- conversions ---


def conversion_func(a: Layout, b: Layout, dtype: DType, warps: int, size: int) -> Func:
    """X -> a fragment in layout `a` -> one in layout `b` -> Y."""
    shape = a.shape
    strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    t = BufferType(shape, dtype, "global", strides, 16)
    x, y = Value(t, "X"), Value(t, "Y")
    grid, body = Builder(HERE), Builder(HERE)
    grid.emit(Yield, tuple(grid.value(Const, 1, INT32) for _ in range(3)))
    zeros = tuple(body.value(Const, 0, INT32) for _ in shape)
    tiles = [
        body.value(Alloc, BufferType(shape, dtype, "fragment", layout=one), name=name)
        for one, name in ((a, "a"), (b, "b"))
    ]
    road = [x, *tiles, y]
    for source, dest in zip(road, road[1:]):
        sides = (Region(v, zeros, shape) for v in (source, dest))
        body.emit(Copy, *sides, disable_tma=True)
    params = (Param(x, "tensor", "X"), Param(y, "tensor", "Y"))
    attrs = {"threads": warps * size, "launch_threads": warps * size}
    return Func("convert", params, grid.block(), body.block(), attrs, HERE)


def converted(func: Func, target: Target) -> Func:
    func = select_copies(func, target)
    for apply, contract in EXPAND:
        func = apply(func, target)
        verify(func, contract)
    return func


def check_conversion(a: Layout, b: Layout, dtype: DType, target: Target) -> Func:
    """Bit-exact through every pass."""
    warps = a.size("warp")
    done = converted(conversion_func(a, b, dtype, warps, target.warp_size), target)
    rng = np.random.default_rng(1)
    x = rng.integers(1, 255, a.shape).astype(np.uint8).astype(NUMPY[dtype])
    held = {"X": aligned(x), "Y": aligned(np.zeros_like(x))}
    run_threads(done, target, held)
    np.testing.assert_array_equal(held["Y"], x)
    return done


def shuffled(layout: Layout, seed: int, owners: tuple[str, ...]) -> Layout:
    """The layout with the steps of the owners' bits dealt out anew."""
    bits = []
    for d in layout.digits:
        radix, step = d.radix, d.step
        while radix > 1:
            assert radix % 2 == 0
            bits.append(Digit(d.owner, 2, step))
            radix, step = radix // 2, tuple(2 * s for s in step)
    steps = [d.step for d in bits if d.owner in owners]
    random.Random(seed).shuffle(steps)
    dealt = [Digit(d.owner, 2, steps.pop()) if d.owner in owners else d for d in bits]
    return Layout(layout.shape, tuple(dealt))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 1 << 20),
    st.sampled_from([FLOAT32, FLOAT16, BFLOAT16, INT8]),
    st.sampled_from([SM80, SM90, GFX942]),
    st.sampled_from([(16, 64), (64, 16), (32, 32), (4, 8, 32)]),
)
def test_conversions_inside_a_warp(
    seed: int, dtype: DType, target: Target, shape: tuple[int, ...]
) -> None:
    """Any dealing of bits to registers and lanes: bit-exact, and by shuffles if they are cheap."""
    start = blocked(shape, target.warp_size, 2, 4)
    a, b = (shuffled(start, seed + i, ("reg", "lane")) for i in range(2))
    done = check_conversion(a, b, dtype, target)
    kind = conversion(a, b, dtype.bits).kind
    assert exchange(a, b, dtype.bits) is not None
    assert (kind == "shared") == any(o.type.space == "shared" for o in of(done, Alloc)), (
        "the cheaper road is not the one that was taken"
    )
    if kind == "shuffle":
        assert not of(done, Barrier)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 1 << 20), st.sampled_from([SM80, GFX942]))
def test_conversions_across_warps(seed: int, target: Target) -> None:
    start = blocked((32, 64), target.warp_size, 4, 2)
    a, b = (shuffled(start, seed + i, ("reg", "lane", "warp")) for i in range(2))
    check_conversion(a, b, FLOAT16, target)


def with_lanes(shape: tuple[int, ...], reg: list[Any], lane: list[Any]) -> Layout:
    digits = [Digit("reg", 2, s) for s in reg] + [Digit("lane", 2, s) for s in lane]
    return Layout(shape, tuple(digits))


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, INT8], ids=str)
def test_replicas_are_kept_and_gathered(dtype: DType) -> None:
    """32 elements held once by each lane, twice, and by all."""
    once = with_lanes((32,), [], [(1,), (2,), (4,), (8,), (16,)])
    pairs = with_lanes((32,), [(1,)], [(0,), (2,), (4,), (8,), (16,)])
    whole = with_lanes((32,), [(1 << i,) for i in range(5)], [(0,)] * 5)
    for a in (once, pairs, whole):
        for b in (once, pairs, whole):
            assert a == b or exchange(a, b, dtype.bits) is not None
            check_conversion(a, b, dtype, SM80)


def test_the_quad_transpose() -> None:
    """Pairs of 16-bit results become pieces of 16 bytes by two swaps; neighbouring lanes hold
    neighbouring pieces."""
    wide = widened(wgmma_c(128), 1, 8)
    assert wide is not None
    plan = exchange(wgmma_c(128), wide, 16)
    assert plan is not None and (plan.swaps, plan.turn, plan.pack) == ((1, 2), (), 2)
    assert [wide(lane=i)[1] for i in range(4)] == [0, 8, 16, 24]
    assert wide(reg=7) == (0, 7)
    assert plan.price == 32 // 4 * 4 * 4, "half a shuffle and 1.5 selects for each pair and swap"
    odd = widened(wgmma_c(176), 1, 8)
    assert odd is not None and exchange(wgmma_c(176), odd, 16) is not None
    amd = widened(mfma_c(32), 1, 4)
    assert amd is not None and exchange(mfma_c(32), amd).swaps == (1, 2)
    assert widened(MMA_C, 1, 4) is not None and widened(MMA_C, 1, 8) is None
    assert widened(blocked((2, 64), 32, 2, 2), 1, 8) is None, "too few registers"


def test_an_exchange_is_never_guessed() -> None:
    """Layouts with other warps, shapes or numbers of lanes, or with XORs, have none."""
    a = blocked((16, 64), 32, 2, 4)
    assert exchange(a, shuffled(a, 3, ("reg", "lane", "warp"))) is None or (
        shuffled(a, 3, ("reg", "lane", "warp")).of("warp") == a.of("warp")
    )
    assert exchange(a, blocked((16, 64), 64, 1, 4)) is None
    assert exchange(a, blocked((64, 16), 32, 2, 4)) is None
    held = Layout((8,), (Digit("reg", 2, (0,)), Digit("lane", 8, (1,)), Digit("lane", 4, (0,))))
    assert exchange(held, held.once("reg")) is None
    assert held.once("reg").size("reg") == 1


@pytest.mark.parametrize("layout", [wgmma_c(n) for n in (32, 64, 96, 176, 256)], ids=str)
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_chunks_hold_every_element_once(layout: Layout, bits: int) -> None:
    if bits == 8:
        found_layout = widened(layout, 1, 4)
        assert found_layout is not None
        layout = found_layout
    found = chunks(layout, bits, True)
    assert found is not None or (bits == 8 and layout.shape[1] % 32)
    if found is None:
        return
    assert found.matrices == (bits == 16)
    assert found.columns * bits // 8 in (32, 64, 128)
    used = [r for chunk in found.registers for access in chunk for r in access]
    assert sorted(used) == list(range(layout.size("reg")))
    assert len(found.origins) * CHUNK_ROWS * found.columns * 4 == np.prod(layout.shape)
    if not found.matrices:
        assert found.run * bits >= 32
        for (y, x), chunk in zip(found.origins, found.registers):
            for (i, j), access in zip(found.places, chunk):
                assert [layout(reg=r) for r in access] == [
                    (y + i, x + j + e) for e in range(found.run)
                ]


@pytest.mark.parametrize("target", GPUS, ids=str)
def test_shuffles_are_told_from_names(target: Target) -> None:
    """Another order of registers costs nothing; another order of lanes shuffles."""
    a = blocked((16, 64), target.warp_size, 1, 8)
    order = shuffled(a, 7, ("reg",))
    done = check_conversion(a, order, FLOAT16, target)
    assert not of(done, ShuffleXor) and not of(done, Barrier)
