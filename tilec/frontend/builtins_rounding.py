"""T.cast with a rounding mode, or a word on what is too large.

Every target rounds to nearest even by itself. The other modes are made of that: the rounded number
is compared with what it was made of and, where it went the wrong way, the neighbour is taken. In
its bits that is one more or one less, of whatever format: the exponent stands above the mantissa,
behind the largest number comes infinity (or nan, where there is none)."""

from __future__ import annotations

from dataclasses import replace

from tilec import language as T
from tilec.builtins import maths
from tilec.builtins.lanes import VectorDType, find_vector
from tilec.frontend.builtins import (
    Call,
    bool_argument,
    builtin,
    choice_argument,
    dtype_argument,
    wrong,
)
from tilec.frontend.builtins_scalar import cast_to, elementwise
from tilec.frontend.expressions import Expressions
from tilec.frontend.lanes import lanewise
from tilec.frontend.values import Lanes, Number, Scalar, describe
from tilec.ir.ops import Binary, Bitcast
from tilec.ir.types import DTYPES, FLOAT32, FLOAT64, DType

MODES = ("", "rn", "rz", "rm", "rp", "rs")
_TO_INT = {"rn": maths.round, "rz": maths.trunc, "rm": maths.floor, "rp": maths.ceil}
_UNIT = 2.0**-24  # of a random number's upper 24 bits, as many as a float32 has


@builtin(T.cast)
def cast(t: Expressions, c: Call) -> Scalar | Lanes:
    vector = find_vector(c["dtype"])
    if vector is not None or isinstance(c["value"], Lanes):
        return _of_lanes(t, c, vector)
    dtype, mode = dtype_argument(t, c, "dtype"), choice_argument(t, c, "round", MODES)
    saturate = None if c["sat"] is None else bool_argument(t, c, "sat")
    if (mode == "rs") != (c["rbits"] is not None):
        raise t.error(
            'T.cast rounds at random by rbits where round="rs", and takes none elsewhere',
            'write T.cast(x, dtype, round="rs", rbits=bits), with 32 random bits',
            c.place("rbits" if c["rbits"] is not None else "round"),
        )
    if mode in ("", "rn") and saturate is None:
        if mode == "rn" and dtype.is_int:
            return cast_to(t, _whole(t, c, mode), dtype)
        return cast_to(t, c["value"], dtype)
    if dtype.is_int:
        if mode == "rs" or saturate is False:
            raise t.error(
                f"T.cast to {dtype.name} rounds by rn, rz, rm or rp, and saturates",
                "leave sat= out, or cast to a float",
            )
        return cast_to(t, _whole(t, c, mode or "rz"), dtype)
    x = t.run_time(t.number(c["value"], "the value to cast"))
    if not x.dtype.is_float:
        raise t.error(
            f"T.cast with round= or sat= of {describe(x)}: it is of floats",
            "convert it first: T.cast(T.float32(x), …)",
            c.place("value"),
        )
    if dtype.bits < 8 or dtype.name == "tfloat32":
        hint = "leave round= and sat= out"
        raise t.error(f"T.cast to {dtype.name} rounds to nearest even only", hint)
    bits = None
    if mode == "rs":
        bits = t.run_time(t.number(c["rbits"], "rbits of T.cast"))
        if bits.dtype.is_float or bits.dtype.bits != 32:
            hint = "give an int32 or uint32, another for each element"
            raise wrong(t, c, "rbits", f"is {describe(bits)}, not 32 bits", hint)
    wide = FLOAT64 if FLOAT64 in (x.dtype, dtype) else FLOAT32
    return _Rounding(t, t.convert(x, wide), dtype).rounded(mode or "rn", saturate, bits)


def _of_lanes(t: Expressions, c: Call, to: VectorDType | None) -> Lanes:
    """A vector, or a number for each lane, as a vector of another dtype."""
    value = c["value"]
    count = len(value.items) if isinstance(value, Lanes) else 1 if to is None else to.lanes
    if to is not None and to.lanes != count:
        raise t.error(
            f"T.cast of {describe(value)} to {to.name}, which has {to.lanes}",
            f'write "{to.dtype.name}x{count}"',
            c.place("dtype"),
        )
    dtype = c["dtype"] if to is None else to.dtype

    def convert(x: Number, _: Number) -> Scalar:
        found = cast(t, replace(c, values={**c.values, "value": x, "dtype": dtype}))
        assert isinstance(found, Scalar)
        return found

    return lanewise(t, convert, value, Lanes((0,) * count))


def _whole(t: Expressions, c: Call, mode: str) -> Number:
    """The value as a whole number where it is a float."""
    x = t.number(c["value"], "the value to cast")
    if isinstance(x, int) or (isinstance(x, Scalar) and not x.dtype.is_float):
        return x
    return elementwise(t, _TO_INT[mode], [x])


