"""Memory layouts as NVIDIA's asynchronous engines name them: TMA boxes and wgmma matrix
descriptors.

CUDA driver API, `cuTensorMapEncodeTiled`; PTX ISA, "Asynchronous warpgroup level matrix
instructions", "Matrix descriptor". Descriptor fields count in units of 16 bytes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from tilec.ir.layout.core import Ints, Layout
from tilec.ir.layout.named import SWIZZLES, row_major, swizzle_of, swizzled

__all__ = ["tma_box", "WgmmaOperand", "wgmma_operand"]

MAX_BOX = 256
"""Elements of a TMA box along any dimension."""
MAX_BOX_DIMS = 5
UNIT = 16
"""Bytes that descriptor fields, and TMA's innermost extent, count in."""
BOX_ALIGN = 128
"""Bytes that the place of a TMA box in shared memory counts in."""


@functools.lru_cache(maxsize=4096)
def tma_box(memory: Layout, bits: int) -> tuple[tuple[int, ...], int] | None:
    """(box extents, swizzle bytes) with which TMA fills `memory`, None if it cannot write this
    layout.

    The extents are per tile dimension, last dimension innermost. Where they are smaller than the
    tile, the box at tile coordinate c lies at `memory.offset(c)`, one after the other.
    """
    if not memory.is_memory or memory.pad is not None or not memory.shape or bits % 8:
        return None
    swizzle = swizzle_of(memory)
    if swizzle is not None:
        if swizzle[0] != bits:
            return None
        return _with_rows((swizzle[1] * 8 // bits,), memory.shape, swizzle[1], 1024 // swizzle[1])
    if memory.digits != row_major(memory.shape).digits:
        return None
    last = memory.shape[-1]
    if last > MAX_BOX:  # boxes of a part of one row each
        inner = _largest_part(last, BOX_ALIGN * 8 // bits)
        return None if inner is None else ((*(1,) * (memory.rank - 1), inner), 0)
    if last * bits % (UNIT * 8):
        return None
    return _with_rows((last,), memory.shape, 0, BOX_ALIGN // gcd(BOX_ALIGN, last * bits // 8))


def _with_rows(
    box: tuple[int, ...], shape: tuple[int, ...], swizzle: int, period: int
) -> tuple[tuple[int, ...], int] | None:
    """The box with as many rows as fit and are consecutive in memory; a part of a tile is whole
    periods, of the swizzle or of where boxes may begin."""
    for i in reversed(range(len(shape) - 1)):
        rows = prod(box[:-1])
        if rows != prod(shape[i + 1 : -1]):
            part = 1
        elif shape[i] <= MAX_BOX:
            part = shape[i]
        else:
            found = _largest_part(shape[i], period // gcd(period, rows))
            if found is None:
                return None
            part = found
        box = (part, *box)
    return (box, swizzle) if sum(e > 1 for e in box) <= MAX_BOX_DIMS else None


def _largest_part(extent: int, unit: int) -> int | None:
    """The largest divisor of `extent` that TMA can move and that is a multiple of `unit`."""
    return max(
        (d for d in range(unit, min(extent, MAX_BOX) + 1, unit) if extent % d == 0), default=None
    )


@dataclass(frozen=True)
class WgmmaOperand:
    """How wgmma's matrix descriptor reads a tile in shared memory.

    `lbo`, `sbo` (leading and stride byte offset) in units of 16 bytes; `swizzle` in bytes;
    `fields`: the descriptor's bits above the address; `k_steps`: units to add for each step of the
    instruction's K through the tile; `mn_unit`, `mn_stride`: M or N advances by that many elements
    every that many units.
    """

    lbo: int
    sbo: int
    swizzle: int
    k_steps: tuple[int, ...]
    mn_unit: int
    mn_stride: int

    def mn_step(self, size: int) -> int:
        """Units from one block of `size` elements of M or N to the next."""
        return size // self.mn_unit * self.mn_stride

    @property
    def fields(self) -> int:
        mode = {128: 1, 64: 2, 32: 3}[self.swizzle]
        return mode << 62 | self.sbo << 32 | self.lbo << 16


@functools.lru_cache(maxsize=4096)
def wgmma_operand(memory: Layout, bits: int, major: str) -> WgmmaOperand | None:
    """The descriptor with which wgmma reads the tile `memory`, None if it cannot.

    `memory` is a two-dimensional tile as it is stored, contiguous dimension last. `major` says what
    that dimension is: "k" (the tile is (M or N, K)) or "mn" ((K, M or N); 16-bit types only).
    """
    if memory.rank != 2 or not memory.is_memory or memory.pad is not None:
        return None
    swizzle = next((s for s in SWIZZLES if _reads(memory, bits, s)), None)
    if swizzle is None or (major == "mn" and bits != 16):
        return None
    width, depth, unit = (size * 8 // bits for size in (swizzle, 2 * UNIT, UNIT))
    at = memory.offsets()
    along_k, groups, boxes = at[0], at[::8, 0], at[0, ::width]
    if major == "mn":
        along_k = at[:, 0]
    k_steps = along_k[::depth]
    sbo = _stride(groups[:2] if major == "mn" else groups)
    lbo = _stride(boxes if major == "mn" else boxes[:1])
    if len(along_k) % depth or sbo is None or lbo is None or np.any(k_steps % unit):
        return None
    sbo, lbo = sbo // unit or 8 * swizzle // UNIT, lbo // unit or 1
    return WgmmaOperand(
        lbo,
        sbo,
        swizzle,
        tuple(int(k) // unit for k in k_steps),
        *((width, lbo) if major == "mn" else (8, sbo)),
    )


def _reads(memory: Layout, bits: int, swizzle: int) -> bool:
    """Whether every block of 8 rows by `swizzle` bytes is one swizzle pattern at a place where the
    pattern begins."""
    width = swizzle * 8 // bits
    rows, columns = memory.shape
    if rows % 8 or columns % width or memory.align % (8 * swizzle):
        return False
    at = memory.offsets()
    pattern = swizzled((8, width), bits, swizzle).offsets()
    corners = at[::8, ::width]
    blocks = at.reshape(rows // 8, 8, columns // width, width)
    return bool(
        np.all(corners % pattern.size == 0)
        and np.all(blocks == corners[:, None, :, None] + pattern[None, :, None, :])
    )


def _stride(corners: Ints) -> int | None:
    """The constant distance between these offsets (0 if there is one only); None if it varies."""
    gaps = np.diff(corners)
    if len(gaps) == 0:
        return 0
    return int(gaps[0]) if np.all(gaps == gaps[0]) else None
