"""T.cast with a rounding mode, or a word on what is too large.

Every target rounds to nearest even by itself. The other modes are made of that: the rounded number
is compared with what it was made of and, where it went the wrong way, the neighbour is taken. In
its bits that is one more or one less, of whatever format: the exponent stands above the mantissa,
behind the largest number comes infinity (or nan, where there is none)."""

from __future__ import annotations

from typing import Any

from tilec import language as T
from tilec.builtins import maths
from tilec.builtins.lanes import VectorDType, find_vector
from tilec.frontend.builtins.scalar import cast_to, elementwise
from tilec.frontend.builtins.table import Call, builtin, traced
from tilec.frontend.expressions import Expressions
from tilec.frontend.lanes import lanewise
from tilec.frontend.values import Lanes, Number, Scalar, describe
from tilec.ir.types import FLOAT32, FLOAT64

MODES = ("", "rn", "rz", "rm", "rp", "rs")
_TO_INT = {"rn": maths.round, "rz": maths.trunc, "rm": maths.floor, "rp": maths.ceil}
_UNIT = 2.0**-24  # of a random number's upper 24 bits, as many as a float32 has


@builtin(T.cast)
def cast(t: Expressions, c: Call) -> Scalar | Lanes:
    vector = find_vector(c["dtype"])
    if vector is not None or isinstance(c["value"], Lanes):
        return _of_lanes(t, c, vector)
    dtype, mode = c.dtype("dtype"), c.choice("round", MODES)
    saturate = None if c["sat"] is None else c.flag("sat")
    if (mode == "rs") != (c["rbits"] is not None):
        message = 'T.cast rounds at random by rbits where round="rs", and takes none elsewhere'
        hint = 'write T.cast(x, dtype, round="rs", rbits=bits), with 32 random bits'
        raise t.error(message, hint, c.place("rbits" if c["rbits"] is not None else "round"))
    if mode in ("", "rn") and saturate is None:
        if mode == "rn" and dtype.is_int:
            return cast_to(t, _whole(t, c, mode), dtype)
        return cast_to(t, c["value"], dtype)
    if dtype.is_int:
        if mode == "rs" or saturate is False:
            hint = "leave sat= out, or cast to a float"
            raise t.error(f"T.cast to {dtype.name} rounds by rn, rz, rm or rp, and saturates", hint)
        return cast_to(t, _whole(t, c, mode or "rz"), dtype)
    x = t.run_time(t.number(c["value"], "the value to cast"))
    if not x.dtype.is_float:
        message = f"T.cast with round= or sat= of {describe(x)}: it is of floats"
        raise t.error(message, "convert it first: T.cast(T.float32(x), …)", c.place("value"))
    if dtype.bits < 8 or dtype.name == "tfloat32":
        hint = "leave round= and sat= out"
        raise t.error(f"T.cast to {dtype.name} rounds to nearest even only", hint)
    bits = None
    if mode == "rs":
        bits = t.run_time(t.number(c["rbits"], "rbits of T.cast"))
        if bits.dtype.is_float or bits.dtype.bits != 32:
            hint = "give an int32 or uint32, another for each element"
            raise c.wrong("rbits", f"is {describe(bits)}, not 32 bits", hint)
    wide = FLOAT64 if FLOAT64 in (x.dtype, dtype) else FLOAT32
    x = t.convert(x, wide)
    most = t.constant(T.max_value(dtype), dtype)
    if dtype.bits == 8:
        most = t.convert(t.constant(float("inf"), wide), dtype)  # saturates
    saturates = saturate is not False if dtype.bits == 8 else saturate is True
    given = [x, dtype, mode or "rn", saturates, bits, most]
    return traced(t, _rounded, *given)


def _of_lanes(t: Expressions, c: Call, to: VectorDType | None) -> Lanes:
    """A vector, or a number for each lane, as a vector of another dtype."""
    value = c["value"]
    count = len(value.items) if isinstance(value, Lanes) else 1 if to is None else to.lanes
    if to is not None and to.lanes != count:
        message = f"T.cast of {describe(value)} to {to.name}, which has {to.lanes}"
        raise t.error(message, f'write "{to.dtype.name}x{count}"', c.place("dtype"))
    dtype = c["dtype"] if to is None else to.dtype

    def convert(x: Number, _: Number) -> Scalar:
        found = cast(t, c.but(value=x, dtype=dtype))
        assert isinstance(found, Scalar)
        return found

    return lanewise(t, convert, value, Lanes((0,) * count))


