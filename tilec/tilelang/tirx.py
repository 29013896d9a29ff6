"""`tvm.tirx`: the expressions that TileLang's programs write with it, by tilec's builtins."""

from __future__ import annotations

from typing import Any

from tilec import language as T
from tilec.tilelang.absent import AbsentName

__all__ = ["Cast", "Max", "Min", "PrimExpr", "Select", "Var", "const"]

PrimExpr = Var = Any
Cast, Select, Max, Min = T.Cast, T.if_then_else, T.max, T.min


@T.macro
def const(value, dtype="int32"):  # type: ignore[no-untyped-def]
    """A number of a dtype, in a kernel."""
    return T.Cast(dtype, value)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(T, name) if name in dir(T) else AbsentName(f"tvm.tirx.{name}")
