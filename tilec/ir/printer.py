"""The IR as text; `parser.py` reads it back: `print_func(parse_func(t)) == t` whatever `t` it
printed.

Printing is generic over an op's fields, in the order they are declared:

    %v, … = opname.kind positional fields, name=value … body(%i: i32) { … } : result types

- A first field called `kind` is joined to the op's name: `binary.add %a, %b : i32`.
- Fields without a default are positional, as are tuples of operands (`[%a, %b]`, left out where
  empty and unmistakable). Indices, offsets and coordinates stand right behind their buffer:
  `load %A[%i, %j]`.
- Other fields are `name=value`, and left out where they hold their default.
- A region is its field's name, its arguments and its ops in braces; an empty one is left out.
- Result types are left out where the op names them itself (`const 3, i32`, `alloc shared<64xf16>`).

Values are called by their name, made unique; a nameless integer constant is `%c16`, any other
nameless value `%0`, `%1`, … in textual order. `//` starts a comment.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from dataclasses import dataclass
from typing import Any

from tilec.ir.core import Block, Func, Op, Param, Value
from tilec.ir.layout import Layout, LayoutRequest
from tilec.ir.ops import Const
from tilec.ir.ops.gather import Places
from tilec.ir.types import BufferType, DType, ScalarType, TensorMapType, Type, VectorType

RESERVED = frozenset({"true", "false", "none", "inf", "nan"})
IR_TYPES = (ScalarType, VectorType, BufferType, TensorMapType)
_WORD = re.compile(r"[A-Za-z_][\w.]*\Z")
_NOT_NAME = re.compile(r"[^\w]")


@dataclass(frozen=True, slots=True)
class Opaque:
    """An attribute the text form cannot take apart; it prints as it was written and means
    nothing.
    """

    text: str


@dataclass(frozen=True, slots=True)
class FieldForm:
    """How one field of an op class is written. `role`: "value", "values", "word", "types" or
    "attribute".
    """

    name: str
    role: str
    positional: bool
    default: Any
    glued: bool = False
    omit_empty: bool = False


@dataclass(frozen=True, slots=True)
class OpForm:
    """How one op class is written; shared by printer and parser."""

    has_kind: bool
    fields: tuple[FieldForm, ...]
    regions: tuple[str, ...]
    names_types: bool


_OPERAND_ROLES = {
    "Region": "region",
    "Region | None": "region",
    "Value": "value",
    "Value | None": "value",
    "tuple[Value, ...]": "values",
}
_TYPE_ROLES = {"Type": "types", "BufferType": "types", "tuple[Type, ...]": "types"}


@functools.cache
def op_form(cls: type[Op]) -> OpForm:
    """The form of an op class, read off its fields."""
    made = [f for f in dataclasses.fields(cls) if f.name not in ("results", "loc")]
    made = [f for f in made if f.name not in cls.region_fields]
    has_kind = bool(made) and made[0].name == "kind" and str(made[0].type) == "str"
    forms: list[FieldForm] = []
    for f in made[has_kind:]:
        kind = str(f.type)
        role = _OPERAND_ROLES.get(kind) or _TYPE_ROLES.get(kind)
        role = role or ("word" if kind == "str" else "attribute")
        optional = f.default is not dataclasses.MISSING
        forms.append(
            FieldForm(
                f.name,
                role,
                positional=role == "values" or not optional,
                default=f.default,
                glued=f.name == "indices" or f.name.endswith(("offsets", "coords")),
            )
        )
    positional = [f for f in forms if f.positional]
    after = {f.name: g for f, g in zip(positional, positional[1:])}
    forms = [
        dataclasses.replace(f, omit_empty=getattr(after.get(f.name), "role", "") != "values")
        for f in forms
    ]
    names_types = any(str(f.type) in (*_TYPE_ROLES, "DType") for f in made)
    return OpForm(has_kind, tuple(forms), cls.region_fields, names_types)


def print_func(func: Func, locs: bool = False) -> str:
    """The whole kernel; `locs`: each op's line of the kernel's source (where a macro was called) in
    a trailing comment."""
    printer = _Printer(locs)
    printer.header(func)
    for name, block in (("grid", func.grid), ("body", func.body)):
        printer.lines.append(f"{name} {{")
        printer.block(block, "  ")
        printer.lines.append("}")
    return "\n".join(printer.lines) + "\n"


def print_block(block: Block) -> str:
    """The ops of one block (not its arguments), one per line."""
    printer = _Printer(locs=False)
    for arg in block.args:
        printer.name(arg)
    printer.block(block, "")
    return "\n".join(printer.lines) + "\n"


def print_op(o: Op) -> str:
    """One op with its regions, for messages: values are numbered from here."""
    printer = _Printer(False)
    printer.op(o, "")
    return "\n".join(printer.lines)


def print_attribute(value: Any) -> str:
    """A compile-time value: number, string, None, dtype, type, layout, tuple, list or dict of
    these.
    """
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value)
        case tuple():
            return f"({', '.join(map(print_attribute, value))})"
        case list():
            return f"[{', '.join(map(print_attribute, value))}]"
        case dict():
            pairs = (f"{print_attribute(k)}: {print_attribute(v)}" for k, v in value.items())
            return f"{{{', '.join(pairs)}}}"
        case DType():
            return value.short
        case ScalarType():
            return f"scalar<{value}>"
        case VectorType() | BufferType() | TensorMapType():
            return str(value)
        case Opaque():
            return f"opaque({json.dumps(value.text)})"
        case Layout():
            return f"layout<{value}>"
        case LayoutRequest():
            return f"layout_request<{value.name}>"
        case _:
            return f"opaque({json.dumps(repr(value))})"


class _Printer:
    """Lines so far and the names given out."""

    def __init__(self, locs: bool) -> None:
        self.lines: list[str] = []
        self.locs = locs
        self.names: dict[Value, str] = {}
        self.used: set[str] = set()
        self.count = 0
        self.types: dict[int, str] = {}
        self.kept: list[Type] = []  # keeps the objects alive whose id() is a key of `types`

    def name(self, value: Value) -> str:
        """The name of a value, given out at first sight."""
        found = self.names.get(value)
        if found is None:
            found = self.names[value] = self._fresh(value.name)
        return found

    def _fresh(self, wanted: str) -> str:
        if not wanted:
            made = f"%{self.count}"
            self.count += 1
            return made
        base = made = "%" + _NOT_NAME.sub("_", wanted)
        if base[1:].isdecimal():
            base = made = f"%_{base[1:]}"
        n = 0
        while made in self.used:
            n += 1
            made = f"{base}_{n}"
        self.used.add(made)
        return made

    def type(self, t: Type) -> str:
        """`str(t)`, made once per type object."""
        found = self.types.get(id(t))
        if found is None:
            found = self.types[id(t)] = str(t)
            self.kept.append(t)
        return found

    def typed(self, values: tuple[Value, ...]) -> str:
        return ", ".join(f"{self.name(v)}: {self.type(v.type)}" for v in values)

    def header(self, func: Func) -> None:
        attrs = ", ".join(f"{k}={print_attribute(v)}" for k, v in func.attrs.items())
        self.lines.append(f"kernel @{func.name} {{{attrs}}} (")
        for p in func.params:
            self.lines.append(f"  {self.param(p)},")
        self.lines.append(")")

    def param(self, p: Param) -> str:
        dim = "" if p.dim == -1 else f" {p.dim}"
        return f"{self.name(p.value)}: {self.type(p.value.type)} = {p.role} {p.arg}{dim}"

    def block(self, block: Block, indent: str) -> None:
        for o in block.ops:
            self.op(o, indent)

    def op(self, o: Op, indent: str) -> None:
        form = op_form(type(o))  # type: ignore[arg-type]
        names = self.names
        head = o.opname
        if form.has_kind:
            head = f"{head}.{o.kind}"  # type: ignore[attr-defined]
        parts: list[str] = []
        for f in form.fields:
            got = getattr(o, f.name)
            if f.role == "value":
                if f.positional:
                    parts.append("none" if got is None else names.get(got) or self.name(got))
                elif got is not None:
                    parts.append(f"{f.name}={self.name(got)}")
            elif f.role == "region" and got is not None:
                at = ", ".join([names.get(v) or self.name(v) for v in got.offsets])
                buffer = names.get(got.buffer) or self.name(got.buffer)
                said = f"{buffer}[{at}]" if at else buffer
                parts.append(said if f.positional else f"{f.name}={said}")
                parts.append(print_attribute(got.extents))
            elif f.role == "values":
                if got or not f.omit_empty:
                    text = f"[{', '.join([names.get(v) or self.name(v) for v in got])}]"
                    if f.glued and parts:
                        parts[-1] += text
                    else:
                        parts.append(text)
            elif f.role != "region" and (
                f.positional or got != f.default or type(got) is not type(f.default)
            ):
                text = self.places(got, indent) if isinstance(got, Places) else ""
                text = text or self.attribute(f.role, got)
                parts.append(text if f.positional else f"{f.name}={text}")
        line = f"{head} {', '.join(parts)}" if parts else head
        if o.results:
            line = f"{', '.join([self.result(o, r) for r in o.results])} = {line}"
        tail = ""
        types = tuple(r.type for r in o.results)
        if types and not (form.names_types and tuple(o.infer()) == types):
            tail = f" : {', '.join(map(self.type, types))}"
        comment = f"  // line {o.loc.chain()[-1].line}" if self.locs else ""
        opened = False
        for name in form.regions:
            region: Block = getattr(o, name)
            if not region.args and not region.ops:
                continue
            args = f"({self.typed(region.args)})" if region.args else ""
            if opened:
                self.lines.append(f"{indent}}} {name}{args} {{")
            else:
                self.lines.append(f"{indent}{line} {name}{args} {{{comment}")
            opened = True
            self.block(region, indent + "  ")
        if opened:
            self.lines.append(f"{indent}}}{tail}")
        else:
            self.lines.append(f"{indent}{line}{tail}{comment}")

    def result(self, o: Op, value: Value) -> str:
        """The name of a result at its definition."""
        if not value.name and type(o) is Const and value not in self.names:
            number = o.value
            if type(number) is int and number >= 0:
                self.names[value] = self._fresh(f"c{number}")
        return self.names.get(value) or self.name(value)

    def places(self, value: Places, indent: str) -> str:
        """`places(%i: i32) { … }` over several lines; copies of a gather share it."""
        outer, self.lines = self.lines, []
        body = value.body.clone({})
        args = self.typed(body.args)
        self.block(body, indent + "  ")
        inner, self.lines = self.lines, outer
        return "\n".join([f"places({args}) {{", *inner, f"{indent}}}"])

    def attribute(self, role: str, value: Any) -> str:
        if role == "word" and _WORD.match(value) and value not in RESERVED:
            return str(value)
        if role == "types":
            if isinstance(value, tuple):
                return f"({', '.join(self.type(t) for t in value)})"
            if isinstance(value, IR_TYPES):
                return self.type(value)
        return print_attribute(value)
