"""Tiles the other way round, and sums of four products of bytes."""

from typing import Any

from tilec.builtins.annotations import only_inside


def transpose(src: Any, dst: Any) -> None:
    """`dst[…, j, i] = src[…, i, j]`: a tile of (…, M, N) elements onto one of (…, N, M), of shared
    memory, fragments and tensors, converted to the destination's dtype. One of them may be named
    by where it starts.

    Raises CompileError where the extents do not fit, and for a buffer onto itself.
    """
    only_inside("transpose")


def dp4a(A: Any, B: Any, C: Any) -> None:
    """`C += A[0] * B[0] + … + A[3] * B[3]`: of four int8 neighbours of the last dimension, from the
    elements `A` and `B` on, onto the int32 element `C`; modulo 2**32, as int32 sums are. A bare
    buffer is where it begins.

    Raises CompileError for other dtypes, and for neighbours that a dimension does not have.
    """
    only_inside("dp4a")
