"""Getting at the user's source: the syntax tree of a function, with the lines and columns of its
file."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilec.frontend.generators import write_loops
from tilec.frontend.plain_syntax import simplify_syntax
from tilec.ir.errors import CompileError
from tilec.ir.lines import file_lines, function_lines
from tilec.ir.loc import Loc
from tilec.support.syntax import nodes

_READ = "__tilec_source__"


@dataclass(frozen=True)
class Source:
    """A function's syntax tree, and the values its free names had when it was read.

    `cells` are the closure's names, `enclosing` what else the enclosing function had, both asked
    before `globals`. `places` are the lines and columns that were asked for before, `written` the
    programs that loops were turned into: a kernel with open arguments is traced dozens of times.
    """

    function: Callable[..., Any]
    file: str
    node: ast.FunctionDef
    lines: tuple[str, ...]
    first_line: int
    cells: Mapping[str, types.CellType]
    globals: Mapping[str, Any]
    enclosing: Mapping[str, Any]
    places: dict[ast.AST, Loc] = field(default_factory=dict, repr=False)
    written: dict[Any, tuple[ast.With, dict[str, object]]] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return self.node.name

    def loc(self, node: ast.AST, caller: Loc | None = None) -> Loc:
        """Where `node` stands; a node of several lines is shown up to the end of its first."""
        place = self.places.get(node)
        if place is None:
            place = self.places[node] = Loc(self.file, *self._place(node))
        if caller is None:
            return place
        return Loc(self.file, place.line, place.col, place.end_col, caller)

    def _place(self, node: ast.AST) -> tuple[int, int, int]:
        """Line, first column, end of a node."""
        line = getattr(node, "lineno", self.node.lineno)
        text = self.line(line)
        start = _characters(text, getattr(node, "col_offset", 0))
        end = len(text)
        if getattr(node, "end_lineno", line) == line:
            end = _characters(text, getattr(node, "end_col_offset", 0))
        return line, start, end

    def header_loc(self) -> Loc:
        """The `def` and the name."""
        line, col = self.node.lineno, self.node.col_offset
        return Loc(self.file, line, col, col + len(f"def {self.name}"))

    def decorator_loc(self, keyword: str) -> Loc:
        """The value of a decorator's `keyword=`; the header where there is none."""
        for decorator in self.node.decorator_list:
            for k in decorator.keywords if isinstance(decorator, ast.Call) else ():
                if k.arg == keyword:
                    return self.loc(k.value)
        return self.header_loc()

    def line(self, number: int) -> str:
        index = number - self.first_line
        return self.lines[index] if 0 <= index < len(self.lines) else ""

    def lookup(self, name: str) -> tuple[bool, Any]:
        """(found, value) of a free name: closure, what else the enclosing function had when the
        kernel was decorated, then globals, then Python's builtins."""
        if name in self.cells:
            try:
                return True, self.cells[name].cell_contents
            except ValueError:  # not assigned yet, e.g. the kernel's own name inside itself
                return False, None
        for values in (self.enclosing, self.globals):
            if name in values:
                return True, values[name]
        if hasattr(builtins, name):
            return True, getattr(builtins, name)
        return False, None

    @functools.cached_property
    def _used_names(self) -> frozenset[str]:
        names = (
            n.id if isinstance(n, ast.Name) else n.arg
            for n in nodes(self.node)
            if isinstance(n, ast.Name | ast.arg)
        )
        return frozenset(names)

    def used_names(self) -> set[str]:
        """All names that stand in the function, its parameters' too."""
        return {*self._used_names}

    def visible_names(self) -> set[str]:
        return {*self.cells, *self.enclosing, *self.globals}


