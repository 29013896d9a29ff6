"""Functions of ints that CUDA has as instructions, beside those of `maths`.

These names are used as `T.mulhi`, … : `tilec.language` has them all.
"""

from __future__ import annotations

from typing import Any

__all__ = ["byte_perm", "ffs", "mulhi"]


def ffs(x: Any) -> Any:
    """The place of the lowest bit of `x` that is 1, counted from 1, as int32; 0 where none is.

    CUDA's `__ffs` and `__ffsll`, of ints of all widths. Raises CompileError for floats.
    """


def mulhi(x: Any, y: Any) -> Any:
    """The upper half of the product of two ints of 32 or 64 bits, which has twice as many.

    It has the dtype of both together, whose sign counts: CUDA's `__mulhi`, `__umulhi`, `__mul64hi`
    and `__umul64hi`. Raises CompileError for other dtypes.
    """


def byte_perm(x: Any, y: Any, s: Any) -> Any:
    """Four of the eight bytes of `x` (0 to 3, the lowest first) and `y` (4 to 7), as uint32: byte
    n is the one that bits 4n to 4n + 2 of `s` name.

    CUDA's `__byte_perm`. All three are ints of 32 bits. Raises CompileError for others.
    """
