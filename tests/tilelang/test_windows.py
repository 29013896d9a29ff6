"""Convolutions as TileLang's programs write them: tiles gathered from windows, through flat
views."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.tilelang as tilelang
import tilec.tilelang.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

# mypy: ignore-errors
TARGETS = ("cuda:sm_80", "cuda:sm_90a")


@tilelang.jit(out_idx=[2])
def signal(channels: int, length: int, filters: int, taps: int, block: int):
    """Along a signal: the taps of each channel, a tile of channels and taps at a time."""

    @T.prim_func
    def main(
        x: T.Tensor((channels, length), "float16"),
        weight: T.Tensor((filters, taps, channels), "float16"),
        y: T.Tensor((filters, length), "float32"),
    ):
        with T.Kernel(T.ceildiv(length, block), threads=128) as bx:
            flat = T.Tensor((filters, taps * channels), "float16", weight.data)
            w = T.alloc_shared((filters, channels), "float16")
            tile = T.alloc_shared((channels, block), "float16")
            sums = T.alloc_fragment((filters, block), "float32")
            T.clear(sums)
            first = bx * block - taps // 2
            whole = (first >= 0) & (first + block + taps - 2 < length)
            for tap in T.Pipelined(taps, num_stages=2):
                T.copy(flat[0, tap * channels], w)
                for c, j in T.Parallel(channels, block):
                    at = first + j + tap
                    if whole:
                        tile[c, j] = x[c, at]
                    else:
                        inside = (at >= 0) & (at < length)
                        tile[c, j] = T.if_then_else(inside, x[c, at], T.cast(0, "float16"))
                T.gemm(w, tile, sums)
            T.copy(sums, y[0, bx * block])

    return main


def numbers(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).integers(-2, 3, shape).astype("float16")


@pytest.mark.parametrize("length", [192, 200])
def test_a_signal(length: int) -> None:
    """Rows of whole 16 bytes, and others; the gather is a copy that runs ahead."""
    channels, filters, taps = 32, 64, 5
    kernel = signal(channels, length, filters, taps, 64).kernel
    x, weight = numbers(channels, length), numbers(filters, taps, channels)
    wide = np.pad(x.astype(float), ((0, 0), (2, 2)))
    want = sum(weight[:, t].astype(float) @ wide[:, t : t + length] for t in range(taps))
    assert np.array_equal(kernel(x, weight), want)
    for target in TARGETS:
        report = tilec.simulate(kernel, x, weight, target=target)
        assert report.ok, report
        (y,) = report.outputs.values()
        assert np.array_equal(y, want)
    made = kernel.compile(x, weight, target="cuda:sm_90a")
    assert "copy %x" in made.stages["recognise_idioms"]
    assert "%weight: global<64x160xf16" in made.stages["tile"]
    assert made.asm.count("ld.global.nc.v4") >= 2
