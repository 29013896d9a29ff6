"""What a kernel takes from outside: which names its text asks for, and whether what they stand for
is still the same.

A kernel is compiled with the values that its names have at that time: of its module, its closure,
the macros it calls and what these name. `Reads` notes where each value was found. Values that
cannot change are compared by which object it is, containers that can by which objects they hold,
arrays by their elements.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import dataclasses
import enum
import importlib.util
import sys
import types
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilec.ir.types import DType
from tilec.support.syntax import nodes

_MISSING = object()

_Place = tuple[int, int]  # a line and a column
_PLAIN = (
    bool, int, float, complex, str, bytes, type(None), tuple, list, dict, set, frozenset, enum.Enum,
    DType,
)  # fmt: skip


@dataclass(frozen=True)
class Outside:
    """The names that a function asks its surroundings for, and for each, and for "package.module",
    the attributes that it asks of it; those in `whole` it also uses otherwise. `imports`: for each
    name that an import inside of it binds, the module and what is taken of it ("": itself)."""

    names: tuple[str, ...]
    attributes: Mapping[str, tuple[str, ...]]
    whole: frozenset[str]
    imports: Mapping[str, tuple[str, str]]


def outside_of(node: ast.FunctionDef, function: Any) -> Outside:
    """What `function`, written as `node`, takes from outside when it is compiled.

    The text counts, not only the code: Python drops the annotations of local names, and keeps
    those of `from __future__ import annotations` as text. Decorators, defaults and annotations that
    Python has evaluated have done their work.
    """
    code = function.__code__
    local = {*code.co_varnames, *code.co_cellvars}
    read, inner = set[str](), set[str]()
    for c in _codes(code):
        read.update(c.co_names, c.co_freevars)
        if c is not code:
            inner.update(c.co_varnames, c.co_cellvars)
    # Less the names of a comprehension or a lambda.
    hidden = (local - _read_first(node)) | (inner - read)
    found = [*_nodes(node, function.__annotations__)]
    imports = dict(_imports(found, function.__globals__.get("__package__") or ""))
    hidden -= imports.keys()
    names, attributes = set[str](), dict[str, set[str]]()
    uses = collections.Counter[str]()  # otherwise than for an attribute
    for n in found:
        match n:
            case ast.Name(id=name) if name not in hidden:
                names.add(name)
                uses[name] += 1
            case ast.Attribute(value=owner, attr=attr):
                dotted = _dotted(owner)
                if dotted and dotted.split(".", 1)[0] not in hidden:
                    attributes.setdefault(dotted, set()).add(attr)
                    uses[f"{dotted}.{attr}"] += 1
                    uses[dotted] -= 1
    return Outside(
        tuple(sorted(names)),
        {n: tuple(sorted(a)) for n, a in attributes.items()},
        frozenset(n for n, count in uses.items() if count > 0),
        imports,
    )


def _imports(found: list[ast.AST], package: str) -> Iterator[tuple[str, tuple[str, str]]]:
    for n in found:
        match n:
            case ast.Import():
                for alias in n.names:
                    yield alias.asname or alias.name, (alias.name, "")
                    if not alias.asname:  # `import package.module` binds `package`
                        top = alias.name.split(".", 1)[0]
                        yield top, (top, "")
            case ast.ImportFrom():
                with contextlib.suppress(ImportError):  # Python will say so
                    of = importlib.util.resolve_name("." * n.level + (n.module or ""), package)
                    yield from ((a.asname or a.name, (of, a.name)) for a in n.names)


def _dotted(node: ast.expr) -> str:
    """A name, or one of a module in a package: "package.module"; "" for anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=owner, attr=attr) if _dotted(owner):
            return f"{_dotted(owner)}.{attr}"
    return ""


def _read_first(node: ast.FunctionDef) -> set[str]:
    """Names that may be read before the function assigns them: Python would refuse that, the front
    end takes what is outside. Places count, not lines: a loop and its body may share one."""
    parameters = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    assigned = {a.arg: (0, 0) for a in parameters}
    read: dict[str, _Place] = {}
    since: dict[ast.AST, _Place] = {}  # of names that have a value from another place on
    for n in nodes(node):
        match n:
            case ast.Name():
                places = read if isinstance(n.ctx, ast.Load) else assigned
                place = since.get(n, (n.lineno, n.col_offset))
                places[n.id] = min(place, places.get(n.id, place))
            case ast.For(target=target, iter=before):
                since.update(dict.fromkeys(nodes(target), _end(before)))
            case ast.Assign(targets=targets):
                since.update((t, _end(n)) for target in targets for t in nodes(target))
            case ast.AnnAssign(target=target):
                since[target] = _end(n)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                targets = [g.target for g in n.generators]
                begin = n.lineno, n.col_offset
                since.update((t, begin) for target in targets for t in nodes(target))
    return {name for name, place in read.items() if place < assigned.get(name, (0, 0))}


def _end(node: ast.expr | ast.stmt) -> _Place:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            yield from _codes(c)


def _nodes(node: ast.FunctionDef, annotations: Mapping[str, Any]) -> Iterator[ast.AST]:
    """The nodes that the front end evaluates; annotations that are text are parsed."""
    for written in annotations.values():
        yield from _in_text(written)
    for statement in node.body:
        for n in nodes(statement):
            yield n
            if isinstance(n, ast.AnnAssign) and isinstance(n.annotation, ast.Constant):
                yield from _in_text(n.annotation.value)


