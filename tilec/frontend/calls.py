"""Calls: builtins of the language, casts, macros, and the few Python functions that kernels
have."""

from __future__ import annotations

import ast
import builtins
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from tilec import language as T
from tilec.builtins import foreign, maths
from tilec.frontend.builtins import (  # noqa: F401 (they fill the table of builtins)
    asm,
    atomic,
    barriers,
    externs,
    header,
    layout,
    matrices,
    pointers,
    random,
    reduce,
    reducers,
    rounding,
    scalar,
    statements,
    threads,
    views,
)
from tilec.frontend.builtins.formulas import round_away
from tilec.frontend.builtins.lanes import vector
from tilec.frontend.builtins.table import BUILTINS, Builtin, bind_call, dtype_at, of_builtin
from tilec.frontend.builtins.tile import new_variable
from tilec.frontend.expressions import INSTEAD, PYTHON_BUILTINS
from tilec.frontend.functions import Functions
from tilec.frontend.lanes import lanewise
from tilec.frontend.plain_python import RUN_TIME, at_run_time
from tilec.frontend.values import (
    Buffer,
    Closure,
    Lanes,
    LoopHeader,
    Method,
    Number,
    Region,
    Scalar,
    describe,
    is_literal,
)
from tilec.ir.errors import CompileError, did_you_mean
from tilec.ir.ops import Binary
from tilec.ir.types import DType

_COMPARING = ("all", "any", "sorted", "min", "max", "sum", "set", "frozenset", "str", "repr")


