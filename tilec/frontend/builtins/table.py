"""The table of builtins: which function of `tilec.language` is handled by which function here.

A handler takes the tracer and a `Call` (arguments bound by the builtin's own signature, so that the
language stays the one place that names them) and returns the call's value.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from tilec import language as T
from tilec.builtins import foreign
from tilec.frontend.arithmetic import static_int
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import Number, Scalar, Tile, describe
from tilec.ir.core import Op
from tilec.ir.errors import CompileError, did_you_mean
from tilec.ir.types import DTYPES, DType, find_dtype

# Keywords that the builtins of other systems have and ours will get.
LATER_KEYWORDS: dict[str, frozenset[str]] = {
    "gemm": frozenset({"wg_wait", "mbar"}),
    "Kernel": frozenset({"is_cpu"}),
    "Parallel": frozenset({"prefer_async"}),
    "Pipelined": frozenset({"sync"}),
    "unroll": frozenset({"explicit", "unroll_factor"}),
    "print": frozenset({"warp_group_id", "warp_id"}),
}


# What is said of builtins that stand in T.Parallel, by what they are of.
_OUTSIDE = {
    "tiles": (
        "works on whole tiles and cannot stand in",
        "move it out of the loop, or assign elements: dst[i, j] = src[i, j]",
    ),
    "threads": (
        "cannot stand in",
        "its iterations are not bound to threads; write it in front of the loop or behind it",
    ),
    "indices": (
        "cannot stand in",
        "its iterations are not bound to threads; ask for the index before the loop",
    ),
    "memory": ("cannot stand in", "write it in front of the loop"),
}


@dataclass(frozen=True)
class Call:
    """A call of a builtin, which `t` traces: `values` are its arguments by parameter name, defaults
    filled in; `nodes` the syntax of those that were written. What reads an argument says so where
    it is none of the kind."""

    t: Expressions
    builtin: str
    node: ast.Call
    values: Mapping[str, Any]
    nodes: Mapping[str, ast.expr]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def but(self, **values: Any) -> Call:
        """The call with other arguments."""
        return replace(self, values={**self.values, **values})

    def place(self, name: str) -> ast.AST:
        """Where an argument stands (the call, if it was left out)."""
        return self.nodes.get(name, self.node)

    def wrong(self, name: str, said: str, hint: str) -> CompileError:
        """The error that says what argument `name` is ("is 3, the most is 2"), where it stands."""
        return self.t.error(f"{name} of T.{self.builtin} {said}", hint, self.place(name))

    def of(self, what: str) -> None:
        """Raise CompileError in T.Parallel, where nothing of such words as
        "tiles" and "threads" can stand."""
        if self.t.parallel is not None:
            said, hint = _OUTSIDE[what]
            line = f"T.Parallel (line {self.t.parallel.line})"
            raise self.t.error(f"T.{self.builtin} {said} {line}", hint)

    def alone(self) -> None:
        """Raise CompileError but at the top level of a kernel."""
        if self.t.parallel is not None or len(self.t.builders) > 1:
            message = f"T.{self.builtin} stands at the top level of a kernel, in no loop or if"
            raise self.t.error(message, "move it up, right below with T.Kernel")

    def several(self, name: str) -> tuple[Any, ...]:
        """The items of a tuple or list; what is none is an only one."""
        value = self[name]
        return tuple(value) if isinstance(value, tuple | list) else (value,)

    def text(self, name: str, hint: str) -> str:
        """A string."""
        value = self[name]
        if isinstance(value, str):
            return value
        raise self.wrong(name, f"is {describe(value)}, not a string", hint)

    def message(self, hint: str) -> str:
        """The string `msg` of a builtin whose arguments are syntax, "" where it is left out."""
        node = self.nodes.get("msg")
        return "" if node is None else self.but(msg=self.t.expression(node)).text("msg", hint)

    def tiles(self) -> tuple[Tile, Tile]:
        """Both sides of a copy."""
        return self.t.tiles(self["src"], self["dst"], (self.place("src"), self.place("dst")))

    def integer(self, name: str, least: int) -> int:
        """A compile-time int that is at least `least`."""
        found = static_int(self[name])
        if found is None:
            said = f"must be a compile-time int, it is {describe(self[name])}"
            raise self.wrong(name, said, "write an int, or a parameter annotated T.constexpr")
        if found < least:
            said = f"is {found}, the least is {least}"
            raise self.wrong(name, said, f"write {name}={least} or more")
        return found

    def flag(self, name: str) -> bool:
        """A compile-time bool."""
        value = self[name]
        if isinstance(value, bool) or value in (0, 1):
            return bool(value)
        said = f"must be True or False, it is {describe(value)}"
        raise self.wrong(name, said, f"write {name}=True")

    def dtype(self, name: str) -> DType:
        """A dtype, or the name of one."""
        return dtype_at(self.t, self[name], self.place(name))

    def number(self, name: str) -> Number:
        """A number."""
        return self.t.number(self[name], f"{name} of T.{self.builtin}", self.place(name))

    def whole(self, name: str, hint: str, why: str = ", not an int") -> bool | int | Scalar:
        """A number that is no float, known now or at run time; `why` it cannot be one."""
        found = self.number(name)
        if isinstance(found, float) or (isinstance(found, Scalar) and found.dtype.is_float):
            raise self.wrong(name, f"is {describe(found)}{why}", hint)
        return found

    def axis(self, name: str) -> int:
        """A dimension of the grid, or of a block."""
        dim = self.integer(name, 0)
        if dim > 2:
            said = f"is {dim}; a grid has axes 0, 1 and 2"
            raise self.wrong(name, said, f"write T.{self.builtin}(0)")
        return dim

    def shape(self, name: str) -> tuple[int, ...]:
        """Compile-time extents of at least one."""
        what, entries = f"an extent of T.{self.builtin}", self.several(name)
        written = self.place(name)
        nodes = written.elts if isinstance(written, ast.Tuple | ast.List) else ()
        shape = []
        for d, e in enumerate(entries):
            place = nodes[d] if len(nodes) == len(entries) else written
            found = static_int(e)
            if found is None:
                hint = "use an int, a T.constexpr parameter or a closure value"
                if isinstance(e, float):
                    hint = "write // instead of /" if e.is_integer() else "write an int"
                elif isinstance(e, str):
                    hint = f'the shape stands first: T.{self.builtin}((64, 64), "{e}")'
                message = f"{what} is {describe(e)}; tiles have compile-time extents"
                raise self.t.error(message, hint, place)
            if found < 1:
                raise self.t.error(f"{what} is {found}, the least is 1", "write at least 1", place)
            shape.append(found)
        if not shape:
            message = f"T.{self.builtin} needs at least one extent"
            raise self.t.error(message, "write (1,) for one element", self.place(name))
        return tuple(shape)

    def cluster(self, name: str, hint: str, most: int | None = None) -> tuple[int, ...]:
        """One to three compile-time ints of at least 1, and of at most `most` in all."""
        given = self.several(name)
        sizes = tuple(s for s in map(static_int, given) if s is not None and s > 0)
        fits = most is None or math.prod(sizes) <= most
        if fits and len(sizes) == len(given) and 1 <= len(sizes) <= 3:
            return sizes
        raise self.wrong(name, f"is {describe(self[name])}", hint)

    def choice(self, name: str, known: tuple[str, ...]) -> str:
        """One of a few strings."""
        value = self[name]
        if value in known:
            return str(value)
        near = did_you_mean(value, known) if isinstance(value, str) else ""
        listed = ", ".join(map(repr, known))
        raise self.wrong(name, f"is {describe(value)}{near}", f"one of {listed}")


Handler = Callable[[Any, Call], object]


@dataclass(frozen=True)
class Builtin:
    """`raw`: arguments stay syntax; the handler evaluates them. `of`: see `Call.of`."""

    name: str
    handler: Handler
    raw: bool = False
    of: str = ""

    def __call__(self, c: Call) -> object:
        if self.of:
            c.of(self.of)
        return self.handler(c.t, c)


BUILTINS: dict[Callable[..., Any], Builtin] = {}


def builtin(
    *functions: Callable[..., Any], raw: bool = False, of: str = ""
) -> Callable[[Handler], Handler]:
    """Make the decorated function the handler of builtins of the language."""

    def register(handler: Handler) -> Handler:
        BUILTINS.update((f, Builtin(f.__name__, handler, raw, of)) for f in functions)
        return handler

    return register


def named(pattern: str, names: Iterable[str]) -> Iterator[Callable[..., Any]]:
    """The builtins whose names are those of a kind, "reduce_{}", say."""
    return (getattr(T, pattern.format(name)) for name in names)


def emits(op: type[Op], *fields: Callable[[Call], object]) -> Handler:
    """The handler of a builtin that is an op, whose fields are read from the call."""

    def handler(t: Expressions, c: Call) -> None:
        t.emit(op, *(read(c) for read in fields))

    return handler


def traced(t: Expressions, function: Callable[..., Any], *values: object) -> Scalar:
    """The number that a function in the language of kernels gives."""
    return t.run_time(t.number(t.trace_function(function, [*values], {}), "the result"))


class Parameters(NamedTuple):
    """The names of a function's parameters that take one argument, and of the one that takes the
    rest; the defaults of all."""

    names: tuple[str, ...]
    rest: str | None
    defaults: Mapping[str, Any]


def parameters_of(function: Callable[..., Any]) -> Parameters:
    found = inspect.signature(function).parameters.values()
    names = tuple(p.name for p in found if p.kind is not p.VAR_POSITIONAL)
    rest = next((p.name for p in found if p.kind is p.VAR_POSITIONAL), None)
    return Parameters(names, rest, {p.name: p.default for p in found})


of_builtin = cache(parameters_of)


def bind_call(
    t: Expressions,
    shown: str,
    builtin: str,
    parameters: Parameters,
    node: ast.Call,
    raw: bool = False,
) -> Call:
    """Bind a call's arguments to parameters. `shown` names the builtin in messages ("T.copy").

    Raises CompileError for a wrong count, an unknown keyword, an argument given twice.
    """
    names, rest, defaults = parameters
    empty = inspect.Parameter.empty
    values: dict[str, Any] = {}
    nodes: dict[str, ast.expr] = {}
    if rest is not None:
        every = [*defaults]
        lead = every[: every.index(rest)]
        nodes.update(zip(lead, node.args))
        values[rest] = tuple(t.elements(node.args[len(lead) :]))
    else:
        if len(node.args) > len(names):
            listed = ", ".join(names) or "none"
            needed = ", ".join(n for n, default in defaults.items() if default is empty)
            message = (
                f"{shown} takes at most {len(names)} argument{'s' * (len(names) != 1)} "
                f"({listed}), {len(node.args)} were given"
            )
            raise t.error(message, f"write {shown}({needed})", node.args[len(names)])
        for name, arg in zip(names, node.args):
            nodes[name] = arg
    for keyword in node.keywords:
        name = keyword.arg or "**"
        if name not in names:
            if name in LATER_KEYWORDS.get(builtin, ()):
                raise t.error(f"{shown}({name}=…) is not supported yet", "leave it out", keyword)
            meant, hint = foreign.meant_keyword(builtin, name)
            near = f"; did you mean {meant!r}?" if meant else did_you_mean(name, names)
            hint = hint or f"it has: {', '.join(names)}"
            raise t.error(f"{shown} has no keyword {name!r}{near}", hint, keyword)
        if name in nodes:
            raise t.error(f"{shown}: {name} is given twice", "leave one out", keyword)
        nodes[name] = keyword.value
    for name, default in defaults.items():
        if name in nodes:
            values[name] = None if raw else t.expression(nodes[name])
        elif default is not empty:
            values[name] = default
        elif name != rest:
            listed = ", ".join(n for n, default in defaults.items() if default is empty)
            raise t.error(f"{shown} needs the argument {name!r}", f"write {shown}({listed})")
    return Call(t, builtin, node, values, nodes)


def dtype_at(t: Expressions, value: object, place: ast.AST) -> DType:
    """The dtype that `value`, written at `place`, is or names."""
    found = find_dtype(value) if isinstance(value, str | DType) else None
    if found is not None:
        return found
    meant = foreign.meant_dtype(value)
    near = f"; did you mean {meant!r}?" if meant else did_you_mean(str(value), DTYPES)
    raise t.error(f"{describe(value)} is not a dtype{near}", f"known: {', '.join(DTYPES)}", place)
