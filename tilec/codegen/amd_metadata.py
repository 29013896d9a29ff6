"""What LLVM says about an AMDGPU kernel: the MessagePack note of its code object.

Keys of a kernel's map: https://llvm.org/docs/AMDGPUUsage.html#code-object-metadata
MessagePack: https://github.com/msgpack/msgpack/blob/master/spec.md
"""

from __future__ import annotations

import struct
from typing import Any

from tilec.codegen import elf
from tilec.ir.errors import InternalError

_NT_AMDGPU_METADATA = 32
_FIXED = {
    0xCA: ">f", 0xCB: ">d",
    0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_STRINGS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_ARRAYS = {0xDC: ">H", 0xDD: ">I"}
_MAPS = {0xDE: ">H", 0xDF: ">I"}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


def read_kernel_metadata(relocatable: bytes) -> list[dict[str, Any]]:
    """One map for each kernel of the object LLVM emitted: `.name`, `.symbol`, `.args`, register
    counts …

    Raises InternalError if the object carries no such note.
    """
    for section in elf.read_object(relocatable).sections:
        if section.type == elf.SHT_NOTE:
            found = _metadata_of(bytes(section.data))
            if found is not None:
                kernels: list[dict[str, Any]] = found["amdhsa.kernels"]
                return kernels
    raise InternalError("the AMDGPU object has no metadata note")


def _metadata_of(notes: bytes) -> dict[str, Any] | None:
    """The metadata among a section's notes: each is sizes, type, name and contents, padded to 4
    bytes."""
    at = 0
    while at + elf.NOTE.size <= len(notes):
        name_size, size, kind = elf.NOTE.unpack_from(notes, at)
        name_at = at + elf.NOTE.size
        content_at = name_at + -(-name_size // 4) * 4
        if kind == _NT_AMDGPU_METADATA and notes[name_at : name_at + name_size] == b"AMDGPU\0":
            metadata: dict[str, Any] = _Reader(notes[content_at : content_at + size]).value()
            return metadata
        at = content_at + -(-size // 4) * 4
    return None


class _Reader:
    """Reads one MessagePack value after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def value(self) -> Any:
        tag = self.data[self.at]
        self.at += 1
        if tag < 0x80:
            return tag
        if tag < 0x90:
            return self._map(tag & 0x0F)
        if tag < 0xA0:
            return self._array(tag & 0x0F)
        if tag < 0xC0:
            return self._string(tag & 0x1F)
        if tag >= 0xE0:
            return tag - 0x100
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in _FIXED:
            return self._fixed(_FIXED[tag])
        if tag in _STRINGS:
            return self._string(self._fixed(_STRINGS[tag]))
        if tag in _ARRAYS:
            return self._array(self._fixed(_ARRAYS[tag]))
        if tag in _MAPS:
            return self._map(self._fixed(_MAPS[tag]))
        raise InternalError(f"MessagePack type {tag:#x} in AMDGPU metadata")

    def _fixed(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def _string(self, size: int) -> str:
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def _array(self, count: int) -> list[Any]:
        return [self.value() for _ in range(count)]

    def _map(self, count: int) -> dict[str, Any]:
        return {self.value(): self.value() for _ in range(count)}
