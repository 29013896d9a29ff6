"""T.im2col: the rows and columns of the matrix that turns a convolution into a product, gathered
element by element. What of them lies in the padding, or beyond the matrix, is 0."""

from __future__ import annotations

from typing import Any

from tilec import language as T
from tilec.frontend.builtins import Call, builtin, int_argument, whole_argument
from tilec.frontend.builtins_tile import tile_level
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import Buffer, describe


def gather(
    img: Any,
    col: Any,
    nhw_step: Any,
    c_step: Any,
    kernel: int,
    stride: int,
    dilation: int,
    pad: int,
) -> None:
    """In the language of kernels."""
    images, height, width, channels = img.shape
    rows, columns = col.shape
    reach = dilation * (kernel - 1) + 1
    out_height = (height + 2 * pad - reach) // stride + 1
    out_width = (width + 2 * pad - reach) // stride + 1
    pixels = out_height * out_width
    for i, j in T.Parallel(rows, columns):
        pixel, tap = nhw_step * rows + i, c_step * columns + j
        y = pixel // out_width % out_height * stride + tap // channels // kernel * dilation - pad
        x = pixel % out_width * stride + tap // channels % kernel * dilation - pad
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        inside = inside & (pixel < images * pixels) & (tap < kernel * kernel * channels)
        found = img[pixel // pixels, y, x, tap % channels]
        col[i, j] = T.if_then_else(inside, found, T.cast(0, img.dtype))


@builtin(T.im2col)
def im2col(t: Expressions, c: Call) -> None:
    tile_level(t, c)
    _check(t, c, "img", 4, "a tensor of images, height, width and channels")
    _check(t, c, "col", 2, "a shared tile or fragment of pixels and taps")
    hint = "it counts tiles: the index of a block or loop"
    steps = [whole_argument(t, c, name, hint) for name in ("nhw_step", "c_step")]
    numbers = [int_argument(t, c, name, 1) for name in ("kernel", "stride", "dilation")]
    numbers.append(int_argument(t, c, "pad", 0))
    t.trace_function(gather, [c["img"], c["col"], *steps, *numbers], {})


def _check(t: Expressions, c: Call, name: str, rank: int, what: str) -> None:
    given = c[name]
    fits = isinstance(given, Buffer) and len(given.shape) == rank
    if not fits or given.is_global != (name == "img"):
        message = f"{name} of T.im2col is {describe(given)}, not {what}"
        raise t.error(message, "name the whole buffer", c.place(name))
