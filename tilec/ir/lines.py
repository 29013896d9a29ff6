"""The source lines of a function, as Python read them.

`linecache` gives what a file held when somebody first asked for it. That is the old text once the
file has been edited and the module reloaded, and the new one, at the old line number, where it was
edited only. So the decorators note the lines of a file while it is being executed. What is no file
(a notebook's cell, text given to `exec`) may be known to `linecache` only later, and is asked for
when the lines are first needed.
"""

from __future__ import annotations

import inspect
import linecache
import sys
import types
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

_KEPT = "__tilec_lines__"
# Of each file the lines that a decorator in it has noted last: functions below it have these.
_files: dict[str, list[str]] = {}


def keep_lines(function: Callable[..., Any]) -> None:
    """Note the lines of the file that `function` is being defined by, and those of the plain
    functions that it names, which may be older."""
    lines = _keep(function)
    if lines:
        _files[function.__code__.co_filename] = lines
    seen = {id(function)}
    pending: list[object] = [*named_in(function)] if isinstance(function, FunctionType) else []
    while pending:
        one = pending.pop()
        if isinstance(one, FunctionType) and id(one) not in seen and not _is_library(one):
            seen.add(id(one))
            if one.__dict__.get(_KEPT, (None,))[0] is not one.__code__:
                _keep(one)
            pending += named_in(one)


def _is_library(function: FunctionType) -> bool:
    top = (function.__module__ or "").split(".", 1)[0]
    return (
        (top in sys.stdlib_module_names and top != "__main__")
        or top == "tilec"
        or "-packages" in function.__code__.co_filename
    )


def _keep(function: Callable[..., Any]) -> list[str]:
    """Note the lines of the file of `function`; none where it is no file."""
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    lines = _current(code.co_filename, function.__globals__)
    entry = linecache.cache.get(code.co_filename, ())
    if len(entry) != 4 or entry[1] is None:  # no file: of one, the time of change is known
        return []
    function.__dict__[_KEPT] = code, lines
    return lines


def function_lines(function: Callable[..., Any]) -> list[str]:
    """The lines of `function`, from its first decorator on; none where they cannot be read.

    Not `inspect.getsourcelines`, which looks through all loaded modules: that takes milliseconds.
    """
    rest = file_lines(function)[function.__code__.co_firstlineno - 1 :]
    return inspect.getblock(rest) if rest else []


def file_lines(function: Callable[..., Any]) -> list[str]:
    """The lines of the file of `function`; none where they cannot be read."""
    file = function.__code__.co_filename
    code, lines = function.__dict__.get(_KEPT, (None, []))
    if code is not function.__code__:  # IPython's autoreload gives functions new code
        lines = _files.get(file)
    return lines or _current(file, function.__globals__)


def _current(file: str, module: dict[str, Any]) -> list[str]:
    linecache.checkcache(file)
    return linecache.getlines(file, module)


def named_in(function: FunctionType) -> Iterator[object]:
    """What the free names of `function`, and of functions inside of it, stand for now; of modules
    also the attributes that it may ask for."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        found: list[object] = []
        for name in (*code.co_freevars, *code.co_names):
            if name in cells:
                found += _content(cells[name])
            elif name in function.__globals__:
                found.append(function.__globals__[name])
        for value in found:
            yield value
            if isinstance(value, types.ModuleType):
                yield from (vars(value).get(name) for name in code.co_names)


def _content(cell: types.CellType) -> list[object]:
    try:
        return [cell.cell_contents]
    except ValueError:  # not assigned yet
        return []
