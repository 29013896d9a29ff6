"""Calls of macros, and of the functions, methods and classes of the user's: traced where they are
called, or run as the Python they are (see `plain_python`)."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import traceback
import types
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

from tilec import language as T
from tilec.builtins import foreign, formulas, maths
from tilec.frontend.arithmetic import known_as_int
from tilec.frontend.builtins.table import BUILTINS, bind_call, parameters_of
from tilec.frontend.context import Frame
from tilec.frontend.expressions import Expressions
from tilec.frontend.operators import as_operator
from tilec.frontend.plain_python import (
    at_run_time,
    changes_its_owner,
    is_library,
    is_object,
    keeps_what_it_is_given,
    needs_tracing,
)
from tilec.frontend.python_numbers import word_for
from tilec.frontend.source import Source, as_function, lambda_source, read_source
from tilec.frontend.values import Buffer, Closure, Region, Scalar, as_syntax, describe
from tilec.ir.errors import CompileError
from tilec.ir.types import FLOAT32
from tilec.support.syntax import own_names, placed

_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


# Modules whose functions give something else each time, which no key of a variant can tell.
_CHANCE = {"random", "secrets", "time", "numpy.random"}
# Methods that look for what is equal to an argument, among items or keys.
_SEEKING: dict[type, tuple[str, ...]] = {
    list: ("index", "count", "remove"), tuple: ("index", "count"),
    dict: ("get", "pop", "setdefault"),
}  # fmt: skip
MOST_DEEP = 32
"""Calls of a traced function inside of itself."""


class Functions(Expressions):
    """Calls what is the user's. `run_body` (a function's statements) is left to a subclass."""

    def run_body(self) -> object:
        """Trace the statements of the current frame's function; the value it returns."""
        raise NotImplementedError

    # --- macros -----------------------------------------------------------------------------------

    def inline(self, macro: T.Macro, node: ast.Call) -> object:
        """The macro's body, traced here with its parameters bound to the arguments."""
        source = self._source(macro.function)
        parameters = inspect.signature(source.function).parameters.values()
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
            args, kwargs = self.arguments(node)
            return self.trace_function(macro.function, args, kwargs, macro=True)
        given = parameters_of(source.function)
        bound = bind_call(self, macro.__name__, macro.__name__, given, node)
        return self._trace_body(source, bound.values, bound.nodes)

    def _source(self, function: Callable[..., Any], unwrap: bool = True) -> Source:
        try:
            return read_source(function, unwrap)
        except CompileError as e:
            hint = "write it as a def of its own, in a file or a notebook's cell"
            raise self.error(e.message.replace("a kernel", "traced"), hint) from None

    def _trace_body(
        self,
        source: Source,
        values: Mapping[str, object],
        given: Container[str],
        closure: Closure | None = None,
    ) -> object:
        """The body of a function, traced here; `values` are those of its parameters, of which the
        `given` come from a call and the others from outside. `closure` as of `Frame`."""
        values = {n: v if n in given else self.captured(n, v) for n, v in values.items()}
        if sum(f.source.function is source.function for f in self.frames) > MOST_DEEP:
            raise self.error(
                f"{source.name} calls itself on run-time values",
                "write a loop: a function recurses as far as what is known at compile time says, "
                f"{MOST_DEEP} times at most",
            )
        kept = self.loc
        references = self._references(source, values)
        for name in references:  # they are what they are now
            if isinstance(place := values[name], Region):
                values[name] = dataclasses.replace(place, named=None)
        frame = Frame(source, values, self.loc, references=references, closure=closure)
        self.frames.append(frame)
        try:
            return self.run_body()
        finally:
            self.frames.pop()
            self.loc = kept

    def _enter(self, closure: Closure, args: list[object], kwargs: dict[str, object]) -> object:
        name, signature = closure.name, closure.signature
        names = ", ".join(str(p).partition("=")[0] for p in signature.parameters.values())
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as e:
            hint = f"write {name}({names})"
            _, missing, argument = str(e).partition("missing a required ")
            if missing:
                argument = argument.removeprefix("keyword-only ").removeprefix("argument: ")
                raise self.error(f"{name} needs the argument {argument}", hint) from None
            raise self.error(
                f"{name} takes {names or 'no arguments'}; {len(args)} by place and "
                f"{', '.join(kwargs) or 'none'} by name were given",
                hint,
            ) from None
        bound.apply_defaults()
        values = {**closure.names(), **bound.arguments}
        return self._trace_body(closure.source, values, values, closure)

    def as_python(self, value: object) -> object:
        """`value`; a function written in the kernel as one that Python can call on known values."""
        if not isinstance(value, Closure):
            return value

        def called(*args: object) -> object:
            found = self._enter(value, list(args), {})
            if at_run_time(found):
                hint = "give Python's functions what is known at compile time"
                raise self.error(f"{value.name} gives {describe(found)}", hint)
            return found

        return called

    def make_closure(self, node: ast.FunctionDef) -> Closure:
        """A function written here, which sees the names that are in force here at its calls."""
        signature = inspect.Signature(list(self._parameters(node.args)))
        # A function object of its own, by which calls of itself are found.
        source = dataclasses.replace(self.frame.source, node=node, function=lambda: None)
        around = self.frame

        def names() -> dict[str, object]:
            seen = {n: v for n, v in around.names.items() if not n.startswith(".")}
            if around.closure is None:
                return seen
            own = own_names(around.source.node)
            return {**seen, **{n: v for n, v in around.closure.names().items() if n not in own}}

        return Closure(source, names, signature)

    def _parameters(self, a: ast.arguments) -> Iterator[inspect.Parameter]:
        """The parameters of a function written here, whose defaults are evaluated now."""
        kinds = inspect.Parameter
        place = [*a.posonlyargs, *a.args]
        given = [*[None] * (len(place) - len(a.defaults)), *a.defaults]
        rows: list[tuple[ast.arg, Any, ast.expr | None]] = []
        for n, (arg, default) in enumerate(zip(place, given)):
            alone = n < len(a.posonlyargs)
            kind = kinds.POSITIONAL_ONLY if alone else kinds.POSITIONAL_OR_KEYWORD
            rows.append((arg, kind, default))
        rows += [(arg, kinds.VAR_POSITIONAL, None) for arg in [a.vararg] if arg is not None]
        rows += [(arg, kinds.KEYWORD_ONLY, d) for arg, d in zip(a.kwonlyargs, a.kw_defaults)]
        rows += [(arg, kinds.VAR_KEYWORD, None) for arg in [a.kwarg] if arg is not None]
        for arg, kind, default in rows:
            value = kinds.empty if default is None else self.expression(default)
            yield kinds(arg.arg, kind, default=value)

    def _references(self, source: Source, values: Mapping[str, object]) -> frozenset[str]:
        """The parameters annotated T.Ref, which must stand for something that can be assigned."""
        found = set()
        for name, annotation in source.function.__annotations__.items():
            named = annotation.endswith("T.Ref") if isinstance(annotation, str) else False
            if annotation is not T.Ref and not named:
                continue
            value = values.get(name)
            element = isinstance(value, Region) and value.is_element
            if not element and not (isinstance(value, Buffer) and value.variable):
                message = f"{name} of {source.name} is a T.Ref, this is {describe(value)}"
                raise self.error(message, "pass an element, A[i], or a variable of T.alloc_var")
            found.add(name)
        return frozenset(found)

    # --- functions and classes of the user's ------------------------------------------------------

    def spread(self, node: ast.Call) -> ast.Call:
        """The call with what `*sequence` and `**mapping` stand for in their places."""
        if not any(isinstance(a, ast.Starred) for a in node.args) and all(
            k.arg is not None for k in node.keywords
        ):
            return node
        args: list[ast.expr] = []
        for a in node.args:
            if isinstance(a, ast.Starred):
                values = self.sequence(a.value)
                args += [ast.copy_location(as_syntax(v), a.value) for v in values]
            else:
                args.append(a)
        keywords: list[ast.keyword] = []
        for k in node.keywords:
            if k.arg is not None:
                keywords.append(k)
                continue
            value = self.expression(k.value)
            if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
                hint = "** takes apart a dict with strings as keys"
                raise self.error(f"{describe(value)} after **", hint, k.value)
            for name, v in value.items():
                constant = ast.copy_location(as_syntax(v), k.value)
                keywords.append(ast.copy_location(ast.keyword(name, constant), k.value))
        return ast.copy_location(ast.Call(node.func, args, keywords), node)

    def arguments(self, node: ast.Call) -> tuple[list[object], dict[str, object]]:
        """The arguments of a call; `*sequence` and `**mapping` give their items."""
        node = self.spread(node)
        args = [self.expression(a) for a in node.args]
        return args, {str(k.arg): self.expression(k.value) for k in node.keywords}

    def users_own(self, function: Any, node: ast.Call) -> object:
        """A call of a function, method or class of the user's, or of a Python module's."""
        args, kwargs = self.arguments(node)
        shown = ast.unparse(node.func)
        owner = type(getattr(function, "__self__", None))
        if (getattr(function, "__module__", None) or owner.__module__) in _CHANCE:
            message = (
                f"{shown}(…) would be what it is now in each launch: a kernel is compiled once"
            )
            raise self.error(
                message, "take it as a parameter; T.rng_init and T.rng_rand draw numbers"
            )
        while True:
            if isinstance(function, functools.partial):
                args = [*function.args, *args]
                kwargs = {**function.keywords, **kwargs}
                function = function.func
            elif isinstance(function, types.MethodType):
                args, function = [function.__self__, *args], function.__func__
            elif isinstance(function, Closure):
                return self._enter(function, args, kwargs)
            elif isinstance(function, T.Macro):
                return self.trace_function(function.function, args, kwargs, macro=True)
            elif is_object(function) and isinstance(function, Callable):  # type: ignore[arg-type]
                function = type(function).__call__.__get__(function)
            elif isinstance(getattr(function, "__wrapped__", None), types.FunctionType) and not (
                isinstance(function, types.FunctionType)
            ):
                function = function.__wrapped__  # of functools.cache
            else:
                break
        if isinstance(function, types.FunctionType) and function in BUILTINS:
            message = f"{shown} stands for T.{function.__name__}"
            raise self.error(message, f"write T.{function.__name__}(…) here")
        self._check_sought(shown, function, args)
        run_time = [*filter(at_run_time, (*args, *kwargs.values()))]
        traceable = isinstance(function, types.FunctionType)
        if not run_time and not (traceable and needs_tracing(function, BUILTINS)):
            return self._run_python(shown, function, args, kwargs)
        if not kwargs and (written := as_operator(function, args)) is not None:
            return self.expression(placed(written, node))
        if isinstance(getattr(function, "__self__", None), list | dict | tuple):
            return self._run_python(shown, function, args, kwargs)
        made = type(args[0]) if function is dataclasses.replace and args else function
        if isinstance(made, type) and keeps_what_it_is_given(made):
            return self._run_python(shown, function, args, kwargs)
        if traceable and not is_library(function):
            return self.trace_function(function, args, kwargs)
        args = [known_as_int(a) for a in args]
        kwargs = {k: known_as_int(v) for k, v in kwargs.items()}
        if not any(map(at_run_time, (*args, *kwargs.values()))):
            return self._run_python(shown, function, args, kwargs)
        value, found = self.of_numbers(function, args, kwargs, node)
        if found:
            return value
        given = ", ".join(describe(v) for v in run_time)
        hint = self._of_module(function, shown.rpartition(".")[-1])
        raise self.error(f"{shown}({given}) is only known at run time", hint)

    def of_numbers(
        self, function: object, args: list[object], kwargs: dict[str, object], node: ast.Call
    ) -> tuple[object, bool]:
        """(value, True) of a function of Python's on numbers that are known at run time only."""
        found = word_for(function)
        if found is None:
            return None, False
        shown, (word, of_floats) = ast.unparse(node.func), found
        try:
            inspect.signature(word).bind(*args, **kwargs)
        except TypeError as e:
            raise self.error(f"{shown}: {e}", f"it is Python's {shown}, of numbers") from None
        places = [*node.args, *(k.value for k in node.keywords)]
        values = []
        for value, place in zip((*args, *kwargs.values()), places):
            x = self.number(value, f"an argument of {shown}", place)
            floats = of_floats and isinstance(x, Scalar) and x.dtype.is_int
            values.append(as_syntax(self.convert(x, FLOAT32) if floats else x))
        named = [ast.keyword(*x) for x in zip(kwargs, values[len(args) :])]
        call = ast.Call(as_syntax(word), values[: len(args)], named)
        return self.expression(placed(call, node)), True

    def _of_module(self, function: Any, called: str) -> str:
        """What to write for a function of Python's, or of a library, on run-time values."""
        name = function.__name__ if hasattr(function, "__name__") else ""
        for word in (name, called):
            if word in (*maths.__all__, *formulas.__all__, "where"):
                return f"use T.{word}"
        if isinstance(function, type):
            return "give it only what is known at compile time, or use a dataclass"
        return foreign.advice(name) or "it runs as Python, on what is known at compile time"

    def _check_sought(self, shown: str, method: Any, args: Sequence[object]) -> None:
        """Raise CompileError for a method of a list, tuple or dict that looks for what is equal,
        where numbers are known at run time only."""
        owner: Any = getattr(method, "__self__", None)
        if getattr(method, "__name__", "") not in _SEEKING.get(type(owner), ()):
            return
        sought = args[:1] if isinstance(owner, dict) else (*args, *owner)
        if any(isinstance(v, Scalar | Region) for v in sought):
            hint = "compare elements one by one: what is equal shows then"
            raise self.error(f"{shown} of a run-time value", hint)

    def _run_python(
        self, shown: str, function: Any, args: list[object], kwargs: dict[str, object]
    ) -> object:
        """What a call gives as the Python it is."""
        if isinstance(function, types.BuiltinMethodType) and changes_its_owner(function):
            self.check_changeable(function.__self__, shown)
        try:
            result = function(*args, **kwargs)
        except CompileError as e:
            if isinstance(function, types.FunctionType) and not is_library(function):
                return self.trace_function(function, args, kwargs)  # it casts: T.float32(x)
            raise type(e)(e.message, self.loc, e.hint) from None
        except Exception as e:
            where = traceback.extract_tb(e.__traceback__)[-1]
            place = f" ({where.filename}:{where.lineno})" if where.filename != __file__ else ""
            said = str(e) or (where.line or "" if isinstance(e, AssertionError) else "")
            raise self.error(
                f"{shown}: {type(e).__name__}{': ' if said else ''}{said}{place}",
                "it runs here as Python, on what is known at compile time",
            ) from None
        if isinstance(function, types.BuiltinMethodType) and type(result) in _VIEWS:
            return list(result)
        if isinstance(result, Iterator):
            result = list(result)
        if at_run_time(result) or is_object(result):
            if isinstance(function, type):
                self.made[id(result)] = result, self.builder
            return result
        return self.captured(f"{shown}(…)", result)

    def is_changeable(self, container: object) -> bool:
        """Whether a list or dict was made by code that runs as often as this."""
        return self.made.get(id(container), (None, None))[1] is self.builder

    def check_changeable(self, container: object, shown: str) -> None:
        """Refuse to change a list or dict where that would happen more or less often than it is
        made: one from outside of the kernel, or of the code around a loop or condition."""
        if not self.is_changeable(container):
            raise self.error(
                f"{shown} changes what was made outside of the kernel, or of this loop or "
                "condition",
                "a loop over range(n) runs at run time: write a comprehension, "
                "[… for i in range(4)], or a loop over a tuple",
            )

    def trace_function(
        self, function: Any, args: list[object], kwargs: dict[str, object], macro: bool = False
    ) -> object:
        """A call of a plain function on run-time values, or of one that uses builtins."""
        source = lambda_source(function) if function.__name__ == "<lambda>" else None
        source = source or self._source(function, unwrap=macro)
        signature = inspect.signature(source.function, follow_wrapped=False)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as e:
            taken = ", ".join(signature.parameters)
            raise self.error(f"{source.name}: {e}", f"write {source.name}({taken})") from None
        given = set(bound.arguments)
        bound.apply_defaults()
        return self._trace_body(source, bound.arguments, given)

    _methods = {
        **Expressions._methods,
        ast.Lambda: lambda self, node: self.make_closure(as_function(node)),
    }
