"""LLVM records as text, and the debug information that tells their source lines."""

from __future__ import annotations

from tilec.ir.llvm import Function, Inst
from tilec.ir.loc import Loc


def print_function(f: Function, debug: DebugInfo | None = None) -> str:
    """The definition as LLVM text."""
    params = ", ".join(" ".join(w for w in (t, a, n) if w) for t, a, n in f.params)
    scope = f" !dbg !{debug.subprogram}" if debug else ""
    lines = [f"define {f.linkage} void @{f.name}({params}) {f.attrs}{scope} {{"]
    for block in f.blocks:
        lines.append(f"{block.label}:")
        if block is f.blocks[0]:
            lines += [f"  {i.result.ref} = {i.text}" for i in f.allocas if i.result]
        for p in block.phis:
            came = ", ".join(f"[ {v.ref}, %{b} ]" for v, b in p.incoming)
            lines.append(f"  {p.result.ref} = phi {p.result.type} {came}")
        for i in block.insts:
            head = f"  {i.result.ref} = " if i.result is not None else "  "
            tail = f", !dbg !{debug.location(i)}" if debug else ""
            lines.append(head + i.text + tail)
    lines.append("}")
    return "\n".join(lines)


class DebugInfo:
    """Line tables: numbers the metadata nodes of one function's source locations.

    `kind` is DebugDirectivesOnly for PTX (`.loc` lines, no DWARF of its own) or LineTablesOnly.
    """

    def __init__(self, func: str, loc: Loc, kind: str, first: int = 10) -> None:
        self.kind = kind
        self.func = func
        self.loc = loc
        self.compile_unit, self.file, self.subprogram, self.type = (
            first,
            first + 1,
            first + 2,
            first + 3,
        )
        self._next = first + 4
        self._locations: dict[tuple[int, int], int] = {}

    def place(self, inst: Inst) -> tuple[int, int]:
        """Line and column of a record (of the outermost call site, if it came from a macro)."""
        outer = inst.loc.chain()[-1]
        return (outer.line, outer.col + 1) if outer.file == self.loc.file else (self.loc.line, 1)

    def location(self, inst: Inst) -> int:
        """The metadata number of a record's place."""
        key = self.place(inst)
        if key not in self._locations:
            self._locations[key] = self._next
            self._next += 1
        return self._locations[key]

    def text(self) -> str:
        folder, _, name = self.loc.file.rpartition("/")
        quote = _escape
        lines = [
            f"!{self.compile_unit} = distinct !DICompileUnit(language: DW_LANG_C99, "
            f"file: !{self.file}, "
            f'producer: "tilec", isOptimized: true, runtimeVersion: 0, emissionKind: {self.kind})',
            f'!{self.file} = !DIFile(filename: "{quote(name)}", directory: "{quote(folder)}")',
            f'!{self.subprogram} = distinct !DISubprogram(name: "{quote(self.func)}", '
            f"scope: !{self.file}, "
            f"file: !{self.file}, line: {self.loc.line}, type: !{self.type}, "
            f"spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: !{self.compile_unit})",
            f"!{self.type} = !DISubroutineType(types: !{{null}})",
        ]
        lines += [
            f"!{n} = !DILocation(line: {line}, column: {col}, scope: !{self.subprogram})"
            for (line, col), n in self._locations.items()
        ]
        return "\n".join(lines)


def _escape(text: str) -> str:
    return "".join(
        c if c.isprintable() and c not in '"\\' and ord(c) < 128 else f"\\{ord(c) & 255:02X}"
        for c in text
    )
