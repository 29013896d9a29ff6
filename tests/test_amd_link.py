"""The AMDGPU linker, checked with an ELF reader of this file's own (and llvm-readelf where
found)."""

from __future__ import annotations

import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tilec.codegen import amd_link, elf
from tilec.codegen.amd_link import align, elf_hash, hash_table, link
from tilec.codegen.amd_metadata import read_kernel_metadata
from tilec.codegen.assemble import _machine, _optimised
from tilec.ir.errors import InternalError
from tilec.target import find_target

TARGET = find_target("hip:gfx942")

KERNELS = """
@lds = internal addrspace(3) global [1024 x i8] poison, align 16
@table = internal unnamed_addr addrspace(4) constant [4 x i32] [i32 3, i32 1, i32 4, i32 1]
define amdgpu_kernel void @k(ptr addrspace(1) %p, i32 %n) #0 {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %l = getelementptr i32, ptr addrspace(3) @lds, i32 %t
  store volatile i32 %n, ptr addrspace(3) %l
  %a = and i32 %t, 3
  %c = getelementptr i32, ptr addrspace(4) @table, i32 %a
  %v = load volatile i32, ptr addrspace(4) %c
  %q = getelementptr i32, ptr addrspace(1) %p, i32 %t
  store i32 %v, ptr addrspace(1) %q
  ret void
}
define amdgpu_kernel void @second(ptr addrspace(1) %p) #0 {
  store i32 7, ptr addrspace(1) %p
  ret void
}
attributes #0 = { "amdgpu-flat-work-group-size"="128,128" "uniform-work-group-size"="true" }
!llvm.module.flags = !{!0}
!0 = !{i32 1, !"amdhsa_code_object_version", i32 500}
"""


@dataclass
class Header:
    name: str
    type: int
    flags: int
    addr: int
    offset: int
    size: int
    link: int
    info: int
    align: int


class Reader:
    """A second, independent reading of the ELF specification: what a loader would do."""

    def __init__(self, blob: bytes) -> None:
        self.blob = blob
        assert blob[:4] == b"\x7fELF" and blob[4] == 2 and blob[5] == 1
        (self.type, self.machine, _, self.entry) = struct.unpack_from("<HHIQ", blob, 16)
        (phoff, shoff, self.flags) = struct.unpack_from("<QQI", blob, 32)
        (_, phsize, phnum, shsize, shnum, names) = struct.unpack_from("<6H", blob, 52)
        assert shsize == 64 and (phsize == 56 or phnum == 0)
        raw = [struct.unpack_from("<IIQQQQIIQQ", blob, shoff + 64 * i) for i in range(shnum)]
        self.sections = [
            Header(self.text(raw[names][4] + r[0]), r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8])
            for r in raw
        ]
        self.segments = [
            struct.unpack_from("<IIQQQQQQ", blob, phoff + 56 * i) for i in range(phnum)
        ]

    def text(self, at: int) -> str:
        return self.blob[at : self.blob.index(0, at)].decode()

    def section(self, name: str) -> Header:
        return next(s for s in self.sections if s.name == name)

    def content(self, name: str) -> bytes:
        s = self.section(name)
        return self.blob[s.offset : s.offset + s.size]

    def loads(self) -> list[tuple[int, ...]]:
        return [p for p in self.segments if p[0] == 1]

    def at_address(self, addr: int, size: int) -> bytes:
        """`size` bytes of the loaded image."""
        for _, _, offset, start, _, filesz, _, _ in self.loads():
            if start <= addr < start + filesz:
                return self.blob[offset + addr - start : offset + addr - start + size]
        raise AssertionError(f"{addr:#x} is not loaded")

    def dynamic(self) -> dict[int, int]:
        (_, _, offset, _, _, size, _, _) = next(p for p in self.segments if p[0] == 2)
        return dict(struct.iter_unpack("<QQ", self.blob[offset : offset + size]))

    def lookup(self, name: str) -> tuple[int, int, int]:
        """(address, size, info) of a symbol, found as a loader finds it: through DT_HASH."""
        d = self.dynamic()
        buckets, _ = struct.unpack("<II", self.at_address(d[4], 8))
        at = d[4] + 8 + 4 * (reference_hash(name) % buckets)
        (index,) = struct.unpack("<I", self.at_address(at, 4))
        while index:
            raw = self.at_address(d[6] + 24 * index, d[11])
            offset, info, _, _, value, size = struct.unpack("<IBBHQQ", raw)
            string = self.at_address(d[5] + offset, d[10] - offset)
            if string[: string.index(0)].decode() == name:
                return value, size, info
            (index,) = struct.unpack("<I", self.at_address(d[4] + 8 + 4 * (buckets + index), 4))
        raise KeyError(name)


