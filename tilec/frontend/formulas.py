"""Functions of floats as formulas in the language of kernels (`tilec.builtins.formulas` says what
each gives)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilec import language as T
from tilec.frontend.builtins import Call, builtin, number_argument
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import Number


def _wide(x: Any) -> Any:
    """`x` in the dtype that it is computed in."""
    return T.cast(x, "float64" if _dtype(x) == "float64" else "float32")


def _dtype(x: Any) -> Any:
    """The dtype of the result."""
    if isinstance(x, (int, float)):  # noqa: UP038
        return T.float32
    return (x * 1.0).dtype


def copysign(x: Any, y: Any) -> Any:
    a, b = T.abs(_wide(x)), _wide(y)
    bits = T.reinterpret(b, "uint64" if b.dtype == "float64" else "uint32")
    return T.cast(T.if_then_else(bits >> (b.dtype.bits - 1) != 0, -a, a), _dtype(x))


def nearbyint(x: Any) -> Any:
    return T.round(x)


def fmod(x: Any, y: Any) -> Any:
    a, b = T.abs(_wide(x)), T.abs(_wide(y))
    return T.cast(copysign(a % b, x), _dtype(x))


def ldexp(x: Any, n: Any) -> Any:
    a = _wide(x)
    most = 1000 if a.dtype == "float64" else 120
    n = T.max(T.min(T.int32(n), 3 * most), -3 * most)
    for _ in range(3):
        step = T.max(T.min(n, most), -most)
        a = a * T.exp2(T.cast(step, a.dtype))
        n = n - step
    return T.cast(a, _dtype(x))


def expm1(x: Any) -> Any:
    a = _wide(x)
    u = T.exp(a)
    found = (u - 1) * (a / T.log(u))
    found = T.if_then_else(u == 1, a, found)
    found = T.if_then_else(u - 1 == -1, T.cast(-1, a.dtype), found)
    found = T.if_then_else(a > 80, u, found)  # where 1 is nothing; infinity stays
    return T.cast(T.if_then_else(a < -80, -1.0, found), _dtype(x))


def sinh(x: Any) -> Any:
    a = T.abs(_wide(x))
    e = expm1(a)
    small = (e + e / (e + 1)) / 2
    half = T.exp(a / 2)
    return T.cast(copysign(T.if_then_else(a > 20, half / 2 * half, small), x), _dtype(x))


def cosh(x: Any) -> Any:
    a = T.abs(_wide(x))
    half = T.exp(a / 2)
    e = T.exp(a)
    return T.cast(T.if_then_else(a > 20, half / 2 * half, (e + 1 / e) / 2), _dtype(x))


def asinh(x: Any) -> Any:
    a = T.abs(_wide(x))
    near = T.log1p(a + a * a / (1 + T.sqrt(a * a + 1)))
    far = T.log(a) + 0.6931471805599453
    return T.cast(copysign(T.if_then_else(a > 1e8, far, near), x), _dtype(x))


def acosh(x: Any) -> Any:
    a = _wide(x)
    t = a - 1
    near = T.log1p(t + T.sqrt(2 * t + t * t))
    far = T.log(a) + 0.6931471805599453
    found = T.if_then_else(a > 1e8, far, near)
    return T.cast(T.if_then_else(a < 1, T.sqrt(t), found), _dtype(x))


def atanh(x: Any) -> Any:
    a = T.abs(_wide(x))
    return T.cast(copysign(T.log1p(2 * a / (1 - a)) / 2, x), _dtype(x))


def atan(x: Any) -> Any:
    a = _wide(x)
    return T.cast(T.atan2(a, T.cast(1, a.dtype)), _dtype(x))


def asin(x: Any) -> Any:
    a = _wide(x)
    return T.cast(T.atan2(a, T.sqrt((1 - a) * (1 + a))), _dtype(x))


def acos(x: Any) -> Any:
    a = _wide(x)
    return T.cast(T.atan2(T.sqrt((1 - a) * (1 + a)), a), _dtype(x))


def hypot(x: Any, y: Any) -> Any:
    a, b = T.abs(_wide(x)), T.abs(_wide(y))
    large, small = T.max(a, b), T.min(a, b)
    ratio = T.if_then_else(large > 0, small / large, large)
    found = large * T.sqrt(1 + ratio * ratio)
    infinite = T.isinf(a) | T.isinf(b)
    found = T.if_then_else(T.isnan(a) | T.isnan(b), a + b, found)
    return T.cast(T.if_then_else(infinite, T.infinity(a.dtype), found), _dtype(x))


def cbrt(x: Any) -> Any:
    a = T.abs(_wide(x))
    root = T.exp2(T.log2(a) / 3)
    root = root - (root - a / (root * root)) / 3
    plain = (a == 0) | T.isinf(a)
    return T.cast(copysign(T.if_then_else(plain, a, root), x), _dtype(x))


def round_away(x: Any) -> Any:
    """`T.round(x, "ties-away-from-zero")`. What `T.trunc` leaves is exact."""
    a = _wide(x)
    whole = T.trunc(a)
    more = T.cast(copysign(T.cast(1, a.dtype), a), a.dtype)
    return T.cast(T.if_then_else(T.abs(a - whole) >= 0.5, whole + more, whole), _dtype(x))


FORMULAS = (
    copysign,
    nearbyint,
    fmod,
    ldexp,
    expm1,
    sinh,
    cosh,
    asinh,
    acosh,
    atanh,
    atan,
    asin,
    acos,
    hypot,
    cbrt,
)


def _register(function: Callable[..., Any]) -> None:
    def handler(t: Expressions, c: Call) -> Number:
        given: list[object] = [number_argument(t, c, name) for name in c.values]
        return t.number(t.trace_function(function, given, {}), "the result")

    builtin(getattr(T, function.__name__))(handler)


for _function in FORMULAS:
    _register(_function)
