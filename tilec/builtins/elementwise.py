"""Functions of numbers: in a kernel one instruction or a few for each element, outside of it plain
Python."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilec.ir.caller import caller_loc, for_users
from tilec.ir.errors import CompileError

__all__ = ["Elementwise"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Elementwise:
    # A function of one or two numbers. `kind` is the name that the IR has; `python` computes it on
    # plain numbers. `ulps`: the largest error in float32, in units in the last place, measured on
    # the CPU, and what GPUs are held to; halves are computed in float32 and rounded once.

    name: str
    kind: str
    python: Callable[..., Any]
    doc: str
    arity: int = 1
    ulps: tuple[float, float] | None = None

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        if self.ulps is None:
            return f"{self.doc}."
        cpu, gpu = self.ulps
        return f"{self.doc}. In float32 at most {cpu} ulp on the CPU, {gpu} ulp on GPUs."

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def __signature__(self) -> inspect.Signature:
        """For `help`, `inspect.signature` and editors that ask a running Python."""
        kind = inspect.Parameter.POSITIONAL_ONLY
        taken = [inspect.Parameter(n, kind) for n in ("x", "y")[: self.arity]]
        if self.takes_several:
            taken.append(inspect.Parameter("more", inspect.Parameter.VAR_POSITIONAL))
        return inspect.Signature(taken)

    @property
    def takes_several(self) -> bool:
        return self.name in ("max", "min")

    def __repr__(self) -> str:
        return f"T.{self.name}{self.__signature__}"

    @for_users
    def __call__(self, *args: Any, **named: Any) -> Any:
        try:
            several = self.takes_several and len(args) > 2
            if named or (len(args) != self.arity and not several):
                given = len(args) + len(named)
                raise TypeError(f"{self.arity} without a name, and {given} were given")
            return self.python(*args)
        except CompileError:  # of a size
            raise
        except Exception as e:  # the arguments' own methods, whatever they are, compute it
            message = f"T.{self.name} outside of a kernel takes Python numbers: {e}"
            hint = "call it in a kernel for each element, or use NumPy's or torch's function here"
            raise CompileError(message, caller_loc(), hint) from None


Ulps = tuple[float, float] | None


def unary(name: str, python: Callable[..., Any], doc: str, ulps: Ulps = None) -> Elementwise:
    return Elementwise(name, name, python, doc, ulps=ulps)


def binary(
    name: str, kind: str, python: Callable[..., Any], doc: str, ulps: Ulps = None
) -> Elementwise:
    return Elementwise(name, kind, python, doc, 2, ulps)


def _bits(x: int) -> str:
    """Those of an int known now: 32, or 64 where it has more."""
    width = 32 if -(1 << 31) <= x < 1 << 32 else 64
    return f"{x & (1 << width) - 1:0{width}b}"


def popcount(x: int) -> int:
    return _bits(x).count("1")


def leading_zeros(x: int) -> int:
    return len(_bits(x)) - len(_bits(x).lstrip("0"))


def trailing_zeros(x: int) -> int:
    return len(_bits(x)) - len(_bits(x).rstrip("0"))


def reversed_bits(x: int) -> int:
    """As a signed int."""
    bits = _bits(x)
    made = int(bits[::-1], 2)
    return made - (1 << len(bits) if bits[-1] == "1" else 0)


def bound(kind: str, of_numbers: Callable[..., Any]) -> Callable[..., Any]:
    """`max` or `min` of numbers, or of sizes, which reckon it themselves."""

    def of_two(a: Any, b: Any) -> Any:
        for size, other in ((a, b), (b, a)):
            if hasattr(size, "bounded_by"):
                return size.bounded_by(kind, other)
        return of_numbers(a, b)

    return lambda *args: functools.reduce(of_two, args)


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
