"""Tiles that threads compute for a product: they stay in registers where the widest instruction
reads them there, and the products of an iteration run while the next tile is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from form_help import GFX942, SM80, SM90, tile_func

import tilec
import tilec.language as T
from tilec.ir.core import Func, walk
from tilec.ir.ops import Alloc, Copy, For, Gemm
from tilec.ir.schedule import Plan
from tilec.passes import run_plan
from tilec.target import Target

pytestmark = pytest.mark.turns

M, N, K = T.dynamic("M, N, K")
TMA = Plan("p", specialise=True, persistent=True, stages=3)


def scaled(bm: int = 64, bn: int = 64, threads: int = 128, policy: Any = None) -> tilec.Kernel:
    """C = (relu(A) * scale) B: both factors come ahead of their iteration."""
    how = {} if policy is None else {"policy": policy}

    @tilec.kernel
    def scaled_times(
        A: T.Tensor((M, K), "float16"),
        scale: T.Tensor((K,), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, bn), T.ceildiv(M, bm), threads=threads) as (bx, by):
            a, made = (T.alloc_shared((bm, 32), "float16") for _ in range(2))
            b = T.alloc_shared((32, bn), "float16")
            s = T.alloc_shared((32,), "float16")
            c = T.alloc_fragment((bm, bn), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
                T.copy(A[by * bm, k * 32], a)
                T.copy(B[k * 32, bx * bn], b)
                T.copy(scale[k * 32], s)
                for i, j in T.Parallel(bm, 32):
                    made[i, j] = T.max(a[i, j], 0) * s[j]
                T.gemm(made, b, c, **how)
            T.copy(c, C[by * bm, bx * bn])

    return scaled_times


def decoded(transposed: bool, reduced: int | None = None) -> tilec.Kernel:
    """C = A W of weights of eight bits, which are the second operand; less the largest number that
    a row or a column has had so far, in each step."""
    shape, tile = ((N, K), (64, 32)) if transposed else ((K, N), (32, 64))

    @tilec.kernel
    def times_decoded(
        A: T.Tensor((M, K), "float16"),
        W: T.Tensor(shape, "int8"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            a = T.alloc_shared((64, 32), "float16")
            w, made = T.alloc_shared(tile, "int8"), T.alloc_shared(tile, "float16")
            c, most = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64,), "float32")
            T.clear(c)
            T.clear(most)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
                T.copy(A[by * 64, k * 32], a)
                if transposed:
                    T.copy(W[bx * 64, k * 32], w)
                else:
                    T.copy(W[k * 32, bx * 64], w)
                T.copy(w, made)
                T.gemm(a, made, c, transpose_B=transposed)
                if reduced is not None:
                    T.reduce_max(c, most, dim=reduced, clear=False)
            if reduced is not None:
                for i, j in T.Parallel(64, 64):
                    c[i, j] -= most[i] if reduced else most[j]
            T.copy(c, C[by * 64, bx * 64])

    return times_decoded


@tilec.kernel
def from_a_fragment(
    A: T.Tensor((M, K), "float32"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float32")
):
    """C = half(2 A) Bᵀ, A by way of registers."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        x = T.alloc_fragment((64, 32), "float32")
        made, b = (T.alloc_shared((64, 32), "float16") for _ in range(2))
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            T.copy(A[by * 64, k * 32], x)
            for i, j in T.Parallel(64, 32):
                x[i, j] = x[i, j] * 2
            T.copy(x, made)
            T.copy(B[bx * 64, k * 32], b)
            T.gemm(made, b, c, transpose_B=True)
        T.copy(c, C[by * 64, bx * 64])