def _whole(t: Expressions, c: Call, mode: str) -> Number:
    """The value as a whole number where it is a float."""
    x = t.number(c["value"], "the value to cast")
    if isinstance(x, int) or (isinstance(x, Scalar) and not x.dtype.is_float):
        return x
    return elementwise(t, _TO_INT[mode], [x])


# --- in the language of kernels -------------------------------------------------------------------


def _rounded(x: Any, dtype: Any, mode: Any, saturates: Any, rbits: Any, most: Any) -> Any:
    """One number, float32 or float64, as one of `dtype`, whose largest is `most`. What is larger
    becomes that where it `saturates`, else infinity; or nan, where a float8 has none."""
    size, found = T.abs(x), T.cast(x, dtype)
    if mode != "rn":
        larger = T.abs(T.cast(found, x.dtype)) > size
        low = T.if_then_else(larger, _signed(_before(_magnitude(found)), x, dtype), found)
        found = _at_random(x, low, size, rbits) if mode == "rs" else _directed(x, low, size, mode)
    beyond, limit = size > T.cast(most, x.dtype), _signed(_bits(most), x, dtype)
    if dtype.bits > 8 or saturates:
        clamps = saturates and (dtype.bits > 8 or mode != "rn")  # the conversion itself does
        return T.if_then_else(beyond, limit, found) if clamps else found
    return T.if_then_else(beyond, _beyond(x, mode, most, size, limit), found)


def _directed(x: Any, low: Any, size: Any, mode: Any) -> Any:
    """`low` is the number next to `x`, or the one before it where that is larger."""
    if mode == "rz":
        return low
    away = T.if_then_else(T.abs(T.cast(low, x.dtype)) < size, _next(x, low), low)
    low, away = (away, low) if mode == "rm" else (low, away)
    return T.if_then_else(x < 0.0, low, away)


def _at_random(x: Any, low: Any, size: Any, rbits: Any) -> Any:
    """Away from zero as often as `x` is nearer to that neighbour."""
    held, high = T.abs(T.cast(low, x.dtype)), _next(x, low)
    part, gap = size - held, T.abs(T.cast(high, x.dtype)) - held
    drawn = T.cast(T.cast(rbits, "uint32") >> 8, x.dtype)
    # part / gap > drawn / 2**24: both sides are exact, gap is a power of two
    return T.if_then_else(part > drawn * _UNIT * gap, high, low)


def _beyond(x: Any, mode: Any, most: Any, size: Any, limit: Any) -> Any:
    """What a float8 gives for numbers beyond its largest: that, where rounding leads there; else
    infinity, or nan where there is none."""
    infinite = T.reinterpret((_bits(most) + 1) | _sign_bit(x, most.dtype), most.dtype)
    endless = size == T.infinity(x.dtype)
    if mode == "rz" or mode == "rs":
        return T.if_then_else(endless, infinite, limit)
    if mode == "rm" or mode == "rp":
        inward = x > 0.0 if mode == "rm" else x < 0.0
        return T.if_then_else(endless, infinite, T.if_then_else(inward, limit, infinite))
    top = T.cast(most, x.dtype)
    before = T.reinterpret(_before(_bits(most)), most.dtype)
    edge = top + (top - T.cast(before, x.dtype)) * 0.5
    odd = (_bits(most) & 1) == 1
    past, tie = size > edge, odd & (size == edge)
    return T.if_then_else(past, infinite, T.if_then_else(tie, infinite, limit))


def _next(x: Any, low: Any) -> Any:
    """The neighbour of `low` that is farther from zero."""
    return _signed(_magnitude(low) + 1, x, low.dtype)


def _signed(magnitude: Any, x: Any, dtype: Any) -> Any:
    """A number of these bits with the sign of `x`; a zero is what the target makes of one."""
    both = T.reinterpret(magnitude | _sign_bit(x, dtype), dtype)
    nothing = T.cast(x * 0.0, dtype)
    return T.if_then_else(magnitude == 0, nothing, both)


def _sign_bit(x: Any, dtype: Any) -> Any:
    """The sign of `x`, where it stands in a number of `dtype`."""
    bits = _bits(x) >> (x.dtype.bits - dtype.bits)
    return T.cast(bits, f"uint{dtype.bits}") & (1 << (dtype.bits - 1))


def _magnitude(y: Any) -> Any:
    return _bits(y) & ((1 << (y.dtype.bits - 1)) - 1)


def _before(bits: Any) -> Any:
    return bits - T.cast(1, bits.dtype)


def _bits(y: Any) -> Any:
    return T.reinterpret(y, f"uint{y.dtype.bits}")
