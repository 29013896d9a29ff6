"""Arithmetic on numbers known at compile time, at run time, or mixed (rules: `tilec.language`)."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from tilec.builtins import maths
from tilec.frontend.context import Context
from tilec.frontend.guards import Comparison, both
from tilec.frontend.values import Literal, LoopIndex, Number, Scalar, describe
from tilec.ir.affine import Affine
from tilec.ir.errors import CompileWarning, shown, warn
from tilec.ir.intervals import dtype_range
from tilec.ir.ops import Binary, Cast, Compare, Const, Select, Unary
from tilec.ir.semantics import OF_BITS
from tilec.ir.types import (
    BFLOAT16,
    BOOL,
    DTYPES,
    FLOAT16,
    FLOAT32,
    INT32,
    INT64,
    MOST_NARROW,
    UINT32,
    UINT64,
    DType,
)

SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
PYTHON: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod, "pow": operator.pow, "and": operator.and_,
    "or": operator.or_, "xor": operator.xor, "shl": operator.lshift, "shr": operator.rshift,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge, "min": min, "max": max, "atan2": math.atan2,
    "truncdiv": maths.truncdiv.python, "truncmod": maths.truncmod.python,
}  # fmt: skip
_INTEGER_ONLY = ("and", "or", "xor", "shl", "shr", "truncdiv", "truncmod")
_INTEGER_DIVISIONS = ("floordiv", "mod", "truncdiv", "truncmod")
_FLOAT_MATHS = (
    "exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan",
    "tanh", "sigmoid", "erf", "isnan", "isinf",
)  # fmt: skip
_ROUNDINGS = ("floor", "ceil", "round", "trunc")


def common_dtype(a: DType, b: DType) -> DType | None:
    """The dtype of `a op b`; None where the user has to choose by a cast."""
    if a is b:
        return a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.is_float and a.bits == b.bits:
        return FLOAT32 if {a.name, b.name} == {"float32", "tfloat32"} else None
    if a.kind == "bool" or b.kind == "bool":
        return b if a.kind == "bool" else a
    if a.bits != b.bits:
        return a if a.bits > b.bits else b
    return a if a.kind == "uint" else b


def static_int(value: object) -> int | None:
    """The int that `value` is known to be at compile time."""
    if isinstance(value, Scalar):
        return None if value.affine is None else value.affine.constant
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def known_as_int(value: object) -> object:
    """A value, or the int that a number of run time is known to be."""
    number = static_int(value) if isinstance(value, Scalar) else None
    return value if number is None else number


def integer(value: Number) -> int | Scalar:
    """What arithmetic on integers gave."""
    assert not isinstance(value, float)
    return value


def affine_of(value: Number) -> Affine:
    """What is known of an integer."""
    if isinstance(value, Scalar):
        return value.affine or Affine.of(value.value)
    return Affine(int(value))


class Arithmetic(Context):
    """Emits arithmetic, folding what is known at compile time."""

    # --- numbers to dtypes ------------------------------------------------------------------------

    def constant(self, value: Literal, dtype: DType) -> Scalar:
        """A `Const` of `dtype`. Raises CompileError if `value` is not one of it."""
        return self._shared_constant(self.fitting(value, dtype), dtype)

    def fitting(self, value: Literal, dtype: DType) -> Literal:
        """`value` as a number of `dtype`. Raises CompileError if it is none."""
        if dtype.is_float:
            try:
                return float(value)
            except OverflowError:
                message = f"{shown(value)} is larger than any {dtype.name}"
                raise self.error(message, 'write T.infinity("float32")') from None
        if dtype is BOOL:
            return bool(value)
        if isinstance(value, float) and not value.is_integer():
            article = "a" if dtype.kind == "uint" else "an"
            raise self.error(f"{value!r} is not {article} {dtype.name}", "cast, or write an int")
        low, high = dtype_range(dtype)
        if not low <= int(value) <= high:
            hint = "write one that fits"
            for wider in (INT32, UINT32, INT64, UINT64):
                if dtype_range(wider)[0] <= int(value) <= dtype_range(wider)[1]:
                    hint += f", or T.{wider.name}({int(value)}) and operands as wide"
                    break
            raise self.error(f"{value} does not fit {dtype.name} ({low} to {high})", hint)
        return int(value)

    def _shared_constant(self, value: Literal, dtype: DType) -> Scalar:
        """A `Const`; one that a block around this place holds already is used again."""
        key = repr(value), dtype.name
        for builder in reversed(self.builders):
            if (known := builder.constants.get(key)) is not None:
                return known
        made = self.emit_scalar(Const, value, dtype)
        self.builder.constants[key] = made
        return made

    def default_dtype(self, value: Literal) -> DType:
        """What a literal becomes where no operand gives it a dtype."""
        if isinstance(value, bool):
            return BOOL
        return self.index_dtype if isinstance(value, int) else FLOAT32

    def run_time(self, value: Number, dtype: DType | None = None) -> Scalar:
        """`value` as a Scalar; a literal takes `dtype`, or else its default."""
        if isinstance(value, Scalar):
            return value
        return self.constant(value, dtype or self.default_dtype(value))

    def convert(self, value: Number, dtype: DType) -> Scalar:
        """`value` cast to `dtype`; no op if it is of it already."""
        if not isinstance(value, Scalar):
            return self.constant(value, dtype)
        if value.dtype is dtype:
            return value
        if dtype is BOOL:
            return self.run_time(self.compare("ne", value, 0))
        return self.emit_scalar(Cast, value.value, dtype)

    def unify(self, a: Number, b: Number, what: str) -> tuple[Scalar, Scalar]:
        """Both operands in their common dtype. `what` is the operator, for messages."""
        if isinstance(a, LoopIndex) and isinstance(b, Scalar):
            a = self.constant(a, self.index_dtype)
        if isinstance(b, LoopIndex) and isinstance(a, Scalar):
            b = self.constant(b, self.index_dtype)
        if not isinstance(a, Scalar) and not isinstance(b, Scalar):
            dtype = common_dtype(self.default_dtype(a), self.default_dtype(b))
        elif isinstance(a, Scalar) and isinstance(b, Scalar):
            dtype = common_dtype(a.dtype, b.dtype)
        elif isinstance(a, Scalar):
            assert not isinstance(b, Scalar)
            return self._beside_literal(a, b), self._literal_beside(b, a)
        else:
            assert isinstance(b, Scalar)
            return self._literal_beside(a, b), self._beside_literal(b, a)
        if dtype is None:
            assert isinstance(a, Scalar) and isinstance(b, Scalar)
            halves = {a.dtype, b.dtype} == {FLOAT16, BFLOAT16}
            raise self.error(
                f"{a.dtype.name} {what} {b.dtype.name}: neither holds the other's values",
                "cast one side: T.float32(x)" if halves else f"cast one: T.{a.dtype.name}(x)",
            )
        return self.convert(a, dtype), self.convert(b, dtype)

    def _beside_literal(self, x: Scalar, literal: Literal) -> Scalar:
        """A run-time operand beside a literal: an int beside a float becomes float32."""
        if isinstance(literal, float) and x.dtype.is_int:
            return self.convert(x, FLOAT32)
        if x.dtype is BOOL and not isinstance(literal, bool):
            return self.convert(x, INT32)
        return x

    def _literal_beside(self, literal: Literal, x: Scalar) -> Scalar:
        dtype = INT32 if x.dtype is BOOL and not isinstance(literal, bool) else x.dtype
        whole = not isinstance(literal, float) or not x.dtype.is_int
        return self.constant(literal, dtype if whole else FLOAT32)

    # --- operators --------------------------------------------------------------------------------

    def binary(self, kind: str, a: Number, b: Number) -> Number:
        """`a kind b` (kinds of the IR; also "ceildiv"). Raises CompileError."""
        if kind == "ceildiv":
            return self._ceildiv(a, b)
        if not isinstance(a, Scalar) and not isinstance(b, Scalar):
            return self._fold(kind, a, b)
        what = SYMBOLS.get(kind, kind)
        if kind == "pow":
            return self._power(a, b)
        if kind in ("shl", "shr"):
            return self._shift(kind, a, b)
        x, y = self.unify(a, b, what)
        if kind == "sub" and not isinstance(b, Scalar):
            self._warn_of_wrapping(x, b)
        if kind not in ("min", "max"):
            self._refuse_tiny_floats(x.dtype, what)
        if x.dtype is BOOL and kind not in ("and", "or", "xor"):
            x, y = self.convert(x, INT32), self.convert(y, INT32)
        if kind in ("div", "atan2") and x.dtype.is_int:
            x, y = self.convert(x, FLOAT32), self.convert(y, FLOAT32)
        if x.dtype.is_float and kind in _INTEGER_ONLY:
            message = f"{what} of {describe(a)} and {describe(b)}: it is defined for integers"
            raise self.error(message, "cast both sides to an integer dtype: T.int32(x)")
        divisor = static_int(b)
        if kind in _INTEGER_DIVISIONS and x.dtype.is_int:
            if divisor == 0:
                hint = "give the divisor another value"
                raise self.error(f"{describe(a)} {what} 0: division by zero", hint)
            self.hazards += divisor is None
        return self.emit_scalar(Binary, kind, x.value, y.value)

    def _fold(self, kind: str, a: Literal, b: Literal) -> Literal:
        try:
            result: Literal = PYTHON[kind](a, b)
        except ZeroDivisionError:
            hint = "give the divisor another value"
            message = f"{a!r} {SYMBOLS.get(kind, kind)} {b!r}: division by zero"
            raise self.error(message, hint) from None
        except (TypeError, ValueError, OverflowError) as e:
            hint = "both are known at compile time: write numbers that Python can compute with"
            raise self.error(f"{a!r} {SYMBOLS.get(kind, kind)} {b!r}: {e}", hint) from None
        if isinstance(result, complex):
            hint = "raise a number that is not negative, or to a whole power"
            raise self.error(f"{a!r} ** {b!r} is not a real number", hint)
        return result

    def _ceildiv(self, a: Number, b: Number) -> Number:
        for x in (a, b):
            is_int = x.dtype.is_int if isinstance(x, Scalar) else isinstance(x, int)
            if not is_int:
                hint = "write int(x) around a compile-time float, T.int32(x) around a run-time one"
                message = f"T.ceildiv of {describe(a)} and {describe(b)} needs integers"
                raise self.error(message, hint)
        if not isinstance(a, Scalar) and not isinstance(b, Scalar):
            return -self._fold("floordiv", -a, b)
        divisor = static_int(b)
        if isinstance(a, Scalar) and a.affine and divisor is not None and divisor > 0:
            made = self._ceildiv_by_number(a, divisor)
            if isinstance(made, Scalar):
                self.quotients[made.value] = a.affine, divisor
            return made
        return self._rounded_up(a, b)

    def _ceildiv_by_number(self, a: Scalar, divisor: int) -> Number:
        """By (a + divisor - 1) // divisor, if that cannot leave the dtype."""
        assert a.affine is not None
        up = a.affine + Affine(divisor - 1)
        most, largest = self.indices.reach(up)[1], (1 << a.dtype.bits - 1) - 1
        if self.indices.is_size(a.affine):
            most = MOST_NARROW + up.const
        if most is None or most > largest:
            return self._rounded_up(a, divisor)
        return self.binary("floordiv", self.binary("add", a, divisor - 1), divisor)

    def _rounded_up(self, a: Number, b: Number) -> Number:
        """The quotient rounded down, and one more where something remains."""
        x, y = self.unify(a, b, "//")
        rest = self.compare("ne", self.binary("mod", x, y), 0)
        return self.binary("add", self.binary("floordiv", x, y), self.convert(rest, x.dtype))

    def _shift(self, kind: str, a: Number, b: Number) -> Scalar:
        like = b.dtype if isinstance(b, Scalar) and not isinstance(a, LoopIndex) else None
        x = self.run_time(a, like)
        if isinstance(b, LoopIndex) and b < 0:
            b = self.run_time(b)
        both = isinstance(a, Scalar) and isinstance(b, Scalar)
        wide = b.dtype if both and isinstance(b, Scalar) else INT32
        if x.dtype is BOOL:
            x = self.convert(x, INT32)
        elif self.options.tilelang and kind == "shl" and x.dtype.bits < wide.bits and wide.is_int:
            x = self.convert(x, wide) if x.dtype.is_int else x
        floats = [
            v
            for v in (a, b)
            if (v.dtype.is_float if isinstance(v, Scalar) else isinstance(v, float))
        ]
        if floats:
            message = f"{SYMBOLS[kind]} of {describe(a)} and {describe(b)} needs integers"
            raise self.error(message, "cast the float: T.int32(x)")
        if not isinstance(b, Scalar) and b < 0:
            message = f"{describe(a)} {SYMBOLS[kind]} {b}: a shift by a negative number"
            raise self.error(message, f"shift the other way, by {-b}")
        if isinstance(b, Scalar) and b.dtype.bits > x.dtype.bits:  # a cast must not lose its bits
            b = self.convert(b, DTYPES[f"uint{b.dtype.bits}"])
            b = self.run_time(self.binary("min", b, x.dtype.bits))
        return self.emit_scalar(Binary, kind, x.value, self.convert(b, x.dtype).value)

    def _power(self, a: Number, b: Number) -> Number:
        exponent = None if isinstance(b, Scalar) else b
        whole = isinstance(a, Scalar) and a.dtype.is_int
        if isinstance(exponent, int) and 0 <= exponent <= (64 if whole else 4):
            if exponent > 4:
                half = self._power(a, exponent // 2)
                square = self.binary("mul", half, half)
                return self.binary("mul", square, a) if exponent % 2 else square
            result: Number = 1 if exponent == 0 else a
            for _ in range(int(exponent) - 1):
                result = self.binary("mul", result, a)
            return result
        x, y = self.unify(a, b, "**")
        if x.dtype.is_int:
            hint = "write T.float32(x) ** y, or 1 << y for powers of two"
            message = f"{describe(a)} ** {describe(b)}: integer powers go from 0 to 64, known now"
            raise self.error(message, hint)
        self._refuse_tiny_floats(x.dtype, "**")
        return self.emit_scalar(Binary, "pow", x.value, y.value)

    def compare(self, kind: str, a: Number, b: Number) -> Literal | Scalar:
        """`a kind b`: a bool known now, or a run-time one."""
        if not isinstance(a, Scalar) and not isinstance(b, Scalar):
            return self._fold(kind, a, b)
        decided = self._beyond(kind, a, b)
        if decided is not None:
            return decided
        x, y = self.unify(a, b, SYMBOLS[kind])
        made = self.emit_scalar(Compare, kind, x.value, y.value)
        if x.affine is not None and y.affine is not None:
            self.tests[made.value] = (Comparison.of(kind, x.affine, y.affine),)
        return made

    def _beyond(self, kind: str, a: Number, b: Number) -> bool | None:
        """The answer of a comparison with an int that no value of the other side's dtype is, of
        which a warning is given; None of others."""
        x, number = (a, b) if isinstance(a, Scalar) else (b, a)
        if not isinstance(x, Scalar) or not isinstance(number, int):
            return None
        if isinstance(number, bool | LoopIndex):
            return None
        if not x.dtype.is_int or x.dtype is BOOL:
            return None
        low, high = dtype_range(x.dtype)
        if low <= number <= high:
            return None
        ends = (low, number) if x is a else (number, low)  # any value of the dtype will do
        answer = bool(PYTHON[kind](*ends))
        message = (
            f"{describe(a)} {SYMBOLS[kind]} {describe(b)} is always {answer}: {number} does not "
            f"fit {x.dtype.name} ({low} to {high})"
        )
        warn(CompileWarning, message, self.loc, "compare with a number of the dtype, or cast")
        return answer

    def _warn_of_wrapping(self, x: Scalar, literal: Literal) -> None:
        """`x - literal` of a small unsigned number, which is hardly meant to be one."""
        if x.dtype.kind != "uint" or x.dtype.bits > 16 or literal <= 0:
            return
        message = (
            f"{describe(x)} - {literal} is {x.dtype.name} again: numbers below {literal} wrap "
            f"(0 - {literal} is {(1 << x.dtype.bits) - int(literal)})"
        )
        warn(CompileWarning, message, self.loc, f"write T.int32(x) - {literal} for a signed result")

    def logical_and(self, a: Scalar, b: Scalar) -> Scalar:
        """`a and b` of two run-time bools."""
        made = self.emit_scalar(Binary, "and", a.value, b.value)
        known = both(self.tests.get(a.value), self.tests.get(b.value))
        if known is not None:
            self.tests[made.value] = known
        return made

    def unary(self, kind: str, x: Scalar) -> Scalar:
        """A maths function or sign of a run-time number."""
        dtype = x.dtype
        if kind in ("isnan", "isinf", *_FLOAT_MATHS) and not dtype.is_float:
            hint = f"write T.{kind}(T.float32(x))"
            raise self.error(f"{kind} of {describe(x)}: it is defined for floats", hint)
        if kind in ("not", *OF_BITS) and dtype.is_float:
            message = f"{kind} of {describe(x)}: it is defined for integers"
            raise self.error(message, "convert it: T.int32(x)")
        if kind in _ROUNDINGS and dtype.is_int or kind == "abs" and dtype.kind == "uint":
            return x
        if kind not in ("neg", "abs"):
            self._refuse_tiny_floats(dtype, kind)
        if kind in ("neg", "abs") and dtype is BOOL:
            x = self.convert(x, INT32)
        return self.emit_scalar(Unary, kind, x.value)

    def _refuse_tiny_floats(self, dtype: DType, what: str) -> None:
        if dtype.is_float and dtype.bits <= 8:
            message = f"{what} on {dtype.name}: it is a dtype for storage and gemm inputs"
            raise self.error(message, "cast first: T.float32(x)")

    # --- conditions -------------------------------------------------------------------------------

    def truth(self, x: Number) -> bool | Scalar:
        """`x` as a condition: a bool known now, or a run-time one (zero is false)."""
        if not isinstance(x, Scalar):
            return bool(x)
        return self.convert(x, BOOL)

    def logical_not(self, x: Number) -> bool | Scalar:
        found = self.truth(x)
        if not isinstance(found, Scalar):
            return not found
        return self.emit_scalar(Unary, "not", found.value)

    def select(self, cond: Scalar, a: Number, b: Number) -> Scalar:
        """`a` where `cond`, else `b`; both are evaluated."""
        x, y = self.unify(a, b, "or")
        return self.emit_scalar(Select, cond.value, x.value, y.value)
