"""The parts of a 64-bit little-endian ELF file, as dataclasses; reads what LLVM emits.

Layouts and constants: System V ABI, chapter 4 and 5
(https://refspecs.linuxfoundation.org/elf/gabi4+/).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tilec.ir.errors import InternalError

ET_REL, ET_DYN = 1, 3
EM_AMDGPU = 224

SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_RELA, SHT_HASH = 1, 2, 3, 4, 5
SHT_DYNAMIC, SHT_NOTE, SHT_NOBITS, SHT_DYNSYM = 6, 7, 8, 11
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR = 1, 2, 4
SHN_UNDEF, SHN_ABS = 0, 0xFFF1

STB_LOCAL, STB_GLOBAL, STB_WEAK = 0, 1, 2
STV_DEFAULT, STV_PROTECTED = 0, 3

PT_LOAD, PT_DYNAMIC, PT_NOTE, PT_PHDR, PT_GNU_STACK = 1, 2, 4, 6, 0x6474E551
PF_X, PF_W, PF_R = 1, 2, 4

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELA = struct.Struct("<QQq")
DYNAMIC = struct.Struct("<QQ")
NOTE = struct.Struct("<III")


@dataclass(slots=True)
class Section:
    """A section and its bytes; `addr` and `offset` are 0 until it is laid out."""

    name: str
    type: int
    flags: int
    align: int
    data: bytearray
    entsize: int = 0
    link: int = 0
    info: int = 0
    addr: int = 0
    offset: int = 0

    @property
    def is_allocated(self) -> bool:
        return bool(self.flags & SHF_ALLOC)


@dataclass(frozen=True, slots=True)
class Symbol:
    """`section` is an index, or SHN_UNDEF or SHN_ABS; `info` is binding << 4 | type."""

    name: str
    info: int
    other: int
    section: int
    value: int
    size: int

    @property
    def binding(self) -> int:
        return self.info >> 4

    @property
    def is_exported(self) -> bool:
        """Visible to a loader: global or weak, and of default or protected visibility."""
        return self.binding != STB_LOCAL and self.other & 3 in (STV_DEFAULT, STV_PROTECTED)


@dataclass(frozen=True, slots=True)
class Relocation:
    """Write a function of `symbol` + `addend` at `offset` of the section with index `section`."""

    section: int
    offset: int
    type: int
    symbol: Symbol
    addend: int


@dataclass(frozen=True, slots=True)
class Object:
    """A relocatable file. `sections` and `symbols` keep the file's numbering (entry 0 is null)."""

    ident: bytes
    machine: int
    flags: int
    sections: list[Section]
    symbols: list[Symbol]
    relocations: list[Relocation]


def read_object(blob: bytes) -> Object:
    """Parse a relocatable file. Raises InternalError for anything else."""
    if len(blob) < HEADER.size or blob[:6] != b"\x7fELF\x02\x01":
        raise InternalError("not a 64-bit little-endian ELF file")
    ident, kind, machine, _, _, _, offset, flags, *_, count, names = HEADER.unpack_from(blob)
    if kind != ET_REL:
        raise InternalError(f"ELF type {kind}, not a relocatable object")
    headers = [
        SECTION_HEADER.unpack_from(blob, offset + SECTION_HEADER.size * i) for i in range(count)
    ]
    strings = _content(blob, headers[names])
    sections = []
    for h in headers:
        name, type, flags_, _, _, _, link, info, align, entsize = h
        own, data = _string(strings, name), bytearray(_content(blob, h))
        sections.append(Section(own, type, flags_, align, data, entsize, link, info))
    table = next((s for s in sections if s.type == SHT_SYMTAB), None)
    symbols = _symbols(table, sections) if table else []
    relocations = [
        Relocation(s.info, at, info & 0xFFFF_FFFF, symbols[info >> 32], addend)
        for s in sections
        if s.type == SHT_RELA
        for at, info, addend in RELA.iter_unpack(s.data)
    ]
    return Object(ident, machine, flags, sections, symbols, relocations)


def _symbols(table: Section, sections: list[Section]) -> list[Symbol]:
    strings = bytes(sections[table.link].data)
    return [Symbol(_string(strings, name), *rest) for name, *rest in SYMBOL.iter_unpack(table.data)]


def _content(blob: bytes, header: tuple[int, ...]) -> bytes:
    _, type, _, _, offset, size, *_ = header
    return bytes(size) if type == SHT_NOBITS else blob[offset : offset + size]


def _string(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()


class StringTable:
    """A string table under construction: `add` returns a string's offset."""

    def __init__(self) -> None:
        self.data = bytearray(b"\0")
        self._offsets: dict[str, int] = {"": 0}

    def add(self, text: str) -> int:
        if text not in self._offsets:
            self._offsets[text] = len(self.data)
            self.data += text.encode() + b"\0"
        return self._offsets[text]
