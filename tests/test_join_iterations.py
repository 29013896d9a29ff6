"""join_iterations: tiles' rows are whole lines of memory where the author's are parts of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from form_help import SM80, SM90, close, on_cpu, tile_func

import tilec
import tilec.language as T
from tilec.ir.core import Func
from tilec.ir.ops import Copy, For, Gemm
from tilec.ir.verify import verify
from tilec.passes.join_iterations import join_iterations
from tilec.target import find_target

pytestmark = pytest.mark.usefixtures("unassembled")

M, N, K, L = T.dynamic("M, N, K, L")


def product(deep: int, dtype: str = "float16", **how: Any) -> Any:
    """C = A^T B^T in steps of `deep`; how it may differ from what can be joined."""
    a_shape = (deep, 64) if "across" not in how else (64, deep)

    def kernel(
        A: T.Tensor((K, M) if "across" not in how else (M, K), dtype),
        B: T.Tensor((N, L if "longer" in how else K), dtype),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 64), threads=128) as (bx, by):
            a, b = T.alloc_shared(a_shape, dtype), T.alloc_shared((32, deep), dtype)
            acc = T.alloc_fragment((64, 32), "float32")
            if "said" in how:
                T.annotate_schedule(**how["said"])
            if "safe" in how:
                T.annotate_safe_value({B: 1.0})
            T.clear(acc)
            trips = T.ceildiv(K, deep) if "short" not in how else K // deep
            trips, begin = how.get("part", (trips, 0))
            for k in T.Pipelined(trips, num_stages=how.get("stages", 3)):
                if "across" in how:
                    T.copy(A[by * 64, begin + k * deep], a)
                else:
                    T.copy(A[begin + k * deep, by * 64], a)
                T.copy(B[bx * 32, begin + k * deep], b)
                T.gemm(a, b, acc, transpose_A="across" not in how, transpose_B=True)
                if "seen" in how:
                    for i, j in T.Parallel(64, 32):
                        acc[i, j] += 1
            T.copy(acc, C[by * 64, bx * 32])

    return kernel


def held(rng: np.random.Generator, k: int, dtype: str = "float16", **how: Any) -> dict[str, Any]:
    a = np.asarray(rng.standard_normal((72, k) if "across" in how else (k, 72)), dtype)
    b = np.asarray(rng.standard_normal((40, k)), dtype)
    return {"A": a, "B": b, "C": np.full((72, 40), np.nan, np.float32)}


def joined(
    function: Any, arrays: dict[str, Any], target: Any = SM90, wide: bool = False
) -> tuple[Func, Func]:
    func = tile_func(function, arrays, wide)
    return func, join_iterations(func, target)


def check(function: Any, arrays: dict[str, Any], k: slice = slice(None)) -> None:
    """The sum of these terms, on the simulator and on the processor."""
    want = arrays["A"][k].astype(np.float64).T @ arrays["B"][:, k].astype(np.float64).T
    report = tilec.simulate(tilec.kernel(function), *arrays.values(), target="cuda:sm_90a")
    assert report.ok, report
    close(arrays["C"], want)
    other = arrays | {"C": np.full_like(arrays["C"], np.nan)}
    close(on_cpu(function, other)["C"], want)


@pytest.mark.covering(1)
@pytest.mark.parametrize("k", [8, 64, 72, 136, 200])
@pytest.mark.parametrize("deep", [16, 32])
@pytest.mark.parametrize("stages", [0, 1, 3])
def test_rows_are_whole_lines(deep: int, k: int, stages: int, rng: np.random.Generator) -> None:
    arrays, function = held(rng, k), product(deep, stages=stages)
    _, after = joined(function, arrays)
    (loop,) = after.body.every(For)
    copies, (gemm,) = [*loop.body.every(Copy)], loop.body.every(Gemm)
    assert [c.dest.extents for c in copies] == [(64, 64), (32, 64)] and gemm.shape == (64, 32, 64)
    assert loop.num_stages == (2 if stages > 1 else -1)
    check(function, arrays)


@pytest.mark.covering(1)
@pytest.mark.parametrize("k", [7, 64, 97, 200])
@pytest.mark.parametrize(("deep", "whole"), [(20, 80), (40, 80), (24, 48)])
def test_steps_that_no_instruction_goes_through(
    deep: int, whole: int, k: int, rng: np.random.Generator
) -> None:
    """Whoever brings the tiles."""
    arrays, function = held(rng, k), product(deep)
    for target in (SM90, SM80, find_target("hip:gfx942")):
        _, after = joined(function, arrays, target)
        assert [g.shape for g in after.body.every(Gemm)] == [(64, 32, whole)]
    check(function, arrays)
    made = tilec.kernel(function).compile(*arrays.values(), target="cuda:sm_90a")
    assert "wgmma" in made.stages["infer_layouts"]


@pytest.mark.parametrize("trips", [2, 4])
def test_a_part_of_a_sum(trips: int, rng: np.random.Generator) -> None:
    """Behind it are others' terms, not zeros: as many iterations as there are, joined."""
    arrays, function = held(rng, 200), product(32, part=(trips, 24))
    before, after = joined(function, arrays)
    (loop,) = after.body.every(For)
    assert [g.shape for g in loop.body.every(Gemm)] == [(64, 32, 64)]
    check(function, arrays, slice(24, 24 + 32 * trips))
    before, after = joined(product(32, part=(trips + 1, 24)), arrays)
    assert after is before


