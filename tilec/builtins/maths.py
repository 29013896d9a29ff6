"""Functions of numbers, a kernel's and Python's alike.

The pairs are their errors in ulp of float32 (`tests/test_maths.py` measures them): on the CPU, and
on GPUs, whose 2**x, 1/x and 1/sqrt(x) are off by 1 or 2 ulp themselves. Those that have none are
exact."""

from __future__ import annotations

import builtins
import math

from tilec.builtins import elementwise as python
from tilec.builtins.annotations import dtype_of
from tilec.builtins.elementwise import Elementwise, binary, unary
from tilec.ir.caller import caller_loc, for_users
from tilec.ir.errors import CompileError
from tilec.ir.types import BOOL, FLOAT4_E2M1, FLOAT8_E4M3

__all__ = [
    "exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan",
    "tanh", "sigmoid", "erf", "floor", "ceil", "round", "trunc", "isnan", "isinf", "abs",
    "popcount", "clz", "ctz", "brev", "bitwise_not", "max", "min", "pow", "atan2", "ceildiv",
    "cdiv", "floordiv", "floormod", "truncdiv", "truncmod", "bitwise_and", "bitwise_or",
    "bitwise_xor", "shift_left", "shift_right", "infinity", "max_value", "min_value",
]  # fmt: skip

Number = int | float | bool

exp = unary("exp", math.exp, "e to the power x", (1, 4))
exp2 = unary("exp2", lambda x: 2.0**x, "2 to the power x", (1, 2.5))
exp10 = unary("exp10", lambda x: 10.0**x, "10 to the power x", (1.5, 4))
log = unary("log", math.log, "natural logarithm", (1, 1))
log2 = unary("log2", math.log2, "logarithm to base 2", (2, 2))
log10 = unary("log10", math.log10, "logarithm to base 10", (2, 2))
log1p = unary("log1p", math.log1p, "log(1 + x), exact for small x", (2.5, 2.5))
sqrt = unary("sqrt", math.sqrt, "square root", (0.5, 0.5))
rsqrt = unary("rsqrt", lambda x: 1.0 / math.sqrt(x), "1 / sqrt(x)", (1.5, 2))
sin = unary("sin", math.sin, "sine", (0.6, 0.6))
cos = unary("cos", math.cos, "cosine", (0.6, 0.6))
tan = unary("tan", math.tan, "tangent", (1, 1))
tanh = unary("tanh", math.tanh, "hyperbolic tangent", (1.5, 3))
sigmoid = unary("sigmoid", lambda x: 1.0 / (1.0 + math.exp(-x)), "1 / (1 + exp(-x))", (2.5, 6))
erf = unary("erf", math.erf, "error function", (1.5, 3))
floor = unary("floor", math.floor, "the next whole number downwards")
ceil = unary("ceil", math.ceil, "the next whole number upwards")
round = unary("round", builtins.round, "the nearest whole number, halves to even")
trunc = unary("trunc", math.trunc, "the next whole number towards zero")
isnan = unary("isnan", math.isnan, "whether x is not a number")
isinf = unary("isinf", math.isinf, "whether x is infinite")
abs = unary("abs", builtins.abs, "absolute value")
popcount = unary("popcount", python.popcount, "number of one bits")
clz = unary("clz", python.leading_zeros, "number of leading zero bits")
ctz = unary("ctz", python.trailing_zeros, "number of zero bits below the lowest one bit")
brev = unary("brev", python.reversed_bits, "the bits in the other order")
bitwise_not = Elementwise("bitwise_not", "not", lambda x: ~x, "every bit turned over")

max = binary("max", "max", python.bound("max", builtins.max), "the larger of two, or of several")
min = binary("min", "min", python.bound("min", builtins.min), "the smaller of two, or of several")
pow = binary("pow", "pow", python.pow, "x to the power y", (1, 1))
atan2 = binary("atan2", "atan2", math.atan2, "angle of the point (x, y), as atan2(y, x)", (1.5, 2))
ceildiv = binary("ceildiv", "ceildiv", python.ceildiv, "quotient of two ints rounded up")
cdiv = ceildiv
floordiv = binary("floordiv", "floordiv", lambda a, b: a // b, "quotient rounded down")
floormod = binary("floormod", "mod", lambda a, b: a % b, "remainder of the division rounded down")
truncdiv = binary("truncdiv", "truncdiv", python.truncdiv, "quotient rounded to zero")
truncmod = binary(
    "truncmod",
    "truncmod",
    lambda a, b: a - b * python.truncdiv(a, b),
    "remainder of the division rounded to zero",
)
bitwise_and = binary("bitwise_and", "and", lambda a, b: a & b, "a & b")
bitwise_or = binary("bitwise_or", "or", lambda a, b: a | b, "a | b")
bitwise_xor = binary("bitwise_xor", "xor", lambda a, b: a ^ b, "a ^ b")
shift_left = binary("shift_left", "shl", python.shift_left, "a << b")
shift_right = binary(
    "shift_right", "shr", lambda a, b: a >> b, "a >> b, arithmetic for signed ints"
)


@for_users
def infinity(dtype: object = "float32") -> float:
    """Positive infinity, a literal. Raises CompileError for a dtype that has none."""
    found = dtype_of(dtype)
    if not found.is_float or found in (FLOAT8_E4M3, FLOAT4_E2M1):
        hint = f'use T.max_value("{found.name}")'
        raise CompileError(f"{found.name} has no infinity", caller_loc(), hint)
    return math.inf


_LARGEST = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "e4m3": 448.0, "e5m2": 57344.0}
_LARGEST |= {"f32": 3.4028234663852886e38, "tf32": 3.4028234663852886e38, "e2m1": 6.0}
_LARGEST |= {"f64": 1.7976931348623157e308}


@for_users
def max_value(dtype: object) -> Number:
    """The largest finite value of `dtype`, a literal."""
    found = dtype_of(dtype)
    if found.is_float:
        return _LARGEST[found.short]
    return True if found is BOOL else 2 ** (found.bits - (found.kind == "int")) - 1


@for_users
def min_value(dtype: object) -> Number:
    """The smallest (for floats: most negative finite) value of `dtype`, a literal."""
    found = dtype_of(dtype)
    if found.is_float:
        return -_LARGEST[found.short]
    return -(2 ** (found.bits - 1)) if found.kind == "int" else 0
