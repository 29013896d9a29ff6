"""The tilec kernels of long rows that are measured: softmax, RMS norm and layer norm of rows that
the blocks of a cluster share.

Each block keeps its part of a row in shared memory, where cp.async brings it past the registers,
and reads it there once for each number that it takes; the parts' numbers go to the others of the
cluster by way of S. So a thread needs few registers, and a multiprocessor holds as many blocks as
have room in shared memory: while one waits for its part or for the others, the rest load and
store."""

# mypy: ignore-errors
# (kernels: their annotations and arithmetic are not Python's)
from __future__ import annotations

import functools
from typing import Any

import tilec
import tilec.language as T

M = T.dynamic("M")

LOG2_E, RMS_EPSILON, LAYER_EPSILON = 1.4426950408889634, 1e-6, 1e-5

PARTS = 4
"""Blocks that share a row."""


def _part(length: int, parts: int) -> tuple[int, int, int, tuple[int, ...]]:
    """Of a part of a row: its elements, the threads that have up to 64 of them each, the elements
    that all of these read at a time (16 bytes each), and where they begin."""
    threads = max(32, min(length // parts // 64 // 32 * 32, 1024))
    step = threads * 8
    width = -(-length // (parts * step)) * step
    return width, threads, step, tuple(range(0, width, step))


@functools.cache
def softmax(dtype: str, length: int, parts: int = PARTS) -> Any:
    """B = softmax of A's rows; S: a maximum and a sum for each part."""
    width, threads, step, steps = _part(length, parts)

    @tilec.kernel
    def long_softmax_rows(
        A: T.Tensor((M, length), dtype),
        B: T.Tensor((M, length), dtype),
        S: T.Tensor((M * parts, 2), "float32"),
    ):
        with T.ClusterKernel(M * parts, cluster_dims=(parts, 1, 1), threads=threads) as block:
            T.annotate_min_blocks_per_sm(max(1, min(1536 // threads, 16)))  # 40 registers
            row, start = block // parts, block % parts * width
            x = T.alloc_shared((width,), dtype)
            tops = T.alloc_fragment((step,), dtype)
            sums = T.alloc_fragment((step,), "float32")
            high, total = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
            highs = T.alloc_fragment((parts,), "float32")
            totals = T.alloc_fragment((parts,), "float32")
            T.async_copy(A[row, start], x)
            T.ptx_wait_group(0)
            T.fill(tops, -T.infinity(dtype))
            for k in steps:
                for j in T.Parallel(step):
                    if start + k + j < length:
                        tops[j] = T.max(tops[j], x[k + j])
            T.reduce_max(tops, high)
            T.clear(sums)
            for k in steps:
                for j in T.Parallel(step):
                    if start + k + j < length:
                        v = T.cast(x[k + j], "float32")
                        sums[j] += T.exp2(T.fma(v, LOG2_E, -high[0] * LOG2_E))
            T.reduce_sum(sums, total)
            for i in T.Parallel(1):
                S[block, 0] = high[i]
                S[block, 1] = total[i]
            T.cluster_sync()
            for p in T.Parallel(parts):
                highs[p] = S[row * parts + p, 0]
                totals[p] = S[row * parts + p, 1]
            T.reduce_max(highs, high)
            for p in T.Parallel(parts):
                totals[p] *= T.exp2((highs[p] - high[0]) * LOG2_E)
            T.reduce_sum(totals, total)
            for i in T.Parallel(1):
                high[i] = high[i] * LOG2_E + T.log2(total[i])
            for k in steps:
                for j in T.Parallel(step):
                    v = T.cast(x[k + j], "float32")
                    B[row, start + k + j] = T.exp2(T.fma(v, LOG2_E, -high[0]))

    return long_softmax_rows


@functools.cache
def rms_norm(dtype: str, length: int, parts: int = PARTS) -> Any:
    """B = A's rows, each divided by the root of its mean square; S: a sum for each part."""
    width, threads, step, steps = _part(length, parts)

    @tilec.kernel
    def long_rms_norm_rows(
        A: T.Tensor((M, length), dtype),
        B: T.Tensor((M, length), dtype),
        S: T.Tensor((M * parts, 2), "float32"),
    ):
        with T.ClusterKernel(M * parts, cluster_dims=(parts, 1, 1), threads=threads) as block:
            T.annotate_min_blocks_per_sm(max(1, min(1536 // threads, 16)))  # 40 registers
            row, start = block // parts, block % parts * width
            x = T.alloc_shared((width,), dtype)
            sums = T.alloc_fragment((step,), "float32")
            total = T.alloc_fragment((1,), "float32")
            totals = T.alloc_fragment((parts,), "float32")
            T.async_copy(A[row, start], x)
            T.ptx_wait_group(0)
            T.clear(sums)
            for k in steps:
                for j in T.Parallel(step):
                    v = T.cast(x[k + j], "float32")
                    sums[j] += v * v
            T.reduce_sum(sums, total)
            for i in T.Parallel(1):
                S[block, 0] = total[i]
            T.cluster_sync()
            for p in T.Parallel(parts):
                totals[p] = S[row * parts + p, 0]
            T.reduce_sum(totals, total)
            for i in T.Parallel(1):
                total[i] = T.rsqrt(total[i] / length + RMS_EPSILON)
            for k in steps:
                for j in T.Parallel(step):
                    B[row, start + k + j] = T.cast(x[k + j], "float32") * total[0]

    return long_rms_norm_rows


@functools.cache
def layer_norm(dtype: str, length: int, parts: int = PARTS) -> Any:
    """B = A's rows, each less its mean, divided by its standard deviation; S: for each part the
    mean and the sum of squares of what its elements are less that (Chan, Golub, LeVeque 1979)."""
    width, threads, step, steps = _part(length, parts)

    @tilec.kernel
    def long_layer_norm_rows(
        A: T.Tensor((M, length), dtype),
        B: T.Tensor((M, length), dtype),
        S: T.Tensor((M * parts, 2), "float32"),
    ):
        with T.ClusterKernel(M * parts, cluster_dims=(parts, 1, 1), threads=threads) as block:
            T.annotate_min_blocks_per_sm(max(1, min(1536 // threads, 16)))  # 40 registers
            row, start = block // parts, block % parts * width
            x = T.alloc_shared((width,), dtype)
            sums = T.alloc_fragment((step,), "float32")
            mean, scale = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
            means = T.alloc_fragment((parts,), "float32")
            weighted = T.alloc_fragment((parts,), "float32")
            squares = T.alloc_fragment((parts,), "float32")
            T.async_copy(A[row, start], x)
            T.ptx_wait_group(0)
            T.clear(sums)
            for k in steps:
                for j in T.Parallel(step):
                    sums[j] += T.cast(x[k + j], "float32")
            T.reduce_sum(sums, mean)
            for i in T.Parallel(1):
                mean[i] /= T.max(T.min(length - start, width), 1)
            T.clear(sums)
            for k in steps:
                for j in T.Parallel(step):
                    if start + k + j < length:
                        v = T.cast(x[k + j], "float32") - mean[0]
                        sums[j] += v * v
            T.reduce_sum(sums, scale)
            for i in T.Parallel(1):
                S[block, 0] = mean[i]
                S[block, 1] = scale[i]
            T.cluster_sync()
            for p in T.Parallel(parts):
                means[p] = S[row * parts + p, 0]
                squares[p] = S[row * parts + p, 1]
                weighted[p] = means[p] * T.max(T.min(length - p * width, width), 0)
            T.reduce_sum(weighted, mean)
            for i in T.Parallel(1):
                mean[i] /= length
            for p in T.Parallel(parts):
                off = means[p] - mean[0]
                squares[p] += off * off * T.max(T.min(length - p * width, width), 0)
            T.reduce_sum(squares, scale)
            for i in T.Parallel(1):
                scale[i] = T.rsqrt(scale[i] / length + LAYER_EPSILON)
            for k in steps:
                for j in T.Parallel(step):
                    v = T.cast(x[k + j], "float32") - mean[0]
                    B[row, start + k + j] = v * scale[0]

    return long_layer_norm_rows