@tilec.kernel
def in_place(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    """C = relu(A) B, A's tile changed where it lies."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], b)
            for i, j in T.Parallel(64, 32):
                a[i, j] = T.max(a[i, j], 0)
            T.gemm(a, b, c)
        T.copy(c, C[by * 64, bx * 64])


@tilec.kernel
def changed_and_summed(A: T.Tensor((M, K), "float16"), S: T.Tensor((M,), "float32"), own: T.bool):
    """No product: a sum of a tile that is changed where it lies."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as by:
        a, s = T.alloc_shared((64, 32), "float16"), T.alloc_fragment((64,), "float32")
        T.clear(s)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            T.copy(A[by * 64, k * 32], a)
            for i, j in T.Parallel(64, 32):
                a[i, j] = a[i, j] * T.cast(own, "float16") + T.cast(j, "float16")
            T.reduce_sum(a, s, dim=1, clear=False)
        T.copy(s, S[by * 64])


@tilec.kernel
def summed_and_multiplied(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32"),
    S: T.Tensor((M,), "float32"),
):  # fmt: skip
    """A tile that a sum reads, too."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a, made = (T.alloc_shared((64, 32), "float16") for _ in range(2))
        b = T.alloc_shared((32, 64), "float16")
        c, s = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64,), "float32")
        T.clear(c)
        T.clear(s)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], b)
            for i, j in T.Parallel(64, 32):
                made[i, j] = a[i, j] + 1
            T.gemm(made, b, c)
            T.reduce_sum(made, s, dim=1, clear=False)
        T.copy(c, C[by * 64, bx * 64])
        T.copy(s, S[by * 64])


@tilec.kernel
def mirrored(
    A: T.Tensor((M, K), "float16"), R: T.Tensor((64,), "float32"), B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
):  # fmt: skip
    """C = relu(A) B, rows scaled by a fragment that registers cannot hold."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a, made = (T.alloc_shared((64, 32), "float16") for _ in range(2))
        b = T.alloc_shared((32, 64), "float16")
        c, r = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64,), "float32")
        T.clear(c)
        T.copy(R, r)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], b)
            for i, j in T.Parallel(64, 32):
                made[i, j] = T.max(a[i, j], 0)
            T.gemm(made, b, c)
        for i, j in T.Parallel(64, 64):
            c[i, j] *= r[63 - i]
        T.copy(c, C[by * 64, bx * 64])


def operands(steps: int) -> tuple[np.ndarray, ...]:
    m, n, k = 136, 72, 32 * steps
    a = (np.indices((m, k)).sum(0) % 7 - 3).astype(np.float16)
    b = (np.indices((k, n)).sum(0) % 5 - 2).astype(np.float16)
    return a, (np.arange(k) % 3 - 1).astype(np.float16), b, np.full((m, n), np.nan, np.float32)


def stages_of(kernel: Any, arrays: dict[str, np.ndarray], target: Target = SM90) -> dict[str, Func]:
    kept: dict[str, Func] = {}
    run_plan(tile_func(kernel.function, arrays), target, TMA, kept.__setitem__)
    return kept


def space_of(func: Func, name: str) -> str:
    (t,) = (o.type for o in walk(func.body) if isinstance(o, Alloc) and o.result.name == name)
    return t.space


# --- what it becomes ---


def test_a_computed_operand_is_a_fragment_with_two_versions() -> None:
    a, s, b, c = operands(5)
    kept = stages_of(scaled(), {"A": a, "scale": s, "B": b, "C": c})
    assert space_of(kept["recognise_gathers"], "made") == "fragment"
    (product,) = (o for o in walk(kept["arrange"].body) if isinstance(o, Gemm))
    assert product.instr.startswith("wgmma") and product.a.buffer.name == "made"
    (loop,) = (o for o in walk(kept["arrange"].body) if isinstance(o, For) and o.versions == 2)
    engines = {o.dest.buffer.name: o.engine for o in loop.body.ops if isinstance(o, Copy)}
    assert engines == {"a": "tma", "b": "tma", "s": "tma"}  # a vector comes as a tile does