def reference_hash(name: str) -> int:
    h = 0
    for c in name.encode():
        h = (h * 16 + c) & 0xFFFFFFFF
        g = h & 0xF0000000
        if g:
            h ^= g >> 24
        h &= ~g & 0xFFFFFFFF
    return h


@pytest.fixture(scope="module")
def relocatable() -> bytes:
    return _machine(TARGET).emit_object(_optimised(KERNELS, TARGET, {}))


@pytest.fixture(scope="module")
def linked(relocatable: bytes) -> Reader:
    return Reader(link(relocatable))


def test_header(linked: Reader, relocatable: bytes) -> None:
    source = Reader(relocatable)
    assert (linked.type, linked.machine) == (3, 224)
    assert linked.flags == source.flags and linked.flags & 0xFF == 0x4C
    assert linked.blob[7] == 64, "OS/ABI is AMDGPU_HSA"
    assert linked.blob[:16] == relocatable[:16]


def test_segments_obey_the_loader(linked: Reader) -> None:
    rights = [p[1] for p in linked.loads()]
    assert rights == [4, 5, 6]
    ends = 0
    for _, _, offset, addr, _, filesz, memsz, page in linked.loads():
        assert addr % page == offset % page and filesz == memsz > 0
        assert addr // page > ends // page or ends == 0, "two segments share a page"
        ends = addr + memsz - 1
    headers = next(p for p in linked.segments if p[0] == 6)
    assert headers[2] + headers[5] <= linked.loads()[0][5]


def test_sections_lie_in_their_segments(linked: Reader) -> None:
    for s in linked.sections:
        if s.flags & 2:
            content = linked.blob[s.offset : s.offset + s.size]
            assert linked.at_address(s.addr, s.size) == content
            assert s.addr % s.align == 0 and s.offset % s.align == 0
    assert linked.section(".text").addr % 256 == 0
    assert linked.section(".rodata").addr % 64 == 0


@pytest.mark.parametrize("name", ["k", "second"])
def test_descriptor_points_at_the_code(linked: Reader, name: str) -> None:
    code, size, info = linked.lookup(name)
    text = linked.section(".text")
    assert info & 15 == 2 and text.addr <= code < code + size <= text.addr + text.size
    descriptor, size, info = linked.lookup(f"{name}.kd")
    assert (size, info & 15) == (64, 1) and descriptor % 64 == 0
    (entry,) = struct.unpack_from("<q", linked.at_address(descriptor, 64), 16)
    assert descriptor + entry == code, "kernel_code_entry_byte_offset is relative to the descriptor"


def test_lds_size_survives_in_the_descriptor(linked: Reader) -> None:
    sizes = [
        struct.unpack_from("<I", linked.at_address(linked.lookup(n)[0], 64))[0]
        for n in ("k.kd", "second.kd")
    ]
    assert sizes == [1024, 0]