def read_source(function: Callable[..., Any], unwrap: bool = True) -> Source:
    """The source of `function`, parsed once and kept with it; `unwrap`: of what decorators wrap.

    Works wherever Python can show the source: files, notebooks, doctests, code registered with
    `linecache`. Raises CompileError for anything but a plain `def`, and where there is no source.
    """
    function = inspect.unwrap(function) if unwrap else function
    code = getattr(function, "__code__", None)
    known = _known(function, code)
    if known is not None:
        return known
    if code is None:
        message = f"{function!r} is not a function, so it cannot be a kernel"
        raise CompileError(message, hint="write @tilec.kernel above a def")
    if function.__name__ == "<lambda>":
        raise CompileError("a lambda cannot be a kernel", hint="write it with def")
    file, start = code.co_filename, code.co_firstlineno
    lines = function_lines(function)
    if not lines:
        hint = "define the kernel in a file or a notebook cell"
        raise CompileError(f"the source of {function.__name__} cannot be read ({file})", hint=hint)
    # A function inside another is indented: a statement put before it keeps columns as they are.
    indented = lines[0][:1].isspace()
    text = "".join(lines)
    try:
        tree = ast.parse(f"if 1:\n{text}" if indented else text, filename=file)
    except SyntaxError as e:
        message = f"the source of {function.__name__} cannot be parsed: {e.msg}"
        raise CompileError(message, hint="write the kernel as a def of its own") from None
    ast.increment_lineno(tree, start - (2 if indented else 1))
    body = tree.body[0].body if isinstance(tree.body[0], ast.If) else tree.body
    cells = dict(zip(code.co_freevars, function.__closure__ or ()))
    shown = tuple(line.rstrip("\n") for line in lines)
    node = body[0]
    if not isinstance(node, ast.FunctionDef):
        loc = Loc(file, start, 0, len(shown[0]))
        hint = "write def instead of async def"
        raise CompileError("a kernel must be a plain function, not async", loc, hint)
    simplify_syntax(node)
    write_loops(node, lambda n: n not in cells and n not in function.__globals__)
    enclosing = getattr(function, "__tilec_locals__", {})
    read = Source(function, file, node, shown, start, cells, function.__globals__, enclosing)
    function.__dict__[_READ] = code, read
    return read


def _known(function: Callable[..., Any], code: types.CodeType | None) -> Source | None:
    """What was read before of `function`, if it has the `code` that it had then."""
    of, source = getattr(function, "__dict__", {}).get(_READ, (None, None))
    return source if of is code else None


def lambda_source(function: Callable[..., Any]) -> Source | None:
    """The source of a lambda, as that of a function with one `return`; None where it cannot be told
    from others in its line."""
    code, lines = function.__code__, file_lines(function)
    known = _known(function, code)
    if known is not None:
        return known
    try:
        tree = ast.parse("".join(lines), filename=code.co_filename)
    except SyntaxError:
        return None
    columns = {(line, col) for line, _, col, _ in code.co_positions() if line and col is not None}
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Lambda)
        and node.lineno == code.co_firstlineno
        and [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        == list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
        and (node.body.lineno, node.body.col_offset) in columns
    ]
    if len(found) != 1:
        return None
    shown = tuple(line.rstrip("\n") for line in lines[code.co_firstlineno - 1 :])
    cells = dict(zip(code.co_freevars, function.__closure__ or ()))
    made = as_function(found[0])
    first, globals_ = code.co_firstlineno, function.__globals__
    read = Source(function, code.co_filename, made, shown, first, cells, globals_, {})
    function.__dict__[_READ] = code, read
    return read


def as_function(node: ast.Lambda) -> ast.FunctionDef:
    """A lambda written as a `def`."""
    body: list[ast.stmt] = [ast.copy_location(ast.Return(node.body), node.body)]
    made = ast.FunctionDef("lambda", node.args, body, [])
    return ast.copy_location(made, node)


def _characters(line: str, utf8_bytes: int) -> int:
    """Column in characters of a column in UTF-8 bytes, as `ast` counts them."""
    if line.isascii():
        return utf8_bytes
    return len(line.encode()[:utf8_bytes].decode(errors="ignore"))


# --- annotations ---
#
# `Annotated[Any, T.Tensor((M, N), "float16")]`: Python's own way to say more of a parameter than
# its type, which type checkers read past. The kernel reads what is said.


def said_of(annotation: object) -> object:
    """What an annotation says to a kernel: of `Annotated` the first that is no text, else the
    type; any other as it is."""
    if typing.get_origin(annotation) is not typing.Annotated:
        return annotation
    (of, *said) = typing.get_args(annotation)
    return next((x for x in said if not isinstance(x, str)), of)


def said_at(node: ast.expr) -> ast.expr:
    """The same of an annotation's syntax."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple):
        return node
    match node.value:
        case ast.Name(id="Annotated") | ast.Attribute(attr="Annotated"):
            (of, *said) = node.slice.elts
            text = (x for x in said if not isinstance(x, ast.Constant))
            return next(text, of)
    return node
