"""`tilelang.language`: `tilec.language`, and the names that only TileLang has."""

import re
from typing import Any

from tilec import language
from tilec.decorator import kernel as prim_func
from tilec.tilelang.dtypes import NAMED, TextDtype, dtype

__all__ = ["align_up", "annotate_compile_flags", "annotate_pass_configs", "dtype", "prim_func"]

globals().update(NAMED)
parallel = language.Parallel


@language.macro
def align_up(value, step):  # type: ignore[no-untyped-def]
    """The least multiple of `step` that is no less than `value`."""
    return language.ceildiv(value, step) * step


def annotate_pass_configs(configs: Any) -> None:
    """Nothing: options of TileLang's passes have no meaning for tilec."""


def annotate_compile_flags(flags: Any) -> None:
    """Nothing: there is no compiler of CUDA C++ to give them to."""


def __getattr__(name: str) -> Any:
    vector = re.fullmatch(r"(bfloat|float|int|uint)([48]\w*|\d+x\d+)", name)
    if vector and name not in vars(language):
        return TextDtype(name)  # refused where it is used: files name it in defaults and lists
    # Errors about a name that is missing are those of tilec.language.
    return getattr(language, name)
