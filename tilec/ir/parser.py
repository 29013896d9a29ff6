"""Reads the text form of the IR back (see `printer.py` for its shape).

A recursive descent driven by the fields of the op classes: nothing here knows a single op but
`const`, whose nameless results are called after their value. Line ends carry no meaning, commas
between fields may be missing, and a result type left out is inferred. An op's location is its
place in the text, so a verifier's message about parsed IR points at the text's line.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from tilec.ir.core import Block, Func, Op, Param, Region, Value
from tilec.ir.errors import TilecError, did_you_mean
from tilec.ir.layout import Layout, LayoutRequest
from tilec.ir.loc import Loc
from tilec.ir.op_classes import OPS
from tilec.ir.ops import Const
from tilec.ir.ops.gather import Places
from tilec.ir.printer import FieldForm, Opaque, op_form
from tilec.ir.types import (
    SHORT_NAMES,
    BufferType,
    DType,
    Extent,
    ScalarType,
    TensorMapType,
    Type,
    VectorType,
)

Item = TypeVar("Item")


class ParseError(TilecError):
    """The text is not IR; the message names line and column (both from 1)."""


_TOKEN = re.compile(
    r"""(?P<value>%\w+) | (?P<symbol>@[\w.]+)
      | (?P<number>-?(?:inf\b|nan\b|\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])))
      | (?P<word>[A-Za-z_][\w.]*) | (?P<string>"(?:[^"\\]|\\.)*") | (?P<mark>[][(){}=:,<>])""",
    re.VERBOSE,
)
_SPACE = re.compile(r"(?:\s|//[^\n]*)*")
_CONSTANTS: dict[str, Any] = {"true": True, "false": False, "none": None}
_DIMS = re.compile(r"\s*([^,<>]*)")
_OPTION = re.compile(r"\s*,\s*(strides|align|stages|layout)\s*=\s*")
_INTEGER = re.compile(r"\d+")
_VECTOR = re.compile(r"<\s*(\d+)\s*x\s*(\w+)\s*>")
_TENSOR_MAP = re.compile(
    r"<\s*(\w+)\[([\d,]*)\],\s*box=([\dx]*),\s*swizzle=(\d+),\s*(\w+)(?:,\s*view=([\dx]+))?\s*>"
)


def parse_func(text: str) -> Func:
    """The kernel written in `text`. Raises ParseError; does not verify."""
    parser = _Parser(text, "<ir>")
    made = parser.func()
    parser.end()
    return made


def parse_type(text: str) -> Type:
    """One type. Raises ParseError."""
    parser = _Parser(text, "<type>")
    found = parser.type()
    parser.end()
    return found