def test_plans_count_joined_tiles() -> None:
    """The stages and the bytes of the best plan are those of its kernel, which shared memory holds:
    eight stages of the tiles as they are written would be eight of twice the bytes."""
    kernel = tilec.kernel(product(32))
    specs = [tilec.spec((4096, 4096), t) for t in ("float16", "float16", "float32")]
    best = kernel.recommend(*specs, target="cuda:sm_90a", topk=1)[0]
    compiled = kernel.compile(*specs, target="cuda:sm_90a")
    assert best.plan is not None and best.plan == compiled.plan
    tile = (64 + 32) * 64 * 2
    assert best.plan.stages * tile <= compiled.resources.shared_bytes
    assert f"stages: {best.plan.stages}" in compiled.stages["plan"]
    assert not [x for x in compiled.stages["plan"].splitlines() if "tried" in x and "stages" in x]


def test_wide_indices(rng: np.random.Generator) -> None:
    arrays = held(rng, 72)
    _, after = joined(product(32), arrays, wide=True)
    verify(after, "TILE")
    (loop,) = after.body.every(For)
    assert [g.shape for g in loop.body.every(Gemm)] == [(64, 32, 64)]


@pytest.mark.parametrize(
    "how",
    [
        {"longer": True}, {"safe": True}, {"short": True}, {"seen": True}, {"deep": 64},
        {"deep": 20, "safe": True}, {"deep": 20, "longer": True}, {"deep": 9},
        {"said": {"stages": 4}}, {"said": {"split": 4}},
    ],
    ids=str,
)  # fmt: skip
def test_others_stay(how: dict[str, Any], rng: np.random.Generator) -> None:
    """What is behind the end is not 0 for both, the sum is seen in each iteration, nothing is to
    run ahead, rows are lines already, or the author says how many iterations there are to share."""
    how = dict(how)
    function, arrays = product(how.pop("deep", 32), **how), held(rng, 96)
    before, after = joined(function, arrays)
    assert after is before


def test_sizes_left_to_tilec_stay() -> None:
    """The score knows what parts of lines take."""

    @tilec.kernel
    def kernel(
        A: T.Tensor((M, K), "float16"), C: T.Tensor((M, M), "float32"), BK: T.constexpr = T.auto
    ):
        with T.Kernel(T.ceildiv(M, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            a, b = T.alloc_shared((64, BK), "float16"), T.alloc_shared((64, BK), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, BK)):
                T.copy(A[by * 64, k * BK], a)
                T.copy(A[bx * 64, k * BK], b)
                T.gemm(a, b, acc, transpose_B=True)
            T.copy(acc, C[by * 64, bx * 64])

    specs = tilec.spec((512, 512), "float16"), tilec.spec((512, 512), "float32")
    compiled = kernel.compile(*specs, target="cuda:sm_90a", BK=32)
    assert "shared<64x32xf16>" in compiled.stages["tile"]


def test_who_brings_tiles(rng: np.random.Generator) -> None:
    """What TMA cannot bring would take more registers; a target without it has its own way."""
    arrays = held(rng, 96)
    before, after = joined(product(32), arrays, SM80)
    assert after is before
    odd = held(rng, 95)
    before, after = joined(product(32), odd)
    assert after is before
    before, after = joined(product(32, across=True), held(rng, 96, across=True))
    assert after is not before
