"""Builtins about the bits of ints, spelled in the arithmetic that every target has. LLVM makes the
machine's own instructions of it where it sees them."""

from __future__ import annotations

from tilec import language as T
from tilec.frontend.builtins import Call, builtin
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import Number, Scalar, describe
from tilec.ir.types import INT32, INT64, UINT32, UINT64

_HALF = 0xFFFF_FFFF


builtin(T.ffs)(lambda t, c: find_first_set(t, t.run_time(_int(t, c, "x"))))


@builtin(T.mulhi)
def mulhi(t: Expressions, c: Call) -> Scalar:
    x, y = (_int(t, c, name, 32, 64) for name in ("x", "y"))
    return upper_product(t, *t.unify(x, y, "*"))


@builtin(T.byte_perm)
def byte_perm(t: Expressions, c: Call) -> Scalar:
    x, y, s = (t.convert(_int(t, c, name, 32), UINT32) for name in ("x", "y", "s"))
    return permuted_bytes(t, x, y, s)


def _int(t: Expressions, c: Call, name: str, *widths: int) -> Number:
    """An argument that is an int, of one of so many bits where it is not known now."""
    hint = "convert it: T.int32(x), or T.reinterpret(x, dtype) for its bits"
    number = c.whole(name, hint)
    if widths and isinstance(number, Scalar) and number.dtype.bits not in widths:
        many = " or ".join(map(str, widths))
        said = f"is {describe(number)}, not an int of {many} bits"
        raise c.wrong(name, said, f"convert it: T.int{widths[0]}(x)")
    return number


def find_first_set(t: Expressions, x: Scalar) -> Scalar:
    """See `T.ffs`."""
    is_none = t.compare("eq", x, 0)
    place = t.binary("add", t.convert(t.unary("ctz", x), INT32), 1)
    return t.select(is_none, 0, place) if isinstance(is_none, Scalar) else t.run_time(place)


def upper_product(t: Expressions, x: Scalar, y: Scalar) -> Scalar:
    """The upper half of a product, of the dtype of both factors."""
    dtype = x.dtype
    if dtype.bits == 64:
        return _upper_of_128(t, x, y)
    wide = INT64 if dtype.kind == "int" else UINT64
    product = t.binary("mul", t.convert(x, wide), t.convert(y, wide))
    return t.convert(t.binary("shr", product, dtype.bits), dtype)


def _upper_of_128(t: Expressions, x: Scalar, y: Scalar) -> Scalar:
    """By halves; a negative factor counts 2**64 too much as an unsigned one."""

    def low(v: Number) -> Number:
        return t.binary("and", v, _HALF)

    def high(v: Number) -> Number:
        return t.binary("shr", v, 32)

    def total(*parts: Number) -> Number:
        found, *rest = parts
        for part in rest:
            found = t.binary("add", found, part)
        return found

    a, b = t.convert(x, UINT64), t.convert(y, UINT64)
    lower, left, right, upper = (
        t.binary("mul", m, n)
        for m, n in ((low(a), low(b)), (high(a), low(b)), (low(a), high(b)), (high(a), high(b)))
    )
    middle = total(high(lower), low(left), low(right))
    found = total(upper, high(left), high(right), high(middle))
    if x.dtype.kind == "int":
        for sign, other in ((x, b), (y, a)):
            negative = t.convert(t.binary("shr", sign, 63), UINT64)  # all ones, or none
            found = t.binary("sub", found, t.binary("and", negative, other))
    return t.convert(found, x.dtype)


def permuted_bytes(t: Expressions, x: Scalar, y: Scalar, s: Scalar) -> Scalar:
    """See `T.byte_perm`."""
    low, high = (t.convert(t.convert(v, UINT32), UINT64) for v in (x, y))
    both = t.binary("or", low, t.binary("shl", high, 32))
    chosen, found = t.convert(s, UINT32), t.constant(0, UINT32)
    for n in range(4):
        which = t.binary("and", t.binary("shr", chosen, 4 * n), 7)
        moved = t.binary("shr", both, t.convert(t.binary("mul", which, 8), UINT64))
        byte = t.convert(t.binary("and", moved, 0xFF), UINT32)
        found = t.run_time(t.binary("or", found, t.binary("shl", byte, 8 * n)))
    return found
