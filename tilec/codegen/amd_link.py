"""AMDGPU object -> code object (hsaco) without ROCm: what one kernel needs of `ld.lld -shared`.

    ET_REL from LLVM                       ET_DYN for the HIP runtime
      .note    metadata (MessagePack)        R    .note .dynsym .hash .dynstr .rodata
      .rodata  kernel descriptor `k.kd` -->  RX   .text
      .text    machine code `k`              RW   .dynamic (.data)
      .rela.rodata  descriptor to code       resolved; `k` and `k.kd` are exported

A segment's address is its file offset plus one page for each segment before it, so that pages with
different rights never share memory while the file has no holes.
What a loader reads: https://llvm.org/docs/AMDGPUUsage.html#elf-code-object
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tilec.codegen import elf
from tilec.codegen.elf import Object, Relocation, Section, StringTable, Symbol, read_object
from tilec.ir.errors import InternalError

PAGE = 0x1000
_TEXT_ALIGN = 256
_DT_NULL, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT = 0, 4, 5, 6, 10, 11


@dataclass(frozen=True, slots=True)
class RelocationKind:
    """S + A (minus the place P if `relative`), shifted right, stored in `bytes` bytes."""

    name: str
    bytes: int
    relative: bool
    shift: int = 0


KINDS: dict[int, RelocationKind] = {
    1: RelocationKind("R_AMDGPU_ABS32_LO", 4, relative=False),
    2: RelocationKind("R_AMDGPU_ABS32_HI", 4, relative=False, shift=32),
    4: RelocationKind("R_AMDGPU_REL32", 4, relative=True),
    5: RelocationKind("R_AMDGPU_REL64", 8, relative=True),
    6: RelocationKind("R_AMDGPU_ABS32", 4, relative=False),
    10: RelocationKind("R_AMDGPU_REL32_LO", 4, relative=True),
    11: RelocationKind("R_AMDGPU_REL32_HI", 4, relative=True, shift=32),
}
"""What can be resolved here: distances, and absolute symbols. An address would need the loader."""


def link(relocatable: bytes) -> bytes:
    """The code object of the relocatable AMDGPU object that LLVM emitted.

    Raises InternalError for another machine's object, an undefined symbol, or a relocation that is
    not resolved at link time.
    """
    source = read_object(relocatable)
    if source.machine != elf.EM_AMDGPU:
        raise InternalError(f"ELF machine {source.machine}, not AMDGPU")
    undefined = [s.name for s in source.symbols[1:] if s.section == elf.SHN_UNDEF]
    if undefined:
        raise InternalError(f"the kernel calls {', '.join(undefined)}, which no library provides")
    return _Linker(source).link()


class _Linker:
    """One link. `sections` lists what the file will hold, in its order; their indices start at
    1."""

    def __init__(self, source: Object) -> None:
        self.source = source
        self.exported = [s for s in source.symbols if s.is_exported]
        self.names = StringTable()
        self.dynsym = Section(
            ".dynsym", elf.SHT_DYNSYM, elf.SHF_ALLOC, 8, bytearray(), elf.SYMBOL.size
        )
        self.hash = Section(".hash", elf.SHT_HASH, elf.SHF_ALLOC, 4, bytearray(), 4)
        self.dynstr = Section(".dynstr", elf.SHT_STRTAB, elf.SHF_ALLOC, 1, self.names.data)
        flags, size = elf.SHF_ALLOC | elf.SHF_WRITE, elf.DYNAMIC.size
        self.dynamic = Section(".dynamic", elf.SHT_DYNAMIC, flags, 8, bytearray(), size)
        self.notes, constants, self.text, variables = _by_segment(source.sections)
        self.segments = [
            [*self.notes, self.dynsym, self.hash, self.dynstr, *constants],
            self.text,
            [self.dynamic, *variables],
        ]
        self.sections = [s for segment in self.segments for s in segment]

    def link(self) -> bytes:
        for symbol in self.exported:
            self.names.add(symbol.name)
        self.hash.data[:] = hash_table([s.name for s in self.exported])
        self.dynsym.data[:] = bytes(elf.SYMBOL.size * (len(self.exported) + 1))
        self.dynamic.data[:] = bytes(elf.DYNAMIC.size * 6)
        end = self._lay_out(elf.HEADER.size + elf.PROGRAM_HEADER.size * (len(self.segments) + 4))
        for relocation in self.source.relocations:
            self._resolve(relocation)
        self.dynsym.link = self.dynamic.link = self._index(self.dynstr)
        self.hash.link = self._index(self.dynsym)
        self.dynsym.info = 1
        self.dynsym.data[elf.SYMBOL.size :] = b"".join(
            self._symbol(s, self.names.add(s.name)) for s in self.exported
        )
        self.dynamic.data[:] = b"".join(
            elf.DYNAMIC.pack(*entry) for entry in self._dynamic_entries()
        )
        return self._write(end)

    # --- placement ---

    def _lay_out(self, offset: int) -> int:
        """Give every section its offset and address; returns the end of the last segment."""
        for number, segment in enumerate(self.segments):
            offset = align(offset, max([s.align for s in segment], default=1))
            for section in segment:
                offset = align(offset, section.align)
                section.offset, section.addr = offset, offset + number * PAGE
                offset += len(section.data)
        return offset

    def _index(self, section: Section) -> int:
        return next(i for i, s in enumerate(self.sections, 1) if s is section)

    def _address(self, symbol: Symbol) -> int:
        if symbol.section == elf.SHN_ABS:
            return symbol.value
        return self.source.sections[symbol.section].addr + symbol.value

    # --- contents ---

    def _resolve(self, relocation: Relocation) -> None:
        section = self.source.sections[relocation.section]
        if not section.is_allocated:
            return
        kind = KINDS.get(relocation.type)
        name = relocation.symbol.name
        if kind is None:
            raise InternalError(f"AMDGPU relocation type {relocation.type} against {name!r}")
        value = self._address(relocation.symbol) + relocation.addend
        if kind.relative:
            value -= section.addr + relocation.offset
        elif relocation.symbol.section != elf.SHN_ABS:
            raise InternalError(f"{kind.name} against {name!r}, whose address only a loader knows")
        bits = (value >> kind.shift) & ((1 << 8 * kind.bytes) - 1)
        section.data[relocation.offset : relocation.offset + kind.bytes] = bits.to_bytes(
            kind.bytes, "little"
        )

    def _symbol(self, symbol: Symbol, name: int) -> bytes:
        index = symbol.section
        if index != elf.SHN_ABS:
            index = self._index(self.source.sections[index])
        return elf.SYMBOL.pack(
            name, symbol.info, symbol.other, index, self._address(symbol), symbol.size
        )

    def _dynamic_entries(self) -> Sequence[tuple[int, int]]:
        return (
            (_DT_SYMTAB, self.dynsym.addr),
            (_DT_SYMENT, elf.SYMBOL.size),
            (_DT_STRTAB, self.dynstr.addr),
            (_DT_STRSZ, len(self.dynstr.data)),
            (_DT_HASH, self.hash.addr),
            (_DT_NULL, 0),
        )

    # --- the file ---

    def _write(self, end: int) -> bytes:
        out = bytearray(end)
        for section in self.sections:
            out[section.offset : section.offset + len(section.data)] = section.data
        placed = {id(s) for s in self.sections}
        kept = [
            s
            for s in self.source.symbols[1:]
            if s.section == elf.SHN_ABS or id(self.source.sections[s.section]) in placed
        ]
        kept.sort(key=lambda s: s.binding != elf.STB_LOCAL)
        strings, headers = StringTable(), StringTable()
        symbols = bytearray(elf.SYMBOL.size)
        for symbol in kept:
            symbols += self._symbol(symbol, strings.add(symbol.name))
        first_global = 1 + sum(s.binding == elf.STB_LOCAL for s in kept)
        tail = [
            Section(".symtab", elf.SHT_SYMTAB, 0, 8, symbols, elf.SYMBOL.size, info=first_global),
            Section(".strtab", elf.SHT_STRTAB, 0, 1, strings.data),
            Section(".shstrtab", elf.SHT_STRTAB, 0, 1, headers.data),
        ]
        everything = self.sections + tail
        tail[0].link = len(everything) - 1
        name_offsets = [headers.add(s.name) for s in everything]
        for section in tail:
            out += bytes(align(len(out), section.align) - len(out))
            section.offset = len(out)
            out += section.data
        out += bytes(align(len(out), 8) - len(out))
        table = len(out)
        out += bytes(elf.SECTION_HEADER.size)
        for name, s in zip(name_offsets, everything):
            place = name, s.type, s.flags, s.addr, s.offset, len(s.data)
            out += elf.SECTION_HEADER.pack(*place, s.link, s.info, s.align, s.entsize)
        programs = self._program_headers()
        out[elf.HEADER.size : elf.HEADER.size + len(programs)] = programs
        header = (self.source.ident, elf.ET_DYN, self.source.machine, 1, 0)
        where = (elf.HEADER.size, table, self.source.flags, elf.HEADER.size)
        count = len(programs) // elf.PROGRAM_HEADER.size
        sizes = (elf.PROGRAM_HEADER.size, count, elf.SECTION_HEADER.size, len(everything) + 1)
        elf.HEADER.pack_into(out, 0, *header, *where, *sizes, len(everything))
        return bytes(out)

    def _program_headers(self) -> bytes:
        """PHDR, one LOAD for each segment (the first holds the file's headers), DYNAMIC, STACK,
        NOTE."""
        count = len(self.segments) + 4
        size = elf.PROGRAM_HEADER.size * count
        rows = [_segment(elf.PT_PHDR, elf.PF_R, elf.HEADER.size, 0, size, 8)]
        rights = (elf.PF_R, elf.PF_R | elf.PF_X, elf.PF_R | elf.PF_W)
        for number, (segment, right) in enumerate(zip(self.segments, rights)):
            start = segment[0].offset if number else 0
            length = segment[-1].offset + len(segment[-1].data) - start
            rows.append(_segment(elf.PT_LOAD, right, start, number * PAGE, length, PAGE))
        dynamic = self.dynamic
        shift = dynamic.addr - dynamic.offset
        right = elf.PF_R | elf.PF_W
        rows.append(_segment(elf.PT_DYNAMIC, right, dynamic.offset, shift, len(dynamic.data), 8))
        rows.append(elf.PROGRAM_HEADER.pack(elf.PT_GNU_STACK, right, 0, 0, 0, 0, 0, 0))
        start = self.notes[0].offset
        length = self.notes[-1].offset + len(self.notes[-1].data) - start
        rows.append(_segment(elf.PT_NOTE, elf.PF_R, start, 0, length, 4))
        return b"".join(rows)


def _by_segment(sections: Sequence[Section]) -> tuple[list[Section], ...]:
    """The sections to load, as (notes, constants, code, variables).

    Raises InternalError where there is no code or no note: the object holds no kernel.
    """
    loaded = [s for s in sections if s.is_allocated and s.data]
    for section in loaded:
        if section.type == elf.SHT_NOBITS:
            section.type = elf.SHT_PROGBITS
        if section.flags & elf.SHF_EXECINSTR:
            section.align = max(section.align, _TEXT_ALIGN)
    notes = [s for s in loaded if s.type == elf.SHT_NOTE]
    text = [s for s in loaded if s.flags & elf.SHF_EXECINSTR]
    variables = [s for s in loaded if s.flags & elf.SHF_WRITE]
    constants = [
        s
        for s in loaded
        if s.type != elf.SHT_NOTE and not s.flags & (elf.SHF_EXECINSTR | elf.SHF_WRITE)
    ]
    if not notes or not text:
        raise InternalError("the object holds no kernel: no code, or no metadata note")
    return notes, constants, text, variables


def _segment(kind: int, rights: int, offset: int, shift: int, size: int, alignment: int) -> bytes:
    addr = offset + shift
    return elf.PROGRAM_HEADER.pack(kind, rights, offset, addr, addr, size, size, alignment)


def align(value: int, alignment: int) -> int:
    """The next multiple of `alignment` (0 counts as 1)."""
    return -(-value // max(alignment, 1)) * max(alignment, 1)


def hash_table(names: Sequence[str]) -> bytes:
    """DT_HASH: (buckets, chains, bucket heads, chain links), 32 bits each; symbol 0 is null."""
    buckets = [0] * max(1, len(names))
    chains = [0] * (len(names) + 1)
    for index, name in enumerate(names, 1):
        bucket = elf_hash(name) % len(buckets)
        chains[index], buckets[bucket] = buckets[bucket], index
    words = [len(buckets), len(chains), *buckets, *chains]
    return struct.pack(f"<{len(words)}I", *words)


def elf_hash(name: str) -> int:
    """The hash function of the System V ABI."""
    h = 0
    for byte in name.encode():
        h = (h << 4) + byte
        high = h & 0xF000_0000
        h = (h ^ high >> 24) & ~high
    return h
