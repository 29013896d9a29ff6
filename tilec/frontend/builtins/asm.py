"""Inline assembly."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from tilec import language as T
from tilec.frontend.builtins.table import Call, builtin, dtype_at
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import Address, Scalar, describe, is_literal
from tilec.ir import inline_asm
from tilec.ir.ops import Asm, AsmEffect, Meaning
from tilec.ir.types import INT32, DType


@builtin(T.asm)
def asm(t: Expressions, c: Call) -> object:
    hint = 'write T.asm("add.s32 %0, %1, %2;", "=r,r,r", a, b, dtype="int32")'
    for name in ("template", "constraints"):
        c.text(name, hint)
    target = c.choice("target", tuple(inline_asm.REGISTERS))
    place = c.place("constraints")
    try:
        read = inline_asm.read_constraints(c["constraints"], target)
        place = c.place("template")
        template = inline_asm.llvm_template(c["template"], len(read.outputs) + len(read.inputs))
    except inline_asm.Wrong as wrong:
        message, hint = wrong.args
        raise t.error(f"T.asm: {message}", hint, place) from None
    types = _types(t, c, read, target)
    values = _arguments(t, c, read, types, target)
    said = c["effects"]
    effects = c.flag("effects") if said is not None else not types
    if "memory" in read.clobbers:
        effects = True
    if effects:
        c.of("threads")
    constraints = ",".join(filter(None, (w.strip() for w in c["constraints"].split(","))))
    made = t.emit(
        AsmEffect if effects else Asm,
        template,
        constraints,
        target,
        tuple(x.value for x in values),
        types,
        meaning(t, c),
    )
    found = tuple(t.scalar(r) for r in made.results)
    return found[0] if len(found) == 1 else found or None


def meaning(t: Expressions, c: Call) -> Meaning | None:
    """The function that says what it computes."""
    function = c["evaluate"]
    if function is not None and not callable(function):
        hint = "give a function of NumPy arrays that is written outside of the kernel"
        raise c.wrong("evaluate", f"is {describe(function)}, not a function", hint)
    return None if function is None else Meaning(function)


def _types(t: Expressions, c: Call, read: inline_asm.Constraints, target: str) -> tuple[DType, ...]:
    listed = () if c["dtype"] is None else c.several("dtype")
    place = c.place("dtype")
    types = tuple(dtype_at(t, d, place) for d in listed)
    if len(types) != len(read.outputs):
        raise t.error(
            f"T.asm has {len(read.outputs)} output{'s' * (len(read.outputs) != 1)}, dtype names "
            f"{len(types)}",
            'write dtype="float32", or a tuple with one for each "=…" of the constraints',
            place,
        )
    for dtype, letter in zip(types, read.outputs):
        _check_register(t, dtype, letter, target, f"a result of {dtype.name}", place)
    return types


def _check_register(
    t: Expressions, dtype: DType, letter: str, target: str, what: str, place: ast.AST
) -> None:
    taken = inline_asm.REGISTERS[target][letter]
    if dtype not in taken:
        fitting = [k for k, dtypes in inline_asm.REGISTERS[target].items() if dtype in dtypes]
        hint = f'write "{fitting[0]}"' if fitting else f"cast it: T.{taken[0].name}(x)"
        names = ", ".join(d.name for d in taken)
        raise t.error(f'T.asm: {what} in a register "{letter}", which takes {names}', hint, place)


def _arguments(
    t: Expressions, c: Call, read: inline_asm.Constraints, types: Sequence[DType], target: str
) -> list[Scalar]:
    given = c["args"]
    if len(given) != len(read.inputs):
        message = (
            f"T.asm has {len(read.inputs)} input{'s' * (len(read.inputs) != 1)}, {len(given)} "
            f"argument{'s' * (len(given) != 1)} {'was' if len(given) == 1 else 'were'} given"
        )
        raise t.error(message, "write one for each constraint without =", c.place("constraints"))
    found = []
    for n, (value, held) in enumerate(zip(given, read.inputs)):
        place = c.node.args[2 + n] if 2 + n < len(c.node.args) else c.node
        if held in (*inline_asm.IMMEDIATES,):
            if not isinstance(value, int):
                message = f'T.asm: {describe(value)} for "{held}", a literal'
                raise t.error(message, 'write an int, or "r"', place)
            found.append(t.constant(value, INT32))
            continue
        if isinstance(value, Address):
            hint = "give it what it would read, A[i], and store what it gives: A[i] = T.asm(…)"
            raise t.error(f"T.asm takes numbers, this is {describe(value)}", hint, place)
        letter = read.outputs[held] if isinstance(held, int) else held
        with t.at(place):
            number = t.number(value, "an argument of T.asm")
            if is_literal(number):
                taken = inline_asm.REGISTERS[target][letter]
                like = types[held : held + 1] if isinstance(held, int) else types
                dtype = next((d for d in like if d in taken), taken[0])
                found.append(t.constant(number, dtype))
                continue
        assert isinstance(number, Scalar)
        _check_register(t, number.dtype, letter, target, describe(number), place)
        if isinstance(held, int) and number.dtype.bits != types[held].bits:
            message = f"T.asm: {describe(number)} begins in a result of {types[held].name}"
            raise t.error(message, f"cast it: T.{types[held].name}(x)", place)
        found.append(number)
    return found
