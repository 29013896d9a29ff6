"""Tiles the other way round, rows of a convolution, and sums of four products of bytes."""

from typing import Any

__all__ = ["dp4a", "im2col", "transpose"]


def transpose(src: Any, dst: Any) -> None:
    """`dst[…, j, i] = src[…, i, j]`: a tile of (…, M, N) elements onto one of (…, N, M), of shared
    memory, fragments and tensors, converted to the destination's dtype. One of them may be named
    by where it starts.

    Raises CompileError where the extents do not fit, and for a buffer onto itself.
    """


def im2col(
    img: Any,
    col: Any,
    nhw_step: Any,
    c_step: Any,
    kernel: int,
    stride: int,
    dilation: int,
    pad: int,
    eviction_policy: Any = None,
    annotations: Any = None,
) -> None:
    """A tile of the matrix whose product with the weights is a convolution: `col`, a shared tile or
    fragment of (pixels, taps), is the part that begins at row `nhw_step * pixels` and column
    `c_step * taps`.

    `img` is a tensor (N, H, W, C). A row stands for a pixel of the result, counted along (N, OH,
    OW) with OH = (H + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1; a column for a tap,
    counted along (kernel, kernel, C). What lies in the padding, or beyond the matrix, is 0.
    `eviction_policy` and `annotations` are accepted and decide nothing. Raises CompileError for
    buffers of other ranks or places.
    """


def dp4a(A: Any, B: Any, C: Any) -> None:
    """`C += A[0] * B[0] + … + A[3] * B[3]`: of four int8 neighbours of the last dimension, from the
    elements `A` and `B` on, onto the int32 element `C`; modulo 2**32, as int32 sums are. A bare
    buffer is where it begins.

    Raises CompileError for other dtypes, and for neighbours that a dimension does not have.
    """