class Calls(Functions):
    """Evaluates calls."""

    def call(self, node: ast.Call) -> object:
        function = self.expression(node.func)
        node = self.spread(node)
        if isinstance(function, types.FunctionType) and function in BUILTINS:
            return self._builtin(BUILTINS[function], function, node)
        match function:
            case Method():
                return self._method(function, node)
            case DType():
                return self._cast(function, node)
            case T.VectorDType():
                return vector(self, function, self._plain_values(function, node))
            case T.NotYet():
                message = f"T.{function.name} is not supported yet"
                raise self.error(message, foreign.LATER)
            case T.Elementwise():
                return self._elementwise(function, node)
            case T.Macro():
                return self.inline(function, node)
            case Closure():
                return self._enter(function, *self.arguments(node))
            case type() if issubclass(function, T.Tensor):
                args, kwargs = self.arguments(node)
                if len(args) == 3 and isinstance(args[2], Buffer):  # T.Tensor(shape, dtype, A.data)
                    return views.of_memory(self, args[2], args[0], args[1], node)
                return self.annotation(function, args, **kwargs)
        name = getattr(function, "__name__", None)
        if isinstance(name, str) and getattr(builtins, name, None) is function:
            return self._python_builtin(function, node)
        if getattr(function, "__module__", None) == "tilec.layout":
            return self._layout_function(function, node)
        ours = type(function).__module__.split(".", 1)[0] == "tilec"
        if callable(function) and not ours and not hasattr(function, "compile"):
            return self.users_own(function, node)
        self._refuse_call(function, node)

    def _refuse_call(self, function: object, node: ast.Call) -> NoReturn:
        shown = ast.unparse(node.func)
        if type(function).__module__.startswith("tilec."):
            message = f"{shown} ({describe(function)}) cannot be called inside a kernel"
            hint = "call it outside, and name the result there"
            if isinstance(function, Buffer):
                hint = f"write an index in brackets: {shown}[…]"
            raise self.error(message, hint)
        if hasattr(function, "compile"):
            hint = "put what both do in a function, and call that"
            raise self.error(f"{shown} is a kernel; it cannot be called in a kernel", hint)
        hint = "kernels call builtins, macros and functions"
        raise self.error(f"{shown} is {describe(function)}; it cannot be called in a kernel", hint)

    def _builtin(self, known: Builtin, function: Callable[..., Any], node: ast.Call) -> object:
        shown = f"T.{known.name}"
        if isinstance(node.func, ast.Attribute) and getattr(T, node.func.attr, None) is function:
            shown = f"T.{node.func.attr}"  # as its author calls it: T.where is T.if_then_else
        bound = bind_call(self, shown, known.name, of_builtin(function), node, known.raw)
        return known(bound)

    def _plain_arguments(self, shown: str, node: ast.Call, count: int) -> list[object]:
        if node.keywords:
            raise self.error(f"{shown} takes no keywords", "leave the name out", node.keywords[0])
        if len(node.args) != count:
            given, more = len(node.args), " or more" if shown in ("T.max", "T.min") else ""
            raise self.error(
                f"{shown} takes {count} argument{'s' * (count != 1)}{more}, {given} "
                f"{'was' if given == 1 else 'were'} given",
                f"write {shown}({', '.join('xyz'[:count])})",
            )
        return [self.expression(a) for a in node.args]

    def _plain_values(self, dtype: T.VectorDType, node: ast.Call) -> list[object]:
        if node.keywords:
            raise self.error(f"T.{dtype.name} takes no keywords", "leave the name out")
        return list(self.elements(node.args))

    def _elementwise(self, function: T.Elementwise, node: ast.Call) -> object:
        if function in (T.max, T.min) and len(node.args) > 2 and not node.keywords:
            numbers = [self.number_of(a, "this operand") for a in node.args]
            return self._folded(function.kind, list(numbers))
        if function is T.round and len(node.args) + len(node.keywords) == 2:
            return self._round(node)
        values = self._plain_arguments(f"T.{function.name}", node, function.arity)
        if any(isinstance(v, T.Size) for v in values):  # in the shape of an annotation
            return function.python(*values)
        if any(isinstance(v, Lanes) for v in values):
            compute = scalar.elementwise
            return lanewise(self, lambda *row: compute(self, function, [*row]), *values)
        what = f"an argument of T.{function.name}"
        numbers = [self.number(v, what, place) for place, v in zip(node.args, values)]
        return scalar.elementwise(self, function, numbers)

    def _round(self, node: ast.Call) -> object:
        """`T.round(x, mode)`."""
        args, kwargs = self.arguments(node)
        modes = ("ties-to-even", "ties-away-from-zero")
        mode = args[1] if len(args) == 2 else kwargs.get("rounding_mode")
        if mode not in modes:
            place = node.args[1] if len(args) == 2 else node.keywords[0]
            message = f"rounding_mode of T.round is {describe(mode)}"
            raise self.error(message, f"write {modes[0]!r} or {modes[1]!r}", place)

        def one(value: object) -> Number:
            x = self.number(value, "an argument of T.round")
            whole = not (x.dtype.is_float if isinstance(x, Scalar) else isinstance(x, float))
            if mode == modes[0] or whole:
                return scalar.elementwise(self, maths.round, [x])
            return self.number(self.trace_function(round_away, [x], {}), "the result")

        if isinstance(args[0], Lanes):
            return lanewise(self, one, args[0])
        with self.at(node.args[0]):
            return one(args[0])

    def _cast(self, dtype: DType, node: ast.Call) -> Scalar | Buffer:
        """`T.int32(x)`; `T.int32()` is a variable of that dtype, as of T.alloc_var."""
        if not node.args and not node.keywords:
            return new_variable(self, dtype, None)
        (value,) = self._plain_arguments(f"T.{dtype.name}", node, 1)
        return scalar.cast_to(self, value, dtype)

    def _method(self, method: Method, node: ast.Call) -> object:
        if method.name == "access_ptr":
            _, values = self.arguments(node)
            return pointers.address(self, method.owner, values.get("offset", 0), node)
        if len(node.args) != 1 or node.keywords:
            raise self.error("astype takes one dtype", 'write x.astype("float16")')
        dtype = dtype_at(self, self.expression(node.args[0]), node.args[0])
        return scalar.cast_to(self, method.owner, dtype)

    def _layout_function(self, function: Any, node: ast.Call) -> object:
        args, kwargs = self.arguments(node)
        try:
            return function(*args, **kwargs)
        except CompileError as e:
            raise type(e)(e.message, self.loc, e.hint) from None
        except TypeError as e:
            taken = ", ".join(inspect.signature(function).parameters)
            near = next((did_you_mean(k, taken.split(", ")) for k in kwargs if k not in taken), "")
            raise self.error(f"{e}{near}", f"write {function.__name__}({taken})") from None

    # --- Python's own functions -------------------------------------------------------------------

    def _python_builtin(self, function: Any, node: ast.Call) -> object:
        name = function.__name__
        if name == "print":
            self._print(node)
            return None
        if name not in PYTHON_BUILTINS:
            hint = INSTEAD.get(
                name, "only what is known at compile time and the builtins of T run here"
            )
            raise self.error(f"{name} cannot be called in a kernel", hint)
        if name == "len" and len(node.args) == 1:
            shape = self.of_array(node.args[0], "shape")
            if shape:
                return shape[0]
        args, kwargs = self.arguments(node)
        args = [self.as_python(a) for a in args]
        kwargs = {k: self.as_python(v) for k, v in kwargs.items()}
        if name == "range":
            return self._range(args, node)
        match name, args:
            case "len", [Buffer(shape=(extent, *_))]:
                return extent
            case "reversed", [LoopHeader(builtin="serial") as loop]:
                return self._reversed(loop)
            case _ if any(isinstance(a, LoopHeader) for a in args):
                message = f"{name} of a loop whose bounds are only known at run time"
                hint = "loop over it, for i in range(n):, and count or index inside"
                raise self.error(message, hint)
        if name in ("min", "max", "sum") and not kwargs:
            items = args[0] if args and isinstance(args[0], tuple | list | range) else args
            start = args[1:] or [0] if name == "sum" and items is not args else []
            if any(isinstance(a, Scalar | Region | Buffer) for a in (*start, *items)):
                if len(items) > 1 or items is not args:
                    return self._folded(name, [*start, *items])
        if name in ("all", "any") and not kwargs and len(args) == 1:
            held = args[0]
            if isinstance(held, tuple | list) and any(isinstance(a, RUN_TIME) for a in held):
                return self._all_or_any(name, held)
        if name == "isinstance" and len(args) == 2:
            return self._is_instance(args[0], args[1])
        given = (*args, *kwargs.values())
        at_once = not any(isinstance(a, Scalar | Region | Buffer) for a in given)
        value, found = (None, False) if at_once else self.of_numbers(function, args, kwargs, node)
        if found:
            return value
        compared = [list(a) if isinstance(a, Mapping) else a for a in args]  # its keys
        if not at_once or (name in _COMPARING and at_run_time(compared)):
            raise self._only_at_run_time(name, args)
        try:
            result = function(*args, **kwargs)
        except CompileError:  # of a lambda that it has called
            raise
        except Exception as e:
            hint = f"it runs here as Python's {name}, on what is known at compile time"
            raise self.error(f"{name}: {e}", hint) from None
        if isinstance(result, Iterator):
            result = list(result)
        if type(result) in (list, dict, set):
            self.made[id(result)] = result, self.builder
        return result

    def _print(self, node: ast.Call) -> None:
        """Python's `print` while the kernel is traced: what is known then as Python shows it, of
        anything else what it is."""
        args, kwargs = self.arguments(node)
        options: dict[str, Any] = kwargs
        shown: list[object] = []
        for a in args:
            name = f"{a.value.name}, " if isinstance(a, Scalar) and a.value.name else ""
            shown.append(f"<{name}{describe(a)}: T.print shows it>" if at_run_time(a) else a)
        try:
            print(*shown, **options)
        except (TypeError, AttributeError) as e:
            raise self.error(f"print: {e}", "it runs here as Python's print") from None

    def _folded(self, name: str, items: list[Any]) -> Number:
        """The sum, or the least or largest, of numbers of which some are known at run time."""
        found = self.number(items[0], "this operand")
        for a in items[1:]:
            kind = "add" if name == "sum" else name
            found = self.binary(kind, found, self.number(a, "this operand"))
        return found

    def _all_or_any(self, name: str, items: Sequence[object]) -> bool | Scalar:
        """`all` or `any` of conditions of which some are known at run time only."""
        ends = name == "any"
        found: bool | Scalar = not ends
        for a in items:
            one = self.truth(self.number(a, "this condition")) if at_run_time(a) else bool(a)
            if found is ends or one is ends:
                return ends
            if found is (not ends):
                found = one
            elif one is not (not ends):
                assert isinstance(found, Scalar) and isinstance(one, Scalar)
                found = (
                    self.emit_scalar(Binary, "or", found.value, one.value)
                    if ends
                    else self.logical_and(found, one)
                )
        return found

    def _is_instance(self, value: object, kinds: Any) -> bool:
        """`isinstance`; a run-time number is an instance of no Python type."""
        try:
            return isinstance(value, kinds)
        except TypeError as e:
            hint = "write a class, or a tuple of classes: isinstance(x, (int, float))"
            raise self.error(f"isinstance: {e}", hint) from None

    def _only_at_run_time(self, name: str, args: list[object]) -> CompileError:
        """A function of Python's that was given what is only known at run time."""
        hint = "use a builtin of T"
        first = args[0]
        if isinstance(first, Buffer) and name in ("enumerate", "zip", "list", "tuple"):
            hint = f"loop over indices: for i in T.Parallel({first.type.shape[0]}): … "
            hint += f"{first.name}[i] …"
        elif isinstance(first, Buffer) and name in ("max", "min"):
            hint = f"take it in a loop: for i in T.serial({first.type.shape[0]}): "
            hint += f"m = T.{name}(m, {first.name}[i])"
        elif isinstance(first, Buffer) and name == "sum":
            hint = INSTEAD["sum"]
        elif name in ("all", "any", "sorted"):
            hint = "write it out: x and y, T.max(x, y)"
        shown = ", ".join(describe(a) for a in args)
        return self.error(f"{name}({shown}) is only known at run time", hint)

    def _range(self, args: list[object], node: ast.Call) -> object:
        if not 1 <= len(args) <= 3:
            message = f"range takes 1 to 3 arguments, {len(args)} were given"
            raise self.error(message, "write range(stop) or range(start, stop, step)")
        known = [a for a in args if is_literal(a) and isinstance(a, int)]
        if len(known) == len(args):
            if known[2:] == [0]:
                message = "range with a step of 0 never ends"
                raise self.error(message, "write another step, or leave it out", node.args[2])
            return range(*known)
        start, stop = (0, args[0]) if len(args) == 1 else args[:2]
        step = args[2] if len(args) == 3 else 1
        bounds = {"start": start, "stop": stop, "step": step}
        return LoopHeader("serial", bounds, self.loc, of_python=True)

    def _reversed(self, loop: LoopHeader) -> LoopHeader:
        """`reversed(range(…))` whose bounds are known at run time only."""
        names = ("start", "stop", "step")
        start, stop, step = (self.number(loop.arguments[n], f"{n} of this range") for n in names)
        if not isinstance(step, int) or step == 0:
            message = f"reversed of a range whose step is {describe(step)}"
            raise self.error(message, "write range(last, start - 1, -step)")
        last = self.binary("sub", stop, step)
        if abs(step) != 1:
            count = self.binary("ceildiv", self.binary("sub", stop, start), step)
            steps = self.binary("mul", self.binary("sub", count, 1), step)
            last = self.binary("add", start, steps)
        before = self.binary("sub", start, 1 if step > 0 else -1)
        return LoopHeader("serial", {"start": last, "stop": before, "step": -step}, self.loc)
