"""Functions of numbers: in a kernel one instruction or a few for each element, outside of it plain
Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilec.ir.caller import caller_loc
from tilec.ir.errors import CompileError


@dataclass(frozen=True, slots=True, eq=False)
class Elementwise:
    """A function of one or two numbers. `kind` is the IR's name for it; `python` computes it on
    plain numbers."""

    name: str
    kind: str
    python: Callable[..., Any]
    doc: str
    arity: int = 1

    def __call__(self, *args: Any, **named: Any) -> Any:
        try:
            several = self.name in ("max", "min") and len(args) > 2
            if named or (len(args) != self.arity and not several):
                given = len(args) + len(named)
                raise TypeError(f"{self.arity} without a name, and {given} were given")
            return self.python(*args)
        except CompileError:  # of a size
            raise
        except Exception as e:  # the arguments' own methods, whatever they are, compute it
            raise CompileError(
                f"T.{self.name} outside of a kernel takes Python numbers: {e}",
                caller_loc(),
                "call it in a kernel for each element, or use NumPy's or torch's function here",
            ) from None


def unary(name: str, python: Callable[..., Any], doc: str) -> Elementwise:
    return Elementwise(name, name, python, doc)


def binary(name: str, kind: str, python: Callable[..., Any], doc: str) -> Elementwise:
    return Elementwise(name, kind, python, doc, 2)


def trailing_zeros(x: int) -> int:
    return (x & -x).bit_length() - 1 if x else 32


def reversed_bits(x: int) -> int:
    """Of an int32, as an int32."""
    made = int(f"{x & 0xFFFF_FFFF:032b}"[::-1], 2)
    return made - (made >> 31 << 32)


def ceildiv(a: Any, b: Any) -> Any:
    return -(-a // b) if isinstance(a, int) else (a + (b - 1)) // b


def truncdiv(a: Any, b: Any) -> Any:
    quotient = (a if a > 0 else -a) // (b if b > 0 else -b)
    return quotient if (a < 0) == (b < 0) else -quotient


def shift_left(a: Any, b: Any) -> Any:
    if isinstance(b, int) and b > 1 << 16:
        raise OverflowError("the result has thousands of digits")
    return a << b


def pow(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int) and a.bit_length() * b > 1 << 16:
        raise OverflowError("the power has thousands of digits")
    return a**b
