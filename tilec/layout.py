"""Layouts that a kernel can ask for with `T.annotate_layout`."""

from __future__ import annotations

from typing import Any

from tilec.ir.caller import for_users
from tilec.ir.errors import CompileError
from tilec.ir.layout import Fragment, Layout, LayoutRequest, row_major, swizzled
from tilec.ir.types import contiguous_strides

__all__ = [
    "Fragment", "Layout", "LayoutRequest", "make_full_bank_swizzled_layout",
    "make_fully_replicated_layout_fragment", "make_gemm_fragment_8x8",
    "make_gemm_fragment_8x8_transposed", "make_half_bank_swizzled_layout", "make_linear_layout",
    "make_mma_swizzle_layout", "make_quarter_bank_swizzled_layout", "make_swizzled_layout",
    "make_wgmma_swizzled_layout",
]  # fmt: skip


# --- swizzles that a target chooses ---


@for_users
def make_swizzled_layout(
    buffer: object, k_major: bool = True, allow_pad: bool = True
) -> LayoutRequest:
    """A swizzle of a shared tile that keeps rows and columns free of bank conflicts, chosen per
    target (`k_major` and `allow_pad` change nothing: what reads the tile is known).

    Raises CompileError for anything but a buffer of the kernel.
    """
    _check_buffer("make_swizzled_layout", buffer)
    return LayoutRequest("swizzle")


@for_users
def make_wgmma_swizzled_layout(
    buffer: object, continuity: int | None = None, k_major: bool = True
) -> LayoutRequest:
    """The swizzle that wgmma reads, where the target has it, else as `make_swizzled_layout`.

    Raises CompileError for anything but a buffer of the kernel.
    """
    _check_buffer("make_wgmma_swizzled_layout", buffer)
    return LayoutRequest("swizzle")


@for_users
def make_mma_swizzle_layout(buffer: object) -> LayoutRequest:
    """The conflict-free swizzle that the target's matrix instruction reads.

    Raises CompileError for anything but a buffer of the kernel.
    """
    _check_buffer("make_mma_swizzle_layout", buffer)
    return LayoutRequest("mma_swizzle")


# --- layouts of memory ---


@for_users
def make_full_bank_swizzled_layout(buffer: object) -> Layout:
    """Lines of 128 bytes whose eight 16-byte chunks change places (`CU_TENSOR_MAP_SWIZZLE_128B`).

    Raises CompileError for anything but a buffer of the kernel, LayoutError for rows of other than
    whole lines.
    """
    return _swizzled("make_full_bank_swizzled_layout", buffer, 128)


@for_users
def make_half_bank_swizzled_layout(buffer: object) -> Layout:
    """Lines of 64 bytes whose four 16-byte chunks change places (`CU_TENSOR_MAP_SWIZZLE_64B`).

    Raises as `make_full_bank_swizzled_layout`.
    """
    return _swizzled("make_half_bank_swizzled_layout", buffer, 64)


@for_users
def make_quarter_bank_swizzled_layout(buffer: object) -> Layout:
    """Lines of 32 bytes whose two 16-byte chunks change places (`CU_TENSOR_MAP_SWIZZLE_32B`).

    Raises as `make_full_bank_swizzled_layout`.
    """
    return _swizzled("make_quarter_bank_swizzled_layout", buffer, 32)


@for_users
def make_linear_layout(buffer: object) -> Layout:
    """Row-major, without gaps. Raises CompileError for anything but a buffer of the kernel."""
    return row_major(_shape("make_linear_layout", buffer))


def _swizzled(word: str, buffer: Any, swizzle_bytes: int) -> Layout:
    return swizzled(_shape(word, buffer), buffer.type.dtype.bits, swizzle_bytes)


def _shape(word: str, buffer: Any) -> tuple[int, ...]:
    _check_buffer(word, buffer)
    shape = buffer.type.shape
    if not all(isinstance(e, int) for e in shape):
        raise CompileError(
            f"{word} takes a tile, whose extents are known at compile time",
            hint=f"write {word}(A_shared) inside the kernel",
        )
    return tuple(shape)


# --- layouts of fragments ---


@for_users
def make_fully_replicated_layout_fragment(buffer: object, threads: int) -> Fragment:
    """Every one of `threads` threads holds all elements, row by row.

    Raises CompileError for anything but a buffer of the kernel, LayoutError for no threads.
    """
    shape = _shape("make_fully_replicated_layout_fragment", buffer)

    def place(*at: Any) -> tuple[Any, Any]:
        *coordinates, copy = at if threads > 1 else (*at, 0)
        own = sum(i * s for i, s in zip(coordinates, contiguous_strides(shape)))
        return copy + 0 * at[0], own

    return Fragment.from_functions(shape, place, replicate=threads)


@for_users
def make_gemm_fragment_8x8() -> Fragment:
    """8 by 8 elements as `ldmatrix` brings them: a thread has two neighbours of a row."""
    return Fragment.from_functions((8, 8), lambda i, j: (i * 4 + j // 2, j % 2))


@for_users
def make_gemm_fragment_8x8_transposed() -> Fragment:
    """8 by 8 elements as `ldmatrix.trans` brings them: a thread has two neighbours of a column."""
    return Fragment.from_functions((8, 8), lambda i, j: (j * 4 + i // 2, i % 2))


def _check_buffer(word: str, buffer: object) -> None:
    if not hasattr(buffer, "type"):
        raise CompileError(
            f"{word} takes a shared buffer, not a {type(buffer).__name__}",
            hint=f"write {word}(A_shared) inside the kernel",
        )
