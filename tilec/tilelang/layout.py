"""`tilelang.layout`: `tilec.layout`."""

from typing import Any

from tilec import language, layout


def __getattr__(name: str) -> Any:
    # A layout that is missing says so where it is made, not where a file imports its name.
    if name.startswith("make_") and not hasattr(layout, name):
        return language.NotYet(name)
    if name in ("Fragment", "Layout"):
        return getattr(language, name)
    return getattr(layout, name)
