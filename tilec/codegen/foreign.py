"""How inline assembly and calls of functions in other languages are spelled for LLVM.

Functions given as LLVM IR are modules of their own behind the kernel's in its text, those given as
PTX a text that is put into LLVM's; `parted` tells them apart again."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from tilec.ir.errors import CompileError, InternalError
from tilec.ir.instr.semantics import Semantics
from tilec.ir.llvm import Function, Val
from tilec.ir.ops import Asm, AsmEffect, Extern, ExternEffect
from tilec.ir.semantics import np, numpy_dtype
from tilec.ir.types import DType
from tilec.target import Target

Foreign = Asm | AsmEffect | Extern | ExternEffect

_MARK = re.compile(r"^; === (llvm|ptx) ===\n", re.MULTILINE)
_LANGUAGES = {"cuda": "PTX", "hip": "GCN assembly", "cpu": "x86 assembly"}


def call_foreign(
    f: Function, o: Foreign, target: Target, args: Sequence[Val], types: Sequence[str]
) -> list[Val]:
    """The results of `o`, in registers of LLVM's `types`."""
    if isinstance(o, Extern | ExternEffect):
        return _call(f, o, target, args, types)
    if o.target != target.kind:
        raise CompileError(
            f"this is {_LANGUAGES[o.target]}, the kernel is compiled for {target.name}",
            o.loc,
            f'compile it for a target "{o.target}…", or leave this out for others, by a parameter '
            "annotated T.constexpr",
        )
    held = [_register(f, x) for x in args]
    wanted = [_INTS_OF.get(t, t) for t in types]
    template = _escaped(o.template)
    effects = isinstance(o, AsmEffect)
    made = f.asm(
        template,
        o.constraints,
        held,
        wanted,
        instr="asm",
        effects=effects,
        semantics=_semantics(o, [v.dtype for v in o.args]),
    )
    return [f.cast("bitcast", x, t) if x.type != t else x for x, t in zip(made, types)]


_INTS_OF = {"half": "i16", "bfloat": "i16"}


def _register(f: Function, x: Val) -> Val:
    """A narrow float as the bits that a register holds."""
    return f.cast("bitcast", x, _INTS_OF[x.type]) if x.type in _INTS_OF else x


def _escaped(text: str) -> str:
    return "".join(c if " " <= c <= "~" and c not in '"\\' else f"\\{ord(c):02X}" for c in text)


def _call(
    f: Function,
    o: Extern | ExternEffect,
    target: Target,
    args: Sequence[Val],
    types: Sequence[str],
) -> list[Val]:
    if o.language == "ptx" and target.kind != "cuda":
        raise CompileError(
            f"{o.name} is PTX, the kernel is compiled for {target.name}",
            o.loc,
            "give it as LLVM IR, which all targets take",
        )
    raise InternalError("calls", o.loc)


def _semantics(o: Foreign, dtypes: Sequence[DType]) -> Semantics:
    """What `o` does in the simulator: what the user says it computes."""
    from_bits: list[Callable[[Any], Any]] = [_reader(t) for t in dtypes]
    to_bits: list[Callable[[Any], Any]] = [_writer(t) for t in o.types]

    def run(m: Any, *args: Any) -> tuple[Any, ...]:
        given = [np.asarray(m.full(x)) for x in args]
        with np.errstate(all="ignore"):
            found = o.evaluate([read(x) for read, x in zip(from_bits, given)])
        results = found if isinstance(found, tuple) else (found,)
        return tuple(m.full(write(x)) for write, x in zip(to_bits, results))

    return run


def _reader(dtype: DType) -> Callable[[Any], Any]:
    """From a register, where the simulator holds ints with a sign."""
    kind = numpy_dtype(dtype)
    return lambda x: x if x.dtype == kind else x.view(kind)


def _writer(dtype: DType) -> Callable[[Any], Any]:
    held = f"int{dtype.bits}"
    if dtype.kind in ("int", "uint") or dtype.bits == 16:
        return lambda x: np.ascontiguousarray(x).view(held)
    return lambda x: x


def without_asm(llvm_text: str) -> str:
    """A module for what its code is like but for inline assembly, whose results are any."""
    text = re.sub(
        r"^( *%[\w.]+ = )call (.*?) asm .*$", r"\1freeze \2 poison", llvm_text, flags=re.M
    )
    return re.sub(r"^ *call void asm .*\n", "", text, flags=re.M)


def parted(text: str) -> tuple[str, list[tuple[str, str]]]:
    """A module's text without the sources behind it, and these with their languages."""
    own, *rest = _MARK.split(text)
    return own, list(zip(rest[::2], rest[1::2]))
