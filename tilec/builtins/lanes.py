"""Short vectors: a few numbers of one dtype that a thread reads, computes and writes side by side.

`T.float32x2` is two float32: a dtype of `T.alloc_var`, `T.cast` and `T.reinterpret`, and a
constructor, `T.float32x2(a, b)`. Operators and maths of `T` work lane by lane; a number beside a
vector counts for every lane."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NoReturn

from tilec.builtins.annotations import only_inside
from tilec.ir.types import DType, find_dtype

__all__ = [
    "Broadcast", "Ramp", "VectorDType", "abs2", "add2", "extract_lane", "fma2", "max2", "min2",
    "mul2", "sub2",
]  # fmt: skip

MOST_LANES = 32


@dataclass(frozen=True, slots=True)
class VectorDType:
    """`lanes` numbers of `dtype`."""

    dtype: DType
    lanes: int

    @property
    def name(self) -> str:
        return f"{self.dtype.name}x{self.lanes}"

    @property
    def bits(self) -> int:
        return self.dtype.bits * self.lanes

    def __call__(self, *values: object) -> NoReturn:
        """The vector of these numbers, or of one for every lane; in kernels only."""
        only_inside(self.name)


def find_vector(named: object) -> VectorDType | None:
    """The vector dtype that `named` is or names ("float16x2"); None where it is none."""
    if isinstance(named, VectorDType):
        return named
    found = re.fullmatch(r"([a-z]\w*?)x(\d+)", named) if isinstance(named, str) else None
    dtype = find_dtype(found[1]) if found else None
    if found is None or dtype is None or dtype.bits < 8 or not 2 <= int(found[2]) <= MOST_LANES:
        return None
    return VectorDType(dtype, int(found[2]))


def Ramp(base: Any, stride: Any, lanes: Any) -> Any:
    """The vector `base, base + stride, …` of so many ints. As an index it names as many elements:
    `B[T.Ramp(i, 1, 4)] = A[T.Ramp(i, 2, 4)]` reads all of them, then writes them. Each is guarded
    as any element is.

    Raises CompileError for `lanes` that are no compile-time int of 2 to 32.
    """


def Broadcast(value: Any, lanes: Any) -> Any:
    """The vector that has `value` in each lane: `x[0:8] = T.Broadcast(1, 8)`."""


def extract_lane(vector: Any, lane: Any) -> Any:
    """One number of a vector; `lane` is a compile-time int. `vector[lane]` is the same."""


def add2(x: Any, y: Any) -> Any:
    """`x + y` of two vectors of two: float32x2, float16x2 or bfloat16x2, both of one dtype.

    Raises CompileError for others; so do `sub2`, `mul2`, `fma2`, `max2`, `min2` and `abs2`.
    """


def sub2(x: Any, y: Any) -> Any:
    """`x - y`; see `add2`."""


def mul2(x: Any, y: Any) -> Any:
    """`x * y`; see `add2`."""


def fma2(x: Any, y: Any, z: Any) -> Any:
    """`x * y + z`, rounded once; see `add2`."""


def max2(x: Any, y: Any) -> Any:
    """The larger of each pair, as `max` has it; see `add2`."""


def min2(x: Any, y: Any) -> Any:
    """The smaller of each pair, as `min` has it; see `add2`."""


def abs2(x: Any) -> Any:
    """The absolute values; see `add2`."""
