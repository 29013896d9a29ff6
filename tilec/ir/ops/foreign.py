"""Code that is not tilec's: inline assembly of one kind of target, and calls of functions given as
LLVM IR or PTX. What it computes is known as far as the user says it (`meaning`, a
Meaning or None)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilec.ir.core import Effect, Op, Value, base
from tilec.ir.errors import CompileError
from tilec.ir.op_classes import op
from tilec.ir.semantics import Array, array, np
from tilec.ir.types import DType, Type, scalar_type

__all__ = ["Meaning", "Asm", "AsmEffect", "Extern", "ExternEffect"]


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the user says it computes: a function of NumPy arrays."""

    function: Callable[..., Any]

    def __repr__(self) -> str:
        return str(getattr(self.function, "__name__", "a function"))


@base
class _Foreign(Op):
    """What the ops of this module have in common."""

    def infer(self) -> Sequence[Type]:
        types: tuple[DType, ...] = self.types  # type: ignore[attr-defined]
        return tuple(scalar_type(t) for t in types)

    def evaluate(self, args: Sequence[Array]) -> Any:
        types: tuple[DType, ...] = self.types  # type: ignore[attr-defined]
        meaning: object = self.meaning  # type: ignore[attr-defined]
        if not isinstance(meaning, Meaning):
            raise CompileError(
                "what this computes is not known outside of its target",
                self.loc,
                "say it: evaluate=f, a function of NumPy arrays, one for each argument",
            )
        given = meaning.function(*args)
        results = given if isinstance(given, tuple) else (given,) * bool(types)
        if len(results) != len(types):
            raise CompileError(
                f"evaluate={meaning!r} gives {len(results)} results, {len(types)} are declared",
                self.loc,
                "return a tuple with an array for each",
            )
        made = tuple(array(x, t) for x, t in zip(results, types))
        return made[0] if len(made) == 1 else made


@op("asm", pure=True)
class Asm(_Foreign):
    """`template` with `constraints`, both LLVM's, for targets of kind `target`: numbers to numbers,
    and nothing else."""

    template: str
    constraints: str
    target: str
    args: tuple[Value, ...]
    types: tuple[DType, ...]
    meaning: object


@op("asm_effect", effects=(Effect("output"),))
class AsmEffect(_Foreign):
    """`asm` that does something besides, in the order of the program."""

    template: str
    constraints: str
    target: str
    args: tuple[Value, ...]
    types: tuple[DType, ...]
    meaning: object


@op("extern", pure=True)
class Extern(_Foreign):
    """A call of function `name`, which stands in `source`: in `language` "llvm" or "ptx". `counts`
    has for each parameter 0, a number, or how many elements lie at the place that it points to:
    their values are among `args`. Results: what it gives, if anything, and the elements of the
    places that it has `written`, by the number of the parameter."""

    name: str
    language: str
    source: str
    args: tuple[Value, ...]
    types: tuple[DType, ...]
    counts: tuple[int, ...]
    written: tuple[int, ...]
    meaning: object

    @property
    def firsts(self) -> list[int]:
        """Where the values of each parameter begin among `args`."""
        return [sum(max(1, n) for n in self.counts[:k]) for k in range(len(self.counts))]

    def evaluate(self, args: Sequence[Array]) -> Any:
        """A place is an array with a row for each element, which the function changes."""
        if not any(self.counts) or not isinstance(self.meaning, Meaning):
            return super().evaluate(args)
        given = [
            np.stack(np.broadcast_arrays(*args[k : k + n])).copy() if n else args[k]
            for k, n in zip(self.firsts, self.counts)
        ]
        result = self.meaning.function(*given)
        rows = [row for k in self.written for row in given[k]]
        returned = [result] if len(rows) < len(self.types) else []
        made = tuple(array(x, t) for x, t in zip((*returned, *rows), self.types))
        return made[0] if len(made) == 1 else made


@op("extern_effect", effects=(Effect("output"),))
class ExternEffect(_Foreign):
    """A call of a function of numbers that gives nothing, and does something."""

    name: str
    language: str
    source: str
    args: tuple[Value, ...]
    types: tuple[DType, ...]
    meaning: object
