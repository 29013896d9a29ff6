"""The blocks that stand for a grid where it is asked how much there is to do (`tune/work.py`)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

import tilec
import tilec.language as T
from tilec.jit.build import trace_variant
from tilec.tune.work import Numbers, read_work

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "attention"))
TARGETS = ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu"]
M, N, B = T.dynamic("M, N, B")


def numbers_of(kernel: Any, specs: list[Any], target: str, **tile: int) -> Numbers:
    asked = kernel.described(specs, target, tile)
    shapes = dict(zip((p.name for p in kernel.parameters), specs, strict=False))
    found = read_work(trace_variant(asked.signature, asked.key())).at(
        lambda role, arg, dim: shapes[arg].shape[dim] if role == "size" else None
    )
    assert found is not None
    return found


@pytest.mark.parametrize("target", TARGETS[:3])
@pytest.mark.parametrize("keys", [1024, 4096, 2048 + 128])
@pytest.mark.parametrize("heads", [1, 16, 12])
def test_causal_attention_has_the_mean_of_its_tiles(keys: int, heads: int, target: str) -> None:
    """Three blocks by their place in the whole grid gave 11.3 iterations for 32 tiles: 1, 1, 32."""
    mha = importlib.import_module("mha_fwd").mha(64, 64, causal=True)
    x = tilec.spec((4, keys, heads, 64), "float16")
    specs = [x, x, x, tilec.spec((1,), "float16"), x, tilec.spec((4, heads, keys), "float32")]
    found = numbers_of(mha, specs, target, BM=128, BN=128)
    tiles = -(-keys // 128)
    assert found.iterations == pytest.approx((tiles + 1) / 2, rel=0.04)
    assert all(times == found.iterations for _, times in found.products)


@pytest.mark.parametrize("target", TARGETS)
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
    found = numbers_of(below, specs, target)
    assert found.iterations == pytest.approx(65 / 2, rel=0.02)
    assert found.loaded == pytest.approx(65 / 2 * 32 * 32 * 4, rel=0.02)
