"""Binding a call's arguments to a kernel's parameters, and every check a launch makes.

Each message names the parameter, what was expected and what came.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilec.ir.errors import LaunchError, did_you_mean, shown
from tilec.ir.types import DTYPES
from tilec.runtime.devices import cuda_device_of
from tilec.runtime.expressions import evaluate, is_name, names_in
from tilec.runtime.tensors import Tensor, accepts, array_dtype, contiguous_strides, read_tensor

REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel as its author wrote it.

    `kind`: "tensor", "scalar", "constexpr" or "output" (a tensor that the call allocates).
    `shape` and `strides` hold ints, names of sizes, and None where anything will do; they are
    None themselves where the rank is free too. `dtype` is None where it is taken from the
    argument.
    """

    name: str
    kind: str
    dtype: str | None = None
    shape: tuple[int | str | None, ...] | None = None
    strides: tuple[int | str | None, ...] | None = None
    default: Any = REQUIRED

    def describe(self) -> str:
        """As in a signature: `A: Tensor((M, 64), float16)`."""
        if self.kind not in ("tensor", "output"):
            return f"{self.name}: {self.dtype or self.kind}"
        shape = (
            "..."
            if self.shape is None
            else ", ".join("?" if e is None else str(e) for e in self.shape)
        )
        one = "," if self.shape is not None and len(self.shape) == 1 else ""
        return f"{self.name}: Tensor(({shape}{one}), {self.dtype or '?'})"


@dataclass(slots=True)
class Sizes:
    """Run-time sizes found so far: `values` by name, and where each came from, in words."""

    values: dict[str, int] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)


# Keywords that launches of other systems have: where that stands here. "$" is the kernel's name.
_ELSEWHERE = {
    "grid": "the grid is not an argument: $[grid](…)",
    "num_warps": "write threads=32 * num_warps",
    "num_stages": "num_stages belongs to T.Pipelined in the kernel; give $ a parameter for it",
    "block": "write threads=…",
    "device": "a kernel runs where its arguments are; move them with .cuda() or .cpu()",
    "out": 'name outputs in the decorator: @tilec.kernel(out=["C"])',
}


