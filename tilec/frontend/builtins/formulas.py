"""Functions of floats as formulas in the language of kernels (`tilec.builtins.formulas` says what
each gives), arithmetic with a rounding that the program names (`tilec.builtins.ieee`), and what the
hardware's fast functions are made of (`tilec.builtins.fast` says how exact they are)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilec import language as T
from tilec.frontend.builtins.table import Call, builtin, named
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import Number, Scalar, describe
from tilec.ir.types import FLOAT32, FLOAT64, DType

_MODES = ("rn", "rz", "ru", "rd")
# exp(x**2) * erfc(x) * (1 + 2 * x), a Chebyshev fit in (x - m) / (x + m): for 0.5 <= x <= 10.2 with
# m = 2.5, and to 28 with m = 3.5.
_ERFC = (
    0.0005504109, 0.0004150369, -0.004362685, 0.000955981, 0.0327598, -0.10297016, 0.15762982,
    -0.0990244, -0.12235676, 1.2648382,
)  # fmt: skip
_ERFC_LONG = (
    3.5367704244220635e-09, -6.155919817258998e-08, -1.6136929112351133e-08, 5.593213043216329e-07,
    -3.459330237444781e-08, -3.7846870004578745e-06, 2.322045011502968e-06, 2.4247675823974918e-05,
    -4.277977851043828e-05, -0.00012150868000034695, 0.0005643838253878016,
    -0.00030226854037508963, -0.0042150198211104205, 0.01909933101317131, -0.048823325835148215,
    0.08798315382070322, -0.11508959815988616, 0.09751909515337114, -0.010555596332223261,
    -0.14000918013762031, 1.2423492448711544,
)  # fmt: skip


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


def erfc(x: Any) -> Any:
    a = _wide(x)
    factors, middle, end = (_ERFC_LONG, 3.5, 28) if a.dtype == "float64" else (_ERFC, 2.5, 10.2)
    size = T.min(T.abs(a), end)
    t = (size - middle) / (size + middle)
    rest = T.cast(0, a.dtype)
    for factor in factors:
        rest = T.fma(rest, t, factor)
    square = size * size
    root = T.exp(square * -0.5)  # whose square may be less than the normal numbers
    far = rest / (1 + 2 * size) * (1 - T.fma(size, size, -square)) * root * root
    far = T.if_then_else(a < 0, 2 - far, far)
    return T.cast(T.if_then_else(T.abs(a) >= 0.5, far, 1 - T.erf(a)), _dtype(x))


def round_away(x: Any) -> Any:
    """`T.round(x, "ties-away-from-zero")`. What `T.trunc` leaves is exact."""
    a = _wide(x)
    whole = T.trunc(a)
    more = T.cast(copysign(T.cast(1, a.dtype), a), a.dtype)
    return T.cast(T.if_then_else(T.abs(a - whole) >= 0.5, whole + more, whole), _dtype(x))


# --- with a rounding that the program names -------------------------------------------------------


def ieee_add(x: Any, y: Any, rounding_mode: Any) -> Any:
    a, b = T.cast(x, "float32"), T.cast(y, "float32")
    if rounding_mode == "rn":
        return T.fma(a, 1.0, b)  # part of no multiply-add, whatever `a` is
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
        return T.fma(a, b, -0.0)
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


FORMULAS: tuple[Callable[..., Any], ...] = (
    copysign, nearbyint, fmod, ldexp, expm1, sinh, cosh, asinh, acosh, atanh, atan, asin, acos,
    hypot, cbrt, erfc, ieee_add, ieee_sub, ieee_mul, ieee_fmaf, ieee_fdiv, ieee_frcp, ieee_fsqrt,
    ieee_frsqrt,
)  # fmt: skip


_BY_NAME = {f.__name__: f for f in FORMULAS}


@builtin(*named("{}", _BY_NAME))
def formula(t: Expressions, c: Call) -> Number:
    modes = "rounding_mode"
    values: list[object] = [c.choice(n, _MODES) if n == modes else c.number(n) for n in c.values]
    return t.number(t.trace_function(_BY_NAME[c.builtin], values, {}), "the result")


# --- the hardware's fast functions ----------------------------------------------------------------

Fast = Callable[..., Number]


def _made_of(kind: str, before: float, behind: float) -> Fast:
    """A function of the hardware, of `x * before`, `behind` times."""

    def compute(t: Expressions, x: Scalar) -> Number:
        moved = x if before == 1 else t.binary("mul", x, before)
        made: Number = t.unary(kind, t.run_time(moved))
        return made if behind == 1 else t.binary("mul", made, behind)

    return compute


def _tan(t: Expressions, x: Scalar) -> Number:
    below = t.unary("fast_rcp", t.unary("fast_cos", x))
    return t.binary("mul", t.unary("fast_sin", x), below)


def _pow(t: Expressions, x: Scalar, y: Scalar) -> Number:
    return t.unary("fast_exp2", t.run_time(t.binary("mul", y, t.unary("fast_log2", x))))


_FAST: dict[str, Fast] = {
    "__exp": _made_of("fast_exp2", math.log2(math.e), 1),
    "__exp10": _made_of("fast_exp2", math.log2(10), 1),
    "__log": _made_of("fast_log2", 1, math.log(2)),
    "__log2": _made_of("fast_log2", 1, 1),
    "__log10": _made_of("fast_log2", 1, math.log10(2)),
    "__sin": _made_of("fast_sin", 1, 1),
    "__cos": _made_of("fast_cos", 1, 1),
    "__tan": _tan,
    "__tanh": _made_of("fast_tanh", 1, 1),
    "__pow": _pow,
    "fast_rcp": _made_of("fast_rcp", 1, 1),
}


_OTHERS = ("log", "log2", "log10", "sin", "cos", "tan", "tanh")
"""Functions that are not made of the hardware's where nobody asks for it."""


def fast_math(t: Expressions, kind: str, x: Scalar) -> Number | None:
    """A function of `x` as the hardware has it, where the kernel asks for such ones; None where it
    does not, and for what has none or is made of the hardware's anyway."""
    wanted = t.options.fast_math and x.dtype is FLOAT32 and kind in _OTHERS
    return _FAST[f"__{kind}"](t, x) if wanted else None


def _operand(t: Expressions, c: Call, name: str) -> Scalar:
    given = c.number(name)
    dtype = given.dtype if isinstance(given, Scalar) else FLOAT32
    if not dtype.is_float or dtype is FLOAT64:
        word = c.builtin.removeprefix("__")
        hint = "use T.cast(x, 'float32')" if word == "fast_rcp" else f"use T.{word}"
        raise t.error(f"T.{c.builtin} is of float32 and halves, not of {describe(given)}", hint)
    return t.convert(given, FLOAT32)


@builtin(*named("{}", _FAST))
def fast(t: Expressions, c: Call) -> Scalar:
    dtypes: list[DType] = [x.dtype for x in c.values.values() if isinstance(x, Scalar)]
    made = _FAST[c.builtin](t, *(_operand(t, c, n) for n in c.values))
    return t.convert(made, max(dtypes, key=lambda d: d.bits, default=FLOAT32))
