"""What is read of a kernel before its schedule is chosen (`tilec/tune/work.py`), as numbers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import tilec
import tilec.language as T
from tilec.jit.build import trace_variant
from tilec.tune.work import UNKNOWN_LENGTH, Numbers, Values, read_work

pytestmark = pytest.mark.turns

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "attention"))
SM90 = "cuda:sm_90a"
GPUS = [SM90, "cuda:sm_80", "hip:gfx942"]
M, N, B = T.dynamic("M, N, B")


def numbers_of(
    kernel: Any,
    specs: Sequence[Any],
    values: Values | None = None,
    target: str = SM90,
    **tile: int,
) -> Numbers:
    """With sizes as `values` has them, or as the arrays."""
    asked = kernel.described(specs, target, tile)
    shapes = {
        p.name: getattr(spec, "shape", ())
        for p, spec in zip(kernel.parameters, specs, strict=False)
    }
    found = read_work(trace_variant(asked.signature, asked.key())).at(
        values or (lambda role, arg, dim: shapes[arg][dim] if role == "size" else None)
    )
    assert found is not None
    return found


@pytest.mark.parametrize("target", GPUS)
def test_what_leaves_in_a_loop_is_no_result_to_wait_for(target: str) -> None:
    example = importlib.import_module("mha_bwd")
    x, dq = tilec.spec((1, 512, 1, 64), "float16"), tilec.spec((1, 512, 1, 64), "float32")
    sums = tilec.spec((1, 1, 512), "float32")
    numbers = numbers_of(
        example.by_keys(64), [x, x, x, x, sums, sums, dq, x, x], target=target, BM=64, BN=64
    )
    assert numbers.results == 1 and numbers.mixed.waited == 5 * numbers.iterations
    assert 0 < numbers.mixed.stored < numbers.stored
    assert numbers.mixed.stored == 4 * 64 * 64 * numbers.iterations
    assert numbers.vector == 64 * 64, "dK is scaled behind the loop"
    exponentials = 64 * 64 * numbers.iterations
    assert numbers.mixed.special == exponentials and numbers.mixed.issued > exponentials
    assert numbers.mixed.folds == 0


@pytest.mark.parametrize("bn", [32, 64, 128])
def test_what_is_loaded_counts_as_much_as_it_can_be(bn: int) -> None:
    """The keys of a sequence are min(lengths[b], N). Their loop had counted as 8 iterations of any
    block, so that the narrowest moved the least: on an H200 8 x 8192 keys of 64 in two parts took
    82 us in blocks of 32 keys, 35 in blocks of 128."""
    example = importlib.import_module("flash_decoding")
    sizes = {("Q", 0): 8, ("Q", 1): 64, ("K", 1): 8192, ("K", 2): 8, ("Parts", 1): 2}
    numbers = numbers_of(
        example.decode(64),
        example.specs(64, 8, 8192, 2),
        lambda role, arg, dim: sizes.get((arg, dim)) if role == "size" else None,
        BM=16,
        BN=bn,
    )
    assert numbers.iterations == 4096 / bn


def test_a_length_that_is_not_known_is_divided_into_tiles() -> None:
    """MLA's loop over `ceildiv(lengths[b], BN)` had counted as 8 iterations for any BN, so that 32
    keys moved half of what 64 do; on an H200 32 take 267 us where 64 take 229 (64x8192)."""
    kernel, arrays, _ = importlib.import_module("mla_decode").SPECS[0]

    def values(role: str, arg: str, dim: int) -> int:
        return 1 if (arg, dim) == ("Parts", 1) else 64

    iterations = [numbers_of(kernel, arrays, values, BM=64, BN=bn).iterations for bn in (32, 64)]
    assert iterations == [UNKNOWN_LENGTH / 32, UNKNOWN_LENGTH / 64]
    first = kernel.recommend(*arrays, target=SM90, topk=1)[0]
    assert first.constants["BN"] == 64 and first.plan is not None and first.plan.roles


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("keys", [1024, 4096, 2048 + 128])
@pytest.mark.parametrize("heads", [1, 16, 12])
def test_causal_attention_has_the_mean_of_its_tiles(keys: int, heads: int, target: str) -> None:
    """Three blocks by their number in the whole grid gave 11.3 for 32 tiles: 22, 1 and 11."""
    mha = importlib.import_module("mha_fwd").mha(64, 64, causal=True)
    x = tilec.spec((4, keys, heads, 64), "float16")
    specs = [x, x, x, tilec.spec((1,), "float16"), x, tilec.spec((4, heads, keys), "float32")]
    found = numbers_of(mha, specs, target=target, BM=128, BN=128)
    tiles = -(-keys // 128)
    assert found.iterations == pytest.approx((tiles + 1) / 2, rel=0.04)
    assert all(times == found.iterations for _, times in found.products)


@pytest.mark.parametrize("target", [*GPUS, "cpu"])
@pytest.mark.parametrize("batch", [1, 3, 64])
def test_triangular_sums_of_rows_have_it_too(batch: int, target: str) -> None:
    """No product, and what grows is the grid's second dimension."""

    @tilec.kernel
    def below(X: T.Tensor((B, M, M), "float32"), Y: T.Tensor((B, M), "float32")):
        with T.Kernel(B, T.ceildiv(M, 32)) as (b, by):
            x, total = T.alloc_shared((32, 32), "float32"), T.alloc_fragment((32,), "float32")
            T.clear(total)
            for n in T.Pipelined(by + 1, num_stages=2):
                T.copy(X[b, by * 32, n * 32], x)
                T.reduce_sum(x, total, dim=1, clear=False)
            T.copy(total, Y[b, by * 32])

    rows = 32 * 64
    specs = [tilec.spec((batch, rows, rows), "float32"), tilec.spec((batch, rows), "float32")]
    found = numbers_of(below, specs, target=target)
    assert found.iterations == pytest.approx(65 / 2, rel=0.02)
    assert found.loaded == pytest.approx(65 / 2 * 32 * 32 * 4, rel=0.02)


