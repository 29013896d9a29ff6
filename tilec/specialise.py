"""Facts: what a variant of a kernel is compiled under, and nothing that only the launch needs to
know.

From the arguments of a call: each array's dtype, compile-time extents and strides, and alignment;
the dtype of each scalar; the constants; the target. Two calls with equal facts run the same
machine code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilec.fingerprint import describe
from tilec.ir.errors import CompileError, did_you_mean
from tilec.ir.types import DTYPES, find_dtype
from tilec.runtime.arguments import Call, Parameter, alignment_fact, fact_strides, is_wide
from tilec.runtime.image import Argument
from tilec.runtime.tensors import Tensor, contiguous_strides


def spec(shape: Sequence[int], dtype: object, strides: Sequence[int] | None = None) -> Tensor:
    """An array to compile for, without memory: `tilec.spec((4096, 512), "float16")`.

    `strides` count elements; without them the array is contiguous. Its address counts as aligned
    to 16 bytes. Raises CompileError for an unknown dtype or strides that do not match the shape.
    """
    found = find_dtype(dtype)
    if found is None:
        raise CompileError(f"unknown dtype {dtype!r}{did_you_mean(str(dtype), DTYPES)}")
    extents = tuple(int(e) for e in shape)
    steps = contiguous_strides(extents) if strides is None else tuple(int(s) for s in strides)
    if len(steps) != len(extents):
        raise CompileError(f"a spec has {len(extents)} extents but {len(steps)} strides")
    return Tensor(0, extents, steps, found.name, max(found.bits // 8, 1), "meta", 0, None)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a variant is compiled under; hashable.

    `arguments` are the tensors and scalars as `Image` describes them. `constants` pairs each
    compile-time argument with a text that tells its value from every other; the values themselves
    are in `values` and do not take part in comparisons.
    """

    target: str
    arguments: tuple[Argument, ...]
    constants: tuple[tuple[str, str], ...]
    threads: int | None
    grid_given: bool
    wide: bool
    may_alias: bool
    values: Mapping[str, Any] = field(compare=False, hash=False)

    def text(self) -> str:
        """The facts as text for a cache key."""
        return repr((self.target, self.arguments, self.constants, self.threads, self.grid_given,
                     self.wide, self.may_alias))  # fmt: skip


def facts_of(
    call: Call,
    parameters: Sequence[Parameter],
    target: str,
    threads: int | None,
    grid_given: bool,
    may_alias: bool = False,
) -> Facts:
    """The facts of a call whose arguments have been read and checked."""
    arguments = []
    for p in parameters:
        if p.kind == "tensor":
            arguments.append(_tensor_fact(p, call))
        elif p.kind == "scalar":
            arguments.append(Argument(p.name, "scalar", _scalar_dtype(p, call.scalars[p.name])))
    return Facts(
        target,
        tuple(arguments),
        tuple((name, describe(value)) for name, value in call.constants.items()),
        threads,
        grid_given,
        any(is_wide(t) for t in call.tensors.values()),
        may_alias,
        dict(call.constants),
    )


def _tensor_fact(p: Parameter, call: Call) -> Argument:
    t = call.tensors[p.name]
    shape = tuple(
        f"{p.name}_shape{dim}" if extent is None else extent
        for dim, extent in enumerate(p.shape or (None,) * len(t.shape))
    )
    strides = fact_strides(p.name, t, shape)
    dtype = t.dtype if p.dtype is None else p.dtype
    return Argument(p.name, "tensor", dtype, shape, strides, alignment_fact(t, strides))


def _scalar_dtype(p: Parameter, value: int | float | bool) -> str:
    """The annotated dtype; for a scalar without one, what Python's own numbers become."""
    if p.dtype is not None:
        return p.dtype
    match value:
        case bool():
            return "bool"
        case int():
            return "int32" if -(2**31) <= value < 2**31 else "int64"
    return "float32"
