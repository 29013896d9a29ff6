"""The specialisation key: what a variant of a kernel is compiled under, and nothing that only the
launch needs to know.

From the arguments of a call: each array's dtype, compile-time extents and strides, and alignment;
the dtype of each scalar; the constants; the target. Two calls with equal facts run the same
machine code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from tilec.builtins.annotations import dtype_of
from tilec.builtins.choices import Auto
from tilec.ir.caller import caller_loc, for_users
from tilec.ir.errors import CompileError, did_you_mean, shown
from tilec.ir.types import few_of, magnitude_of, narrow_of, tile_of, unit_of, whole_tiles_of
from tilec.jit.fingerprint import describe
from tilec.runtime.arguments import REQUIRED, Call, Parameter, as_index
from tilec.runtime.expressions import evaluate, names_in
from tilec.runtime.facts import (
    FACT_LIMIT,
    alignment_fact,
    dense_fact,
    fact_strides,
    is_wide,
    row_fact,
)
from tilec.runtime.image import Argument
from tilec.runtime.tensors import Tensor, contiguous_strides
from tilec.support.lazy import Lazy
from tilec.support.settings import is_on

if TYPE_CHECKING:
    from tilec import frontend
    from tilec.frontend import Signature
    from tilec.ir.schedule import Plan
else:  # whoever has a signature has loaded it
    frontend = Lazy("tilec.frontend")

_MOST_DIMENSIONS = 64  # as in NumPy and torch


@for_users
def spec(
    shape: Sequence[int],
    dtype: object = None,
    strides: Sequence[int] | None = None,
    **unknown: object,
) -> Tensor:
    """An array to compile for, without memory: `tilec.spec((4096, 512), "float16")`.

    `strides` count elements; without them the array is contiguous. Its address counts as aligned
    to 16 bytes. Of elements of four bits the array has a byte for two: half the last extent.
    Raises CompileError for an unknown dtype, an odd extent of such elements, or strides that do not
    match the shape.
    """
    for name in unknown:
        message = f"a spec has no {name!r}{did_you_mean(name, ('shape', 'dtype', 'strides'))}"
        raise CompileError(message, caller_loc(), 'write tilec.spec((4096, 512), "float16")')
    found = dtype_of(dtype, 'write tilec.spec((4096, 512), "float16")')
    extents = _whole(shape, "extent", 0)
    if found.bits < 8:
        if not extents or extents[-1] % 2:
            message = f"a spec of {found.name} with the shape {extents}: a byte holds two elements"
            raise CompileError(message, caller_loc(), "give it an even last extent")
        extents = (*extents[:-1], extents[-1] // 2)
    steps = contiguous_strides(extents) if strides is None else _whole(strides, "stride", None)
    if len(steps) != len(extents):
        message = f"a spec has {len(extents)} extents but {len(steps)} strides"
        raise CompileError(message, caller_loc(), "give one stride for each extent, or none at all")
    return Tensor(0, extents, steps, found.name, max(found.bits // 8, 1), "meta", 0, None)


def spec_in_memory(
    shape: Sequence[int], dtype: str | None, strides: Sequence[int] | None = None
) -> Tensor:
    """A spec by the extents of the array itself: of bytes, where its elements are narrower."""
    found = dtype_of(dtype, "")
    made = spec(shape, "uint8" if found.bits < 8 else found, strides)
    return replace(made, dtype=found.name)


def _whole(given: object, what: str, least: int | None) -> tuple[int, ...]:
    """The entries of a spec's shape or strides. Raises CompileError for what are no ints."""
    entries = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else None
    if entries is None:
        one = 4096 if as_index(given) is None else shown(given)
        message = f"the {what}s of a spec are {shown(given)}, not a tuple"
        raise CompileError(message, caller_loc(), f"write a tuple: tilec.spec(({one},), …)")
    if len(entries) > _MOST_DIMENSIONS:
        message = f"a spec has {len(entries)} {what}s; no array has more than {_MOST_DIMENSIONS}"
        raise CompileError(message, caller_loc(), "write one for each dimension")
    whole = [as_index(e) for e in entries]
    for e, number in zip(entries, whole):
        if number is None or not (-(2**63) if least is None else least) <= number < 2**63:
            raise CompileError(
                f"the {what} {shown(e)} of a spec is not an int"
                + (" from 0" if least == 0 else ""),
                caller_loc(),
                "write a number: a spec is one array, with the sizes it has",
            )
    return tuple(number for number in whole if number is not None)


