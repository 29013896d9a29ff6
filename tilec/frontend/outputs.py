"""Shapes of tensors that a call allocates, in terms of the sizes it knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tilec.ir.core import Op, Value
from tilec.ir.ops import Binary, Cast, Const
from tilec.ir.types import Extent

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}


def size_text(value: Value, ops: Iterable[Op], names: Mapping[Value, str]) -> int | str | None:
    """`value` as an int or as Python arithmetic on sizes, e.g. "((M + 63) // 64)"; None if it is
    computed from anything else. `ops` are those that may have made it, `names` the sizes."""
    makers = {r: o for o in ops for r in o.results}
    return _text(value, makers, names)


def _text(value: Value, makers: Mapping[Value, Op], names: Mapping[Value, str]) -> int | str | None:
    if value in names:
        return names[value]
    match makers.get(value):
        case Const(value=int(number)):
            return number
        case Cast() as o if o.dtype.is_int:
            return _text(o.operand, makers, names)
        case Binary() as o:
            a, b = _text(o.lhs, makers, names), _text(o.rhs, makers, names)
            if a is None or b is None:
                return None
            if o.kind in _SIGNS:
                return f"({a} {_SIGNS[o.kind]} {b})"
            return f"{o.kind}({a}, {b})" if o.kind in ("min", "max") else None
        case _:
            return None


def contiguous_strides(name: str, shape: Sequence[Extent]) -> tuple[Extent, ...]:
    """Strides of a row-major tensor: ints as far as they are known, then names of run-time
    strides."""
    strides: list[Extent] = []
    step: int | None = 1
    for dim in reversed(range(len(shape))):
        strides.append(f"{name}_stride{dim}" if step is None else step)
        extent = shape[dim]
        step = step * extent if step is not None and isinstance(extent, int) else None
    return tuple(reversed(strides))
