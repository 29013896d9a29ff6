"""`tilelang.layout`: `tilec.layout`."""

import enum
from typing import Any

from tilec import language, layout


class SwizzleMode(enum.Enum):
    """How wide the lines are in which a tile's elements are exchanged."""

    NONE = 0
    SWIZZLE_128B = 1
    SWIZZLE_64B = 2
    SWIZZLE_32B = 3


def __getattr__(name: str) -> Any:
    # A layout that is missing says so where it is made, not where a file imports its name.
    if name.startswith("make_") and not hasattr(layout, name):
        return language.NotYet(name)
    if name in ("Fragment", "Layout"):
        return getattr(language, name)
    return getattr(layout, name)
