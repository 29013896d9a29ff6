"""Builtins that are loops and sums of elements: transposed tiles, products of bytes, the matrix of
a convolution."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilec import language as T
from tilec.frontend.builtins import Call, builtin
from tilec.frontend.expressions import Expressions
from tilec.frontend.placements import along, for_each_element
from tilec.frontend.values import Buffer, Region, Scalar, Tile, describe
from tilec.ir.types import INT8, INT32, DType

# --- transposed tiles -----------------------------------------------------------------------------


@builtin(T.transpose, of="tiles")
def transpose(t: Expressions, c: Call) -> None:
    source, dest = _transposed_tiles(t, c)
    for name, tile in (("src", source), ("dst", dest)):
        if tile.buffer.type.space == "local":
            raise t.error(
                f"{name} of T.transpose is {describe(tile.buffer)}, which each thread has for "
                "itself",
                "loop over its elements: for i, j in T.grid(m, n): y[j, i] = x[i, j]",
                c.place(name),
            )
    if source.buffer.value is dest.buffer.value:
        raise t.error(
            f"T.transpose of {describe(dest.buffer)} onto itself: elements would be read after "
            "they are written",
            "transpose it onto another buffer, and copy that",
        )
    leading = len(_leading(dest))

    def move(at: list[Scalar]) -> None:
        lead, rest = at[:leading], iter(at[leading:])
        of_dest = [next(rest) if e != 1 else None for e in dest.extents[-2:]]
        turned = [i for i in reversed(of_dest) if i is not None]
        number = t.load(along(t, source, [*lead, *turned]))
        t.store(along(t, dest, at), number)

    for_each_element(t, dest.shape, move)


def _transposed_tiles(t: Expressions, c: Call) -> tuple[Tile, Tile]:
    """Both sides; a bare start takes the other side's extents, the last two turned."""
    named = {}
    for name, what in (("src", "the source"), ("dst", "the destination")):
        with t.at(c.place(name)):
            named[name] = r = t.region(c[name], what)
            if r.buffer.type.rank < 2:
                raise t.error(
                    f"{what} of T.transpose is in {describe(r.buffer)}, which has one dimension",
                    "a transposed tile has two at least",
                )
    src, dst = named["src"], named["dst"]
    if src.is_element and not dst.is_element:
        to = t.tile(dst, "the destination")
        with t.at(c.place("src")):
            return t.started(src, _turned(to), "the source"), to
    source = t.tile(src, "the source")
    if dst.is_element:
        with t.at(c.place("dst")):
            return source, t.started(dst, _turned(source), "the destination")
    dest = t.tile(dst, "the destination")
    fits = source.extents[-2:] == dest.extents[:-3:-1] and _leading(source) == _leading(dest)
    if not fits:
        wanted = ", ".join(map(str, _turned(source).extents))
        raise t.error(
            f"T.transpose of {t.tile_text(source)} onto {t.tile_text(dest)}: the last two extents "
            "are not each other's",
            f"the destination is a tile of ({wanted})",
        )
    return source, dest


def _turned(tile: Tile) -> Tile:
    *leading, m, n = tile.extents
    return replace(tile, extents=(*leading, n, m))


def _leading(tile: Tile) -> list[int]:
    return [e for e in tile.extents[:-2] if e != 1]


# --- products of bytes ----------------------------------------------------------------------------


@builtin(T.dp4a)
def dp4a(t: Expressions, c: Call) -> None:
    a, b = (_first(t, c, name, INT8) for name in ("A", "B"))
    into = _first(t, c, "C", INT32)
    total = t.load(into)
    for n in range(4):
        factors = (t.convert(t.load(t.neighbour(x, n)), INT32) for x in (a, b))
        total = t.run_time(t.binary("add", total, t.binary("mul", *factors)))
    t.store(into, total)


def _first(t: Expressions, c: Call, name: str, dtype: DType) -> Region:
    """The element that an argument is, or begins with."""
    given: object = c[name]
    with t.at(c.place(name)):
        if isinstance(given, Buffer) and given.type.dtype is dtype:
            given = t.first_element(given)
        if isinstance(given, Region) and given.is_element and given.buffer.type.dtype is dtype:
            if given.buffer.type.space != "barrier":
                return given
        raise t.error(
            f"{name} of T.dp4a is {describe(given)}, not an element of {dtype.name}",
            "T.dp4a(A[i], B[j], C[k]) multiplies int8 and adds to int32; for other dtypes "
            "write C[k] += A[i] * B[j] in a loop",
        )


# --- convolutions ---------------------------------------------------------------------------------


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
    """The rows and columns of the matrix that turns a convolution into a product, in the language
    of kernels. What of them lies in the padding, or beyond the matrix, is 0."""
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


@builtin(T.im2col, of="tiles")
def im2col(t: Expressions, c: Call) -> None:
    _check(t, c, "img", 4, "a tensor of images, height, width and channels")
    _check(t, c, "col", 2, "a shared tile or fragment of pixels and taps")
    hint = "it counts tiles: the index of a block or loop"
    steps = [c.whole(name, hint) for name in ("nhw_step", "c_step")]
    numbers = [c.integer(name, 1) for name in ("kernel", "stride", "dilation")]
    numbers.append(c.integer("pad", 0))
    t.trace_function(gather, [c["img"], c["col"], *steps, *numbers], {})


def _check(t: Expressions, c: Call, name: str, rank: int, what: str) -> None:
    given = c[name]
    fits = isinstance(given, Buffer) and len(given.shape) == rank
    if not fits or given.is_global != (name == "img"):
        message = f"{name} of T.im2col is {describe(given)}, not {what}"
        raise t.error(message, "name the whole buffer", c.place(name))
