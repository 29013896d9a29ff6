"""The schema of an operator: what torch is told of a kernel's parameters.

A: T.Tensor((M, N), "float32")     Tensor A, or Tensor(a0!) A where the kernel writes it
W: T.Tensor((N,), dtype) = None    Tensor? W=None
n: T.int32, x: T.float32           SymInt n, float x
BN: T.constexpr = 32               int BN=32 (bool, float and str alike): each value is a
                                   variant, so that no symbol may stand for it
BN: T.constexpr = T.auto           int? BN=None: None leaves it to tilec
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tilec.builtins.choices import Auto
from tilec.ir.errors import LaunchError
from tilec.ir.types import DTYPES
from tilec.runtime.arguments import REQUIRED, Parameter

_CONSTANTS: dict[type, str] = {bool: "bool", int: "int", float: "float", str: "str"}


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The parameters of an operator, in order; `open` are those that None leaves to tilec, `fixed`
    the kernel's compile-time values that no call gives."""

    parameters: tuple[Parameter, ...]
    open: frozenset[str]
    fixed: Mapping[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """A call's arguments by name, as the kernel takes them; torch leaves out trailing ones that
        are the defaults."""
        given = {**dict(zip(self.names, args)), **kwargs, **self.fixed}
        return {n: v for n, v in given.items() if v is not None or n not in self.open}

    def chosen(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        """What decides which code is run for the arguments `given`: compile-time values, and which
        tensors are there."""
        constants = (given.get(p.name) for p in self.parameters if p.kind == "constexpr")
        optional = (p.name for p in self.parameters if p.kind == "tensor" and p.default is None)
        return (*constants, *(given.get(name) is None for name in optional))


def read_inputs(
    kernel: str, parameters: Sequence[Parameter], constants: Mapping[str, Any], tuned: bool = False
) -> Inputs:
    """The operator's parameters: the kernel's less `constants`, those whose value no schema can
    hold, which keep their default, and the compile-time ones of a `tuned` kernel, which are its
    own. Raises LaunchError where one has no value."""
    kept, open_, fixed = [], set(), dict(constants)
    known = {p.name: p for p in parameters}
    for name in constants:
        if name not in known or known[name].kind != "constexpr":
            names = ", ".join(p.name for p in parameters if p.kind == "constexpr") or "none"
            message = f"constants names {name!r}, which is no compile-time parameter of {kernel}"
            raise LaunchError(message, hint=f"it has: {names}")
    for p in parameters:
        if p.name in constants:
            continue
        if p.kind == "constexpr" and p.default is REQUIRED:
            message = f"{kernel}: the compile-time parameter {p.name} has no default"
            raise LaunchError(message, hint=f"give its value: constants={{{p.name!r}: 128}}")
        if p.kind == "constexpr" and tuned:
            continue
        if p.kind == "constexpr" and type(p.default) not in _CONSTANTS:
            if not isinstance(p.default, Auto):
                fixed[p.name] = p.default
                continue
            open_.add(p.name)
        kept.append(p)
    return Inputs(tuple(kept), frozenset(open_), fixed)


def write_schema(inputs: Inputs, mutated: Collection[str], outputs: int) -> str:
    """The schema's text, without the operator's name."""
    written = [_written(p, p.name in mutated, n, inputs) for n, p in enumerate(inputs.parameters)]
    returns = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
    return f"({', '.join(written)}) -> {returns}"


def _written(p: Parameter, mutated: bool, number: int, inputs: Inputs) -> str:
    if p.kind == "tensor":
        kind, end = ("Tensor?", "=None") if p.default is None else ("Tensor", "")
        alias = f"(a{number}!)" if mutated else ""
        return f"{kind.replace('Tensor', f'Tensor{alias}')} {p.name}{end}"
    if p.name in inputs.open:
        return f"int? {p.name}=None"
    if p.kind == "constexpr":
        kind = _CONSTANTS[type(p.default)]
    else:
        found = DTYPES[p.dtype].kind if p.dtype is not None else "float"
        kind = {"float": "float", "bool": "bool"}.get(found, "SymInt")
    return f"{kind} {p.name}" + ("" if p.default is REQUIRED else f"={_text(p.default)}")


def _text(default: Any) -> str:
    return json.dumps(default) if isinstance(default, str) else repr(default)
