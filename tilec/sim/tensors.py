"""What a launch gives the simulator: arrays as global memory, and descriptors of tensor copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.types import DType

TENSOR_SPACING = 40
"""Tensor number i has its first element at ((i + 1) << 40) + (1 << 39), so that offsets of either
sign show which tensor is meant."""


@dataclass(frozen=True)
class GlobalTensor:
    """A tensor parameter's array.

    `memory`: the bytes from the lowest to the highest that an element occupies, those of the
    caller's array itself; element 0 is at byte `first` of it. `shape`, `strides` in elements,
    `dtype` by tilec's name, `itemsize` in bytes. `written`: whether the kernel stores to it;
    `output`: whether the call has allocated it, so that nothing in it counts as written yet.
    `number`: among the pointer parameters. `skew`: the address modulo 16. `owner` keeps the memory
    alive. `counters`: it holds zeros before and after a launch.
    """

    name: str
    memory: NDArray[np.uint8]
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize: int
    written: bool
    output: bool
    number: int
    skew: int = 0
    owner: Any = None
    counters: bool = False

    @property
    def address(self) -> int:
        """Where its first element is in the simulator's address space."""
        return (self.number + 1 << TENSOR_SPACING) + (1 << TENSOR_SPACING - 1) + self.skew

    def index_of(self, address: int) -> tuple[int, ...] | None:
        """The element that `address` is in, for messages; None where it is in none."""
        found, left = self._nearest(address)
        if left or any(not 0 <= i < n for i, n in zip(found, self.shape)):
            return None
        return found

    def _nearest(self, address: int) -> tuple[tuple[int, ...], int]:
        """The index before `address`, as far as strides tell, and elements from there to it."""
        back = sum((n - 1) * s for n, s in zip(self.shape, self.strides) if s < 0)
        left = (address - self.address) // self.itemsize - back
        found = [0] * len(self.shape)
        for d in sorted(range(len(self.shape)), key=lambda d: -abs(self.strides[d])):
            extent, stride = self.shape[d], self.strides[d]
            if stride and extent > 1:
                step, left = divmod(left, abs(stride))
                found[d] = step if stride > 0 else extent - 1 - step
        return tuple(found), left

    def outside(self, address: int, size: int) -> str:
        """What is said of an access of `size` bytes at `address` that is not in an element."""
        count = max(size // self.itemsize, 1)
        after = f" and {count - 1} after it" if count > 1 else ""
        shape = f"({', '.join(map(str, self.shape))}{',' * (len(self.shape) == 1)})"
        found, left = self._nearest(address)
        if left:
            place = f"byte {address - self.address} from the start of {self.name}{after}"
        else:
            place = f"{self.name}[{', '.join(map(str, found))}]{after}"
        return f"{place} is not in its shape {shape}"


@dataclass(frozen=True)
class TensorMap:
    """A TMA descriptor. `address`: of the element at the origin. `sizes` in elements and `strides`
    in bytes, innermost dimension first, strides without the innermost one; `box` in elements;
    `swizzle`: bytes of the pattern in shared memory, 0 for none."""

    tensor: GlobalTensor
    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    dtype: DType
