"""The tilec kernels of rows that are measured: softmax, RMS norm and layer norm, of rows that a
block holds in registers and of rows that begin anywhere."""

# mypy: ignore-errors
# (kernels: their annotations and arithmetic are not Python's)
from __future__ import annotations

import functools
from typing import Any

import tilec
import tilec.language as T

L, M = T.dynamic("L, M")

LOG2_E, RMS_EPSILON, LAYER_EPSILON = 1.4426950408889634, 1e-6, 1e-5


@functools.cache
def softmax(dtype: str, length: int) -> Any:
    """B = softmax of A's rows, each in the registers of one block."""
    threads, width = _row(length)

    @tilec.kernel
    def softmax_rows(A: T.Tensor((M, length), dtype), B: T.Tensor((M, length), dtype)):
        with T.Kernel(M, threads=threads) as row:
            T.annotate_min_blocks_per_sm(1024 // threads)  # 64 registers
            T.annotate_safe_value({A: -T.infinity(dtype)})
            x = T.alloc_fragment((1, width), "float32")
            high, total = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
            T.copy(A[row, 0], x)
            T.reduce_max(x, high, dim=1)
            for i, j in T.Parallel(1, width):
                x[i, j] = T.exp2(T.fma(x[i, j], LOG2_E, -high[i] * LOG2_E))
            T.reduce_sum(x, total, dim=1)
            for i in T.Parallel(1):
                total[i] = 1 / total[i]
            for i, j in T.Parallel(1, width):
                x[i, j] *= total[i]
            T.copy(x, B[row, 0])

    return softmax_rows


@functools.cache
def rms_norm(dtype: str, length: int) -> Any:
    """B = A's rows, each divided by the root of its mean square."""
    threads, width = _row(length)

    @tilec.kernel
    def rms_norm_rows(A: T.Tensor((M, length), dtype), B: T.Tensor((M, length), dtype)):
        with T.Kernel(M, threads=threads) as row:
            x = T.alloc_fragment((1, width), "float32")
            square = T.alloc_fragment((1, width), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.copy(A[row, 0], x)
            for i, j in T.Parallel(1, width):
                square[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(square, total, dim=1)
            for i in T.Parallel(1):
                total[i] = T.rsqrt(total[i] * (1 / length) + RMS_EPSILON)
            for i, j in T.Parallel(1, width):
                x[i, j] *= total[i]
            T.copy(x, B[row, 0])

    return rms_norm_rows


@functools.cache
def layer_norm(dtype: str, length: int) -> Any:
    """B = A's rows, each less its mean, divided by its standard deviation."""
    threads, width = _row(length)
    share = 1 / length

    @tilec.kernel
    def layer_norm_rows(A: T.Tensor((M, length), dtype), B: T.Tensor((M, length), dtype)):
        with T.Kernel(M, threads=threads) as row:
            T.annotate_min_blocks_per_sm(1024 // threads)  # 64 registers
            x = T.alloc_fragment((1, width), "float32")
            square = T.alloc_fragment((1, width), "float32")
            mean, scale = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
            T.copy(A[row, 0], x)
            T.reduce_sum(x, mean, dim=1)
            for i in T.Parallel(1):
                mean[i] *= share
            for i, j in T.Parallel(1, width):
                x[i, j] = T.if_then_else(j < length, x[i, j] - mean[i], 0)
                square[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(square, scale, dim=1)
            for i in T.Parallel(1):
                scale[i] = T.rsqrt(scale[i] * share + LAYER_EPSILON)
            for i, j in T.Parallel(1, width):
                x[i, j] *= scale[i]
            T.copy(x, B[row, 0])

    return layer_norm_rows


@functools.cache
def odd_softmax(dtype: str, length: int) -> Any:
    """B = softmax of rows that begin anywhere in A: each is read and written from the vector on in
    which it begins."""
    width = _up(length + 7, 192 * 24)

    @tilec.kernel
    def odd_softmax_rows(A: T.Tensor((L,), dtype), B: T.Tensor((L,), dtype)):
        with T.Kernel(L // length, threads=width // 24) as row:
            T.annotate_min_blocks_per_sm(6)
            start = T.cast(row, "int64") * length
            base = start // 8 * 8
            first = T.cast(start - base, "int32")
            x = T.alloc_fragment((width,), "float32")
            high, total = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
            T.copy(A[base], x)
            for i in T.Parallel(width):
                inside = i >= first and i < first + length
                x[i] = T.if_then_else(inside, x[i], -T.infinity("float32"))
            T.reduce_max(x, high, dim=0)
            for i in T.Parallel(width):
                x[i] = T.exp2(T.fma(x[i], LOG2_E, -high[0] * LOG2_E))
            T.reduce_sum(x, total, dim=0)
            for i in T.Parallel(1):
                total[i] = 1 / total[i]
            for i in T.Parallel(width):
                if i >= first and i < first + length:
                    B[base + i] = x[i] * total[0]

    return odd_softmax_rows


@functools.cache
def odd_rms_norm(dtype: str, length: int) -> Any:
    """As `rms_norm`, of rows as in `odd_softmax`."""
    width = _up(length + 7, 192 * 24)

    @tilec.kernel
    def odd_rms_norm_rows(A: T.Tensor((L,), dtype), B: T.Tensor((L,), dtype)):
        with T.Kernel(L // length, threads=width // 24) as row:
            start = T.cast(row, "int64") * length
            base = start // 8 * 8
            first = T.cast(start - base, "int32")
            x = T.alloc_fragment((width,), "float32")
            square = T.alloc_fragment((width,), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.copy(A[base], x)
            for i in T.Parallel(width):
                x[i] = T.if_then_else(i >= first and i < first + length, x[i], 0)
            for i in T.Parallel(width):
                square[i] = x[i] * x[i]
            T.reduce_sum(square, total, dim=0)
            for i in T.Parallel(1):
                total[i] = T.rsqrt(total[i] * (1 / length) + RMS_EPSILON)
            for i in T.Parallel(width):
                # Said anew: what was computed above would be kept in registers until here.
                if base + i >= start and base + i < start + length:
                    B[base + i] = x[i] * total[0]

    return odd_rms_norm_rows


@functools.cache
def odd_layer_norm(dtype: str, length: int) -> Any:
    """As `layer_norm`, of rows as in `odd_softmax`, which cp.async brings to shared memory: what a
    thread needs twice is there, and its registers are free for more blocks."""
    threads = 192
    step = threads * 8
    steps = tuple(range(0, _up(length + 7, step), step))
    share = 1 / length

    def edge(k: int) -> bool:
        """Whether some elements of the step may not be the row's."""
        return k == 0 or k + step > length

    @tilec.kernel
    def odd_layer_norm_rows(A: T.Tensor((L,), dtype), B: T.Tensor((L,), dtype)):
        with T.Kernel(L // length, threads=threads) as row:
            T.annotate_min_blocks_per_sm(8)
            start = T.cast(row, "int64") * length
            base = start // 8 * 8
            first = T.cast(start - base, "int32")
            x = T.alloc_shared((len(steps) * step,), dtype)
            sums = T.alloc_fragment((1, step), "float32")
            squares = T.alloc_fragment((1, step), "float32")
            mean, scale = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
            T.async_copy(A[base], x)
            shift = T.cast(A[start], "float32")
            T.ptx_wait_group(0)
            T.clear(sums)
            T.clear(squares)
            for k in steps:
                for i, j in T.Parallel(1, step):
                    v = T.cast(x[k + j], "float32") - shift
                    if edge(k):
                        v = T.if_then_else(k + j >= first and k + j < first + length, v, 0)
                    sums[i, j] += v
                    squares[i, j] = T.fma(v, v, squares[i, j])
            T.reduce_sum(sums, mean, dim=1)
            T.reduce_sum(squares, scale, dim=1)
            for i in T.Parallel(1):
                mean[i] *= share
                scale[i] = T.rsqrt(T.max(scale[i] * share - mean[i] * mean[i], 0) + LAYER_EPSILON)
                mean[i] = -(mean[i] + shift) * scale[i]
            for k in steps:
                for i, j in T.Parallel(1, step):
                    v = T.fma(T.cast(x[k + j], "float32"), scale[i], mean[i])
                    if edge(k):
                        if k + j >= first and k + j < first + length:
                            B[base + k + j] = v
                    else:
                        B[base + k + j] = v

    return odd_layer_norm_rows


def _up(n: int, by: int) -> int:
    return -(-n // by) * by


def _row(length: int) -> tuple[int, int]:
    """The threads of a row, which have 8 elements of a short one, which is one access, or 32 of a
    long one, and its width in what they have."""
    threads = min(max(_up(length, 1024) // 32, min(_up(length, 256) // 8, 128)), 1024)
    return threads, _up(length, threads * 8)