def as_index(value: object) -> int | None:
    """A whole number as an int; None for what is none (a bool, a float, an array)."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except Exception:  # `__index__` may be anybody's
        return None


def bind_call(
    kernel: str,
    parameters: Sequence[Parameter],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    keywords: Sequence[str] = (),
) -> dict[str, Any]:
    """Each parameter's argument, defaults filled in; then those of the launch's own `keywords`
    that were given.

    Raises LaunchError for a wrong count, an unknown keyword, an argument given twice or not at all.
    """
    names = [p.name for p in parameters]
    if len(args) > len(parameters):
        raise LaunchError(
            f"{kernel} takes {len(parameters)} argument{'s' * (len(parameters) != 1)} "
            f"({', '.join(names)}), {len(args)} were given",
            hint=f"call {kernel}({', '.join(names)})",
        )
    bound = dict(zip(names, args))
    for name, value in kwargs.items():
        if name in bound:
            message = f"{kernel}: {name} was given twice, by position and by keyword"
            raise LaunchError(message, hint=f"leave {name}= out")
        if name not in names and name not in keywords:
            near = did_you_mean(name, [*names, *keywords])
            hint = f"write {near.split(chr(39))[1]}=…" if near else f"leave {name}= out"
            hint = _ELSEWHERE.get(name, hint).replace("$", kernel)
            has = f"(it has {', '.join(names)})"
            raise LaunchError(f"{kernel} has no parameter {shown(name)}{near} {has}", hint=hint)
        bound[name] = value
    missing = [p for p in parameters if p.name not in bound and p.default is REQUIRED]
    if missing:
        wanted = ", ".join(p.describe() for p in missing)
        count = sum(name in bound for name in names)
        raise LaunchError(
            f"{kernel}: missing {wanted}; "
            f"{count} {'argument was' if count == 1 else 'arguments were'} given",
            hint=f"call {kernel}({', '.join(p.name for p in parameters if p.default is REQUIRED)})",
        )
    for p in parameters:
        bound.setdefault(p.name, p.default)
    return bound


def require_tensor(p: Parameter, value: object) -> Tensor:
    """`value` read as an array. Raises LaunchError, with advice, if it is none."""
    if value is None:
        hint = f"pass an array; what a call is to allocate stands in out=[{p.name!r}]"
        raise LaunchError(f"{p.name} is None; expected {p.describe()}", hint=hint)
    tensor = read_tensor(value, p.name)
    if tensor is None:
        kind = type(value).__name__
        hint = "pass a torch tensor or a NumPy array"
        if isinstance(value, (list, tuple)):
            hint = f"convert it with numpy.asarray({p.name}, {array_dtype(p.dtype or '', '')!r})"
        elif isinstance(value, numbers.Number):
            dtype = "int32" if isinstance(value, numbers.Integral) else "float32"
            hint = f"annotate {p.name}: T.{dtype} in the kernel to take a number"
        message = f"{p.name} is {_article(kind)}; expected an array for {p.describe()}"
        raise LaunchError(message, hint=hint)
    if tensor.index < 0:
        tensor = dataclasses.replace(tensor, index=cuda_device_of(tensor.pointer))
    return tensor


def check_tensor(p: Parameter, t: Tensor, sizes: Sizes, target: str) -> None:
    """Check rank, dtype, shape, strides and alignment; add the sizes that `p.shape` names to
    `sizes`.

    Raises LaunchError.
    """
    # A spec names tilec's dtype, of which each target has its own form.
    is_spec = t.device == "meta" and t.dtype == p.dtype
    if p.dtype is not None and not is_spec and not accepts(p.dtype, t.dtype, target):
        spelled = array_dtype(p.dtype, target)
        hint = f"pass {p.name}.to(torch.{spelled}) or {p.name}.astype({spelled!r})"
        expected = spelled if t.dtype == p.dtype else p.dtype
        message = f"{p.name}: expected {expected}, got {t.dtype} ({p.describe()})"
        raise LaunchError(message, hint=hint)
    if p.dtype is None and t.dtype not in DTYPES:
        hint = f"pass {p.name}.to(torch.float32)"
        raise LaunchError(f"{p.name}: tilec has no dtype {t.dtype}", hint=hint)
    if p.shape is not None:
        if len(t.shape) != len(p.shape):
            raise LaunchError(
                f"{p.name}: expected {len(p.shape)} dimensions, got {len(t.shape)} "
                f"(shape {t.shape}; {p.describe()})",
                hint=_other_rank(p, t),
            )
        for dim, (wanted, got) in enumerate(zip(p.shape, t.shape)):
            what, origin = f"{p.name}: dimension {dim}", f"{p.name}.shape[{dim}]"
            _check_extent(what, origin, wanted, got, sizes, lambda: _shaped(p, t, sizes))
    if p.strides is not None:
        if len(t.strides) != len(p.strides):
            message = f"{p.name}: expected {len(p.strides)} strides, got {len(t.strides)}"
            raise LaunchError(message, hint=f"pass an array of {len(p.strides)} dimensions")
        for dim, (wanted, got) in enumerate(zip(p.strides, t.strides)):
            if t.shape[dim] > 1 and not t.is_empty:
                what, origin = f"{p.name}: stride {dim}", f"{p.name}.stride({dim})"
                _check_extent(what, origin, wanted, got, sizes, lambda: _strided(p, t))
    if t.pointer % t.itemsize:
        raise LaunchError(
            f"{p.name}: the address {t.pointer:#x} is not a multiple of {t.itemsize}, "
            f"the size of a {t.dtype}",
            hint="pass a copy, which is aligned",
        )


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _other_rank(p: Parameter, t: Tensor) -> str:
    """How an array of another rank could be passed."""
    assert p.shape is not None
    more = len(t.shape) - len(p.shape)
    if more < 0:
        return f"pass {p.name}[{', '.join(['None'] * -more + [':'] * len(t.shape))}]"
    if t.shape.count(1) == more:
        return f"pass {p.name}.squeeze()"
    if len(p.shape) == 1:
        return f"pass {p.name}.reshape(-1)"
    return f"pass one {len(p.shape)}-dimensional part of it: {p.name}[{', '.join('0' * more)}]"


def _shaped(p: Parameter, t: Tensor, sizes: Sizes) -> str:
    """The shape that would have fitted."""
    # What other arguments say of the sizes; what this one says is what is wrong.
    others = {n for n, origin in sizes.origins.items() if not origin.startswith(f"{p.name}.")}
    known = [sizes.values[e] if e in others else e for e in p.shape or ()]
    turned = [*reversed(t.shape)]
    named: dict[str, int | None] = {}
    if len(turned) == 2 and all(
        e in (k, None) or (isinstance(k, str) and named.setdefault(k, e) == e)
        for e, k in zip(turned, known)
    ):
        return f"pass {p.name}.T"
    shape = ", ".join("?" if e is None else str(e) for e in known)
    return f"pass an array of shape ({shape}{',' * (len(known) == 1)})"


def _strided(p: Parameter, t: Tensor) -> str:
    """How to get the strides that were written."""
    wanted = tuple(s for s in p.strides or () if isinstance(s, int))
    if wanted == contiguous_strides(t.shape):
        return f"pass {p.name}.contiguous(), or numpy.ascontiguousarray({p.name})"
    if t.strides == contiguous_strides(t.shape):
        return f"annotate {p.name}: T.Tensor(…), which takes any strides, or pass a padded view"
    return f"annotate {p.name}: T.Tensor(…), which takes any strides"


def _check_extent(
    what: str,
    origin: str,
    wanted: int | str | None,
    got: int,
    sizes: Sizes,
    hint: Callable[[], str],
) -> None:
    match wanted:
        case None:
            return
        case int():
            if got != wanted:
                raise LaunchError(f"{what}: expected {wanted}, got {got}", hint=hint())
        case str() if is_name(wanted):
            known = sizes.values.setdefault(wanted, got)
            first = sizes.origins.setdefault(wanted, origin)
            if known != got:
                message = f"{what}: expected {wanted} = {known} (from {first}), got {got}"
                raise LaunchError(message, hint=hint())


def solve_expressions(p: Parameter, t: Tensor, sizes: Sizes) -> bool:
    """Add the sizes that only arithmetic names, one of them in an extent or stride: of n * 2 + 1
    the n that gives this extent. Where none does, `check_expressions` says so of the nearest.
    Whether there are some."""
    before = len(sizes.values)
    written = [("dimension", f"shape[{d}]", w, n) for d, (w, n) in _pairs(p.shape, t.shape)]
    written += [("stride", f"stride({d})", w, n) for d, (w, n) in _pairs(p.strides, t.strides)]
    for kind, where, w, got in written:
        if not isinstance(w, str) or is_name(w):
            continue
        unknown = names_in(w) - sizes.values.keys()
        if len(unknown) == 1:
            (name,) = unknown
            what = f"{p.name}: {kind} of {p.name}.{where}"
            apart = 1 << 10  # as n // 2 has one value for two of n
            at = [evaluate(w, {**sizes.values, name: n}, what) for n in (0, apart)]
            if at[1] != at[0]:
                sizes.values[name] = max(0, (got - at[0]) * apart // (at[1] - at[0]))
                sizes.origins[name] = f"{p.name}.{where}"
    return len(sizes.values) > before


def _pairs(
    written: Sequence[int | str | None] | None, given: Sequence[int]
) -> Iterable[tuple[int, tuple[int | str | None, int]]]:
    return enumerate(zip(written or (), given))


def check_expressions(p: Parameter, t: Tensor, sizes: Sizes) -> None:
    """Check extents and strides that are arithmetic on sizes, all of which are known by now."""
    for what, wanted, got in (("dimension", p.shape, t.shape), ("stride", p.strides, t.strides)):
        for dim, (w, g) in enumerate(zip(wanted or (), got)):
            if isinstance(w, str) and not is_name(w):
                value = evaluate(w, sizes.values, f"{p.name}: {what} {dim}")
                if value != g:
                    message = f"{p.name}: {what} {dim}: expected {w} = {value}, got {g}"
                    raise LaunchError(message, hint=f"pass an array with {what} {dim} of {value}")


def check_places(kernel: str, tensors: Mapping[str, Tensor]) -> tuple[str, int]:
    """The device (kind, index) that all tensors are on; those without memory, and no tensors, are
    on any ("meta"). Raises LaunchError if they are on several."""
    first: tuple[str, Tensor] | None = None
    placed = {name: t for name, t in tensors.items() if t.device != "meta"}
    for name, t in (placed or tensors).items():
        if first is None:
            first = name, t
        elif t.place != first[1].place:
            raise LaunchError(
                f"{kernel}: {name} is on {t.place}, {first[0]} is on {first[1].place}",
                hint=f"pass {name}.cpu()"
                if first[1].device == "cpu"
                else f"pass {name}.cuda({first[1].index or ''}), or "
                f"torch.from_numpy({name}).cuda({first[1].index or ''}) of a NumPy array",
            )
    if first is None:
        return "meta", 0
    if first[1].device not in ("cpu", "cuda", "hip", "meta"):
        message = f"{first[0]} is on {first[1].place}, which tilec has no target for"
        raise LaunchError(message, hint=f"pass {first[0]}.cuda() or {first[0]}.cpu()")
    return first[1].device, first[1].index


def check_scalar(p: Parameter, value: object) -> int | float | bool:
    """`value` as a number of the parameter's dtype. Raises LaunchError."""
    if type(value) not in (int, float, bool):
        value = _number(p, value)
    kind = "float" if p.dtype is None else DTYPES[p.dtype].kind
    if kind == "float":
        return _converted(p, value, float)
    if isinstance(value, float):
        hint = f"pass int({value})" if math.isfinite(value) else "pass a whole number"
        raise LaunchError(f"{p.name}: expected {p.dtype}, got the float {value}", hint=hint)
    number = int(_converted(p, value, operator.index))
    if kind == "bool":
        if number not in (0, 1):
            message = f"{p.name}: expected a bool, got {shown(number)}"
            raise LaunchError(message, hint="pass True or False")
        return bool(number)
    assert p.dtype is not None
    bits = DTYPES[p.dtype].bits
    low, high = (0, 2**bits) if kind == "uint" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    if not low <= number < high:
        wider = "int64" if number < 0 or number < 2**63 else "uint64"
        message = f"{p.name}: {shown(number)} does not fit in {p.dtype} ({low} to {high - 1})"
        raise LaunchError(message, hint=f"annotate {p.name}: T.{wider}")
    return number