class _Rounding:
    """One number, `x`, float32 or float64, on its way to `dtype`."""

    def __init__(self, t: Expressions, x: Scalar, dtype: DType) -> None:
        self.t = t
        self.x = x
        self.dtype = dtype
        self.word = DTYPES[f"uint{dtype.bits}"]
        self.sign = 1 << (dtype.bits - 1)

    def rounded(self, mode: str, saturate: bool | None, bits: Scalar | None) -> Scalar:
        """What has no float8 infinity saturates unless `saturate` is False; floats that have one
        become it unless `saturate` is True."""
        t = self.t
        is_float8 = self.dtype.bits == 8
        most = t.convert(t.constant(float("inf"), self.x.dtype), self.dtype)  # saturates
        if not is_float8:
            most = t.constant(T.max_value(self.dtype), self.dtype)
        size = t.unary("abs", self.x)
        near = t.convert(self.x, self.dtype)
        if mode == "rn":
            found = near
        elif bits is not None:
            low = self._toward_zero(near, size)
            found = self._at_random(low, size, bits)
        else:
            found = self._directed(mode, near, size)
        if saturate is True and not is_float8:
            beyond = self._compare("gt", size, self._wide(most))
            return t.select(beyond, self._signed(self._bits(most)), found)
        if is_float8:
            beyond = self._compare("gt", size, self._wide(most))
            limit = self._signed(self._bits(most))
            if saturate is not False:
                return found if mode == "rn" else t.select(beyond, limit, found)
            return t.select(beyond, self._beyond(mode, most, size, limit), found)
        return found

    # --- modes ---

    def _directed(self, mode: str, near: Scalar, size: Scalar) -> Scalar:
        t = self.t
        low = self._toward_zero(near, size)
        if mode == "rz":
            return low
        away = self._next(low, size, self._compare("lt", self._size(low), size))
        negative = self._compare("lt", self.x, 0.0)
        return t.select(negative, *((away, low) if mode == "rm" else (low, away)))

    def _toward_zero(self, near: Scalar, size: Scalar) -> Scalar:
        """The nearest number, or the one before it where that is larger than `x`."""
        t = self.t
        larger = self._compare("gt", self._size(near), size)
        less = self._signed(self._int("sub", self._magnitude(near), 1))
        return t.select(larger, less, near)

    def _at_random(self, low: Scalar, size: Scalar, bits: Scalar) -> Scalar:
        """Away from zero as often as `x` is nearer to that neighbour."""
        t = self.t
        held = self._size(low)
        high = self._next(low, size)
        part = t.binary("sub", size, held)
        gap = t.binary("sub", self._size(high), held)
        word = t.convert(bits, DTYPES["uint32"])
        drawn = t.convert(t.run_time(t.binary("shr", word, 8)), self.x.dtype)
        # part / gap > drawn / 2**24: both sides are exact, gap is a power of two
        chosen = self._compare("gt", part, t.binary("mul", t.binary("mul", drawn, _UNIT), gap))
        return t.select(chosen, high, low)

    def _beyond(self, mode: str, most: Scalar, size: Scalar, limit: Scalar) -> Scalar:
        """What a float8 gives for numbers beyond its largest: that, where rounding leads there;
        else infinity, or nan where there is none."""
        t = self.t
        over = self._int("or", self._int("add", self._bits(most), 1), self._sign_bit())
        infinite = t.emit_scalar(Bitcast, over.value, self.dtype)
        endless = self._compare("eq", size, float("inf"))
        if mode in ("rz", "rs"):
            return t.select(endless, infinite, limit)
        if mode in ("rm", "rp"):
            inward = self._compare("gt" if mode == "rm" else "lt", self.x, 0.0)
            both = t.select(inward, limit, infinite)
            return t.select(endless, infinite, both)
        top = self._wide(most)
        before = t.emit_scalar(Bitcast, self._int("sub", self._bits(most), 1).value, self.dtype)
        half = t.binary("mul", t.binary("sub", top, self._wide(before)), 0.5)
        edge = t.binary("add", top, half)
        odd = t.compare("eq", self._int("and", self._bits(most), 1), 1)
        past = self._compare("gt", size, edge)
        tie = t.run_time(t.binary("and", t.run_time(odd), self._compare("eq", size, edge)))
        return t.select(past, infinite, t.select(tie, infinite, limit))

    # --- bits ---

    def _next(self, low: Scalar, size: Scalar, where: Scalar | None = None) -> Scalar:
        """The neighbour of `low` that is farther from zero (everywhere, or `where`)."""
        t = self.t
        more = self._signed(self._int("add", self._magnitude(low), 1))
        return more if where is None else t.select(where, more, low)

    def _bits(self, y: Scalar) -> Scalar:
        return self.t.emit_scalar(Bitcast, y.value, self.word)

    def _magnitude(self, y: Scalar) -> Scalar:
        return self._int("and", self._bits(y), self.sign - 1)

    def _sign_bit(self) -> Scalar:
        """The sign of `x`, where it stands in the result."""
        t = self.t
        own = DTYPES[f"uint{self.x.dtype.bits}"]
        bits = t.emit_scalar(Bitcast, self.x.value, own)
        moved = t.run_time(t.binary("shr", bits, self.x.dtype.bits - self.dtype.bits))
        return self._int("and", t.convert(moved, self.word), self.sign)

    def _signed(self, magnitude: Scalar) -> Scalar:
        """A number of these bits with the sign of `x`; a zero is what the target makes of one."""
        t = self.t
        both = t.emit_scalar(
            Bitcast, self._int("or", magnitude, self._sign_bit()).value, self.dtype
        )
        nothing = t.convert(t.run_time(t.binary("mul", self.x, 0.0)), self.dtype)
        return t.select(t.run_time(t.compare("eq", magnitude, 0)), nothing, both)

    def _int(self, kind: str, a: Scalar, b: Scalar | int) -> Scalar:
        other = b if isinstance(b, Scalar) else self.t.constant(b, self.word)
        return self.t.emit_scalar(Binary, kind, a.value, other.value)

    def _wide(self, y: Scalar) -> Scalar:
        return self.t.convert(y, self.x.dtype)

    def _size(self, y: Scalar) -> Scalar:
        return self.t.unary("abs", self._wide(y))

    def _compare(self, kind: str, a: Number, b: Number) -> Scalar:
        return self.t.run_time(self.t.compare(kind, a, b))
