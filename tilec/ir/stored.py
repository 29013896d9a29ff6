"""Values of declared types from what JSON has kept of them."""

from __future__ import annotations

import builtins
import collections.abc
import contextlib
import dataclasses
import functools
import types
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tilec.ir.errors import shown
from tilec.ir.types import DTYPES, DType


@functools.cache
def fields_of(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass, and what they are declared as. (Public ones are known as another
    module's than the one they were written in.)"""
    return get_type_hints(kind, kind.__init__.__globals__)


def read_stored(given: Any, declared: Any, name: str) -> Any:
    """The value of a declared type, which is made of classes, `|`, Literal, tuples, lists and
    mappings, that JSON has kept as `given`: a dataclass as the list of its fields, or by their
    names, and a dtype as its name. `name` is what messages call it. Raises TypeError for anything
    else, and KeyError for a field that is missing."""
    parts = get_args(declared)
    match get_origin(declared):
        case types.UnionType:
            for part in parts:
                with contextlib.suppress(TypeError):
                    return read_stored(given, part, name)
        case builtins.tuple if isinstance(given, list):
            each = parts[:1] * len(given) if parts[-1] is ... else parts
            if len(each) == len(given):
                return tuple(read_stored(v, part, name) for v, part in zip(given, each))
        case builtins.list if isinstance(given, list):
            return [read_stored(v, parts[0], name) for v in given]
        case collections.abc.Mapping | builtins.dict if isinstance(given, dict):
            return {k: read_stored(v, parts[1], name) for k, v in given.items()}
        case None if declared is DType and isinstance(given, str):
            return DTYPES[given]
        case None if dataclasses.is_dataclass(declared) and isinstance(given, list | dict):
            kind: Any = declared
            hints = fields_of(kind)
            if len(hints) == len(given):
                values = given if isinstance(given, list) else [given[n] for n in hints]
                named = zip(values, hints.values(), hints)
                return kind(*(read_stored(v, t, f"{kind.__name__}.{n}") for v, t, n in named))
        case origin if declared is Any or (origin is Literal and given in parts):
            return given
        case None if isinstance(given, declared) and (type(given), declared) != (bool, int):
            return given
    raise TypeError(f"{name} is {shown(given)}")
