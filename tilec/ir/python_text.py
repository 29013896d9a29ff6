"""Scalar ops as Python text: the grid of a kernel, and the extents of what a call allocates.

A launch evaluates the text (see `tilec.runtime.expressions`), so that a saved kernel needs no
compiler.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from fractions import Fraction

from tilec.ir.core import Func, Op, Value, makers, upstream
from tilec.ir.errors import CompileError
from tilec.ir.ops import Assume, Binary, Cast, Compare, Const, Select, Unary, Yield

_BINARY = {
    "add": "({} + {})", "sub": "({} - {})", "mul": "({} * {})", "floordiv": "({} // {})",
    "mod": "({} % {})", "min": "min({}, {})", "max": "max({}, {})", "and": "({} & {})",
    "or": "({} | {})", "xor": "({} ^ {})", "shl": "({} << {})", "shr": "({} >> {})",
    # To zero, from Python's division to minus infinity: equal magnitudes, the sign of the product.
    "truncdiv": "((abs({0}) // abs({1})) * (1 if ({0} < 0) == ({1} < 0) else -1))",
    "truncmod": "((abs({0}) % abs({1})) * (-1 if {0} < 0 else 1))",
}  # fmt: skip
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
MOST_TEXT = 4096  # characters of a value: what uses another twice has twice its text
_UNARY = {"neg": "(-{})", "abs": "abs({})", "not": "(not {})"}


def size_text(value: Value, ops: Iterable[Op], names: Mapping[Value, str]) -> str | None:
    """`value` as arithmetic on sizes, e.g. "((M + 63) // 64)"; None if it is computed from anything
    else. `ops` are those that may have made it, `names` the sizes."""
    text = dict(names)
    for o in ops:
        spelled = _spell(o, text)
        if spelled is not None:
            text[o.result] = spelled
    return text.get(value)


def linear_text(text: str) -> tuple[str, Fraction, int] | None:
    """(name, factor, constant) of arithmetic on one size, "((n * 2) + 1)" or "(n // 2)"; None of
    any other."""
    names = set(re.findall(r"[A-Za-z_]\w*", text))
    if len(names) != 1:
        return None
    (name,) = names
    try:
        at = [eval(text, {"__builtins__": {}, name: n}) for n in (0, 1 << 10, 1 << 20)]
    except ArithmeticError:
        return None
    step = at[1] - at[0]
    linear = step > 0 and at[2] == at[0] + (step << 10)
    return (name, Fraction(step, 1 << 10), at[0]) if linear else None


def grid_text(func: Func) -> str:
    """Text of a tuple of three extents, missing ones 1; "" if the launch gives the grid.

    Names are those of the function's size and scalar parameters. Raises CompileError for an op
    that has no meaning before the launch (a load, floating-point maths).
    """
    text = {p.value: p.value.name for p in func.params}
    extents: tuple[Value, ...] = ()
    for o in func.grid.ops:
        if isinstance(o, Yield):
            extents = o.values
            continue
        spelled = _spell(o, text)
        if spelled is None:
            raise CompileError(
                f"the grid uses {o.opname}, which is not known before the launch",
                o.loc,
                hint="compute the grid from sizes and integer scalars with + - * // % min max",
            )
        text[o.result] = spelled
    if not extents:
        return ""
    three = [*(text[v] for v in extents), "1", "1"][:3]
    return f"({', '.join(three)})"


def assumed_text(func: Func, names: Container[str]) -> tuple[str, ...]:
    """What the author assumes of sizes and integer scalars (those called `names`) in every block,
    as Python text of bools: "n % 4 == 0"."""
    assumed = [o for o in func.body.ops if isinstance(o, Assume) and o.text]
    sides = (v for o in assumed for v in (o.lhs, o.rhs))
    needed = {*upstream(sides, makers(func.body.ops))} if assumed else ()
    text = {p.value: p.value.name for p in func.params if p.value.name in names}
    found = []
    for o in func.body.ops:
        if o in assumed and {o.lhs, o.rhs} <= text.keys():
            lhs, rhs = text[o.lhs], text[o.rhs]
            multiple = o.kind == "multiple"
            found.append(f"{lhs} % {rhs} == 0" if multiple else f"{lhs} {_COMPARE[o.kind]} {rhs}")
        elif o in needed:
            spelled = _spell(o, text)
            if spelled is not None and len(spelled) <= MOST_TEXT:
                text[o.result] = spelled
    return tuple(dict.fromkeys(found))


def _spell(o: Op, text: Mapping[Value, str]) -> str | None:
    """The result of an op as text, that of its operands given; None where there is none."""
    if not text.keys() >= set(o.operands):
        return None
    match o:
        case Const(value=value):
            return repr(value)
        case Binary(kind=kind, lhs=lhs, rhs=rhs) if kind in _BINARY:
            return _BINARY[kind].format(text[lhs], text[rhs])
        case Unary(kind=kind, operand=operand) if kind in _UNARY:
            return _UNARY[kind].format(text[operand])
        case Compare(kind=kind, lhs=lhs, rhs=rhs):
            return f"({text[lhs]} {_COMPARE[kind]} {text[rhs]})"
        case Select(cond=cond, on_true=on_true, on_false=on_false):
            return f"({text[on_true]} if {text[cond]} else {text[on_false]})"
        case Cast(operand=operand, dtype=dtype) if operand.dtype.is_int and dtype.is_int:
            return text[operand]
    return None