def parameters_of(signature: Signature) -> tuple[Parameter, ...]:
    """The kernel's parameters as a launch checks them; those in `out=` have the kind "output"."""
    return tuple(
        Parameter(
            p.name,
            "output" if p.is_output else p.kind,
            None if p.dtype is None else p.dtype.name,
            p.shape,
            p.strides,
            REQUIRED if p.default is frontend.REQUIRED else p.default,
        )
        for p in signature.parameters
    )


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was left open and has been chosen: `constants` of the kernel, `plan` (None: nothing
    tells the plans apart, the safe order holds), the plans to try after it, and a function that
    says what the choice was made from; `packed` names the tensors that the launch packs.
    `only_ranked`: no other plan is worth a try, there are other constants; `alike`: the next ones
    are predicted to be about as fast."""

    constants: Mapping[str, int]
    plan: Plan | None
    ranked: tuple[Plan, ...] = ()
    text: Callable[[], str] = str
    packed: tuple[str, ...] = ()
    only_ranked: bool = False
    alike: bool = False


@dataclass(frozen=True, slots=True)
class SpecialisationKey:
    """What a variant is compiled under; hashable.

    `arguments` are the tensors and scalars as `Image` describes them, outputs in `out=` included.
    `constants` pairs each compile-time argument with a text that tells its value from every
    other; the values themselves are in `values` and do not take part in comparisons. `plan` was
    chosen for the sizes of the call (None: the safe order holds), before those in `ranked`;
    `choice` says from what. `simulated`: for the simulator alone, which can do more. `source`
    stands for the kernel's text and what its names mean (`tilec.jit.revision`). `packed` are the
    tensors that the launch copies so that their rows begin at cache lines. Under `only_ranked` a
    variant that would spill is not made. `debug`: T.device_assert looks (TILEC_DEBUG=1).
    `magnitudes`: about how large the sizes are that the form of a loop over whole tensors follows,
    or the tiles of a T.Parallel, and which power of two divides them, of those that count columns.
    """

    source: str
    target: str
    arguments: tuple[Argument, ...]
    constants: tuple[tuple[str, str], ...]
    threads: int | None
    grid_given: bool
    wide: bool
    may_alias: bool
    values: Mapping[str, Any] = field(compare=False, hash=False)
    plan: Plan | None = None
    ranked: tuple[Plan, ...] = field(default=(), compare=False)
    choice: Callable[[], str] = field(default=str, compare=False)
    simulated: bool = False
    packed: tuple[str, ...] = ()
    only_ranked: bool = field(default=False, compare=False)
    debug: bool = False
    magnitudes: tuple[tuple[str, int, int], ...] = ()

    @property
    def traced(self) -> tuple[Argument, ...]:
        """The arguments as the code is given them."""
        return tuple(packed_fact(a) if a.name in self.packed else a for a in self.arguments)

    def text(self) -> str:
        """The facts as text for a cache key."""
        return repr([getattr(self, f.name) for f in fields(self) if f.compare])


@dataclass(frozen=True, slots=True)
class Asked:
    """A call whose arguments have been read and checked, by `signature` and against `parameters`.

    `source` is the kernel's, `target` and `threads` what it is compiled for, as in
    `SpecialisationKey`. `grid` is the launch's, as its author wrote it; None where it gives none or
    none is known yet."""

    call: Call
    signature: Signature
    parameters: tuple[Parameter, ...]
    source: str
    target: str
    threads: int | None
    grid: Any
    grid_given: bool

    @property
    def open(self) -> dict[str, Auto]:
        """The compile-time arguments that are left to tilec."""
        return {n: v for n, v in self.call.constants.items() if isinstance(v, Auto)}

    def key(self, chosen: Chosen | None = None) -> SpecialisationKey:
        """The facts of the call, with the plan that was `chosen` for it.

        Arrays that the call allocates count as contiguous and aligned to 16 bytes.
        """
        call, sizes = self.call, self.signature.sizes.items()
        fixed = {n: call.sizes.values[n] for n, is_fixed in sizes if is_fixed}
        arguments, tensors = [], []
        # Of rows that the call allocates, a variant knows nothing else.
        told = bool(self.signature.returns) or any(map(_begins_anywhere, call.tensors.values()))
        dense = told and self.target != "cpu"
        for p in self.parameters:
            match p.kind:
                case "tensor":
                    tensors.append(call.tensors[p.name])
                    arguments.append(_tensor_fact(p, tensors[-1], fixed, dense))
                case "output":
                    tensors.append(_future_output(p, call))
                    fact = _tensor_fact(p, tensors[-1], fixed, dense)
                    arguments.append(replace(fact, output=True))
                case "scalar":
                    assert p.dtype is not None
                    default = None if p.default is REQUIRED else p.default
                    arguments.append(Argument(p.name, "scalar", p.dtype, default=default))
        known = chosen or Chosen({}, None)
        return SpecialisationKey(
            self.source,
            self.target,
            tuple(arguments),
            tuple((name, describe(value)) for name, value in call.constants.items()),
            self.threads,
            self.grid_given,
            any(is_wide(t) for t in tensors),
            False,
            dict(call.constants),
            known.plan,
            known.ranked,
            known.text,
            packed=known.packed,
            only_ranked=known.only_ranked,
            debug=is_on("TILEC_DEBUG"),
            magnitudes=tuple(
                (n, *_told(size, counts))
                for n, counts in self.signature.telling.items()
                if (size := call.sizes.values.get(n)) is not None and self.target != "cpu"
            ),
        )


def _told(size: int, counts: str) -> tuple[int, int]:
    """About how large a size is, and what divides it, as far as code follows that."""
    match counts:
        case "rows":
            return narrow_of(size), whole_tiles_of(size)
        case "columns":
            return magnitude_of(size), unit_of(size)
        case "few":
            return few_of(size), 1
        case "tiles":
            return tile_of(size)
    return magnitude_of(size), 1


def packed_fact(a: Argument) -> Argument:
    """A tensor whose rows begin at multiples of 16 bytes, with gaps between them, in the place of
    `a`."""
    outer = tuple(f"{a.name}_stride{d}" for d in range(len(a.shape) - 1))
    return replace(a, strides=(*outer, 1), align=FACT_LIMIT, dense=0)


def _begins_anywhere(t: Tensor) -> bool:
    """Whether rows of the tensor begin at any multiple of an element."""
    return any(n > 1 and s * t.itemsize % 16 for n, s in zip(t.shape[:-1], t.strides))


def _tensor_fact(p: Parameter, t: Tensor, fixed: Mapping[str, int], dense: bool) -> Argument:
    written = p.shape or (None,) * len(t.shape)
    shape = tuple(_fact(e, f"{p.name}_size{d}", t.shape[d], fixed) for d, e in enumerate(written))
    strides = fact_strides(p.name, t, shape)
    if p.strides is not None:
        strides = tuple(s if isinstance(s, int) else f for s, f in zip(p.strides, strides))
    dtype = t.dtype if p.dtype is None else p.dtype
    align = alignment_fact(t, strides)
    whole = dense_fact(t) if dense else 0
    row = row_fact(t, align)
    return Argument(p.name, "tensor", dtype, shape, strides, align, row=row, dense=whole)


def _fact(extent: int | str | None, name: str, value: int, fixed: Mapping[str, int]) -> int | str:
    """An extent as the variant knows it: an int where every size in it is a compile-time one."""
    match extent:
        case int():
            return extent
        case None:
            return name
    if names_in(extent) <= fixed.keys():
        return value
    return extent if extent.isidentifier() else name


def _future_output(p: Parameter, call: Call) -> Tensor:
    """The array that the call will allocate for a parameter in `out=`."""
    assert p.dtype is not None and p.shape is not None
    shape = tuple(
        e if isinstance(e, int) else int(evaluate(str(e), call.sizes.values, f"{p.name}.shape"))
        for e in p.shape
    )
    return replace(spec_in_memory(shape, p.dtype), device=call.device, index=call.index)
