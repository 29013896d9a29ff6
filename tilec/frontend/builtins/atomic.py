"""Builtins that change elements of memory by atomics."""

from __future__ import annotations

from tilec import language as T
from tilec.frontend.builtins.pointers import place_of
from tilec.frontend.builtins.table import Call, builtin, named
from tilec.frontend.builtins.threads import asks_for_threads, same_in_all_threads
from tilec.frontend.expressions import Expressions
from tilec.frontend.placements import along, for_each_element, is_placed
from tilec.frontend.values import Address, Buffer, Lanes, Number, Region, Scalar, Tile, describe
from tilec.ir.ops import ATOMICS, Atomic, AtomicTile, DeviceFence
from tilec.ir.types import DType

ORDERS = ("relaxed", "acquire", "release", "acq_rel", "seq_cst")
_BITS = ("and", "or", "xor")


@builtin(*named("atomic_{}", ATOMICS))
def update(t: Expressions, c: Call) -> Scalar | None:
    kind = c.builtin.removeprefix("atomic_")
    by_tma = "use_tma" in c.values and c.flag("use_tma")
    returned = c.flag("return_prev")
    dst, value = c["dst"], c["value"]
    if isinstance(value, Buffer) and not value.variable or _is_box(value):
        _tile(t, c, kind, returned, None, by_tma)
        return None
    if _is_box(dst) or (isinstance(dst, Buffer) and not returned and t.parallel is None):
        number = c.number("value")
        if _is_box(dst) or _once(t, number):
            _tile(t, c, kind, returned, number)
            return None
    element = _element(t, c, "dst", kind)
    number = c.number("value")
    if kind in ("add", "xor") and isinstance(value, Region):
        _check_total(t, element, value.buffer)
    found = _ordered(t, c, element, number, kind)
    return found if returned else None


def _check_total(t: Expressions, element: Region, given: Buffer) -> None:
    """Raises CompileError where every thread of the block adds the same sum of all iterations of a
    T.Parallel to one element. TileLang's threads each hold, and add, a part of it."""
    indices = [i.value for i in element.offsets if isinstance(i, Scalar)]
    if given.value not in t.added_up or t.parallel is not None or t.threads == 1:
        return
    if same_in_all_threads(t, t.guards, indices):
        name, total = element.buffer.name, given.name
        times = f"{t.threads} times" if t.threads else "as often as there are threads"
        raise t.error(
            f"{total} has what all iterations of a T.Parallel add up, and each thread of the block "
            f"adds it to the same element of {name}: it is done {times}",
            f"write for i in T.Parallel(1): T.atomic_add({name}[…], {total}[…])",
        )


def _once(t: Expressions, number: Number) -> bool:
    """Whether an atomic of a whole buffer, by a number, is the block's: neither the number nor a
    condition is a thread's own."""
    values = [number.value] if isinstance(number, Scalar) else ()
    return not asks_for_threads(t) or same_in_all_threads(t, t.guards, values)


def _is_box(given: object) -> bool:
    return isinstance(given, Region) and not given.is_element


def _element(t: Expressions, c: Call, name: str, kind: str) -> Region:
    """The element of a global or shared buffer that is changed."""
    given = c[name].element if isinstance(c[name], Address) else c[name]
    with t.at(c.place(name)):
        one = isinstance(given, Buffer) and all(e == 1 for e in given.type.shape)
        if one and given.type.space != "local":
            given = t.first_element(given)
        if not isinstance(given, Region) or not given.is_element:
            said = f"is {describe(given)}, not an element of a buffer"
            raise c.wrong(name, said, "name the element: A[i, j]")
        _check_buffer(t, c, given.buffer, name, kind)
        t.check_element(given)
    return given


def may_be_atomic(dtype: DType) -> bool:
    """Whether there are atomics on elements of `dtype`."""
    return dtype.bits >= (16 if dtype.is_float else 8) and dtype.kind != "bool"


def _check_buffer(t: Expressions, c: Call, buffer: Buffer, name: str, kind: str) -> None:
    dtype = buffer.dtype
    if buffer.type.space not in ("global", "shared"):
        message = f"{name} of T.{c.builtin} is in {describe(buffer)}, which no other thread sees"
        raise t.error(message, f"assign to it, or allocate {buffer.name} with T.alloc_shared")
    if not may_be_atomic(dtype):
        raise t.error(
            f"there are no atomics on {dtype.name}: {name} of T.{c.builtin} is in "
            f"{describe(buffer)}",
            "use an int of 8 bits or more, or a float of 16 or more",
        )
    if kind == "cas" and not dtype.is_int:
        hint = "use an int tensor, and T.reinterpret for the bits of floats"
        raise t.error(f"T.{c.builtin} compares ints, not elements of {describe(buffer)}", hint)
    if kind in _BITS and dtype.is_float:
        message = f"T.{c.builtin} combines the bits of ints, not those of {describe(buffer)}"
        raise t.error(message, "use an int tensor")


