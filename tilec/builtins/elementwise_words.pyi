# Written by docs/make_words.py.
# ruff: noqa: E501
from typing import Any

def exp(x: Any, /) -> Any:
    """e to the power x. In float32 at most 1 ulp on the CPU, 4 ulp on GPUs."""

def exp2(x: Any, /) -> Any:
    """2 to the power x. In float32 at most 1 ulp on the CPU, 2.5 ulp on GPUs."""

def exp10(x: Any, /) -> Any:
    """10 to the power x. In float32 at most 1.5 ulp on the CPU, 4 ulp on GPUs."""

def log(x: Any, /) -> Any:
    """natural logarithm. In float32 at most 1 ulp on the CPU, 1 ulp on GPUs."""

def log2(x: Any, /) -> Any:
    """logarithm to base 2. In float32 at most 2 ulp on the CPU, 2 ulp on GPUs."""

def log10(x: Any, /) -> Any:
    """logarithm to base 10. In float32 at most 2 ulp on the CPU, 2 ulp on GPUs."""

def log1p(x: Any, /) -> Any:
    """log(1 + x), exact for small x. In float32 at most 2.5 ulp on the CPU, 2.5 ulp on GPUs."""

def sqrt(x: Any, /) -> Any:
    """square root. In float32 at most 0.5 ulp on the CPU, 0.5 ulp on GPUs."""

def rsqrt(x: Any, /) -> Any:
    """1 / sqrt(x). In float32 at most 1.5 ulp on the CPU, 2 ulp on GPUs."""

def sin(x: Any, /) -> Any:
    """sine. In float32 at most 0.6 ulp on the CPU, 0.6 ulp on GPUs."""

def cos(x: Any, /) -> Any:
    """cosine. In float32 at most 0.6 ulp on the CPU, 0.6 ulp on GPUs."""

def tan(x: Any, /) -> Any:
    """tangent. In float32 at most 1 ulp on the CPU, 1 ulp on GPUs."""

def tanh(x: Any, /) -> Any:
    """hyperbolic tangent. In float32 at most 1.5 ulp on the CPU, 3 ulp on GPUs."""

def sigmoid(x: Any, /) -> Any:
    """1 / (1 + exp(-x)). In float32 at most 2.5 ulp on the CPU, 6 ulp on GPUs."""

def erf(x: Any, /) -> Any:
    """error function. In float32 at most 1.5 ulp on the CPU, 3 ulp on GPUs."""

def floor(x: Any, /) -> Any:
    """the next whole number downwards."""

def ceil(x: Any, /) -> Any:
    """the next whole number upwards."""

def round(x: Any, /) -> Any:
    """the nearest whole number, halves to even."""

def trunc(x: Any, /) -> Any:
    """the next whole number towards zero."""

def isnan(x: Any, /) -> Any:
    """whether x is not a number."""

def isinf(x: Any, /) -> Any:
    """whether x is infinite."""

def abs(x: Any, /) -> Any:
    """absolute value."""

def popcount(x: Any, /) -> Any:
    """number of one bits."""

def clz(x: Any, /) -> Any:
    """number of leading zero bits."""

def ctz(x: Any, /) -> Any:
    """number of zero bits below the lowest one bit."""

def brev(x: Any, /) -> Any:
    """the bits in the other order."""

def bitwise_not(x: Any, /) -> Any:
    """every bit turned over."""

def max(x: Any, y: Any, /, *more: Any) -> Any:
    """the larger of two, or of several."""

def min(x: Any, y: Any, /, *more: Any) -> Any:
    """the smaller of two, or of several."""

def pow(x: Any, y: Any, /) -> Any:
    """x to the power y. In float32 at most 1 ulp on the CPU, 1 ulp on GPUs."""

def atan2(x: Any, y: Any, /) -> Any:
    """angle of the point (x, y), as atan2(y, x). In float32 at most 1.5 ulp on the CPU, 2 ulp on GPUs."""

def ceildiv(x: Any, y: Any, /) -> Any:
    """quotient of two ints rounded up."""

def cdiv(x: Any, y: Any, /) -> Any:
    """quotient of two ints rounded up."""

def floordiv(x: Any, y: Any, /) -> Any:
    """quotient rounded down."""

def floormod(x: Any, y: Any, /) -> Any:
    """remainder of the division rounded down."""

def truncdiv(x: Any, y: Any, /) -> Any:
    """quotient rounded to zero."""

def truncmod(x: Any, y: Any, /) -> Any:
    """remainder of the division rounded to zero."""

def bitwise_and(x: Any, y: Any, /) -> Any:
    """a & b."""

def bitwise_or(x: Any, y: Any, /) -> Any:
    """a | b."""

def bitwise_xor(x: Any, y: Any, /) -> Any:
    """a ^ b."""

def shift_left(x: Any, y: Any, /) -> Any:
    """a << b."""

def shift_right(x: Any, y: Any, /) -> Any:
    """a >> b, arithmetic for signed ints."""
