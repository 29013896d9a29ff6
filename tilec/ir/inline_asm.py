"""Inline assembly as users write it: which registers a constraint names on each kind of target, and
what must be right before LLVM sees it, which ends the process on a constraint that it cannot place.

Constraints are LLVM's: outputs first ("=r", or "=&r" if it is written before the inputs are read),
then inputs ("r", or the number of the output whose register it begins in), then what else is
changed ("~{memory}"). Operands are numbered in this order, "$0" in LLVM's templates and "%0" in
those of CUDA and C.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilec.ir.types import DTYPES, DType

_INTS = {n: (DTYPES[f"int{n}"], DTYPES[f"uint{n}"]) for n in (8, 16, 32, 64)}
_F16, _BF16, _F32, _F64 = (DTYPES[n] for n in ("float16", "bfloat16", "float32", "float64"))

REGISTERS: dict[str, dict[str, tuple[DType, ...]]] = {
    # PTX: LLVM's NVPTX constraints; CUDA's guide "Inline PTX Assembly in CUDA", section 1.1
    "cuda": {
        "h": (*_INTS[16], _F16, _BF16),
        "r": _INTS[32],
        "l": _INTS[64],
        "f": (_F32,),
        "d": (_F64,),
    },
    # LLVM's guide for AMDGPU: vector and scalar registers of 32 bits, and pairs of them
    "hip": {"v": (*_INTS[32], *_INTS[64], _F32, _F64), "s": (*_INTS[32], *_INTS[64], _F32, _F64)},
    # x86: general registers, and those of SSE
    "cpu": {
        "r": (*_INTS[16], *_INTS[32], *_INTS[64]),
        "q": (*_INTS[8], *_INTS[16], *_INTS[32], *_INTS[64]),
        "x": (_F32, _F64),
    },
}
"""By the kind of a target and the letter of a constraint: the dtypes that such a register takes."""

IMMEDIATES = "ni"
_CLOBBERS = {"cuda": ("memory",), "hip": ("memory", "vcc", "scc"), "cpu": ("memory", "cc", "flags")}
_CONSTRAINT = re.compile(r"(=&?)?([a-zA-Z])|(\d+)|~\{(\w+)\}")


class Wrong(Exception):
    """(what is wrong, what to write instead)."""


@dataclass(frozen=True)
class Constraints:
    """`outputs`, `inputs`: letters, the number of an output for an input in its register;
    `clobbers`: the names of what else is changed."""

    outputs: tuple[str, ...]
    inputs: tuple[str | int, ...]
    clobbers: tuple[str, ...]


def read_constraints(text: str, target: str) -> Constraints:
    """The operands that a list of constraints names. Raises Wrong."""
    outputs: list[str] = []
    inputs: list[str | int] = []
    clobbers: list[str] = []
    letters = REGISTERS[target]
    listed = f"registers of {target} are {', '.join(letters)}"
    for word in filter(None, (w.strip() for w in text.split(","))):
        found = _CONSTRAINT.fullmatch(word)
        if found is None:
            hint = 'write "=r" and "0", an input in the register of output 0'
            if not word.startswith("+"):
                hint = 'constraints look like "=r,r,f,0,~{memory}"'
            raise Wrong(f"{word!r} is no constraint", hint)
        mark, letter, tied, clobber = found.groups()
        if clobbers and not clobber:
            raise Wrong(f"{word!r} stands behind {clobbers[-1]!r}", "write operands first")
        if clobber:
            if clobber not in _CLOBBERS[target]:
                known = ", ".join("~{" + c + "}" for c in _CLOBBERS[target])
                raise Wrong(f"{word!r} is not known of {target}", f"it has {known}")
            clobbers.append(clobber)
        elif mark:
            if inputs:
                raise Wrong(f"output {word!r} stands behind an input", "write outputs first")
            if letter not in letters:
                raise Wrong(f"{word!r} names no register", listed)
            outputs.append(letter)
        elif tied is not None:
            if int(tied) >= len(outputs):
                raise Wrong(
                    f"{word!r} names no output", f"outputs count from 0, {len(outputs)} are"
                )
            inputs.append(int(tied))
        else:
            if letter not in letters and letter not in IMMEDIATES:
                raise Wrong(f"{word!r} names no register", f"{listed}; n is a number")
            inputs.append(letter)
    return Constraints(tuple(outputs), tuple(inputs), tuple(clobbers))


def llvm_template(template: str, operands: int) -> str:
    """A template as LLVM takes it. Raises Wrong where it names an operand that there is not."""
    if re.search(r"\$(\d|\{\d)", template):
        named = [int(n) for n in re.findall(r"(?<!\$)(?:\$\$)*\$\{?(\d+)", template)]
        text, mark = template, "$"
    else:
        named, mark = [], "%"

        def operand(found: re.Match[str]) -> str:
            if found[0] == "$":
                return "$$"
            if found[1] is None:
                return "%"
            named.append(int(found[1]))
            return f"${{{found[1]}}}"

        text = re.sub(r"%%|%(\d+)|\$", operand, template)
    over = [n for n in named if n >= operands]
    if over:
        raise Wrong(
            f"the template names operand {mark}{over[0]}, constraints name {operands}",
            "operands count from 0, outputs first",
        )
    if re.search(r"\$(?![\d{$])", text.replace("$$", "")):
        raise Wrong("the template has a $ that is no operand's", "write $$ for one")
    return text
