"""The tilec kernels of rows that are measured: softmax, RMS norm and layer norm, of rows that a
block holds in registers and of rows that begin anywhere."""

# mypy: ignore-errors
# (kernels: their annotations and arithmetic are not Python's)
from __future__ import annotations

import functools
from typing import Any

import tilec
import tilec.language as T

L, M, N = T.dynamic("L, M, N")

LOG2_E, RMS_EPSILON, LAYER_EPSILON = 1.4426950408889634, 1e-6, 1e-5


@functools.cache
def softmax(dtype: str, width: int) -> Any:
    """B = softmax of A's rows, each in the registers of one block; `width`: at least their
    length."""

    @tilec.kernel
    def softmax_rows(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=_row_threads(width)) as row:
            T.annotate_min_blocks_per_sm(1024 // _row_threads(width))  # 64 registers
            T.annotate_safe_value({A: -T.infinity(dtype)})
            x = T.alloc_fragment((1, width), "float32")
            high, total = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
            T.copy(A[row, 0], x)
            T.reduce_max(x, high, dim=1)
            for i, j in T.Parallel(1, width):
                x[i, j] = T.exp2(x[i, j] * LOG2_E - high[i] * LOG2_E)
            T.reduce_sum(x, total, dim=1)
            for i in T.Parallel(1):
                total[i] = 1 / total[i]
            for i, j in T.Parallel(1, width):
                x[i, j] *= total[i]
            T.copy(x, B[row, 0])

    return softmax_rows


@functools.cache
def rms_norm(dtype: str, width: int) -> Any:
    """B = A's rows, each divided by the root of its mean square; `width`: at least their length."""

    @tilec.kernel
    def rms_norm_rows(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=_row_threads(width)) as row:
            x = T.alloc_fragment((1, width), "float32")
            square = T.alloc_fragment((1, width), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.copy(A[row, 0], x)
            for i, j in T.Parallel(1, width):
                square[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(square, total, dim=1)
            for i in T.Parallel(1):
                total[i] = T.rsqrt(total[i] / N + RMS_EPSILON)
            for i, j in T.Parallel(1, width):
                x[i, j] *= total[i]
            T.copy(x, B[row, 0])

    return rms_norm_rows


@functools.cache
def layer_norm(dtype: str, width: int) -> Any:
    """B = A's rows, each less its mean, divided by its standard deviation; `width`: at least their
    length."""

    @tilec.kernel
    def layer_norm_rows(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=_row_threads(width)) as row:
            T.annotate_min_blocks_per_sm(1024 // _row_threads(width))  # 64 registers
            x = T.alloc_fragment((1, width), "float32")
            square = T.alloc_fragment((1, width), "float32")
            mean, scale = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
            share = 1.0 / T.cast(N, "float32")
            T.copy(A[row, 0], x)
            T.reduce_sum(x, mean, dim=1)
            for i in T.Parallel(1):
                mean[i] *= share
            for i, j in T.Parallel(1, width):
                x[i, j] = T.if_then_else(j < N, x[i, j] - mean[i], 0)
                square[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(square, scale, dim=1)
            for i in T.Parallel(1):
                scale[i] = T.rsqrt(scale[i] * share + LAYER_EPSILON)
            for i, j in T.Parallel(1, width):
                x[i, j] *= scale[i]
            T.copy(x, B[row, 0])

    return layer_norm_rows


@functools.cache
def odd_softmax(dtype: str, width: int) -> Any:
    """B = softmax of rows of n elements, which begin anywhere in A: each is read and written from
    the vector on in which it begins. `width`: at least n + 7."""

    @tilec.kernel
    def odd_softmax_rows(A: T.Tensor((L,), dtype), B: T.Tensor((L,), dtype), n: T.int32):
        with T.Kernel(L // n, threads=width // 24) as row:
            T.annotate_min_blocks_per_sm(6)
            start = T.cast(row, "int64") * n
            base = start // 8 * 8
            first = T.cast(start - base, "int32")
            x = T.alloc_fragment((width,), "float32")
            high, total = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
            T.copy(A[base], x)
            for i in T.Parallel(width):
                inside = i >= first and i < first + n
                x[i] = T.if_then_else(inside, x[i], -T.infinity("float32"))
            T.reduce_max(x, high, dim=0)
            for i in T.Parallel(width):
                x[i] = T.exp2(T.fma(x[i], LOG2_E, -high[0] * LOG2_E))
            T.reduce_sum(x, total, dim=0)
            for i in T.Parallel(1):
                total[i] = 1 / total[i]
            for i in T.Parallel(width):
                if i >= first and i < first + n:
                    B[base + i] = x[i] * total[0]

    return odd_softmax_rows


@functools.cache
def odd_rms_norm(dtype: str, width: int) -> Any:
    """As `rms_norm`, of rows as in `odd_softmax`."""

    @tilec.kernel
    def odd_rms_norm_rows(A: T.Tensor((L,), dtype), B: T.Tensor((L,), dtype), n: T.int32):
        with T.Kernel(L // n, threads=width // 24) as row:
            start = T.cast(row, "int64") * n
            base = start // 8 * 8
            first = T.cast(start - base, "int32")
            x = T.alloc_fragment((width,), "float32")
            square = T.alloc_fragment((width,), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.copy(A[base], x)
            for i in T.Parallel(width):
                x[i] = T.if_then_else(i >= first and i < first + n, x[i], 0)
            for i in T.Parallel(width):
                square[i] = x[i] * x[i]
            T.reduce_sum(square, total, dim=0)
            for i in T.Parallel(1):
                total[i] = T.rsqrt(total[i] / n + RMS_EPSILON)
            for i in T.Parallel(width):
                # Said anew: what was computed above would be kept in registers until here.
                if base + i >= start and base + i < start + n:
                    B[base + i] = x[i] * total[0]

    return odd_rms_norm_rows


@functools.cache
def odd_layer_norm(dtype: str, width: int) -> Any:
    """As `layer_norm`, of rows as in `odd_softmax`: the mean and the mean square of what elements
    are less the row's first one. So neither sum waits for the other, and where a row's elements lie
    far from zero and close together, squares do not cancel."""

    @tilec.kernel
    def odd_layer_norm_rows(A: T.Tensor((L,), dtype), B: T.Tensor((L,), dtype), n: T.int32):
        with T.Kernel(L // n, threads=width // 24) as row:
            T.annotate_min_blocks_per_sm(5)
            start = T.cast(row, "int64") * n
            base = start // 8 * 8
            first = T.cast(start - base, "int32")
            share = 1.0 / T.cast(n, "float32")
            x = T.alloc_fragment((width,), "float32")
            square = T.alloc_fragment((width,), "float32")
            mean, scale = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
            T.copy(A[base], x)
            shift = T.cast(A[start], "float32")
            for i in T.Parallel(width):
                x[i] = T.if_then_else(i >= first and i < first + n, x[i] - shift, 0)
            T.reduce_sum(x, mean, dim=0)
            for i in T.Parallel(width):
                square[i] = x[i] * x[i]
            T.reduce_sum(square, scale, dim=0)
            for i in T.Parallel(1):
                mean[i] *= share
                scale[i] = T.rsqrt(T.max(scale[i] * share - mean[i] * mean[i], 0) + LAYER_EPSILON)
            for i in T.Parallel(width):
                x[i] -= mean[0]
            for i in T.Parallel(width):
                if i >= first and i < first + n:
                    B[base + i] = x[i] * scale[0]

    return odd_layer_norm_rows


def _row_threads(width: int) -> int:
    """8 elements of a short row in a thread, which is one access, and 32 of a long one."""
    return min(max(width // 32, min(width // 8, 256), 32), 1024)
