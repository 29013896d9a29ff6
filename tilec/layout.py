"""Layouts that a kernel can ask for with `T.annotate_layout`."""

from __future__ import annotations

from tilec.ir.caller import for_users
from tilec.ir.errors import CompileError
from tilec.ir.layout import Layout, LayoutRequest

__all__ = ["Layout", "LayoutRequest", "make_mma_swizzle_layout", "make_swizzled_layout"]


@for_users
def make_swizzled_layout(buffer: object) -> LayoutRequest:
    """A swizzle of a shared tile that keeps rows and columns free of bank conflicts, chosen per
    target.

    Raises CompileError for anything but a buffer of the kernel.
    """
    _check_buffer("make_swizzled_layout", buffer)
    return LayoutRequest("swizzle")


@for_users
def make_mma_swizzle_layout(buffer: object) -> LayoutRequest:
    """The conflict-free swizzle that the target's matrix instruction reads.

    Raises CompileError for anything but a buffer of the kernel.
    """
    _check_buffer("make_mma_swizzle_layout", buffer)
    return LayoutRequest("mma_swizzle")


def _check_buffer(word: str, buffer: object) -> None:
    if not hasattr(buffer, "type"):
        raise CompileError(
            f"{word} takes a shared buffer, not a {type(buffer).__name__}",
            hint=f"write {word}(A_shared) inside the kernel",
        )
