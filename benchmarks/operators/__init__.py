"""One module per operator; each has a docstring and `cases() -> list[Case]`."""

from __future__ import annotations

import importlib
import pkgutil

from benchmarks.case import Case


def names() -> list[str]:
    """The operators there are."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__))


def cases(operator: str) -> list[Case]:
    """The cases of an operator, the most wanted first."""
    module = importlib.import_module(f"{__name__}.{operator}")
    found: list[Case] = module.cases()
    return sorted(found, key=lambda c: c.priority)


def about(operator: str) -> str:
    """The first line of an operator module's docstring."""
    module = importlib.import_module(f"{__name__}.{operator}")
    return (module.__doc__ or "").split("\n")[0]
