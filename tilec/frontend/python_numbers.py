"""Functions of Python's own and of its module `math` on numbers that are known at run time only:
the words of the language that they stand for, or what they compute in its terms.

As in Python `int` rounds toward zero, `round` takes halves to the even number, and functions of
floats take ints. What `math.floor` and its like give stays the float that it was: a large one is no
int of 32 bits. Where Python raises (`math.sqrt(-1.0)`) there is what the language says.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

from tilec import language as T


def _int(x: Any) -> Any:
    if x.dtype.is_int and x.dtype.bits >= 32:
        return x
    return T.int64(x) if x.dtype == "float64" else T.int32(x)


def _float(x: Any) -> Any:
    return x if x.dtype == "float64" else T.float32(x)


def _bool(x: Any) -> Any:
    return T.bool(x)


def _round(number: Any, ndigits: Any = None) -> Any:
    if ndigits is None:
        return T.round(number)
    return T.round(number * 10.0**ndigits) / 10.0**ndigits


def _divmod(x: Any, y: Any) -> Any:
    return x // y, x % y


def _log(x: Any, base: Any = None) -> Any:
    return T.log(x) if base is None else T.log(x) / T.log(base)


def _degrees(x: Any) -> Any:
    return x * (180 / math.pi)


def _radians(x: Any) -> Any:
    return x * (math.pi / 180)


def _hypot(x: Any, *others: Any) -> Any:
    found = T.abs(x)
    for y in others:
        found = T.hypot(found, y)
    return found


Word = Callable[..., Any]

_OF_NUMBERS: dict[object, Word] = {
    **{int: _int, float: _float, bool: _bool, round: _round, divmod: _divmod},
    **{abs: T.abs, pow: T.pow, math.ldexp: T.ldexp},
    **{math.floor: T.floor, math.ceil: T.ceil, math.trunc: T.trunc},
}
_SAME = """
    sqrt cbrt exp exp2 expm1 log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh
    acosh atanh erf erfc pow fmod copysign isnan isinf isfinite
""".split()
_OF_FLOATS: dict[object, Word] = {
    **{getattr(math, name): getattr(T, name) for name in _SAME},
    **{math.fabs: T.abs, math.log: _log, math.hypot: _hypot},
    **{math.degrees: _degrees, math.radians: _radians},
}


def word_for(function: object) -> tuple[Word, bool] | None:
    """What a function of Python's stands for, and whether that takes floats alone; None where it is
    none of numbers."""
    if not isinstance(function, types.BuiltinFunctionType | type):
        return None
    for words in (_OF_NUMBERS, _OF_FLOATS):
        if function in words:
            return words[function], words is _OF_FLOATS
    return None
