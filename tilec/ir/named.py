"""What the names in a function's code stand for, as far as that is known before it runs."""

from __future__ import annotations

import types
from collections.abc import Iterator


def named_in(function: types.FunctionType) -> Iterator[object]:
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
