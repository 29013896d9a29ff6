"""`tilelang.language`: `tilec.language`, and the names that only TileLang has."""

import re
from typing import Any

from tilec import language
from tilec.decorator import kernel as prim_func
from tilec.tilelang.dtypes import NAMED, TextDtype, dtype

__all__ = ["dtype", "prim_func"]

globals().update(NAMED)


def __getattr__(name: str) -> Any:
    if re.fullmatch(r"(float|int|uint)[48]\w*", name) and not hasattr(language, name):
        return TextDtype(name)  # refused where it is used: files name it in defaults and lists
    # Errors about a name that is missing are those of tilec.language.
    return getattr(language, name)