def test_the_second_operand_is_one_of_swapped_operands() -> None:
    a, _, b, c = operands(5)
    kept = stages_of(
        decoded(True), {"A": a, "W": np.ascontiguousarray(b.T).astype(np.int8), "C": c}
    )
    (product,) = (o for o in walk(kept["arrange"].body) if isinstance(o, Gemm))
    assert product.operands_swapped and product.instr.startswith("wgmma")
    assert any(isinstance(o, For) and o.versions == 2 for o in walk(kept["arrange"].body))


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.parametrize(("reduced", "space"), [(0, "fragment"), (1, "shared")])
def test_rows_that_are_reduced_are_not_spread_over_warps(reduced: int, space: str) -> None:
    """Keys in eight bits, of whose scores attention takes the largest of each row."""
    a, _, b, c = operands(5)
    w = np.ascontiguousarray(b.T).astype(np.int8)
    kept = stages_of(decoded(True, reduced), {"A": a, "W": w, "C": c})
    assert space_of(kept["recognise_gathers"], "made") == space
    report = tilec.simulate(decoded(True, reduced), a, w, c, target="cuda:sm_90a")
    assert report.ok, report
    steps = [slice(k, k + 32) for k in range(0, 160, 32)]
    parts = np.cumsum([a[:, k].astype(float) @ b[k].astype(float) for k in steps], axis=0)
    most = np.zeros_like(parts[0])
    for i, j in np.ndindex(3, 2):
        tile = slice(64 * i, 64 * i + 64), slice(64 * j, 64 * j + 64)
        whole = np.zeros((5, 64, 64))
        held = parts[:, *tile]
        whole[:, : held.shape[1], : held.shape[2]] = held
        rows = np.maximum(whole.max((0, 1 + reduced), keepdims=True), 0)[0]
        most[tile] = np.broadcast_to(rows, (64, 64))[: held.shape[1], : held.shape[2]]
    np.testing.assert_allclose(c, parts[-1] - most, atol=1e-3)


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.parametrize("steps", [1, 2, 5, 6])
def test_a_shared_tile_of_two_groups_has_two_versions(steps: int) -> None:
    """Both groups fill it, so both wait for its products: the next tile is made meanwhile. What a
    group waits for stands in front of the barrier that its next product needs, once."""
    a, s, b, c = operands(steps)
    kernel = scaled(128, 64, 256)
    kept = stages_of(kernel, {"A": a, "scale": s, "B": b, "C": c})
    (loop,) = (
        o for o in walk(kept["arrange"].body) if isinstance(o, For) and o.kind == "pipelined"
    )
    assert loop.versions == 2 and space_of(kept["arrange"], "made") == "shared"
    names = {o.result.name for o in walk(kept["expand_scopes"].body) if isinstance(o, Alloc)}
    assert "made_other" in names
    report = tilec.simulate(kernel, a, s, b, c, target="cuda:sm_90a", schedules=3)
    assert report.ok, report
    want = (np.maximum(a.astype(float), 0) * s) @ b.astype(float)
    np.testing.assert_allclose(c, want, atol=1e-3)


def test_a_fragment_comes_by_way_of_a_ring() -> None:
    a, _, b, c = operands(5)
    arrays = {"A": a.astype(np.float32), "B": np.ascontiguousarray(b.T), "C": c}
    kept = stages_of(from_a_fragment, arrays)
    (ring,) = (
        o.type
        for o in walk(kept["select_copies"].body)
        if isinstance(o, Alloc) and o.result.name == "x_brought"
    )
    assert (ring.space, ring.stages, ring.dtype.name) == ("shared", 3, "float32")
    assert any(isinstance(o, For) and o.versions == 2 for o in walk(kept["arrange"].body))


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.parametrize(
    ("make", "target"),
    [
        (lambda: scaled(threads=256), SM90),  # two groups share the rows
        (
            lambda: scaled(128, 64, 256, T.GemmWarpPolicy.FullCol),
            SM90,
        ),  # one computes while the other multiplies
        (lambda: scaled(128, 256, 128), SM90),  # no room beside the sum
        (scaled, SM80),
        (scaled, GFX942),
    ],
)
def test_what_stays_in_shared_memory(make: Callable[[], Any], target: Target) -> None:
    a, s, b, c = operands(5)
    names = tile_func(make().function, {"A": a, "scale": s, "B": b, "C": c})
    kept: dict[str, Func] = {}
    try:
        run_plan(names, target, TMA if target is SM90 else Plan("p", stages=2), kept.__setitem__)
    except tilec.ResourceError:
        assert "select_gemm" in kept
    assert space_of(kept["recognise_gathers"], "made") == "shared"


def test_fragments_that_registers_cannot_hold_are_no_reason() -> None:
    a, _, b, c = operands(5)
    r = np.arange(64, dtype=np.float32)
    kept = stages_of(mirrored, {"A": a, "R": r, "B": b, "C": c})
    assert space_of(kept["select_gemm"], "made") == "fragment"
    assert space_of(kept["select_gemm"], "r") == "shared"
    mirrored(a, r, b, c)
    rows = 63 - np.arange(len(a))[:, None] % 64
    want = (np.maximum(a, 0).astype(np.float64) @ b.astype(np.float64)) * rows
    np.testing.assert_array_equal(c, want)


def test_what_others_read_stays_in_shared_memory() -> None:
    a, s, b, c = operands(5)
    arrays = {"A": a, "B": b, "C": c, "S": np.zeros(len(a), np.float32)}
    assert space_of(stages_of(summed_and_multiplied, arrays)["select_gemm"], "made") == "shared"


