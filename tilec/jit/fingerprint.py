"""What a kernel's source means, as text for a cache key: the code, and every value it captures.

Two kernels with the same text here are compiled to the same code. A value whose text is not
stable from one process to the next only costs a compilation: it never matches.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import linecache
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

from tilec.ir.types import DType

_KNOWN_MODULES = ("tilec.language", "tilec.layout", "torch")
_WORD = re.compile(r"[^\W\d]\w*")
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))


def fingerprint(function: Callable[..., Any]) -> str:
    """Source, file, first line (they are in the binary's line tables), captured globals and
    closure values."""
    return _Describer().function(function)


def remember_locals(function: Callable[..., Any], frame: types.FrameType) -> None:
    """Note the plain values that the function around `function` has when it is decorated.

    Python keeps a name for an inner function only if its body uses it; a factory's value that
    only an annotation names would be lost (always with `from __future__ import annotations`).
    """
    if frame.f_locals is frame.f_globals:
        return
    seen = {name: v for name, v in frame.f_locals.items() if _is_compile_time(v)}
    function.__dict__["__tilec_locals__"] = seen


def _is_compile_time(value: Any) -> bool:
    plain = (*_PLAIN, tuple, list, dict, enum.Enum, types.ModuleType, types.FunctionType, DType)
    if isinstance(value, plain):
        return True
    return type(value).__module__.split(".", 1)[0] == "tilec" or "dtype" in type(value).__name__


def describe(value: Any) -> str:
    """A compile-time value as text that tells it from every other."""
    return _Describer().value(value)


class _Describer:
    """Text of values; a function is described once, so that recursion ends."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def value(self, value: Any) -> str:
        match value:
            case DType():
                return f"dtype {value.name}"
            case enum.Enum():
                return f"{type(value).__module__}.{type(value).__qualname__}.{value.name}"
            case _ if isinstance(value, _PLAIN):
                return f"{type(value).__name__} {value!r}"
            case tuple() | list():
                return f"{type(value).__name__}({', '.join(map(self.value, value))})"
            case dict():
                items = (f"{self.value(k)}: {self.value(v)}" for k, v in value.items())
                return f"dict({', '.join(items)})"
            case types.ModuleType():
                return f"module {value.__name__}"
            case types.FunctionType():
                return self.function(value)
        wrapped = getattr(value, "function", None)  # a macro
        if isinstance(wrapped, types.FunctionType):
            return f"{type(value).__qualname__} of {self.function(wrapped)}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = (f.name for f in dataclasses.fields(value))
            fields = (f"{name}={self.value(getattr(value, name))}" for name in names)
            return f"{type(value).__qualname__}({', '.join(fields)})"
        kind = type(value)
        # No kernel can use a value of a foreign class, whose repr may be long or differ each time.
        return (
            f"{kind.__qualname__} {value!r}"
            if kind.__module__ in _KNOWN_MODULES
            else kind.__qualname__
        )

    def function(self, function: Callable[..., Any]) -> str:
        module = getattr(function, "__module__", "") or ""
        if module.split(".")[0] == "tilec":
            return f"{module}.{function.__qualname__}"  # covered by the compiler's own fingerprint
        if id(function) in self._seen:
            return f"again {function.__qualname__}"
        self._seen.add(id(function))
        code = function.__code__
        source = _source(function)
        if not source:
            source = f"{code.co_code.hex()} {code.co_consts!r} {' '.join(code.co_names)}"
        captured = [f"{name} = {self.value(v)}" for name, v in _captured(function, source)]
        place = f"{code.co_filename}:{code.co_firstlineno}"
        return "\n".join([f"function {function.__qualname__} {place}", source, *captured])


def _source(function: Callable[..., Any]) -> str:
    """The function's lines, "" where they cannot be read.

    `inspect.getsource` looks through all loaded modules first, which takes milliseconds.
    """
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)[code.co_firstlineno - 1 :]
    return "".join(inspect.getblock(lines)) if lines else ""


def _captured(function: Callable[..., Any], source: str) -> Iterator[tuple[str, Any]]:
    """Names the source reads from its closure and its module, with their values.

    Every word of the text counts, not only what Python compiled: it drops the annotations of
    local names.
    """
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # not bound yet: a function that refers to itself
    enclosing = getattr(function, "__tilec_locals__", {})
    for name in sorted(set(_WORD.findall(source))):
        if name == function.__name__ or name in code.co_freevars:
            continue
        if name in enclosing:
            yield name, enclosing[name]
        elif name in function.__globals__:
            yield name, function.__globals__[name]
