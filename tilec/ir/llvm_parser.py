"""LLVM text -> records: reads what LLVM's optimiser leaves of a kernel, so that it can be executed
as what code generators write is.

`parse_function` knows the instructions, types and constants that the optimiser makes of a GPU
kernel, and raises InternalError for any other. What a record means beside its text (its row, the
user's line and buffer) the caller adds.

Some forms are written in terms of others, so that there are fewer of them: a `switch` becomes
branches, a `getelementptr` of several indices several of one, and an address that is a constant
expression the name of its symbol and a distance ("@smem+64"). LLVM language reference:
https://llvm.org/docs/LangRef.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tilec.ir.errors import InternalError
from tilec.ir.llvm import Function, Inst, Phi, Val, elem_of, int_val, lanes_of, shaped
from tilec.ir.llvm_text import NAME, LlvmText, array_of, bare, struct_types

_LABEL = re.compile(rf"^({NAME}):")
_SPACE = re.compile(r" addrspace\((\d+)\)")
_LINE = re.compile(r"^!(\d+) = (?:distinct )?!DILocation\(line: (\d+)", re.MULTILINE)
_DEBUG = re.compile(r", !dbg !(\d+)")
_METADATA = re.compile(r"(?:, ![\w.]+ !\d+)+$")

_CASTS = frozenset(
    ("zext", "sext", "trunc", "bitcast", "fptrunc", "fpext", "sitofp", "uitofp", "fptosi", "fptoui",
     "ptrtoint", "inttoptr", "addrspacecast")
)  # fmt: skip
_BINARY = frozenset(
    ("add", "sub", "mul", "and", "or", "xor", "shl", "lshr", "ashr", "udiv", "urem", "sdiv", "srem",
     "fadd", "fsub", "fmul", "fdiv", "frem")
)  # fmt: skip
_OF_VALUES: dict[str, Callable[..., str]] = {
    "freeze": lambda a: a.type,
    "fneg": lambda a: a.type,
    "select": lambda cond, a, b: a.type,
    "extractelement": lambda vector, index: elem_of(vector.type),
    "insertelement": lambda vector, value, index: vector.type,
    "shufflevector": lambda a, b, mask: shaped(elem_of(a.type), lanes_of(mask.type)),
}
"""Of the instructions that take values and nothing else, the type of the result."""
_IGNORED = ("llvm.lifetime.", "llvm.experimental.noalias.scope.decl", "llvm.dbg.")


@dataclass(frozen=True)
class Parsed:
    """`function`: the records. `lines`: by the identity of a record, the line of its debug
    location. `asm`: by the identity of an inline-assembly record, its template and constraints."""

    function: Function
    lines: Mapping[int, int] = field(default_factory=dict)
    asm: Mapping[int, tuple[str, str]] = field(default_factory=dict)


def parse_function(module: str) -> Parsed:
    """The records of the only function that `module` (LLVM text) defines. Raises InternalError."""
    return _Parser(module).parse()


class _Parser:
    def __init__(self, module: str) -> None:
        self.module = module
        start = module.index("\ndefine ") + 1
        head, _, rest = module[start:].partition("\n")
        self.head, self.body = head, rest[: rest.index("\n}")].split("\n")
        self.lines: dict[int, int] = {}
        self.asm: dict[int, tuple[str, str]] = {}
        self.ends: dict[str, dict[str, list[str]]] = {}  # switch block -> target -> from where
        self.fresh = 0

    @cached_property
    def places(self) -> dict[int, int]:
        """By number of a debug location its line."""
        return {int(n): int(line) for n, line in _LINE.findall(self.module)}

    def parse(self) -> Parsed:
        self.f = Function(*self._signature(), linkage="", attrs="")
        self.f.blocks.clear()
        rows = iter(self.body)
        for row in rows:
            if not row.strip() or row.lstrip().startswith(("#dbg", ";")):
                continue
            label = _LABEL.match(row)
            if label:
                self.f.start(_plain(bare(label[1])))
                continue
            if not self.f.blocks:
                self.f.start("entry")
            if row.rstrip().endswith("["):  # a switch
                while "]" not in row[row.index("[") :]:
                    row += next(rows)
            self._instruction(row)
        self._phis_of_switches()
        _set_merges(self.f)
        return Parsed(self.f, self.lines, self.asm)

    def _signature(self) -> tuple[str, list[tuple[str, str, str]]]:
        name = re.search(rf"@({NAME})\(", self.head)
        assert name is not None
        text = LlvmText(self.head, name.end())
        params = list[tuple[str, str, str]]()
        while not text.take(")"):
            type = text.type()
            words = text.until_name()
            params.append((type, words, text.name()))
            text.take(",")
        return bare(name[1]), params

    # --- records ---

    def _add(
        self, opcode: str, result: Val | None, operands: tuple[Val, ...], text: str, row: str = ""
    ) -> Inst:
        made = Inst(opcode, result, operands, text, row)
        self.f.block.insts.append(made)
        if self.line:
            self.lines[id(made)] = self.line
        return made

    def _new(self, type: str) -> Val:
        self.fresh += 1
        return Val(type, f"%new.{self.fresh}")

    def _instruction(self, row: str) -> None:
        debug = _DEBUG.search(row)
        self.line = self.places.get(int(debug[1]), 0) if debug else 0
        text = LlvmText(_METADATA.sub("", row.strip()))
        result = ""
        if text.peek("%"):
            result = text.name()
            text.expect("=")
        opcode = text.word()
        while opcode in ("tail", "musttail", "notail"):
            opcode = text.word()
        try:
            self._read(opcode, result, text)
        except (ValueError, IndexError, KeyError, AssertionError) as e:
            raise InternalError(f"cannot read LLVM's {row.strip()[:200]!r}") from e

    def _read(self, opcode: str, result: str, text: LlvmText) -> None:
        flags = text.flags()
        if opcode in _BINARY or opcode in ("icmp", "fcmp"):
            compares = opcode not in _BINARY
            words = f"{opcode} {text.word()} {flags}" if compares else f"{opcode} {flags}"
            a = text.value()
            b = text.after(",").operand(a.type)
            kind = shaped("i1", lanes_of(a.type)) if compares else a.type
            self._add(opcode, Val(kind, result), (a, b), words)
        elif opcode in _OF_VALUES:
            values = tuple(text.several(text.value))
            kind = _OF_VALUES[opcode](*values)
            self._add(opcode, Val(kind, result), values, f"{opcode} {values[-1].ref}")
        elif opcode in _CASTS:
            a = text.value()
            text.expect("to")
            to = text.type()
            self._add(opcode, Val(to, result), (a,), f"{opcode} {flags}")
        else:
            read = getattr(self, f"read_{opcode}", None)
            assert read is not None
            read(result, text)

    def read_extractvalue(self, result: str, text: LlvmText) -> None:
        struct, index = text.value(), int(text.after(",").word())
        kind = struct_types(struct.type)[index]
        self._add("extractvalue", Val(kind, result), (struct,), f"at {index}")

    def read_insertvalue(self, result: str, text: LlvmText) -> None:
        struct, value = text.value(), text.after(",").value()
        index = int_val(int(text.after(",").word()))
        self._add(
            "insertelement", Val(struct.type, result), (struct, value, index), f"at {index.ref}"
        )

    def read_getelementptr(self, result: str, text: LlvmText) -> None:
        for word in ("inbounds", "nusw", "nuw"):
            text.skip(word)
        kind = text.type()
        text.expect(",")
        base, *indices = text.several(text.value)
        for i, index in enumerate(indices):
            if i:
                _, kind = array_of(kind)
            last = i == len(indices) - 1
            to = Val(base.type, result) if last else self._new(base.type)
            self._add("getelementptr", to, (base, index), f"getelementptr {kind}, {base}, {index}")
            base = to

    def read_load(self, result: str, text: LlvmText) -> None:
        text.skip("volatile")
        kind = text.type()
        text.expect(",")
        place = text.value()
        align = text.alignment()
        self._add("load", Val(kind, result), (place,), f"load {kind}, {place}, align {align}")

    def read_store(self, result: str, text: LlvmText) -> None:
        text.skip("volatile")
        value, place = text.value(), text.after(",").value()
        self._add(
            "store", None, (value, place), f"store {value}, {place}, align {text.alignment()}"
        )

    def read_alloca(self, result: str, text: LlvmText) -> None:
        kind = text.type()
        space = _SPACE.search(text.text)
        pointer = f"ptr addrspace({space[1]})" if space else "ptr"
        self.f.allocas.append(
            Inst("alloca", Val(pointer, result), (), f"alloca {kind}, align {text.alignment()}")
        )

    def read_fence(self, result: str, text: LlvmText) -> None:
        self._add("fence", None, (), text.text)

    def read_atomicrmw(self, result: str, text: LlvmText) -> None:
        kind = text.word()
        place, value = text.value(), text.after(",").value()
        self._add("atomicrmw", Val(value.type, result), (place, value), f"atomicrmw {kind}")

    def read_cmpxchg(self, result: str, text: LlvmText) -> None:
        place, compare = text.value(), text.after(",").value()
        value = text.after(",").value()
        pair = Val(f"{{ {value.type}, i1 }}", result)
        self._add("cmpxchg", pair, (place, compare, value), "cmpxchg")

    def read_call(self, result: str, text: LlvmText) -> None:
        text.flags()
        kind = "void" if text.skip("void") else text.result_type()
        to = None if kind == "void" else Val(kind, result)
        if text.skip("asm"):
            for word in ("sideeffect", "alignstack", "inteldialect", "unwind"):
                text.skip(word)
            template = text.string()
            text.expect(",")
            constraints = text.string()
            made = self._add("asm", to, text.arguments(), "asm")
            self.asm[id(made)] = template, constraints
            return
        text.expect("@")
        name = text.bare_name()
        if name.startswith(_IGNORED):
            return
        operands = text.arguments()
        made = self._add("call", to, operands, f"call @{name}", name)
        if name == "llvm.assume":
            made.text += text.rest()

    def read_ret(self, result: str, text: LlvmText) -> None:
        self._add("ret", None, (), "ret void")

    def read_unreachable(self, result: str, text: LlvmText) -> None:
        self._add("unreachable", None, (), "unreachable")

    def read_phi(self, result: str, text: LlvmText) -> None:
        kind = text.type()
        made = Phi(Val(kind, result))
        while True:
            text.expect("[")
            value = text.operand(kind)
            text.expect(",")
            made.incoming.append((value, _plain(text.name()[1:])))
            text.expect("]")
            if not text.take(","):
                break
        self.f.block.phis.append(made)

    def read_br(self, result: str, text: LlvmText) -> None:
        if text.skip("label"):
            self._add("br", None, (), f"br label %{_plain(text.name()[1:])}")
            return
        cond = text.value()
        then, orelse = (_plain(text.after(",").label()) for _ in range(2))
        self._branch(cond, then, orelse)

    def _branch(self, cond: Val, then: str, orelse: str) -> None:
        if then == orelse:
            self._add("br", None, (), f"br label %{then}")
        else:
            self._add("br", None, (cond,), f"br {cond}, label %{then}, label %{orelse}")

    def read_switch(self, result: str, text: LlvmText) -> None:
        value = text.value()
        default = _plain(text.after(",").label())
        text.expect("[")
        cases = list[tuple[Val, str]]()
        while not text.take("]"):
            case = text.value()
            cases.append((case, _plain(text.after(",").label())))
        first = self.f.block.label
        came: dict[str, list[str]] = {}
        for i, (case, to) in enumerate(cases):
            last = i == len(cases) - 1
            following = default if last else f"{first}.case{i + 1}"
            equal = self._new("i1")
            self._add("icmp", equal, (value, case), "icmp eq ")
            self._branch(equal, to, following)
            for target in (to, following) if last else (to,):
                came.setdefault(target, []).append(self.f.block.label)
            if not last:
                self.f.start(following)
        if not cases:
            self._add("br", None, (), f"br label %{default}")
            came[default] = [first]
        self.ends[first] = came

    def _phis_of_switches(self) -> None:
        """What came from a block that ends in a switch comes from where its branches are now."""
        for block in self.f.blocks:
            for phi in block.phis:
                each = [
                    (value, label)
                    for value, came in phi.incoming
                    for label in dict.fromkeys(self.ends.get(came, {}).get(block.label, [came]))
                ]
                phi.incoming[:] = each


def _plain(label: str) -> str:
    """A label as records spell labels."""
    return re.sub(r"[^\w.]", "_", label)


# --- where sides meet again ---


def _set_merges(f: Function) -> None:
    """Give each branch the label where its sides meet: its nearest postdominator. (None, where that
    is the end of the function.)"""
    following = {b.label: re.findall(rf"label %({NAME})", b.insts[-1].text) for b in f.blocks}
    order = [b.label for b in f.blocks]
    everything = frozenset(order)
    behind = {label: everything if following[label] else frozenset((label,)) for label in order}
    changed = True
    while changed:
        changed = False
        for label in reversed(order):
            if following[label]:
                common = frozenset.intersection(*(behind[to] for to in following[label]))
                found = common | {label}
                changed |= found != behind[label]
                behind[label] = found
    for b in f.blocks:
        last = b.insts[-1]
        if last.opcode == "br" and last.operands:
            others = behind[b.label] - {b.label}
            nearest = [x for x in others if len(behind[x]) == len(others)]
            last.merge = nearest[0] if nearest else ""
