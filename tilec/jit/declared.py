"""What a kernel declares before anybody calls it: the arguments it writes, the arrays it makes.

Both stand in its TILE form, which is traced for arrays of made-up sizes: run-time sizes are symbols
there, so that what is found holds for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilec.ir.errors import CompileError, LaunchError
from tilec.jit.specialise import spec, spec_in_memory
from tilec.runtime.arguments import REQUIRED, Parameter
from tilec.runtime.expressions import evaluate, is_name, names_in
from tilec.runtime.tensors import Tensor
from tilec.support.lazy import Lazy

if TYPE_CHECKING:
    from tilec.jit import build
    from tilec.kernel import Kernel
else:  # loads the compiler
    build = Lazy("tilec.jit.build")

_EXTENT = 64  # of a size that nobody gave

Extents = tuple[int | str, ...]


@dataclass(frozen=True)
class Declared:
    """`written`: the arguments of a call that the kernel writes. `made`: the arrays that a call
    allocates, by name: extents, which may be text over the sizes of the arguments, and dtype."""

    written: frozenset[str]
    made: Mapping[str, tuple[Extents, str]]


def declared(
    kernel: Kernel, constants: Mapping[str, Any], sizes: Mapping[str, int] | None = None
) -> Declared:
    """What `kernel` declares under these compile-time values, and sizes where they are fixed
    (`T.const`). Raises CompileError where it cannot be traced, LaunchError where an argument may
    have any rank or dtype."""
    known = dict(sizes or {})
    given: dict[str, Any] = dict(constants)
    parameters = kernel.parameters_for(constants)
    for p in parameters:
        if p.kind == "tensor":
            given[p.name] = _made_up(p, known)
    if not kernel.is_sequence:
        return _of(kernel, given)
    first, *others = kernel.parts.kernels
    found = _of(first, given)
    made = {n: spec([_EXTENT] * len(e), dtype) for n, (e, dtype) in found.made.items()}
    written = set(found.written)
    for part in others:
        written |= _of(part, {**given, **made}).written - made.keys()
    return Declared(frozenset(written), found.made)


def _of(kernel: Kernel, given: Mapping[str, Any]) -> Declared:
    asked = kernel.described((), "cpu", given)
    asked.call.constants.update({n: a.values[0] for n, a in asked.open.items()})
    func = build.trace_variant(asked.signature, asked.key())
    made = {name: (tuple(shape), dtype.name) for name, shape, dtype in func.attrs["outputs"]}
    for p in asked.parameters:  # as the author wrote them, over the sizes of the arguments
        if p.kind == "output" and p.shape is not None and None not in p.shape:
            made[p.name] = tuple(e for e in p.shape if e is not None), str(p.dtype)
    return Declared(frozenset(build.stored(func) - made.keys()), made)


def _made_up(p: Parameter, known: dict[str, int]) -> Tensor:
    """An array that fits the parameter, with the sizes in `known`; new ones are added to it."""
    if p.shape is None or p.dtype is None:
        what = "dtype" if p.shape is not None else "rank"
        raise LaunchError(f"{p.describe()} may have any {what}")
    extents = []
    for e in p.shape:
        match e:
            case None:
                extents.append(_EXTENT)
            case int():
                extents.append(e)
            case str() if is_name(e):
                extents.append(known.setdefault(e, _EXTENT))
            case str():
                for name in names_in(e):
                    known.setdefault(name, _EXTENT)
                extents.append(int(evaluate(e, known, f"{p.name}.shape")))
    strides = None
    if p.strides is not None and all(isinstance(s, int) for s in p.strides):
        strides = [s for s in p.strides if isinstance(s, int)]
    return spec_in_memory(extents, p.dtype, strides)


def constants_of(kernel: Kernel, given: Mapping[str, Any]) -> dict[str, Any]:
    """The compile-time values of a call that gives `given`: its defaults for the rest."""
    return {
        p.name: given.get(p.name, p.default)
        for p in kernel.parameters
        if p.kind == "constexpr" and given.get(p.name, p.default) is not REQUIRED
    }


def refuse_untraced(name: str, error: CompileError | LaunchError) -> LaunchError:
    """The error of a kernel whose writes nobody has named and no trace has shown."""
    hint = 'say it: mutates=["C"], or out=["C"] for what the call is to allocate'
    return LaunchError(f"what {name} writes cannot be read from it: {error.message}", hint=hint)
