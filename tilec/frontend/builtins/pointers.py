"""Builtins about places in memory: addresses, and words that a thread loads and stores at them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tilec import language as T
from tilec.frontend.arithmetic import static_int
from tilec.frontend.builtins.table import Call, builtin
from tilec.frontend.builtins.views import extent_of
from tilec.frontend.expressions import Expressions
from tilec.frontend.index import Reach
from tilec.frontend.narrow import first_byte
from tilec.frontend.values import (
    Address,
    Buffer,
    Lanes,
    Number,
    Region,
    Scalar,
    describe,
    is_number,
)
from tilec.ir import types
from tilec.ir.core import Value
from tilec.ir.ops import Bitcast, For, View, Yield

_WORD = 32


# --- places ---------------------------------------------------------------------------------------


def place_of(t: Expressions, given: object, what: str, node: ast.AST) -> Region:
    """The element where a place is. Raises CompileError for what is none."""
    if isinstance(given, Address):
        return given.element
    if isinstance(given, Buffer) and given.type.space != "barrier" and not given.variable:
        return t.first_element(given)
    if isinstance(given, Region) and given.buffer.type.space != "barrier":
        return t.element(given.buffer, given.offsets, given.loc)
    hint = "write A[i] or A[i:i + 4]"
    raise t.error(f"{what} is {describe(given)}, no place in a buffer", hint, node)


def moved(t: Expressions, element: Region, by: Number, count: int = 0) -> Region:
    """The element `by` elements on, row by row; `count`: how far is gone in all, where that is
    known."""
    *outer, last = element.offsets
    row = static_int(element.buffer.shape[-1])
    index = t.binary("add", last, by)
    if outer and ((row is not None and count > row) or static_int(by) is None):
        extents = element.buffer.shape
        carried: list[Number] = []
        for d in range(len(extents) - 1, 0, -1):
            carried.append(t.binary("mod", index, extents[d]))
            over = t.binary("floordiv", index, extents[d])
            index = t.binary("add", element.offsets[d - 1], over)
        return t.element(element.buffer, (index, *reversed(carried)), element.loc)
    return t.element(element.buffer, (*outer, index), element.loc)


def address(
    t: Expressions, base: object, offset: object, node: ast.AST, what: str = "the base"
) -> Address:
    """The address of a place, `offset` elements on."""
    element = place_of(t, base, what, node)
    if static_int(offset) == 0:
        return Address(element)
    return Address(moved(t, element, t.number(offset, "the offset")))


@builtin(T.access_ptr)
def access_ptr(t: Expressions, c: Call) -> Address:
    base = c["base"].element if isinstance(c["base"], Address) else c["base"]
    found = address(t, base, c["offset"], c.place("base"), "base of T.access_ptr")
    access = {1: "r", 2: "w"}.get(c["access_type"], c["access_type"])
    extent = c["extents"][-1] if c["extents"] else c["extent"]
    if access not in ("r", "w") and (extent is None or len(c["extents"]) > 1):
        return found
    known = extent if len(c["extents"]) <= 1 and is_number(extent) else None
    return replace(found, access=access if access in ("r", "w") else "rw", extent=known)


@builtin(T.make_tensor)
def make_tensor(t: Expressions, c: Call) -> Buffer:
    given = c["ptr"]
    if isinstance(given, Buffer) and given.is_global and given.type.dtype is dtype_of(t, c):
        return given
    return at_address(t, c, given)


builtin(T.make_tensor_from_addr)(lambda t, c: at_address(t, c, c["ptr"]))


def dtype_of(t: Expressions, c: Call) -> types.DType:
    return types.FLOAT32 if c["dtype"] is None else c.dtype("dtype")


def at_address(t: Expressions, c: Call, given: object) -> Buffer:
    """The tensor at an address. All of memory is a tensor of units of `align` bytes, whose other
    dimensions are those asked for: what lies at an address is a part of it, with one index."""
    address = None if isinstance(given, Buffer) and not given.variable else given
    number = t.number(address, "the address") if _is_place(address) else None
    if not isinstance(number, Scalar) or number.dtype not in (types.INT64, types.UINT64):
        message = f"T.{c.builtin} takes a parameter annotated T.ptr, not {describe(given)}"
        hint = "give an address, an int64: an element of a T.Tensor((n,), T.ptr), or a T.int64"
        raise t.error(message, hint, c.place("ptr"))
    c.of("memory")
    dtype, align = dtype_of(t, c), c.integer("align", 1)
    if dtype.bits < 8 or align & (align - 1) or not dtype.bits <= 8 * align <= 128:
        hint = "write a dtype of whole bytes, and a power of two from its bytes to 16"
        raise c.wrong("align", f"is {align}, elements are {dtype.name}", hint)
    extents = [_named(t, c, "shape", e) for e in c.several("shape")]
    if c["strides"] is None:
        steps: list[tuple[types.Extent, int | Scalar]] = [(1, 1)] * len(extents)
        for d in reversed(range(len(extents) - 1)):
            (step, _), (inner, _) = steps[d + 1], extents[d + 1]
            if isinstance(step, int) and isinstance(inner, int):
                steps[d] = (step * inner, step * inner)
            elif step == 1:
                steps[d] = extents[d + 1]
            else:
                hint = "write strides=(…), of ints and parameters"
                raise t.error(f"stride {d} is a product of sizes", hint, c.place("shape"))
    else:
        steps = [_named(t, c, "strides", e) for e in c["strides"]]
        if len(steps) != len(extents):
            said = f"{len(steps)} strides for {len(extents)} extents"
            raise t.error(said, "give each dimension a stride", c.place("strides"))
    shape, strides = tuple(e for e, _ in extents), tuple(s for s, _ in steps)
    known = all(isinstance(s, int) for s in strides)
    places = 1 << min(62, 65 - align.bit_length())
    size = dtype.bits // 8
    whole = types.BufferType(
        (places, *shape), dtype, "global", (align // size, *strides), align if known else size
    )
    memory = Value(whole, f"memory{len(t.memories)}")
    t.memories.append(memory)
    units = t.binary("floordiv", t.convert(number, types.UINT64), align)
    at = t.convert(units, types.INT64)
    made = types.BufferType(shape, dtype, "global", strides, whole.align)
    value = t.emit(View, memory, made, at.value).result
    t.at_addresses.add(value)
    return Buffer(value, tuple(v for _, v in extents), t.loc, tuple(v for _, v in steps))


def _is_place(given: object) -> bool:
    element = isinstance(given, Region) and given.is_element
    return element or isinstance(given, Buffer) or is_number(given)


def _named(t: Expressions, c: Call, name: str, given: object) -> tuple[types.Extent, int | Scalar]:
    """An extent or a stride as types have it, and as a value."""
    if (found := extent_of(t, given)) is not None:
        return found
    if isinstance(given, Scalar) and given.value in t.scalar_names:
        return t.scalar_names[given.value], t.to_index(given)
    hint = (
        "write positive ints, sizes of tensors' annotations and integer parameters; of extents "
        "that memory has, the largest, and an if around what lies beyond"
    )
    raise c.wrong(name, f"has {describe(given)}", hint)


@builtin(T.address_of)
def address_of(t: Expressions, c: Call) -> Address:
    return address(t, c["element"], 0, c.place("element"), "the argument of T.address_of")


# --- copies ---------------------------------------------------------------------------------------


def _in_space(t: Expressions, c: Call, name: str, space: str) -> Region:
    found = place_of(t, c[name], f"{name} of T.{c.builtin}", c.place(name))
    if found.buffer.type.space != space:
        hint = f"name a place in a {'tensor' if space == 'global' else 'shared buffer'}"
        raise c.wrong(name, f"is in {describe(found.buffer)}, not in {space} memory", hint)
    return found


@builtin(T.ptx_cp_async)
def ptx_cp_async(t: Expressions, c: Call) -> None:
    dst, src = _in_space(t, c, "dst", "shared"), _in_space(t, c, "src", "global")
    count = c.integer("num_elems", 1)
    if dst.buffer.dtype is not src.buffer.dtype:
        raise t.error(
            f"T.ptx_cp_async copies bytes: src is in {describe(src.buffer)}, dst in "
            f"{describe(dst.buffer)}",
            "use places of one dtype, or T.copy, which converts",
        )
    pred = None if c["predicate"] is None else _condition(t, c, "predicate")

    def copy(source: Region, dest: Region, engine: str = "cp_async") -> None:
        value = t.load(source)
        if pred is not None:
            value = t.select(pred, value, t.constant(0, value.dtype))
        t.store(dest, value, engine)

    sides = [x.buffer for x in (src, dst)]
    rows = [static_int(b.shape[-1]) for b in sides]
    apart = any(b.packed is not None for b in sides) or t.parallel is not None
    if apart or any(n is not None and n < count for n in rows):
        for at in range(count):
            copy(moved(t, src, at, count), moved(t, dst, at, count), "threads")
    elif count == 1:
        copy(src, dst)
    else:
        with _neighbours(t, count) as index:
            copy(t.neighbour(src, index), t.neighbour(dst, index))


@contextmanager
def _neighbours(t: Expressions, count: int) -> Iterator[Scalar]:
    """The index of a thread's own loop over elements that lie side by side."""
    index = Value(types.ScalarType(t.index_dtype), "n")
    with t.inside() as body:
        yield t.scalar(index, Reach(0, count - 1, True, t.depth, dense=True))
        t.emit(Yield, ())
    lo, hi, step = map(t.index_value, (0, count, 1))
    t.emit(For, "vectorized", lo, hi, step, (), body.block((index,)))


