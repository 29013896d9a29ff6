"""Arithmetic with a rounding that the program names, in the language of kernels
(`tilec.builtins.ieee` says how)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilec import language as T
from tilec.frontend.builtins import Call, builtin, choice_argument, number_argument
from tilec.frontend.expressions import Expressions
from tilec.frontend.formulas import copysign
from tilec.frontend.values import Number

_MODES = ("rn", "rz", "ru", "rd")


def ieee_add(x: Any, y: Any, rounding_mode: Any) -> Any:
    a, b = T.cast(x, "float32"), T.cast(y, "float32")
    if rounding_mode == "rn":
        return a + b
    found = _sum(T.cast(a, "float64"), T.cast(b, "float64"), rounding_mode)
    if rounding_mode == "rd":  # 1 - 1 is -0.0
        differ = copysign(1.0, a) != copysign(1.0, b)
        found = T.if_then_else((found == 0) & differ, -0.0, found)
    return found


def ieee_sub(x: Any, y: Any, rounding_mode: Any) -> Any:
    return ieee_add(x, -T.cast(y, "float32"), rounding_mode)


def ieee_mul(x: Any, y: Any, rounding_mode: Any) -> Any:
    a, b = T.cast(x, "float32"), T.cast(y, "float32")
    if rounding_mode == "rn":
        return a * b
    return _rounded(T.cast(a, "float64") * T.cast(b, "float64"), 0.0, rounding_mode)


def ieee_fmaf(x: Any, y: Any, z: Any, rounding_mode: Any) -> Any:
    a, b, c = T.cast(x, "float32"), T.cast(y, "float32"), T.cast(z, "float32")
    if rounding_mode == "rn":
        return T.fma(a, b, c)
    return _sum(T.cast(a, "float64") * T.cast(b, "float64"), T.cast(c, "float64"), rounding_mode)


def ieee_fdiv(x: Any, y: Any, rounding_mode: Any) -> Any:
    a, b = T.cast(x, "float32"), T.cast(y, "float32")
    if rounding_mode == "rn":
        return a / b
    a, b = T.cast(a, "float64"), T.cast(b, "float64")
    quotient = a / b
    return _rounded(quotient, T.fma(-quotient, b, a) / b, rounding_mode)


def ieee_frcp(x: Any, rounding_mode: Any) -> Any:
    return ieee_fdiv(1.0, x, rounding_mode)


def ieee_fsqrt(x: Any, rounding_mode: Any) -> Any:
    a = T.cast(x, "float32")
    if rounding_mode == "rn":
        return T.sqrt(a)
    a = T.cast(a, "float64")
    root = T.sqrt(a)
    return _rounded(root, T.fma(-root, root, a) / (2 * root), rounding_mode)


def ieee_frsqrt(x: Any, rounding_mode: Any) -> Any:
    a = T.cast(T.cast(x, "float32"), "float64")
    root = 1 / T.sqrt(a)
    product = a * root
    rest = T.fma(product, root, -1.0) + T.fma(a, root, -product) * root
    return _rounded(root, -root * rest / 2, rounding_mode)


def _sum(a: Any, b: Any, mode: Any) -> Any:
    total = a + b
    part = total - a
    return _rounded(total, (a - (total - part)) + (b - part), mode)


def _rounded(x: Any, rest: Any, mode: Any) -> Any:
    """`x + rest`, of which `x` is by far the larger, as a float32."""
    found = T.cast(x, "float32")
    beyond = (x - T.cast(found, "float64")) + rest
    if mode == "rn":
        return found
    bits = T.reinterpret(found, "int32")
    up = T.if_then_else(found == 0, 1, T.if_then_else(bits >= 0, bits + 1, bits - 1))
    down = T.if_then_else(
        found == 0, T.int32(-(2**31)) + 1, T.if_then_else(bits >= 0, bits - 1, bits + 1)
    )
    if mode == "ru":
        bits = T.if_then_else(beyond > 0, up, bits)
    elif mode == "rd":
        bits = T.if_then_else(beyond < 0, down, bits)
    else:
        bits = T.if_then_else((x > 0) & (beyond < 0), down, bits)
        bits = T.if_then_else((x < 0) & (beyond > 0), up, bits)
    return T.reinterpret(bits, "float32")


def _register(function: Callable[..., Any]) -> None:
    def handler(t: Expressions, c: Call) -> Number:
        names = [name for name in c.values if name != "rounding_mode"]
        given: list[object] = [number_argument(t, c, name) for name in names]
        given.append(choice_argument(t, c, "rounding_mode", _MODES))
        return t.number(t.trace_function(function, given, {}), "the result")

    builtin(getattr(T, function.__name__))(handler)


for _function in (
    ieee_add,
    ieee_sub,
    ieee_mul,
    ieee_fmaf,
    ieee_fdiv,
    ieee_frcp,
    ieee_fsqrt,
    ieee_frsqrt,
):
    _register(_function)
