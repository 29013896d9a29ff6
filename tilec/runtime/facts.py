"""Facts of arrays that a variant is compiled for: which of their strides are known, how their
addresses and rows are aligned, whether indices fit 32 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilec.ir.types import MOST_NARROW, named_strides, rows_along
from tilec.runtime.tensors import Tensor, contiguous_strides

FACT_LIMIT = 16  # bytes; the widest access of a thread, and what a tensor map asks of strides


def alignment(address: int) -> int:
    """The largest power of two up to 16 that divides `address`."""
    return min(address & -address, FACT_LIMIT) if address else FACT_LIMIT


def is_wide(t: Tensor) -> bool:
    """Whether an extent of the tensor, an index into it, or an offset from its first element may
    exceed 31 bits, also when it is rounded up to whole tiles."""
    most = max(t.elements_spanned(), *map(abs, t.strides), *t.shape, 0)
    return most > MOST_NARROW


def overlapping(tensors: Mapping[str, Tensor]) -> list[tuple[str, str]]:
    """Pairs of arguments whose memory may overlap (their address ranges do)."""
    spans = sorted((t.span(), name) for name, t in tensors.items())
    return [
        (name, other)
        for i, ((_, end), name) in enumerate(spans)
        for (begin, _), other in spans[i + 1 :]
        if begin < end
    ]


def fact_strides(name: str, t: Tensor, shape: Sequence[int | str]) -> tuple[int | str, ...]:
    """The strides as a variant is compiled for them: 1 in the innermost dimension, or where else
    rows go along, and the contiguous stride above compile-time extents are ints, any other is the
    name of a run-time value."""
    known = list(named_strides(name, shape))
    if t.strides and t.strides[d := rows_along(t.strides)] == 1:
        known[d] = 1
    both = zip(t.strides, known)
    return tuple(s if s == k else f"{name}_stride{dim}" for dim, (s, k) in enumerate(both))


def alignment_fact(t: Tensor, strides: Sequence[int | str]) -> int:
    """The power of two up to 16 that divides the address and, in bytes, every run-time stride
    (those that `strides` holds names for). A stride below one element apart leaves only the
    element's own, and so does a tensor without elements: it may have no address, and no tensor
    map describes it."""
    if t.is_empty:
        return t.itemsize
    fact = alignment(t.pointer)
    for stride, known in zip(t.strides, strides):
        if isinstance(known, str):
            fact = min(fact, alignment(stride * t.itemsize) if stride > 0 else t.itemsize)
    return fact


def dense_fact(t: Tensor) -> int:
    """The power of two up to 16 that divides the address of a tensor whose rows follow one another
    without gaps; 0 where they do not, and for a vector."""
    whole = len(t.shape) > 1 and not t.is_empty and t.strides == contiguous_strides(t.shape)
    return alignment(t.pointer) if whole else 0


def row_fact(t: Tensor, align: int) -> int:
    """The power of two up to `align` bytes that divides the bytes of a row (the extent of the
    dimension that rows go along), where rows begin at multiples of these; 16 where they do not, and
    for a vector."""
    if t.is_empty or len(t.shape) < 2:
        return FACT_LIMIT
    along = rows_along(t.strides)
    others = [(n, s) for d, (n, s) in enumerate(zip(t.shape, t.strides)) if d != along]
    if any(n > 1 and s * t.itemsize % align for n, s in others):
        return FACT_LIMIT
    return min(align, alignment(t.shape[along] * t.itemsize))