def _ordered(
    t: Expressions,
    c: Call,
    element: Region,
    value: Number,
    kind: str,
    compare: Number | None = None,
) -> Scalar:
    """The op, between the fences that its order asks for."""
    order = c["memory_order"] if "memory_order" in c.values else None
    order = "relaxed" if order is None else c.choice("memory_order", ORDERS)
    if order in ("release", "acq_rel", "seq_cst"):
        t.emit(DeviceFence)
    found = _emit(t, element, value, kind, compare)
    if order in ("acquire", "acq_rel", "seq_cst"):
        t.emit(DeviceFence)
    return found


def _emit(
    t: Expressions, element: Region, value: Number, kind: str, compare: Number | None = None
) -> Scalar:
    dtype = element.buffer.type.dtype
    converted = t.convert(value, dtype)
    asked = None if compare is None else t.convert(compare, dtype).value
    indices = t.indices_at(element)
    return t.emit_scalar(Atomic, element.buffer.value, indices, converted.value, kind, asked)


def _tile(
    t: Expressions, c: Call, kind: str, returned: bool, number: Number | None, by_tma: bool = False
) -> None:
    c.of("tiles")
    if returned:
        message = f"T.{c.builtin} of a tile gives no previous values"
        hint = "update the elements in a loop over T.Parallel, or leave return_prev out"
        raise t.error(message, hint, c.place("return_prev"))
    source: Tile | None = None
    if number is not None:
        with t.at(c.place("dst")):
            dest = t.tile(c["dst"], "the destination")
    else:
        source, dest = t.tiles(c["value"], c["dst"], (c.place("value"), c.place("dst")))
    with t.at(c.place("dst")):
        _check_buffer(t, c, dest.buffer, "dst", kind)
    order = c["memory_order"] if "memory_order" in c.values else None
    if order not in (None, "relaxed"):
        c.choice("memory_order", ORDERS)
        t.emit(DeviceFence)
    if source is None or is_placed(t, source, dest):

        def update(at: list[Scalar]) -> None:
            value = number if source is None else t.load(along(t, source, at))
            assert value is not None
            _emit(t, along(t, dest, at), value, kind)

        for_each_element(t, dest.shape, update)
    else:
        t.emit(AtomicTile, t.box(source), t.box(dest), kind, "tma_store" if by_tma else "")
    if order not in (None, "relaxed", "release"):
        t.emit(DeviceFence)


@builtin(T.atomic_cas)
def atomic_cas(t: Expressions, c: Call) -> Scalar:
    element = _element(t, c, "dst", "cas")
    hint = "write an int, of the dtype of dst"
    compare, value = (c.whole(name, hint) for name in ("compare", "value"))
    return _ordered(t, c, element, value, "cas", compare)


def _places(t: Expressions, c: Call, count: int) -> list[Region]:
    """The elements that `dst` names: one after the other from a place, or those of a vector."""
    dst = c["dst"]
    if isinstance(dst, Lanes) and len(dst.items) == count:
        named = [x for x in dst.items if isinstance(x, Region)]
        if len(named) == count:
            return named
    place = place_of(t, dst, f"dst of T.{c.builtin}", c.place("dst"))
    first = _element(t, c.but(dst=place), "dst", "add")
    return [t.neighbour(first, n) for n in range(count)]


def _addends(t: Expressions, c: Call, count: int) -> list[Number]:
    """What is added to each of them: neighbours, too, or the numbers of a vector."""
    value = c["value"]
    if isinstance(value, Lanes) and len(value.items) == count:
        return [t.number(x, "the value") for x in value.items]
    if isinstance(value, Buffer | Region | Address) and not getattr(value, "variable", False):
        value = place_of(t, value, f"value of T.{c.builtin}", c.place("value"))
    if not isinstance(value, Region) or not value.is_element:
        said = f"is {describe(value)}, not the element where {count} neighbours begin"
        raise c.wrong("value", said, "name it: x[i, j]")
    return [t.number(t.neighbour(value, n), "the value") for n in range(count)]


def _neighbours(t: Expressions, c: Call, count: int) -> Lanes | None:
    targets = [_element(t, c.but(dst=place), "dst", "add") for place in _places(t, c, count)]
    numbers = _addends(t, c, count)
    found = tuple(_emit(t, at, x, "add") for at, x in zip(targets, numbers))
    return Lanes(found) if c.flag("return_prev") else None


builtin(T.atomic_addx2)(lambda t, c: _neighbours(t, c, 2))
builtin(T.atomic_addx4)(lambda t, c: _neighbours(t, c, 4))


@builtin(T.atomic_load)
def atomic_load(t: Expressions, c: Call) -> Scalar:
    """An addition of nothing: -0.0 changes no float."""
    element = _element(t, c, "src", "add")
    return _ordered(t, c, element, -0.0 if element.buffer.type.dtype.is_float else 0, "add")


@builtin(T.atomic_store)
def atomic_store(t: Expressions, c: Call) -> None:
    element = _element(t, c, "dst", "exchange")
    _ordered(t, c, element, c.number("src"), "exchange")
