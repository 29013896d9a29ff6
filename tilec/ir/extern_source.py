"""Functions that users give as LLVM IR or PTX: which there are in a text, and what they take.

Only numbers go in and at most one comes out; functions of other things may stand beside these, for
them to call."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from tilec.ir.types import BOOL, DTYPES, DType

_LLVM = re.compile(
    r"^\s*define\s(?P<before>[^@\n]*)@(?P<name>[\w.$-]+|\"[^\"]+\")\s*\((?P<taken>[^)]*)\)", re.M
)
_PTX = re.compile(
    r"\.func\s*(?:\((?P<before>[^)]*)\))?\s*(?P<name>[A-Za-z_$%][\w$]*)\s*\((?P<taken>[^)]*)\)"
    r"\s*(?P<end>[;{.])?"
)
_PARAMETER = re.compile(r"\.(reg|param)\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+[\w%$]+")
_HEADER = re.compile(r"^\s*\.(version|target|address_size)\b.*\n", re.M)


def _dtypes(*names: str) -> tuple[DType, ...]:
    return tuple(DTYPES[n] for n in names)


_LLVM_TYPES = {
    "float": _dtypes("float32"),
    "double": _dtypes("float64"),
    "half": _dtypes("float16"),
    "bfloat": _dtypes("bfloat16"),
    "i1": (BOOL,),
    **{f"i{n}": _dtypes(f"int{n}", f"uint{n}") for n in (8, 16, 32, 64)},
}
_FLOATS = {16: ("float16", "bfloat16"), 32: ("float32",), 64: ("float64",)}
_PTX_TYPES = {
    **{f"{k}{n}": _dtypes(f"int{n}", f"uint{n}") for k in "us" for n in (16, 32, 64)},
    **{f"b{n}": _dtypes(f"int{n}", f"uint{n}", *names) for n, names in _FLOATS.items()},
    **{f"f{n}": _dtypes(*names[:1]) for n, names in _FLOATS.items()},
    "bf16": _dtypes("bfloat16"),
}


@dataclass(frozen=True)
class Parameter:
    """`type`: as the language calls it; `dtypes`: which numbers it may be (none: tilec passes
    nothing of this type); `space`: PTX's, "reg" or "param"."""

    type: str
    dtypes: tuple[DType, ...]
    space: str = ""


@dataclass(frozen=True)
class Signature:
    """A function, and what it takes and gives (None: nothing)."""

    name: str
    language: str
    parameters: tuple[Parameter, ...]
    result: Parameter | None

    def __str__(self) -> str:
        taken = ", ".join(p.type for p in self.parameters)
        return f"{self.result.type if self.result else 'void'} {self.name}({taken})"


def language_of(text: str) -> str:
    """ "llvm" or "ptx", "" for another."""
    if _LLVM.search(text):
        return "llvm"
    return "ptx" if re.search(r"\.func\b", text) else ""


@cache
def signatures(text: str) -> dict[str, Signature]:
    """The functions that a text defines, by name."""
    if language_of(text) == "llvm":
        uncommented = re.sub(r";.*", "", text)
        return {s.name: s for s in map(_llvm, _LLVM.finditer(uncommented))}
    uncommented = re.sub(r"//.*|/\*.*?\*/", "", text, flags=re.DOTALL if "/*" in text else 0)
    found = (m for m in _PTX.finditer(uncommented) if m["end"] != ";")
    return {s.name: s for s in map(_ptx, found)}


def _llvm(m: re.Match[str]) -> Signature:
    given = (_parts(m["before"], " ") or ["void"])[-1]
    parameters = tuple(_llvm_parameter(_parts(p, " ")[0]) for p in _parts(m["taken"], ","))
    result = None if given == "void" else _llvm_parameter(given)
    return Signature(m["name"].strip('"'), "llvm", parameters, result)


def _llvm_parameter(type: str) -> Parameter:
    return Parameter(type, _LLVM_TYPES.get(type, ()))


def _parts(text: str, separator: str) -> list[str]:
    """`text` between separators that stand in no brackets: a vector's or a struct's type is one
    part."""
    parts, depth = [""], 0
    for x in text:
        depth += (x in "<{[(") - (x in ">}])")
        if x == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += x
    return [p.strip() for p in parts if p.strip()]


def _ptx(m: re.Match[str]) -> Signature:
    results = _ptx_parameters(m["before"] or "")
    result = results[0] if results else None
    return Signature(m["name"], "ptx", tuple(_ptx_parameters(m["taken"])), result)


def _ptx_parameters(text: str) -> list[Parameter]:
    found = []
    for written in filter(None, (p.strip() for p in text.split(","))):
        m = _PARAMETER.fullmatch(written)
        space, type = (m[1], m[2]) if m else ("", written)
        found.append(Parameter(type, _PTX_TYPES.get(type, ()), space))
    return found


def without_header(ptx: str) -> str:
    """PTX as it may stand behind another's header."""
    return _HEADER.sub("", ptx)