@tilec.kernel
def shifted(
    A: T.Tensor((M, K), "float16"), R: T.Tensor((M,), "float32"), B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
):  # fmt: skip
    """Rows of A less what a fragment from before the loop says."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a, made = (T.alloc_shared((64, 32), "float16") for _ in range(2))
        b = T.alloc_shared((32, 64), "float16")
        c, r = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64,), "float32")
        T.clear(c)
        T.copy(R[by * 64], r)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], b)
            for i, j in T.Parallel(64, 32):
                made[i, j] = a[i, j] - r[i]
            T.gemm(made, b, c)
        T.copy(c, C[by * 64, bx * 64])


def test_what_registers_of_before_are_read_for_stays_in_shared_memory() -> None:
    a, _, b, c = operands(5)
    arrays = {"A": a, "R": np.zeros(len(a), np.float32), "B": b, "C": c}
    assert space_of(stages_of(shifted, arrays)["select_gemm"], "made") == "shared"


def test_where_producers_do_not_bring_all_it_stays_in_shared_memory() -> None:
    a, s, b, c = operands(5)
    odd = {"A": a[:, :75].copy(), "scale": s[:75].copy(), "B": b[:75].copy(), "C": c}
    assert space_of(stages_of(scaled(), odd)["select_gemm"], "made") == "shared"


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
def test_a_tile_changed_in_place_goes_on_under_another_name(target: Target) -> None:
    a, _, b, c = operands(5)
    func = tile_func(in_place.function, {"A": a, "B": b, "C": c})
    kept: dict[str, Func] = {}
    plan = TMA if target is SM90 else Plan("p", stages=2)
    run_plan(func, target, plan, kept.__setitem__)
    space = "fragment" if target is SM90 else "shared"
    assert space_of(kept["recognise_gathers"], "a_changed") == space
    assert all(o.ahead for o in walk(kept["plan_pipeline"].body)
               if isinstance(o, Copy) and o.dest.buffer.name in ("a", "b"))  # fmt: skip


def test_it_does_so_without_a_product() -> None:
    a = operands(5)[0]
    func = tile_func(
        changed_and_summed.function, {"A": a, "S": np.zeros(len(a), np.float32), "own": True}
    )
    kept: dict[str, Func] = {}
    run_plan(func, SM80, Plan("p", stages=2), kept.__setitem__)
    assert any(isinstance(o, Copy) and o.ahead for o in walk(kept["plan_pipeline"].body))
    assert space_of(kept["plan_pipeline"], "a_changed") == "shared"


# --- the numbers ---


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
def test_in_place(steps: int, target: str) -> None:
    a, _, b, c = operands(steps)
    report = tilec.simulate(in_place, a, b, c, target=target, schedules=2)
    assert report.ok, report
    np.testing.assert_array_equal(c, np.maximum(a, 0).astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
def test_in_place_without_a_product(target: str) -> None:
    a = operands(4)[0]
    s = np.full(len(a), np.nan, np.float32)
    report = tilec.simulate(changed_and_summed, a, s, True, target=target, schedules=2)
    assert report.ok, report
    want = (a + np.arange(a.shape[1]) % 32).astype(np.float64).sum(1)
    np.testing.assert_array_equal(s, want)


@pytest.mark.covering(1)
@pytest.mark.parametrize("steps", [1, 2, 5, 6])
@pytest.mark.parametrize("shape", [(64, 64, 128), (128, 64, 256)])
def test_scaled(steps: int, shape: tuple[int, int, int]) -> None:
    a, s, b, c = operands(steps)
    report = tilec.simulate(scaled(*shape), a, s, b, c, target="cuda:sm_90a", schedules=2)
    assert report.ok, report
    want = (np.maximum(a, 0) * s).astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(c, want)


@pytest.mark.covering(1)
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
def test_decoded(transposed: bool, target: str) -> None:
    a, _, b, c = operands(3)
    w = np.ascontiguousarray(b.T if transposed else b).astype(np.int8)
    report = tilec.simulate(decoded(transposed), a, w, c, target=target)
    assert report.ok, report
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("steps", [1, 4])
def test_from_a_fragment(steps: int) -> None:
    a, _, b, c = operands(steps)
    given = a.astype(np.float32), np.ascontiguousarray(b.T)
    report = tilec.simulate(from_a_fragment, *given, c, target="cuda:sm_90a", schedules=2)
    assert report.ok, report
    np.testing.assert_array_equal(c, 2 * a.astype(np.float64) @ b.astype(np.float64))