def _number(p: Parameter, value: object) -> object:
    """`value`, if it is a number; Python's for NumPy's."""
    if value is None:
        raise LaunchError(f"{p.name} is None; expected {p.describe()}", hint="pass a Python number")
    array = read_tensor(value, p.name)
    if array is not None:
        hint = f"annotate {p.name}: T.Tensor((…), {array.dtype!r}) to take an array"
        single = all(e == 1 for e in array.shape)
        got, hint = f"an array of shape {array.shape}", f"pass {p.name}.item()" if single else hint
    elif callable(item := getattr(value, "item", None)):
        return _converted(p, item, lambda item: item())
    elif isinstance(value, numbers.Number) or hasattr(value, "__index__"):
        return value
    else:
        got, hint = _article(type(value).__name__), "pass a Python number"
    raise LaunchError(f"{p.name}: expected a number ({p.describe()}), got {got}", hint=hint)


def _converted(p: Parameter, value: object, to: Callable[[Any], int | float]) -> int | float:
    try:
        return to(value)
    except OverflowError as e:
        message = f"{p.name}: {shown(value)} does not fit {p.describe()}"
        raise LaunchError(message, hint="pass a number of its range") from e
    except Exception as e:  # `__index__` and `__float__` may be anybody's
        message = f"{p.name}: expected {p.describe()}, got {shown(value)}"
        raise LaunchError(message, hint="pass a Python number") from e


