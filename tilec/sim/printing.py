"""T.print: C's formats applied to the values of each thread."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

_DIRECTIVE = re.compile(r"%(%|lld|llu|\.\d+g)")


def lines_of(text: str, values: Sequence[Any], threads: int) -> Iterator[str]:
    """The line that each of `threads` threads prints, without its end. `text` holds the directives
    that emitters write: %lld, %llu, %.9g, %.17g and %%; each value is a NumPy scalar (the same in
    all threads) or an array over them."""
    for i in range(threads):
        yield _line(text.removesuffix("\n"), [v[i] if np.ndim(v) else v for v in values])


def _line(text: str, values: Sequence[Any]) -> str:
    left = iter(values)

    def spell(found: re.Match[str]) -> str:
        return "%" if found[1] == "%" else _number(found[1], next(left))

    return _DIRECTIVE.sub(spell, text)


def _number(word: str, value: Any) -> str:
    if not isinstance(value, np.generic):
        return str(value)  # never written
    if word == "llu":
        return str(int(value) & 2**64 - 1)
    return str(int(value)) if word == "lld" else f"%{word}" % float(value)