def _in_text(annotation: object) -> Iterator[ast.AST]:
    """The nodes of an annotation that is text; one in quotes, kept as text, is text twice over."""
    if isinstance(annotation, str):
        with contextlib.suppress(SyntaxError):
            tree = ast.parse(annotation, mode="eval").body
            yield from nodes(tree)
            yield from _in_text(getattr(tree, "value", None))


@dataclass(frozen=True)
class Form:
    """An array, of which nobody asks the elements."""

    array: Any


@dataclass
class Reads:
    """Where values were found, and the values: `names` in dictionaries, `cells` of closures,
    `contents` of containers, `codes` of functions."""

    names: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = field(default_factory=dict)
    cells: dict[int, tuple[types.CellType, Any]] = field(default_factory=dict)
    contents: dict[int, tuple[Any, tuple[Any, ...]]] = field(default_factory=dict)
    codes: dict[int, tuple[Any, types.CodeType]] = field(default_factory=dict)

    def name(self, space: dict[str, Any], name: str, into: dict[str, Any], known_as: str) -> None:
        """Read `space[name]`, if there is one, into `into[known_as]`."""
        value = space.get(name, _MISSING)
        self.names[id(space), name] = space, name, value
        if value is not _MISSING:
            into[known_as] = value

    def cell(self, cell: types.CellType, into: dict[str, Any], known_as: str) -> None:
        """Read a closure's cell, if it is bound, into `into[known_as]`."""
        with contextlib.suppress(ValueError):
            into[known_as] = cell.cell_contents
        self.cells[id(cell)] = cell, into.get(known_as, _MISSING)

    def content(self, container: Any) -> None:
        """Note what `container` holds."""
        self.contents[id(container)] = container, held_by(container)

    def code(self, function: Any) -> None:
        """Note what `function` does: IPython's autoreload gives it new code in its place."""
        self.codes[id(function)] = function, function.__code__

    def unchanged(self) -> bool:
        """Whether all of it is as it was found."""
        return (
            all(space.get(n, _MISSING) is v for space, n, v in self.names.values())
            and all(_content(cell) is v for cell, v in self.cells.values())
            and all(same(c, kept) for c, kept in self.contents.values())
            and all(function.__code__ is code for function, code in self.codes.values())
        )

    def test(self, module: dict[str, Any], taken: Container[str]) -> Test:
        """What to ask to know whether something is not as it was found, in a function that has the
        globals of `module` and names of its own, `taken`."""
        asked, values, cells = [], dict[str, Any](), dict[str, types.CellType]()
        spaces: dict[int, str] = {}
        for i, (space, name, value) in enumerate(self.names.values()):
            known_as = spaces.setdefault(id(space), f"space{len(spaces)}_")
            values[known_as] = space
            if value is _MISSING:
                asked.append(f"{name!r} in {known_as}")
                continue
            values[f"value{i}_"] = value
            near = space is module and name not in taken and not name.endswith("_")
            asked.append(f"{name if near else f'{known_as}[{name!r}]'} is not value{i}_")
        for i, (cell, value) in enumerate(self.cells.values()):
            if value is not _MISSING:
                cells[f"cell{i}_"], values[f"bound{i}_"] = cell, value
                asked.append(f"cell{i}_ is not bound{i}_")
        for i, (container, kept) in enumerate(self.contents.values()):
            values[f"holder{i}_"], values[f"held{i}_"] = container, kept
            asked.append(f"not same_(holder{i}_, held{i}_)")
        for i, (function, code) in enumerate(self.codes.values()):
            values[f"function{i}_"], values[f"code{i}_"] = function, code
            asked.append(f"function{i}_.__code__ is not code{i}_")
        return Test(" or ".join(asked), {**values, "same_": same}, cells)


@dataclass(frozen=True)
class Test:
    """An expression that is true, or fails, where something has changed; it is on every launch's
    way. What its names stand for: `values`, and `cells` whose content counts. "": nothing can
    change."""

    text: str
    values: Mapping[str, Any]
    cells: Mapping[str, types.CellType]


def held_by(container: Any) -> tuple[Any, ...]:
    """The objects that a container holds, or an object as its attributes; of a module those that
    are plain values; what tells that an array's elements are the same."""
    match container:
        case Mapping():
            return (*container.keys(), *container.values())
        case list() | set() | frozenset() | collections.deque():
            return tuple(container)
        case types.ModuleType():
            held = [(n, v) for n, v in vars(container).items() if is_plain(v) and n[:2] != "__"]
            return tuple(x for pair in held for x in pair)
        case Form(array):
            return (*array.shape, array.dtype)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(container, numpy.ndarray):
        return (*container.shape, container.dtype, container.tobytes())
    if dataclasses.is_dataclass(container):
        return tuple(getattr(container, f.name, None) for f in dataclasses.fields(container))
    slots = (s for kind in type(container).__mro__ for s in _slots(kind) if hasattr(container, s))
    given = getattr(container, "__dict__", {})
    return (*given.keys(), *given.values(), *(getattr(container, s) for s in slots))


def is_plain(value: object) -> bool:
    """Whether `value` is a constant, or holds some: no function, class, module, no other object."""
    return isinstance(value, _PLAIN)


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def same(container: Any, kept: tuple[Any, ...]) -> bool:
    """Whether `container` still holds the very objects in `kept`, or equal ints and bytes."""
    held = held_by(container)
    return len(held) == len(kept) and all(map(_is_one, held, kept))


def _is_one(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and type(a) in (int, bytes) and a == b)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING
