"""Arithmetic of IEEE 754 in float32 with a rounding that the program names, in a kernel alone.

"rn": to the nearest, ties to even; "rz": toward zero; "ru": up; "rd": down. The exact result is
kept as the sum of two float64, rounded to the nearest float32, and moved to its neighbour where
that is on the wrong side (T. J. Dekker, "A floating-point technique for extending the available
precision", 1971): a few dozen instructions, the same bits on every target. Results smaller than the
normal numbers are rounded alike.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ieee_add", "ieee_sub", "ieee_mul", "ieee_fmaf", "ieee_fdiv", "ieee_frcp", "ieee_fsqrt",
    "ieee_frsqrt",
]  # fmt: skip


def ieee_add(x: Any, y: Any, rounding_mode: str = "rn") -> Any:
    """`x + y`, a float32. Raises CompileError for another mode than rn, rz, ru, rd."""


def ieee_sub(x: Any, y: Any, rounding_mode: str = "rn") -> Any:
    """`x - y`, a float32. See `ieee_add`."""


def ieee_mul(x: Any, y: Any, rounding_mode: str = "rn") -> Any:
    """`x * y`, a float32. See `ieee_add`."""


def ieee_fmaf(x: Any, y: Any, z: Any, rounding_mode: str = "rn") -> Any:
    """`x * y + z`, rounded once, a float32. See `ieee_add`."""


def ieee_fdiv(x: Any, y: Any, rounding_mode: str = "rn") -> Any:
    """`x / y`, a float32. See `ieee_add`."""


def ieee_frcp(x: Any, rounding_mode: str = "rn") -> Any:
    """`1 / x`, a float32. See `ieee_add`."""


def ieee_fsqrt(x: Any, rounding_mode: str = "rn") -> Any:
    """The square root, a float32. See `ieee_add`."""


def ieee_frsqrt(x: Any, rounding_mode: str = "rn") -> Any:
    """`1 / sqrt(x)`, a float32. See `ieee_add`."""