def normal_strides(t: Tensor) -> tuple[int, ...]:
    """The tensor's strides; a dimension of one element, whose stride is never used, gets the
    contiguous one, and so do all of a tensor without elements."""
    if t.is_empty:
        return contiguous_strides([max(e, 1) for e in t.shape])
    strides = list(t.strides)
    step = 1
    for dim in reversed(range(len(strides))):
        if t.shape[dim] == 1:
            strides[dim] = step
        step = max(step, t.shape[dim] * abs(strides[dim]))
    return tuple(strides)


@dataclass(slots=True)
class Call:
    """The checked arguments of one call. Arrays have the strides of `normal_strides`; `first` is
    the first array as the caller gave it, None where there is none."""

    tensors: dict[str, Tensor]
    scalars: dict[str, int | float | bool]
    constants: dict[str, Any]
    sizes: Sizes
    device: str
    index: int
    first: object

    @property
    def place(self) -> str:
        """The device in words: "cpu", "cuda:0"."""
        return "cpu" if self.device == "cpu" else f"{self.device}:{self.index}"


def read_arguments(
    kernel: str,
    parameters: Sequence[Parameter],
    bound: Mapping[str, Any],
    target: str | Callable[[str, int], str],
) -> Call:
    """Read and check the arguments in `bound` (see `bind_call`).

    `target` is what they are checked for: its name, or a function of the device they are on. Raises
    LaunchError.
    """
    tensors, scalars, constants = {}, {}, {}
    by_name = {p.name: p for p in parameters}
    sizes = Sizes()
    about: Parameter | None = None
    try:
        for about in parameters:
            match about.kind:
                case "tensor":
                    tensors[about.name] = require_tensor(about, bound[about.name])
                case "scalar":
                    scalars[about.name] = check_scalar(about, bound[about.name])
                case "constexpr":
                    constants[about.name] = bound[about.name]
        about = None
        device, index = check_places(kernel, tensors)
        name = target if isinstance(target, str) else target(device, index)
        for n, t in tensors.items():
            check_tensor(about := by_name[n], t, sizes, name)
        while any([solve_expressions(by_name[n], t, sizes) for n, t in tensors.items()]):
            pass  # one may give what another needs
        for n, t in tensors.items():
            check_expressions(about := by_name[n], t, sizes)
    except LaunchError as e:
        if about is not None:
            passed = [p.name for p in parameters if p.kind != "output"]
            e.message = f"{kernel}, argument {passed.index(about.name) + 1}: {e.message}"
        raise
    plain = {n: dataclasses.replace(t, strides=normal_strides(t)) for n, t in tensors.items()}
    first = bound[next(iter(tensors))] if tensors else None
    return Call(plain, scalars, constants, sizes, device, index, first)
