"""The tilec kernels of long rows that are measured: softmax, RMS norm and layer norm of rows that
fill the shared memory of a multiprocessor.

As many blocks as there are multiprocessors walk over the rows. A row lies in shared memory in parts
of 16 bytes for each thread, in a ring with room for `ahead` parts of the next one. It is read there
once for each number that it takes (a maximum, a sum); then each thread takes its elements into
registers, and what they leave is filled again while the results are computed and stored. The
registers hold float16: the elements as float32, which each pass would share, are twice as many as
there are."""

# mypy: ignore-errors
# (kernels: their annotations and arithmetic are not Python's)
from __future__ import annotations

import functools
from typing import Any

import tilec
import tilec.language as T

M = T.dynamic("M")

LOG2_E, RMS_EPSILON, LAYER_EPSILON = 1.4426950408889634, 1e-6, 1e-5
BLOCKS, THREADS, AHEAD = 132, 1024, 6


def _ring(dtype: str, length: int, threads: int, ahead: int) -> tuple[int, int, tuple[int, ...]]:
    """Elements of a part of a row, parts that shared memory holds, and the numbers of a row's."""
    width = threads * 128 // tilec.language.dtype(dtype).bits
    parts = tuple(range(-(-length // width)))
    return width, len(parts) + ahead, parts


@functools.cache
def softmax(
    dtype: str, length: int, threads: int = THREADS, ahead: int = AHEAD, blocks: int = BLOCKS
) -> Any:
    """B = softmax of A's rows."""
    width, slots, parts = _ring(dtype, length, threads, ahead)
    count = len(parts)

    @tilec.kernel
    def long_softmax_rows(A: T.Tensor((M, length), dtype), B: T.Tensor((M, length), dtype)):
        with T.Kernel(T.min(M, blocks), threads=threads) as block:
            ring = T.alloc_shared((slots, width), dtype)
            x = [T.alloc_fragment((width,), dtype) for p in parts]
            tops = T.alloc_fragment((width,), dtype)
            sums = T.alloc_fragment((width,), "float32")
            high, total = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
            for k in T.unroll(slots):
                T.async_copy(A[block + k // count * blocks, k % count * width], ring[k, 0:width])
            for n in T.serial(T.ceildiv(M - block, blocks)):
                row, at = n * blocks + block, n * count
                T.ptx_wait_group(ahead)
                T.fill(tops, -T.infinity(dtype))
                for p in parts:
                    for j in T.Parallel(width):
                        if p * width + j < length:
                            tops[j] = T.max(tops[j], ring[(at + p) % slots, j])
                T.reduce_max(tops, high)
                T.clear(sums)
                for p in parts:
                    for j in T.Parallel(width):
                        if p * width + j < length:
                            v = T.cast(ring[(at + p) % slots, j], "float32")
                            sums[j] += T.exp2(T.fma(v, LOG2_E, -high[0] * LOG2_E))
                T.reduce_sum(sums, total)
                for i in T.Parallel(1):
                    high[i] = high[i] * LOG2_E + T.log2(total[i])
                for p in parts:
                    T.copy(ring[(at + p) % slots, 0:width], x[p])
                for p in parts:
                    k = p + slots
                    T.async_copy(
                        A[row + k // count * blocks, k % count * width],
                        ring[(at + k) % slots, 0:width],
                    )
                for p in parts:
                    for j in T.Parallel(width):
                        v = T.cast(x[p][j], "float32")
                        B[row, p * width + j] = T.exp2(T.fma(v, LOG2_E, -high[0]))

    return long_softmax_rows


@functools.cache
def rms_norm(
    dtype: str, length: int, threads: int = THREADS, ahead: int = AHEAD, blocks: int = BLOCKS
) -> Any:
    """B = A's rows, each divided by the root of its mean square."""
    width, slots, parts = _ring(dtype, length, threads, ahead)
    count = len(parts)

    @tilec.kernel
    def long_rms_norm_rows(A: T.Tensor((M, length), dtype), B: T.Tensor((M, length), dtype)):
        with T.Kernel(T.min(M, blocks), threads=threads) as block:
            ring = T.alloc_shared((slots, width), dtype)
            x = [T.alloc_fragment((width,), dtype) for p in parts]
            sums = T.alloc_fragment((width,), "float32")
            total = T.alloc_fragment((1,), "float32")
            for k in T.unroll(slots):
                T.async_copy(A[block + k // count * blocks, k % count * width], ring[k, 0:width])
            for n in T.serial(T.ceildiv(M - block, blocks)):
                row, at = n * blocks + block, n * count
                T.ptx_wait_group(ahead)
                T.clear(sums)
                for p in parts:
                    for j in T.Parallel(width):
                        v = T.cast(ring[(at + p) % slots, j], "float32")
                        sums[j] += v * v
                T.reduce_sum(sums, total)
                for i in T.Parallel(1):
                    total[i] = T.rsqrt(total[i] / length + RMS_EPSILON)
                for p in parts:
                    T.copy(ring[(at + p) % slots, 0:width], x[p])
                for p in parts:
                    k = p + slots
                    T.async_copy(
                        A[row + k // count * blocks, k % count * width],
                        ring[(at + k) % slots, 0:width],
                    )
                for p in parts:
                    for j in T.Parallel(width):
                        B[row, p * width + j] = T.cast(x[p][j], "float32") * total[0]

    return long_rms_norm_rows


@functools.cache
def layer_norm(
    dtype: str, length: int, threads: int = THREADS, ahead: int = AHEAD, blocks: int = BLOCKS
) -> Any:
    """B = A's rows, each less its mean, divided by its standard deviation."""
    width, slots, parts = _ring(dtype, length, threads, ahead)
    count = len(parts)

    @tilec.kernel
    def long_layer_norm_rows(A: T.Tensor((M, length), dtype), B: T.Tensor((M, length), dtype)):
        with T.Kernel(T.min(M, blocks), threads=threads) as block:
            ring = T.alloc_shared((slots, width), dtype)
            x = [T.alloc_fragment((width,), dtype) for p in parts]
            sums = T.alloc_fragment((width,), "float32")
            mean, scale = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
            for k in T.unroll(slots):
                T.async_copy(A[block + k // count * blocks, k % count * width], ring[k, 0:width])
            for n in T.serial(T.ceildiv(M - block, blocks)):
                row, at = n * blocks + block, n * count
                T.ptx_wait_group(ahead)
                T.clear(sums)
                for p in parts:
                    for j in T.Parallel(width):
                        sums[j] += T.cast(ring[(at + p) % slots, j], "float32")
                T.reduce_sum(sums, mean)
                for i in T.Parallel(1):
                    mean[i] /= length
                T.clear(sums)
                for p in parts:
                    for j in T.Parallel(width):
                        if p * width + j < length:
                            v = T.cast(ring[(at + p) % slots, j], "float32") - mean[0]
                            sums[j] += v * v
                T.reduce_sum(sums, scale)
                for i in T.Parallel(1):
                    scale[i] = T.rsqrt(scale[i] / length + LAYER_EPSILON)
                for p in parts:
                    T.copy(ring[(at + p) % slots, 0:width], x[p])
                for p in parts:
                    k = p + slots
                    T.async_copy(
                        A[row + k // count * blocks, k % count * width],
                        ring[(at + k) % slots, 0:width],
                    )
                for p in parts:
                    for j in T.Parallel(width):
                        v = T.cast(x[p][j], "float32") - mean[0]
                        B[row, p * width + j] = v * scale[0]

    return long_layer_norm_rows
