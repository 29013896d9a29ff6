"""The memory of a buffer as another one."""

from typing import Any

__all__ = ["reshape", "view"]


def reshape(src: Any, shape: Any) -> Any:
    """The elements of `src` (a tensor, or a shared, fragment or local buffer), in row-major order,
    as a buffer of another shape: no copy, what is written to one is read in the other.

    `shape` has as many elements; extents are ints, or sizes that a call gives. Where a tile word's
    box is none in `src` the elements are moved one by one.
    """


def view(src: Any, shape: Any = None, dtype: object = None) -> Any:
    """`src` as a buffer of another `shape` and `dtype` that has as many bits; see `reshape`. An
    element that is wider than one of `src` is made of several, the first in its lowest bits.

    Raises CompileError where the bits differ, for elements narrower than a byte, and, of a tensor,
    where one that is narrower than the tensor's is written.
    """