@pytest.mark.parametrize("target", GPUS)
def test_what_an_epilogue_reads_is_waited_for(target: str) -> None:
    """Also without a product."""

    @tilec.kernel
    def sums(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, 64), "float32")):
        with T.Kernel(T.ceildiv(M, 32)) as bx:
            first, x = (T.alloc_shared((32, 64), "float32") for _ in range(2))
            total = T.alloc_fragment((32, 64), "float32")
            T.copy(X[bx * 32, 0], first)
            T.clear(total)
            for n in T.Pipelined(T.ceildiv(N, 64), num_stages=2):
                T.copy(X[bx * 32, n * 64], x)
                for i, j in T.Parallel(32, 64):
                    total[i, j] += x[i, j] * first[i, j]
            for i, j in T.Parallel(32, 64):
                total[i, j] += Y[bx * 32 + i, j]
            T.copy(total, Y[bx * 32, 0])

    specs = [tilec.spec((64, 512), "float32"), tilec.spec((64, 64), "float32")]
    found = numbers_of(sums, specs, target=target)
    tile = 32 * 64 * 4
    assert (found.fetched, found.streamed, found.loaded) == (tile, 8 * tile, 10 * tile)


@pytest.mark.parametrize("target", GPUS)
def test_what_is_read_before_a_loop_is_no_epilogues(target: str) -> None:
    """Attention's queries had counted as that, eight times: of 8x16x1024 with a mask, heads of 128,
    64x64 was taken for faster than 128x128, which overlaps more."""
    example = importlib.import_module("mha_fwd")
    sizes, tile = (4, 4096, 16, 64), {"BM": 128, "BN": 64}
    kernel, specs = example.mha(64, 64), example.specs(64, 64)
    found = numbers_of(kernel, specs, lambda role, arg, dim: sizes[dim], target, **tile)
    assert found.fetched == 0 and found.loaded - found.streamed == 128 * 64 * 2


def test_the_greater_of_two_that_the_device_decides_between() -> None:
    """A sequence's end is loaded: a tile behind it has no iterations, others those of a length that
    is not known. Either had counted as 8, so that 32 keys an iteration seemed to move the least."""
    example = importlib.import_module("varlen_fwd")

    def values(role: str, arg: str, dim: int) -> int | None:
        return 4096 if role == "scalar" else 16 if role == "size" else None

    for bn in (32, 128):
        found = numbers_of(example.varlen(64, True), example.specs(64), values, BM=64, BN=bn)
        assert found.iterations == UNKNOWN_LENGTH / bn
