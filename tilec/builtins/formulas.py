"""Functions of floats that are formulas of others: inverse and hyperbolic ones, and what takes a
number apart. In a kernel alone.

Halves are computed in float32 and rounded once. Errors are the largest that were measured on the
`cpu` target over the whole range of float32, in units in the last place (ulp) of the result. On
GPUs, whose `T.exp`, `T.log` and `T.atan2` are others, they are up to 1 ulp larger.
The formulas are those of W. Kahan ("Branch Cuts for Complex Elementary Functions", 1987) and of
N. J. Higham ("Accuracy and Stability of Numerical Algorithms", section 1.14.1).
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "copysign", "nearbyint", "fmod", "ldexp", "expm1", "sinh", "cosh", "asinh", "acosh", "atanh",
    "atan", "asin", "acos", "hypot", "cbrt", "erfc",
]  # fmt: skip


def copysign(x: Any, y: Any) -> Any:
    """The size of `x` with the sign of `y`, that of -0.0 and nans, too. Exact."""


def nearbyint(x: Any) -> Any:
    """The nearest whole number, ties to the even one: as `T.round`. Exact."""


def fmod(x: Any, y: Any) -> Any:
    """What a division of `x` by `y`, rounded toward zero, leaves: C's `fmod`, with the sign of `x`.
    Exact. nan where `y` is 0 or `x` infinite."""


def ldexp(x: Any, n: Any) -> Any:
    """`x * 2**n` for a whole number `n`. Exact where the result is no smaller than the normal
    numbers."""


def expm1(x: Any) -> Any:
    """`exp(x) - 1`, as exact near 0 as elsewhere. At most 3 ulp."""


def sinh(x: Any) -> Any:
    """The hyperbolic sine. At most 3 ulp."""


def cosh(x: Any) -> Any:
    """The hyperbolic cosine. At most 3 ulp."""


def asinh(x: Any) -> Any:
    """The inverse hyperbolic sine. At most 3 ulp."""


def acosh(x: Any) -> Any:
    """The inverse hyperbolic cosine; nan below 1. At most 3 ulp."""


def atanh(x: Any) -> Any:
    """The inverse hyperbolic tangent; nan beyond -1 and 1. At most 3 ulp."""


def atan(x: Any) -> Any:
    """The angle of a tangent. The error of `T.atan2`."""


def asin(x: Any) -> Any:
    """The angle of a sine; nan beyond -1 and 1. The error of `T.atan2`, and 2 ulp."""


def acos(x: Any) -> Any:
    """The angle of a cosine; nan beyond -1 and 1. The error of `T.atan2`, and 2 ulp."""


def hypot(x: Any, y: Any) -> Any:
    """`sqrt(x*x + y*y)`, where the squares may be beyond the dtype's range. At most 2 ulp."""


def cbrt(x: Any) -> Any:
    """The cube root, of negative numbers, too. At most 2 ulp."""


def erfc(x: Any) -> Any:
    """`1 - erf(x)`, as exact where that is near 0. At most 6 ulp."""