def _condition(t: Expressions, c: Call, name: str) -> Scalar:
    return t.run_time(t.truth(c.number(name)))


# --- words ----------------------------------------------------------------------------------------


def _elements(t: Expressions, c: Call, name: str, bits: int) -> tuple[Region, types.DType, int]:
    """Where so many bits begin, the dtype of their elements, and how many these are."""
    space = "global" if c.builtin[2] == "g" else "shared"
    with t.at(c.place(name)):
        first = first_byte(t, _in_space(t, c, name, space))
    dtype = first.buffer.type.dtype
    if dtype.bits < 8 or bits % dtype.bits:
        raise t.error(
            f"T.{c.builtin} moves {bits} bits, elements of {describe(first.buffer)} have "
            f"{dtype.bits}",
            "use elements of 8, 16, 32 or 64 bits, no longer than what is moved",
            c.place(name),
        )
    return first, dtype, bits // dtype.bits


def _unsigned(bits: int) -> types.DType:
    found = types.find_dtype(f"uint{bits}")
    assert found is not None
    return found


def as_bits(t: Expressions, x: Scalar, dtype: types.DType | None = None) -> Scalar:
    """The bits of a number, as another of `dtype`, or unsigned."""
    to = dtype or _unsigned(x.dtype.bits)
    return x if x.dtype is to else t.emit_scalar(Bitcast, x.value, to)


