"""2:4 sparsity: what compressed values and their metadata stand for (the format: `tilec.sparse`).

Everything that multiplies by a compressed matrix asks here: the op and its evaluation, the rows of
instructions, the pass that writes the matrix out for targets without such rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.types import (
    BFLOAT16,
    FLOAT8_E4M3,
    FLOAT8_E5M2,
    FLOAT16,
    FLOAT32,
    INT8,
    INT16,
    INT32,
    TFLOAT32,
    UINT8,
    UINT16,
    UINT32,
)

Array = NDArray[Any]

PATTERN_BITS = 4
"""Of metadata for each group: two indices of two bits."""
METADATA_DTYPES = (INT8, UINT8, INT16, UINT16, INT32, UINT32)
SPARSE_DTYPES = (FLOAT16, BFLOAT16, FLOAT32, TFLOAT32, FLOAT8_E4M3, FLOAT8_E5M2, INT8, UINT8)
"""Dtypes of the values of a compressed matrix."""


def group_size(bits: int) -> int:
    """Neighbours in a row of which half are kept: 2 of 4; of 32-bit elements 1 of 2."""
    return 2 if bits == 32 else 4


def covered(bits: int, metadata_bits: int) -> int:
    """Elements of a dense row that one element of the metadata describes."""
    return metadata_bits // PATTERN_BITS * group_size(bits)


def patterns(metadata: Array) -> Array:
    """The patterns (…, groups), first ones in the low bits, of metadata (…, elements)."""
    bits = metadata.dtype.itemsize * 8
    words = metadata.view(f"uint{bits}")[..., None] >> np.arange(0, bits, 4).astype(f"uint{bits}")
    found: Array = (words & 15).astype(np.uint8).reshape(*metadata.shape[:-1], -1)
    return found


def ordered(metadata: Array, bits: int) -> Array:
    """Which patterns are ones that an instruction takes (0, which nobody has written, aside)."""
    found = patterns(metadata)
    valid = (4, 14) if group_size(bits) == 2 else (4, 8, 9, 12, 13, 14)
    return np.isin(found, (0, *valid))


def expand(values: Array, metadata: Array, bits: int) -> Array:
    """The dense matrices (…, M, K) of `values` (…, M, K / 2), elements of `bits` bits, and
    `metadata` (…, M, elements)."""
    size = group_size(bits)
    found = patterns(metadata)
    dense = np.zeros((*found.shape, size), values.dtype)
    held = values.reshape(*found.shape, size // 2)
    first, second = found & 3, found >> 2
    if size == 2:
        np.put_along_axis(dense, (first >> 1)[..., None].astype(np.intp), held, -1)
    else:  # in this order: where both are one place, which is not allowed, the first one counts
        second = np.maximum(second, 1)
        for index, part in ((second, held[..., 1:]), (first, held[..., :1])):
            np.put_along_axis(dense, index[..., None].astype(np.intp), part, -1)
    return dense.reshape(*values.shape[:-1], -1)
