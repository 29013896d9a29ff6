"""What is the user's own and runs while a kernel is traced: plain functions, methods, classes.

A function that is given run-time values, or that asks for builtins of the language, is traced where
it is called, as a macro is. Any other runs as the Python it is, on values known at compile time,
and may do what Python does (recursion, generators, exceptions); its result is a compile-time value.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from tilec import language as T
from tilec.frontend.values import (
    Buffer,
    Closure,
    EmptyTensor,
    KernelHeader,
    LoopHeader,
    Method,
    Region,
    Scalar,
    Undefined,
)
from tilec.ir.lines import named_in
from tilec.ir.types import DType

RUN_TIME = (
    Scalar, Buffer, Region, Method, Closure, LoopHeader, KernelHeader, EmptyTensor, Undefined,
)  # fmt: skip
# What the language has that is plain Python outside of a kernel.
_PYTHONS_OWN: frozenset[Any] = frozenset(
    {T.infinity, T.max_value, T.min_value, T.dynamic, T.symbolic, T.const, T.Layout}
)
_NOTHING_INSIDE = frozenset({type(None), bool, int, float, str, range, DType})
_CONTAINERS = (tuple, list, set, frozenset, range, str, Mapping)
_NO_OBJECTS = (
    type, types.ModuleType, types.FunctionType, functools.partial, DType, *RUN_TIME, *_CONTAINERS,
)  # fmt: skip
_MUTATING: dict[type, frozenset[str]] = {
    list: frozenset("append extend insert pop remove clear reverse sort".split()),
    dict: frozenset("update pop popitem setdefault clear".split()),
    set: frozenset("add update pop remove discard clear".split()),
}


def at_run_time(value: object, depth: int = 8) -> bool:
    """Whether `value` is, or holds, something that is only known at run time."""
    if isinstance(value, RUN_TIME):
        return True
    if depth == 0 or type(value) in _NOTHING_INSIDE:
        return False
    if isinstance(value, (tuple, list, set, frozenset)):
        return any(at_run_time(v, depth - 1) for v in value)
    if isinstance(value, Mapping):
        return any(at_run_time(v, depth - 1) for v in value.values())
    if isinstance(value, functools.partial):
        held: tuple[object, ...] = (*value.args, *value.keywords.values())
        return at_run_time(held, depth - 1)
    if isinstance(value, types.MethodType):
        return at_run_time(value.__self__, depth - 1)
    if is_object(value):
        return any(at_run_time(v, depth - 1) for v in fields_of(value))
    return False


def is_object(value: object) -> bool:
    """Whether `value` is an object of a class of the user's, which holds other values: no array, no
    function, no module."""
    if isinstance(value, _NO_OBJECTS) or hasattr(value, "__array__"):
        return False
    module = "" if has_macros(type(value)) else _top(type(value).__module__)
    if module in ("tilec", "builtins", "numpy", "torch") or hasattr(value, "__dlpack__"):
        return False
    return hasattr(value, "__dict__") or hasattr(type(value), "__slots__")


def fields_of(value: object) -> Iterator[object]:
    """What the fields of an object hold."""
    yield from getattr(value, "__dict__", {}).values()
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield getattr(value, name)


def is_named_tuple(value: object) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def changes_its_owner(method: Any) -> bool:
    """Whether a method of a Python container changes it."""
    return method.__name__ in _MUTATING.get(type(method.__self__), ())


def keeps_what_it_is_given(kind: type) -> bool:
    """Whether making an object of `kind` does nothing but keep its arguments."""
    if kind is functools.partial:
        return True
    if dataclasses.is_dataclass(kind):
        made = vars(kind).get("__init__")
        generated = getattr(getattr(made, "__code__", None), "co_filename", "") == "<string>"
        return generated and not hasattr(kind, "__post_init__")
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def needs_tracing(function: Callable[..., Any], builtins: Container[Any]) -> bool:
    """Whether a function, or one that it calls, asks for macros or for `builtins`, of which some
    mean something only inside of a kernel."""
    seen: set[int] = set()
    pending: list[Any] = [function]
    while pending:
        one = pending.pop()
        one = inspect.unwrap(one) if callable(one) else one
        one = getattr(one, "__func__", one)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, T.Macro | T.NotYet):
            return True
        if isinstance(one, types.FunctionType) and one in builtins and one not in _PYTHONS_OWN:
            return True
        if isinstance(one, functools.partial):
            pending.append(one.func)
        elif isinstance(one, type) and not is_library(one):
            pending += [v for k in one.__mro__[:-1] for v in vars(k).values() if callable(v)]
        elif isinstance(one, types.FunctionType) and not is_library(one):
            pending += named_in(one)
    return False


def has_macros(kind: Any) -> bool:
    """Whether a class has methods in the language of kernels."""
    fields = (
        v for k in getattr(kind, "__mro__", (kind,)) for v in getattr(k, "__dict__", {}).values()
    )
    return any(isinstance(v, T.Macro) for v in fields)


IN_THE_LANGUAGE = frozenset(
    {
        "tilec.frontend.builtins.scalar",
        "tilec.frontend.builtins.views",
        "tilec.frontend.builtins.rounding",
        "tilec.frontend.python_numbers",
        "tilec.frontend.builtins.formulas",
        "tilec.frontend.builtins.random",
        "tilec.intrinsics.mfma",
    }
)


def is_library(value: Any) -> bool:
    """Whether a function or class is tilec's own, Python's, NumPy's or torch's, and not written in
    the language of kernels."""
    if has_macros(value):
        return False
    module = getattr(value, "__module__", None) or ""
    top = _top(module)
    if module in IN_THE_LANGUAGE:
        return False
    return top in ("tilec", "numpy", "torch") or top in sys.stdlib_module_names - {"__main__"}


def _top(module: str) -> str:
    return module.split(".", 1)[0]
