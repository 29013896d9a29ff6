"""Helpers around matrix instructions: emitters for kernels that say which thread holds what, whose
methods are macros, which a kernel calls with its buffers."""

from tilec.intrinsics.mfma import MatrixCoreIntrinEmitter
from tilec.intrinsics.mma import TensorCoreIntrinEmitter
from tilec.intrinsics.swizzles import get_swizzle_layout
from tilec.intrinsics.transformed import (
    INT4TensorCoreIntrinEmitter,
    TensorCoreIntrinEmitterWithLadderTransform,
    TransformKind,
)
from tilec.layout import make_mma_swizzle_layout

make_mfma_swizzle_layout = make_mma_swizzle_layout

__all__ = [
    "INT4TensorCoreIntrinEmitter", "MatrixCoreIntrinEmitter", "TensorCoreIntrinEmitter",
    "TensorCoreIntrinEmitterWithLadderTransform", "TransformKind", "get_swizzle_layout",
    "make_mfma_swizzle_layout", "make_mma_swizzle_layout",
]  # fmt: skip