def test_code_reaches_the_constant_table(linked: Reader) -> None:
    """The kernel's REL32 pair: s_getpc_b64 gives the address of the next instruction."""
    table = struct.pack("<4i", 3, 1, 4, 1)
    home = next(s for s in linked.sections if s.flags & 2 and table in linked.content(s.name))
    where = linked.content(home.name).index(table) + home.addr
    code, size, _ = linked.lookup("k")
    words = struct.unpack(f"<{size // 4}I", linked.at_address(code, size // 4 * 4))
    getpc = next(i for i, w in enumerate(words) if w & 0xFF80FFFF == 0xBE801C00)
    after = code + 4 * (getpc + 1)
    literals = {words[i + 1] for i in range(getpc, getpc + 6) if words[i] >> 8 & 0xFF == 0xFF}
    assert (where - after) & 0xFFFFFFFF in literals


def test_unknown_symbols_are_not_found(linked: Reader) -> None:
    with pytest.raises(KeyError):
        linked.lookup("nothing")


def test_note_is_unchanged(linked: Reader, relocatable: bytes) -> None:
    assert linked.content(".note") == Reader(relocatable).content(".note")
    (_, _, offset, addr, _, size, _, _) = next(p for p in linked.segments if p[0] == 4)
    assert linked.blob[offset : offset + size] == linked.content(".note") and addr == offset
    assert linked.blob[offset + 12 : offset + 19] == b"AMDGPU\0"


def test_symbol_table_puts_locals_first(linked: Reader) -> None:
    table = linked.section(".symtab")
    assert linked.sections[table.link].name == ".strtab"
    bindings = [e[1] >> 4 for e in struct.iter_unpack("<IBBHQQ", linked.content(".symtab"))]
    assert bindings == sorted(bindings) and bindings.index(1) == table.info
    assert linked.sections[linked.section(".hash").link].name == ".dynsym"
    assert linked.sections[linked.section(".dynsym").link].name == ".dynstr"


def test_metadata(relocatable: bytes) -> None:
    kernels = {k[".name"]: k for k in read_kernel_metadata(relocatable)}
    assert set(kernels) == {"k", "second"}
    k = kernels["k"]
    assert k[".symbol"] == "k.kd" and k[".max_flat_workgroup_size"] == 128
    assert [(a[".offset"], a[".size"]) for a in k[".args"]] == [(0, 8), (8, 4)]
    assert k[".group_segment_fixed_size"] == 1024 and k[".kernarg_segment_size"] == 12


def test_linking_is_deterministic(relocatable: bytes) -> None:
    assert link(relocatable) == link(relocatable)


# --- what is refused ---


def test_not_an_object() -> None:
    with pytest.raises(InternalError, match="not a 64-bit"):
        link(b"\x7fELF\x01\x01" + bytes(100))
    with pytest.raises(InternalError, match="not a 64-bit"):
        link(b"")


def test_a_linked_file_is_not_linked_again(relocatable: bytes) -> None:
    with pytest.raises(InternalError, match="ELF type 3"):
        link(link(relocatable))


def test_other_machines_are_refused(relocatable: bytes) -> None:
    patched = bytearray(relocatable)
    struct.pack_into("<H", patched, 18, 62)
    with pytest.raises(InternalError, match="machine 62"):
        link(bytes(patched))


def relocation_at(blob: bytes, type: int) -> int:
    """File offset of the info word of the first relocation of `type`."""
    for s in Reader(blob).sections:
        if s.type == 4:
            for at in range(s.offset, s.offset + s.size, 24):
                if struct.unpack_from("<I", blob, at + 8)[0] == type:
                    return at + 8
    raise AssertionError(f"no relocation of type {type}")


@pytest.mark.parametrize(
    ("type", "message"), [(8, "relocation type 8"), (3, "type 3"), (6, "ABS32")]
)
def test_relocations_a_loader_would_have_to_do(relocatable: bytes, type: int, message: str) -> None:
    patched = bytearray(relocatable)
    struct.pack_into("<I", patched, relocation_at(relocatable, 5), type)
    with pytest.raises(InternalError, match=message):
        link(bytes(patched))


def test_undefined_functions_are_named() -> None:
    text = (
        KERNELS.replace("store i32 7", "call void @helper()\n  store i32 7")
        + "declare void @helper()"
    )
    blob = _machine(TARGET).emit_object(_optimised(text, TARGET, {}))
    with pytest.raises(InternalError, match="calls helper"):
        link(blob)


def test_an_object_without_code() -> None:
    blob = _machine(TARGET).emit_object(_optimised("@x = global i32 3", TARGET, {}))
    with pytest.raises(InternalError, match="holds no kernel"):
        link(blob)


# --- pieces ---


@pytest.mark.parametrize("name", ["", "k", "k.kd", "matmul_kernel_with_a_long_name", "ünïcode"])
def test_hash_function(name: str) -> None:
    assert elf_hash(name) == reference_hash(name)


def test_hash_table_finds_every_name() -> None:
    names = [f"kernel_{i}" for i in range(17)]
    words = struct.unpack(f"<{len(hash_table(names)) // 4}I", hash_table(names))
    buckets, chains = words[:2]
    assert (buckets, chains) == (17, 18)
    for index, name in enumerate(names, 1):
        at = words[2 + reference_hash(name) % buckets]
        seen = []
        while at:
            seen.append(at)
            at = words[2 + buckets + at]
        assert index in seen


def test_align() -> None:
    assert [align(v, 8) for v in (0, 1, 8, 9)] == [0, 8, 8, 16]
    assert align(5, 0) == 5


def test_every_kind_fits_its_bytes() -> None:
    for kind in amd_link.KINDS.values():
        assert kind.bytes in (4, 8) and kind.shift in (0, 32)
    assert elf.SYMBOL.size == 24 and elf.SECTION_HEADER.size == 64 and elf.PROGRAM_HEADER.size == 56


@pytest.mark.skipif(shutil.which("llvm-readelf") is None, reason="needs llvm-readelf")
def test_llvm_reads_it_without_a_warning(linked: Reader, tmp_path: Path) -> None:
    path = tmp_path / "k.hsaco"
    path.write_bytes(linked.blob)
    command = [
        "llvm-readelf",
        "-hlS",
        "-d",
        "--dyn-symbols",
        "--symbols",
        "--notes",
        "-r",
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    assert "amdgcn-amd-amdhsa--gfx942" in done.stdout and "k.kd" in done.stdout
    assert "There are no relocations in this file." in done.stdout
