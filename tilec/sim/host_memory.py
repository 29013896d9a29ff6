"""Memory that a kernel reaches by addresses which it finds in a table: this process's own, as the
operating system has mapped it. Nobody says where an array ends there; what is in no mapping is out
of bounds."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tilec.sim.findings import Index
from tilec.sim.regions import TensorMemory
from tilec.sim.tensors import GlobalTensor

_MAPS = Path("/proc/self/maps")  # proc(5); other systems have none, and all is out of bounds


class Mapping(GlobalTensor):
    """A piece of this process's memory, byte by byte, at its own address."""

    @property
    def address(self) -> int:
        return int(self.memory.ctypes.data)


class HostMemory(TensorMemory):
    """As a tensor of bytes, whose elements have no names."""

    def find(self, offset: int, buffer: str = "") -> tuple[str, Index | None]:
        return buffer or "memory", None


def _mapped() -> Iterator[tuple[int, int, str]]:
    for line in _MAPS.read_text().splitlines() if _MAPS.exists() else ():
        places, permissions, *_ = line.split()
        low, high = (int(x, 16) for x in places.split("-"))
        yield low, high, permissions


def host_memory(address: int, checks: bool, keep: bool) -> HostMemory | None:
    """The mapping that an address is in, None if none that may be read."""
    for low, high, permissions in _mapped():
        if low <= address < high and permissions.startswith("r"):
            size = high - low
            held = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(low))
            written = permissions[1] == "w"
            made = Mapping("memory", held, 0, (size,), (1,), "uint8", 1, written, False, -1)
            return HostMemory(made, checks, keep and written)
    return None
