"""`tilelang.language`: `tilec.language`, and the names that only TileLang has."""

from typing import Any

from tilec import language
from tilec.decorator import kernel as prim_func

__all__ = ["prim_func"]


def __getattr__(name: str) -> Any:
    # Errors about a name that is missing are those of tilec.language.
    return getattr(language, name)