def regrouped(t: Expressions, parts: list[Scalar], bits: int) -> list[Scalar]:
    """Unsigned numbers as ones of `bits` each, the lowest bits first."""
    own, to = parts[0].dtype.bits, _unsigned(bits)
    if own == bits:
        return parts
    if own > bits:
        shifts = range(0, own, bits)
        return [t.convert(t.binary("shr", x, n), to) for x in parts for n in shifts]
    found = []
    for at in range(0, len(parts), bits // own):
        word = t.convert(parts[at], to)
        for n, x in enumerate(parts[at + 1 : at + bits // own], 1):
            word = t.run_time(t.binary("or", word, t.binary("shl", t.convert(x, to), n * own)))
        found.append(word)
    return found


def _load(t: Expressions, c: Call) -> Scalar | Lanes:
    first, _, count = _elements(t, c, "src", int(c.builtin[3:]))
    pred = None if c.values.get("pred") is None else _condition(t, c, "pred")
    parts = [as_bits(t, t.load(moved(t, first, n, count))) for n in range(count)]
    if pred is not None:
        parts = [t.select(pred, x, t.constant(0, x.dtype)) for x in parts]
    words = tuple(regrouped(t, parts, _WORD))
    return words[0] if len(words) == 1 else Lanes(words)


def _store(t: Expressions, c: Call) -> None:
    bits = int(c.builtin[3:])
    first, dtype, count = _elements(t, c, "dst", bits)
    given = c["value"]
    values = given.items if isinstance(given, Lanes) else c.several("value")
    parts: list[Scalar] = []
    for x in values:
        number = t.number(x, f"value of T.{c.builtin}")
        parts.append(as_bits(t, t.run_time(number, None if isinstance(x, float) else types.UINT32)))
    if sum(x.dtype.bits for x in parts) != bits or len({x.dtype for x in parts}) > 1:
        raise t.error(
            f"T.{c.builtin} writes {bits} bits, its value is "
            f"{' and '.join(describe(v) for v in values)}",
            f"give {bits // _WORD} uint32, or what T.ld{c.builtin[2:]} gives",
            c.place("value"),
        )
    words = regrouped(t, regrouped(t, parts, min(parts[0].dtype.bits, 32)), dtype.bits)
    made = [as_bits(t, x, dtype) for x in words]

    def write() -> None:
        for n, x in enumerate(made):
            t.store(moved(t, first, n, count), x)

    if c.values.get("pred") is None:
        write()
    else:
        t.branch(_condition(t, c, "pred"), write)


for _word in filter(re.compile(r"(ld|st)[gs]\d+").fullmatch, dir(T)):
    builtin(getattr(T, _word))(_load if _word.startswith("ld") else _store)
