"""`tilelang.language`: `tilec.language`, and the names that only TileLang has."""

from typing import Any

from tilec import language
from tilec.decorator import kernel as prim_func
from tilec.tilelang.dtypes import NAMED

__all__ = ["prim_func"]

globals().update(NAMED)


def __getattr__(name: str) -> Any:
    # Errors about a name that is missing are those of tilec.language.
    return getattr(language, name)
