"""Modules that are loaded at their first use, so that `import tilec` loads neither NumPy nor
LLVM."""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    """Stands for the module called `name`; the first attribute asked of it imports the module.

    Python's import lock makes this safe from any thread (`importlib.util.LazyLoader` is not,
    before 3.12).
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value
