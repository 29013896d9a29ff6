"""Helpers around matrix instructions."""

from tilec.layout import make_mma_swizzle_layout

__all__ = ["make_mma_swizzle_layout"]
