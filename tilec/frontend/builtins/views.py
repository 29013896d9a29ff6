"""Builtins that show a buffer's memory as another buffer, and those that are loops and sums of
elements: transposed tiles, products of bytes, the matrix of a convolution."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from typing import Any

from tilec import language as T
from tilec.frontend.arithmetic import static_int
from tilec.frontend.builtins.table import Call, builtin
from tilec.frontend.expressions import Expressions
from tilec.frontend.narrow import on_chip
from tilec.frontend.placements import along, for_each_element
from tilec.frontend.values import Buffer, Region, Scalar, Tile, describe
from tilec.ir.ops import View
from tilec.ir.types import INT8, INT32, ON_CHIP, UINT8, BufferType, DType, Extent

UNNAMED = "_"  # an extent that no size parameter holds


@builtin(T.view, T.reshape)
def view(t: Expressions, c: Call) -> Buffer | None:
    if c["src"] is None and t.options.tilelang:
        return None  # of a tensor that this variant does not have
    source = _source(t, c)
    dtype = source.dtype if c.values.get("dtype") is None else c.dtype("dtype")
    return _view(t, c, source, dtype)


def of_memory(
    t: Expressions, source: Buffer, shape: object, dtype: object, node: ast.Call
) -> Buffer:
    """`T.Tensor(shape, dtype, A.data)` in a kernel: `T.view(A, shape, dtype)`."""
    nodes = dict(zip(("shape", "dtype", "src"), node.args))
    made = view(t, Call(t, "view", node, {"src": source, "shape": shape, "dtype": dtype}, nodes))
    assert isinstance(made, Buffer)
    return made


def _source(t: Expressions, c: Call) -> Buffer:
    source = c["src"]
    if not isinstance(source, Buffer) or source.type.space == "barrier":
        hint = "name a tensor, or what T.alloc_shared, T.alloc_fragment or T.alloc_local made"
        raise c.wrong("src", f"is {describe(source)}, not a buffer", hint)
    if source.value in t.at_addresses:
        hint = "call T.make_tensor again, with the other shape and dtype"
        raise t.error(f"a view of {describe(source)}, which T.make_tensor made", hint)
    return source


def _view(t: Expressions, c: Call, source: Buffer, dtype: DType) -> Buffer:
    c.of("memory")
    shape = source.shape if c["shape"] is None else c.several("shape")
    extents = [_extent(t, c, e, not d and source.is_global) for d, e in enumerate(shape)]
    _check_size(t, c, source, extents, dtype)
    packed, stored = dtype if dtype in ON_CHIP else None, extents
    if source.is_global and (packed or source.packed):
        stored = _in_bytes(t, c, source, extents, dtype)
    elif dtype is not source.dtype and min(dtype.bits, source.dtype.bits) < 8:
        raise t.error(
            f"a view of {describe(source)} as {dtype.name}: on chip elements of four bits have a "
            "byte or two each",
            "view the tensor that it comes from, or allocate it as bytes and take the bits apart",
        )
    in_bytes = packed is not None and source.is_global
    own = UINT8 if in_bytes else on_chip(dtype)
    made = BufferType(tuple(e for e, _ in stored), own, source.type.space)
    value = t.emit(View, source.value, made).result
    value.name = source.value.name
    t.shown[value] = t.shown.get(source.value, source.value)
    shape, held = (tuple(v for _, v in x) for x in (extents, stored))
    return Buffer(value, shape, t.loc, packed=packed, stored=held if in_bytes else None)


def _check_size(
    t: Expressions,
    c: Call,
    source: Buffer,
    extents: list[tuple[Extent, int | Scalar]],
    dtype: DType,
) -> None:
    """Raise CompileError for a view of more or fewer bits than there are."""
    ours = _bits([e for e, _ in extents], dtype)
    if source.is_global and source.packed is not None:
        theirs = _bits(source.type.shape, source.type.dtype)  # those of its bytes
    else:
        theirs = _bits(source.type.shape, source.dtype)
    if ours != theirs and None not in (ours, theirs):
        said = f"{ours} bits, {source.name} {theirs}"
        raise t.error(
            f"T.{c.builtin} of {describe(source)} as {_shown(extents)} {dtype.name} has {said}",
            "give a shape of as many elements",
            c.place("shape") if c["shape"] is not None else None,
        )


def _in_bytes(
    t: Expressions,
    c: Call,
    source: Buffer,
    extents: list[tuple[Extent, int | Scalar]],
    dtype: DType,
) -> list[tuple[Extent, int | Scalar]]:
    """The extents, in memory, of a tensor in whose bytes elements are, or shall be, packed."""
    if dtype.bits >= 8:
        return extents
    last, _ = extents[-1]
    if not isinstance(last, int) or last % 2:
        raise t.error(
            f"T.{c.builtin} of {describe(source)} as {_shown(extents)} {dtype.name}: elements "
            "of four bits come in pairs, a byte each",
            "write a last extent that is even, and known at compile time",
            c.place("shape") if c["shape"] is not None else None,
        )
    return [*extents[:-1], (last // 2, last // 2)]


def extent_of(t: Expressions, given: object) -> tuple[Extent, int | Scalar] | None:
    """An extent as types have it, and as a value; None for what is none."""
    known = static_int(given)
    if known is not None and known > 0:
        return known, known
    sizes = (x for x in t.sizes.items() if x[1] is given)
    return next(((n, v) for n, v in sizes if isinstance(v, Scalar)), None)


def _extent(t: Expressions, c: Call, given: object, free: bool) -> tuple[Extent, int | Scalar]:
    """An extent; one that is `free`, the first of a tensor's view, may be any whole number: where
    an element lies does not depend on it, and the tensor's own end is looked at."""
    if (found := extent_of(t, given)) is not None:
        return found
    if free and isinstance(given, Scalar) and given.dtype.kind in ("int", "uint"):
        return UNNAMED, given
    hint = "write a positive int, or a size that a tensor's annotation names"
    if not free and isinstance(given, Scalar):
        hint += "; the first extent of a tensor's view may be any number"
    raise t.error(f"an extent of T.{c.builtin} is {describe(given)}", hint, c.place("shape"))


def _bits(shape: tuple[Extent, ...] | list[Extent], dtype: DType) -> int | None:
    known = [e for e in shape if isinstance(e, int)]
    return math.prod(known) * dtype.bits if len(known) == len(shape) else None


def _shown(extents: list[tuple[Extent, int | Scalar]]) -> str:
    return "(" + ", ".join(str(e) for e, _ in extents) + ")"


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
    if t.same_memory(source, dest):
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
