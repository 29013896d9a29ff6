"""TMA descriptors: from a tensor and a `TensorMapType` to the arguments of
`cuTensorMapEncodeTiled`.

CUDA driver API, section "Tensor Map Object Management": the sizes and strides are given innermost
dimension first, strides in bytes and without the innermost one, which is one element.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.errors import LaunchError
from tilec.ir.types import TensorMapType, contiguous_strides
from tilec.runtime.tensors import Tensor

# CUtensorMapDataType and CUtensorMapSwizzle: the names' endings.
DATA_TYPES = {
    "bool": "UINT8", "int8": "UINT8", "uint8": "UINT8",
    "float8_e4m3": "UINT8", "float8_e5m2": "UINT8",
    "int16": "UINT16", "uint16": "UINT16", "float16": "FLOAT16", "bfloat16": "BFLOAT16",
    "int32": "INT32", "uint32": "UINT32", "float32": "FLOAT32", "tfloat32": "TFLOAT32",
    "int64": "INT64", "uint64": "UINT64", "float64": "FLOAT64",
}  # fmt: skip
SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}

_MAX_EXTENT = 1 << 32
_MAX_STRIDE = 1 << 40


@dataclass(frozen=True, slots=True)
class MapArguments:
    """What the driver is told: `data_type` and `swizzle` are endings of the enumerators' names."""

    data_type: str
    pointer: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: str


def map_arguments(kind: TensorMapType, tensor: Tensor) -> MapArguments:
    """The arguments for a descriptor of `tensor`. The innermost of `kind.dims` has stride 1 and
    every other stride is a multiple of 16 bytes: facts that the variant was compiled under.

    Raises LaunchError for an extent or stride above what a descriptor can hold.
    """
    shape, apart = kind.view or tensor.shape, tensor.strides
    if kind.view:
        apart = contiguous_strides(kind.view)
    sizes = tuple(shape[d] for d in kind.dims)
    strides = tuple(apart[d] * tensor.itemsize for d in kind.dims[1:])
    for d, size in zip(kind.dims, sizes):
        if size > _MAX_EXTENT:
            message = f"{kind.tensor}: dimension {d} has {size} elements, a tensor map holds 2**32"
            raise LaunchError(message, hint="copy it with T.copy(..., disable_tma=True)")
    for d, stride in zip(kind.dims[1:], strides):
        if stride >= _MAX_STRIDE:
            raise LaunchError(
                f"{kind.tensor}: dimension {d} has a stride of {stride} bytes, "
                "a tensor map holds less than 2**40",
                hint="copy it with T.copy(..., disable_tma=True)",
            )
    return MapArguments(
        DATA_TYPES[kind.dtype.name],
        tensor.pointer,
        sizes,
        strides,
        kind.box,
        SWIZZLES[kind.swizzle],
    )
