"""What LLVM's instruction selector for NVIDIA cannot do, as a table: it ends the process, not the
compile.

LLVM reports an intrinsic that an architecture lacks with "Cannot select" and `abort()`, and a
missing library function with a wrong object. `check_intrinsics` refuses them first, where LLVM
works in the compiler's own process; for other targets it works in a child, which may end
(`isolated.py`). Every row was found by giving the intrinsic to LLVM 22.1 in a child process, once
for each architecture.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilec.ir.errors import InternalError
from tilec.target import Target


@dataclass(frozen=True, slots=True)
class Refused:
    """Intrinsics that start with `stem` and end with one of `types` (any if empty).

    `unless_feature`: a target that has it can select them; `unless_flag`: so can any target if the
    call carries this fast-math flag. `instead` says what to emit.
    """

    stem: str
    types: tuple[str, ...] = ()
    unless_feature: str = ""
    unless_flag: str = ""
    instead: str = ""

    def covers(self, name: str) -> bool:
        if name != self.stem and not name.startswith(self.stem + "."):
            return False
        return not self.types or name.rsplit(".", 1)[-1] in self.types


def _each(stems: str, **row: object) -> tuple[Refused, ...]:
    return tuple(Refused(stem, **row) for stem in stems.split())  # type: ignore[arg-type]


_NO_LIBRARY = "llvm.tan llvm.asin llvm.acos llvm.atan llvm.atan2 llvm.sinh llvm.cosh"

_REFUSED = (
    *_each("llvm.sin llvm.cos", types=("f64",), instead="a polynomial"),
    *_each("llvm.sin llvm.cos llvm.tanh", unless_flag="afn", instead="the `afn` form or asm"),
    *_each("llvm.exp llvm.exp10", instead="llvm.exp2 of a scaled argument"),
    *_each("llvm.log llvm.log2 llvm.log10", instead="llvm.nvvm.lg2.approx.f"),
    *_each("llvm.pow", instead="exp2(y * log2(x))"),
    *_each(_NO_LIBRARY, instead="a formula of exp2 and lg2"),
    *_each("llvm.exp2 llvm.tanh", types=("f64",), instead="a polynomial"),
    *_each("llvm.canonicalize", types=("bf16",), instead="a conversion to float and back"),
    *_each(
        "llvm.nvvm.read.ptx.sreg.clusterid llvm.nvvm.read.ptx.sreg.cluster "
        "llvm.nvvm.barrier.cluster llvm.nvvm.fence.sc.cluster llvm.nvvm.mapa "
        "llvm.nvvm.getctarank llvm.nvvm.griddepcontrol",
        unless_feature="cluster",
    ),
    *_each("llvm.nvvm.wgmma", unless_feature="wgmma"),
    *_each("llvm.nvvm.setmaxnreg", unless_feature="setmaxnreg"),
    *_each("llvm.nvvm.stmatrix", unless_feature="stmatrix"),
    *_each(
        "llvm.nvvm.cp.async.bulk llvm.nvvm.fence.proxy llvm.nvvm.fence.mbarrier_init "
        "llvm.nvvm.prefetch llvm.nvvm.elect.sync",
        unless_feature="tma",
    ),
    *_each(
        "llvm.nvvm.ff.to.e4m3x2 llvm.nvvm.ff.to.e5m2x2 llvm.nvvm.e4m3x2 llvm.nvvm.e5m2x2 "
        "llvm.nvvm.f16x2.to.e4m3x2 llvm.nvvm.f16x2.to.e5m2x2",
        unless_feature="float8",
        instead="integer arithmetic",
    ),
    *_each("llvm.nvvm.f2tf32.rn", unless_feature="wgmma", instead="integer arithmetic"),
)

_CALLED = re.compile(r"@(llvm\.[\w.]+)\(")


def check_intrinsics(llvm_text: str, target: Target) -> None:
    """Refuse LLVM text of a CUDA target that LLVM would end the process on, or whose object would
    call a missing function.

    Raises InternalError, naming the intrinsic, the architecture and what to emit instead: the code
    generator chose a form that its target does not have.
    """
    if target.kind != "cuda":
        return
    for name in sorted(set(_CALLED.findall(llvm_text))):
        for row in _REFUSED:
            if row.covers(name) and _is_refused(row, name, llvm_text, target):
                hint = f"emit {row.instead} instead" if row.instead else ""
                raise InternalError(f"LLVM cannot select {name} for {target}", hint=hint)


def _is_refused(row: Refused, name: str, text: str, target: Target) -> bool:
    if row.unless_feature:
        return not target.has(row.unless_feature)
    if row.unless_flag:
        calls = re.finditer(rf"\bcall ([^@\n]*)@{re.escape(name)}\(", text)
        return any({row.unless_flag, "fast"}.isdisjoint(c[1].split()) for c in calls)
    return True