class _Parser:
    """A place in the text (the token that starts there) and the values defined so far."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.values: dict[str, Value] = {}
        self.scope: set[str] = set()  # names that cannot be defined again here
        self.starts = [0, *(m.end() for m in re.finditer("\n", text))]
        self.pos = self.stop = 0
        self.kind = self.token = ""
        self.jump(0)

    # --- tokens -----------------------------------------------------------------------------------

    def jump(self, pos: int) -> None:
        """Make the token at or after `pos` the current one."""
        space = _SPACE.match(self.text, pos)
        self.pos = space.end() if space else pos
        found = _TOKEN.match(self.text, self.pos)
        if found is not None:
            self.kind, self.token, self.stop = found.lastgroup or "", found.group(), found.end()
        elif self.pos == len(self.text):
            self.kind, self.token, self.stop = "end", "", self.pos
        else:
            self.kind, self.token, self.stop = "bad", self.text[self.pos], self.pos + 1

    def take(self) -> str:
        """The current token; steps over it."""
        token = self.token
        self.jump(self.stop)
        return token

    def accept(self, token: str) -> bool:
        """Step over `token` if it is the current one."""
        if self.token != token or self.kind == "string":
            return False
        self.jump(self.stop)
        return True

    def expect(self, token: str) -> None:
        if not self.accept(token):
            self.fail(f"expected {token!r}, found {self.found()}")

    def word(self, what: str) -> str:
        if self.kind != "word":
            self.fail(f"expected {what}, found {self.found()}")
        return self.take()

    def found(self) -> str:
        return "the end of the text" if self.kind == "end" else repr(self.token)

    def end(self) -> None:
        if self.kind != "end":
            self.fail(f"expected the end of the text, found {self.found()}")

    def listed(self, close: str, read: Callable[[], Item]) -> tuple[Item, ...]:
        """What `read` reads up to the mark `close`, with or without commas between."""
        found = []
        while not self.accept(close):
            found.append(read())
            self.accept(",")
        return tuple(found)

    def loc(self) -> Loc:
        line = bisect_right(self.starts, self.pos)
        column = self.pos - self.starts[line - 1]
        return Loc(self.file, line, column, column + max(len(self.token), 1))

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        if at is not None:
            self.jump(at)
        loc = self.loc()
        shown = self.text[self.starts[loc.line - 1] :].split("\n", 1)[0]
        raise ParseError(f"{message}\n    {shown}\n    {' ' * loc.col}^", loc)

    # --- structure --------------------------------------------------------------------------------

    def func(self) -> Func:
        loc = self.loc()
        self.expect("kernel")
        if self.kind != "symbol":
            self.fail(f"expected the kernel's @name, found {self.found()}")
        name = self.take()[1:]
        attrs = self.listed("}", self.named_attribute) if self.accept("{") else ()
        self.expect("(")
        params = self.listed(")", self.param)
        blocks = []
        for part in ("grid", "body"):
            self.expect(part)
            blocks.append(self.region())
        return Func(name, params, blocks[0], blocks[1], dict(attrs), loc)

    def named_attribute(self) -> tuple[str, Any]:
        key = self.word("an attribute's name")
        self.expect("=")
        return key, self.attribute()

    def param(self) -> Param:
        value = self.declared()
        self.expect("=")
        role = self.word("the parameter's role")
        arg = self.word("the argument it comes from")
        dim = int(self.take()) if self.kind == "number" else -1
        return Param(value, role, arg, dim)

    def declared(self) -> Value:
        """`%name: type`, a new value."""
        at, name = self.pos, self.new_name()
        self.expect(":")
        return self.define(name, self.type(), at)

    def new_name(self) -> str:
        if self.kind != "value":
            self.fail(f"expected a %value, found {self.found()}")
        return self.take()[1:]

    def define(self, name: str, type: Type, at: int, called: str | None = None) -> Value:
        if name in self.scope:
            self.fail(f"%{name} is defined twice", at)
        self.scope.add(name)
        kept = ("" if name.isdecimal() else name) if called is None else called
        made = self.values[name] = Value(type, kept)
        return made

    def use(self) -> Value:
        if self.kind != "value":
            self.fail(f"expected a %value, found {self.found()}")
        found = self.values.get(self.token[1:])
        if found is None:
            near = did_you_mean(self.token, [f"%{n}" for n in self.values])
            self.fail(f"{self.token} is not defined{near}")
        self.jump(self.stop)
        return found

    def region(self) -> Block:
        """`(%i: i32, …) { ops }`. Its names may be defined again afterwards."""
        outer, self.scope = self.scope, set(self.scope)
        args = self.listed(")", self.declared) if self.accept("(") else ()
        self.expect("{")
        ops: list[Op] = []
        while not self.accept("}"):
            ops.append(self.op())
        self.scope = outer
        return Block(args, tuple(ops))

    # --- ops --------------------------------------------------------------------------------------

    def op(self) -> Op:
        names: list[tuple[int, str]] = []
        if self.kind == "value":
            names.append((self.pos, self.new_name()))
            while self.accept(","):
                names.append((self.pos, self.new_name()))
            self.expect("=")
        loc, at = self.loc(), self.pos
        opname, _, op_kind = self.word("an op").partition(".")
        cls = OPS.get(opname)
        if cls is None:
            self.fail(f"there is no op {opname!r}{did_you_mean(opname, OPS)}", at)
        form = op_form(cls)  # type: ignore[arg-type]
        fields: dict[str, Any] = {}
        if form.has_kind:
            fields["kind"] = op_kind
        if form.has_kind != bool(op_kind):
            self.fail(f"{opname} takes {'a' if form.has_kind else 'no'} kind ({opname}.kind)", at)
        for f in form.fields:
            if f.positional:
                fields[f.name] = self.field(f)
                self.accept(",")
        self.named_fields(form.fields, opname, fields)
        regions: dict[str, Any] = {name: Block() for name in form.regions}
        while self.kind == "word" and self.token in regions:
            name = self.take()
            regions[name] = self.region()
        made = cls(**fields, **regions, loc=loc)
        types = self.result_types(made)
        if len(types) != len(names):
            self.fail(f"{opname} has {len(types)} results, {len(names)} are named", at)
        results = []
        for (where, name), t in zip(names, types):
            results.append(self.define(name, t, where, self.called(name, made)))
        made.results = tuple(results)  # type: ignore[misc]
        return made

    def called(self, name: str, o: Op) -> str | None:
        """ "" for a constant that only bears its value's name (the printer will give it again)."""
        if isinstance(o, Const) and re.fullmatch(rf"c{o.value}(_\d+)?", name):
            return ""
        return None

    def named_fields(
        self, forms: tuple[FieldForm, ...], opname: str, fields: dict[str, Any]
    ) -> None:
        known = {f.name: f for f in forms if not f.positional}
        while self.kind == "word" and self.text[self.stop : self.stop + 1] == "=":
            f = known.get(self.token)
            if f is None:
                near = did_you_mean(self.token, known)
                self.fail(f"{opname} has no optional field {self.token!r}{near}")
            self.take()
            self.expect("=")
            fields[f.name] = self.field(f)
            self.accept(",")

    def field(self, f: FieldForm) -> Any:
        if f.role == "value":
            return None if self.accept("none") else self.use()
        if f.role == "values":
            return self.listed("]", self.use) if self.accept("[") else ()
        if f.role == "region":
            return self.box()
        if f.role == "types":
            return self.listed(")", self.type) if self.accept("(") else self.type()
        if f.role == "word" and self.kind == "word":
            return self.take()
        return self.attribute()

    def box(self) -> Region:
        """`%A[%i, %j], (64, 32)`."""
        buffer = self.use()
        offsets = self.listed("]", self.use) if self.accept("[") else ()
        self.accept(",")
        return Region(buffer, offsets, self.attribute())

    def result_types(self, o: Op) -> tuple[Type, ...]:
        if not self.accept(":"):
            try:
                return tuple(o.infer())
            except (TilecError, AttributeError, ValueError) as error:
                self.fail(f"cannot infer the result of {o.opname}: {error}")
        found = [self.type()]
        while self.accept(","):
            found.append(self.type())
        return tuple(found)

    # --- attributes and types ---------------------------------------------------------------------

    def attribute(self) -> Any:
        match self.kind:
            case "number":
                token = self.take()
                return int(token) if _INTEGER.fullmatch(token.lstrip("-")) else float(token)
            case "string":
                return json.loads(self.take())
            case "mark":
                return self.collection()
            case "word" if self.text[self.stop : self.stop + 1] == "<":
                return self.bracketed()
            case "word" if self.token in _CONSTANTS:
                return _CONSTANTS[self.take()]
            case "word" if self.token == "opaque":
                self.take()
                self.expect("(")
                made = Opaque(self.attribute())
                self.expect(")")
                return made
            case "word" if self.token == "places":
                self.take()
                return Places(self.region())
            case "word":
                return self.dtype(self.token)
        self.fail(f"expected an attribute, found {self.found()}")

    def collection(self) -> Any:
        if self.token == "<":
            return self.type()
        if self.accept("{"):
            return dict(self.listed("}", self.pair))
        if self.accept("("):
            return self.listed(")", self.attribute)
        if self.accept("["):
            return list(self.listed("]", self.attribute))
        self.fail(f"expected an attribute, found {self.found()}")

    def pair(self) -> tuple[Any, Any]:
        key = self.attribute()
        self.expect(":")
        return key, self.attribute()

    def dtype(self, name: str, at: int | None = None) -> DType:
        """The dtype called `name`; steps over it where it is the current token."""
        found = SHORT_NAMES.get(name)
        if found is None:
            self.fail(f"there is no dtype {name!r}{did_you_mean(name, SHORT_NAMES)}", at)
        if at is None:
            self.take()
        return found

    def bracketed(self) -> Layout | LayoutRequest | Type:
        """`layout<…>`, `layout_request<name>` or a type."""
        if self.token not in ("layout", "layout_request"):
            return self.type()
        word, start = self.token, self.stop + 1
        stop = self.balanced(start)
        if word == "layout":
            made: Layout | LayoutRequest = self.parse_layout(start, stop)
        else:
            made = LayoutRequest(self.text[start:stop])
        self.jump(stop + 1)
        return made

    def parse_layout(self, start: int, stop: int) -> Layout:
        try:
            return Layout.parse(self.text[start:stop])
        except ValueError as error:
            self.fail(f"not a layout: {error}", start)

    def balanced(self, start: int) -> int:
        """The place of the `>` that closes the bracket opened just before `start`."""
        depth = 0
        for at in range(start, len(self.text)):
            c = self.text[at]
            if c in "([{<":
                depth += 1
            elif c in ")]}>" and self.text[at - 1 : at + 1] != "->":
                if depth == 0:
                    return at
                depth -= 1
        self.fail("'<' is never closed", start - 1)

    def type(self) -> Type:
        at, word, after = self.pos, self.token, self.stop
        if word == "<":
            vector = _VECTOR.match(self.text, at)
            if vector is None:
                self.fail("expected a vector type such as <4 x f16>")
            self.jump(vector.end())
            return VectorType(self.dtype(vector[2], at), int(vector[1]))
        if self.kind != "word":
            self.fail(f"expected a type, found {self.found()}")
        if self.text[after : after + 1] != "<":
            return ScalarType(self.dtype(word))
        if word == "scalar":
            self.jump(after + 1)
            made = ScalarType(self.dtype(self.token))
            self.expect(">")
            return made
        if word == "tensor_map":
            return self.tensor_map(at, after)
        return self.buffer(word, after + 1)

    def tensor_map(self, at: int, after: int) -> TensorMapType:
        m = _TENSOR_MAP.match(self.text, after)
        if m is None:
            self.fail("expected tensor_map<name[dims], box=AxB, swizzle=N, dtype>")
        self.jump(m.end())
        dims = tuple(int(d) for d in m[2].split(",") if d)
        box = tuple(int(d) for d in m[3].split("x") if d)
        view = tuple(int(d) for d in (m[6] or "").split("x") if d)
        return TensorMapType(m[1], dims, box, int(m[4]), self.dtype(m[5], at), view)

    def buffer(self, space: str, at: int) -> BufferType:
        """The rest of a buffer type: `64x32xf16>` or `M x 8 x f16, align=4, layout=…>`."""
        dims = _DIMS.match(self.text, at)
        assert dims is not None  # it matches the empty text
        *shape, dtype = re.split(r"\s+x\s+" if " x " in dims[1] else "x", dims[1].strip())
        options: dict[str, Any] = {}
        pos = dims.end()
        element = self.dtype(dtype, at)
        while option := _OPTION.match(self.text, pos):
            name, pos = option[1], option.end()
            if name == "layout":
                stop = self.balanced(pos)
                options[name] = self.parse_layout(pos, stop)
                pos = stop
                continue
            self.jump(pos)
            if name == "strides":
                self.expect("[")
                strides: list[Extent] = []
                while self.token != "]":
                    strides.append(_extent(self.take()))
                    self.accept(",")
                options[name] = tuple(strides)
            elif self.kind == "number":
                options[name] = int(self.token)
            else:
                self.fail(f"expected a number, found {self.found()}")
            pos = self.stop
        self.jump(pos)
        self.expect(">")
        return BufferType(tuple(map(_extent, shape)), element, space, **options)


def _extent(text: str) -> Extent:
    return int(text) if _INTEGER.fullmatch(text) else text
