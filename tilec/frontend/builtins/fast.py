"""What the hardware's fast functions are made of, in the language of kernels
(`tilec.builtins.fast` says how exact they are)."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilec import language as T
from tilec.frontend.builtins.table import Call, builtin
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import Number, Scalar, describe
from tilec.ir.types import FLOAT32, FLOAT64, DType

Fast = Callable[..., Number]


def _scaled(kind: str, before: float, behind: float) -> Fast:
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
    "__exp": _scaled("fast_exp2", math.log2(math.e), 1),
    "__exp10": _scaled("fast_exp2", math.log2(10), 1),
    "__log": _scaled("fast_log2", 1, math.log(2)),
    "__log2": _scaled("fast_log2", 1, 1),
    "__log10": _scaled("fast_log2", 1, math.log10(2)),
    "__sin": _scaled("fast_sin", 1, 1),
    "__cos": _scaled("fast_cos", 1, 1),
    "__tan": _tan,
    "__tanh": _scaled("fast_tanh", 1, 1),
    "__pow": _pow,
    "fast_rcp": _scaled("fast_rcp", 1, 1),
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


def _fast(t: Expressions, c: Call) -> Scalar:
    dtypes: list[DType] = [x.dtype for x in c.values.values() if isinstance(x, Scalar)]
    made = _FAST[c.builtin](t, *(_operand(t, c, n) for n in c.values))
    return t.convert(made, max(dtypes, key=lambda d: d.bits, default=FLOAT32))


for _name in _FAST:
    builtin(getattr(T, _name))(_fast)
