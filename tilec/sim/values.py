"""What the records compute that only compute, as Python expressions over `numbers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilec.ir.llvm import Inst
from tilec.sim import numbers
from tilec.sim.in_flight import read_register
from tilec.sim.poison import DIVISIONS, checked, conditions


def spelled(i: Inst, args: Sequence[str], keep: Callable[[Any], str]) -> str:
    """The expression for a record with the operands `args`; `keep` gives the name of a constant.
    Raises KeyError for an opcode that is not known."""
    types = [v.type for v in i.operands]
    assert i.result is not None
    vector = any(t.startswith("<") for t in types)
    match i.opcode:
        case op if op in numbers.BINARY:
            if types[0] == "i1" and op in numbers.CONDITIONS:
                return f"{numbers.CONDITIONS[op].__name__}({args[0]}, {args[1]})"
            if op in DIVISIONS and not (i.operands[1].literal or 0) > 0:
                return f"m.divide({keep(i)}, {keep(numbers.BINARY[op])}, {args[0]}, {args[1]})"
            if op in numbers.SPELLED and not vector and not conditions(i):
                return f"{args[0]} {numbers.SPELLED[op]} {args[1]}"
            return f"each({keep(checked(numbers.BINARY[op], i))}, {args[0]}, {args[1]})"
        case "icmp" | "fcmp":
            compare = numbers.compare_ints if i.opcode == "icmp" else numbers.compare_floats
            pred = i.text.split()[1]
            name = keep(checked(lambda a, b: compare(pred, a, b), i))
            return f"each({name}, {args[0]}, {args[1]})"
        case "select":
            return f"select({args[0]}, {args[1]}, {args[2]})"
        case "fneg":
            return f"negate({args[0]})"
        case "freeze":
            return f"frozen({args[0]}, {i.result.type!r})"
        case "getelementptr":
            elem = i.text.split(" ", 1)[1].rsplit(f", {i.operands[0]}", 1)[0]
            return f"{args[0]} + {args[1]}.astype(int64) * {numbers.size_of(elem)}"
        case "extractvalue" | "extractelement":
            if len(args) > 1 and i.operands[1].literal is None:
                return f"pick({args[0]}, {args[1]})"
            return f"{args[0]}[{int(i.text.rsplit(' ', 1)[1])}]"
        case "insertelement":
            if len(args) > 2 and i.operands[2].literal is None:
                return f"put({args[0]}, {args[2]}, {args[1]})"
            return f"insert({args[0]}, {args[1]}, {int(i.text.rsplit(' ', 1)[1])})"
        case "shufflevector":
            return f"shuffle({args[0]}, {args[1]}, {args[2]})"
    if i.opcode == "addrspacecast" and i.operands[0].ref.startswith("@"):
        return args[0]
    cast = f"cast({i.opcode!r}, {args[0]}, {types[0]!r}, {i.result.type!r})"
    if not conditions(i):
        return cast
    source, to = (t.split(" x ")[-1].strip("<>") for t in (types[0], i.result.type))
    opcode = i.opcode
    return f"each({keep(checked(lambda x: numbers.cast(opcode, x, source, to), i))}, {args[0]})"


HELPERS: dict[str, Any] = {
    name: getattr(numbers, name)
    for name in (
        "each",
        "both",
        "either",
        "select",
        "negate",
        "frozen",
        "insert",
        "pick",
        "put",
        "shuffle",
        "cast",
    )
} | {
    "int64": numbers.KINDS["i64"],
    "K_first": numbers.KINDS["i32"](0),
    "read_register": read_register,
}
"""What the expressions, and the lines around them, call by name."""
