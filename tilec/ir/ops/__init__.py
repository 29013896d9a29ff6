"""The ops, one frozen dataclass each, by the contract they first appear in (see `tilec.ir.verify`)."""

from tilec.ir.ops.control import For, If, Parallel, While, Yield, yielded
from tilec.ir.ops.scalar import (
    Binary, Bitcast, BlockIndex, Cast, Compare, Const, Fma, GridSize, Select, ThreadIndex, Unary,
)
from tilec.ir.ops.tile import (
    Alloc, AnnotateLayout, AnnotateSafeValue, Copy, Fill, Gemm, Load, Print, Store, UseSwizzle, squeeze,
)

__all__ = [
    "Alloc", "AnnotateLayout", "AnnotateSafeValue", "Binary", "Bitcast", "BlockIndex", "Cast", "Compare", "Const",
    "Copy", "Fill", "Fma", "For", "Gemm", "GridSize", "If", "Load", "Parallel", "Print", "Select", "Store",
    "ThreadIndex", "Unary", "UseSwizzle", "While", "Yield", "squeeze", "yielded",
]
