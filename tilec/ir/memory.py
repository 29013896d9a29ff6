"""How many bytes a buffer takes in shared memory, and where it may start: one rule for all
readers."""

from __future__ import annotations

from tilec.ir.types import BufferType

MBARRIER_BYTES = 8
PLAIN_ALIGN = 128  # what a TMA box without a swizzle asks for
PAD_BYTES = 16  # skipped after each row of an unswizzled tile: rows start in other banks


def alignment_bytes(t: BufferType) -> int:
    """Alignment of a shared or barrier buffer's first byte (and of each of its stages)."""
    if t.space == "barrier":
        return MBARRIER_BYTES
    return max(PLAIN_ALIGN, t.layout.align if t.layout is not None else 0)


def stage_bytes(t: BufferType) -> int:
    """Bytes from one stage of a shared buffer to the next; of a barrier buffer, all its slots."""
    if t.space == "barrier":
        return MBARRIER_BYTES * t.size
    elements = t.layout.span() if t.layout is not None else t.size
    align = alignment_bytes(t)
    return (elements * t.dtype.bits // 8 + align - 1) // align * align
