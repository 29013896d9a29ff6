"""Writes tilec/builtins/elementwise_words.pyi: the functions of numbers as type checkers and
editors know them, each with its signature and docstring.

    python docs/make_words.py

At run time they are objects (`tilec.builtins.maths`), whose docstrings no editor reads. A test runs
this and compares.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import tilec.language as T
from tilec.builtins import maths
from tilec.builtins.elementwise import Elementwise

FILE = Path(maths.__file__).with_name("elementwise_words.pyi")


def text() -> str:
    """The file as it should be."""
    lines = ["# Written by docs/make_words.py.", "# ruff: noqa: E501", "from typing import Any", ""]
    for name in maths.__all__:
        word = getattr(T, name)
        if not isinstance(word, Elementwise):
            continue
        given = []
        for p in inspect.signature(word).parameters.values():
            given += [f"{'*' if p.kind is p.VAR_POSITIONAL else ''}{p.name}: Any"]
            if p.kind is p.POSITIONAL_ONLY and len(given) == word.arity:
                given.append("/")
        lines += [f"def {name}({', '.join(given)}) -> Any:", f'    """{word.__doc__}"""']
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    FILE.write_text(text())
    sys.stdout.write(f"wrote {FILE.name}\n")
