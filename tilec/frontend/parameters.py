"""The parameters of a kernel: what one variant knows of its arguments, and what follows from that:
tensors, scalars, sizes and strides, and the tensors that a call allocates."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from tilec.frontend import narrow
from tilec.frontend.arithmetic import integer
from tilec.frontend.context import Frame
from tilec.frontend.index import Reach
from tilec.frontend.signature import REQUIRED, Parameter, Signature
from tilec.frontend.values import Buffer, EmptyTensor, Scalar, describe
from tilec.frontend.whole_loops.forms import WholeLoops
from tilec.ir import types
from tilec.ir.core import Block, Param, Value
from tilec.ir.errors import InternalError
from tilec.ir.loc import Loc
from tilec.ir.python_text import linear_text, size_text
from tilec.ir.uniformity import LANES
from tilec.support.syntax import names_in


@dataclass(frozen=True)
class TensorFact:
    """What one variant of a kernel knows of a tensor argument.

    Ints are compile-time; a str in `shape` or `strides` names a run-time size or stride (elements).
    `align`: the largest power of two up to 16 that divides the base address and, in bytes, every
    run-time stride.
    """

    shape: tuple[int | str, ...]
    dtype: types.DType
    strides: tuple[int | str, ...]
    align: int = 16


@dataclass(frozen=True)
class Specialisation:
    """What one variant of a kernel knows. `tensors` has a fact for each tensor parameter, and may
    have one for each tensor of `T.empty`; `scalars` a dtype for each scalar parameter; `constants`
    a value for each constexpr parameter without a default. `threads` and `grid` are those of the
    launch: the grid's extents, "launch" if they are not known, None if there is none. `wide`:
    indices need 64 bits. `warp_size`: lanes of a warp. `asserts`: T.device_assert is left out (""),
    checked by the simulator alone ("noted"), or "fatal". `row_lanes`: how many lanes share the rows
    of a kernel of mathematics alone; 0, none does; `together`: how many of its blocks surely run at
    once; `magnitudes`: about how large its sizes are, and a power of two that divides them.
    """

    tensors: Mapping[str, TensorFact]
    scalars: Mapping[str, types.DType] = field(default_factory=dict)
    constants: Mapping[str, object] = field(default_factory=dict)
    threads: int | None = None
    grid: tuple[int, ...] | str | None = None
    wide: bool = False
    warp_size: int = LANES
    asserts: Literal["", "noted", "fatal"] = ""
    row_lanes: int = 0
    together: int = 0
    magnitudes: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class Parameters(WholeLoops):
    """Declares them, and gives their names in the body a meaning."""

    def __init__(self, signature: Signature, known: Specialisation) -> None:
        super().__init__(Frame(signature.source), known.wide)
        self.signature = signature
        self.known = known
        self.tensors: dict[str, Param] = {}
        self.size_params: dict[str, Param] = {}
        self.stride_params: dict[str, Param] = {}
        self.scalar_params: dict[str, Param] = {}
        self.size_values: dict[str, int | Scalar] = {}
        self.sizes = self.size_values
        self.outputs: list[tuple[str, tuple[types.Extent, ...], types.DType]] = []
        self.grid: Block | None = None  # as soon as T.Kernel is read
        self.described_later = {
            s.target.id
            for s in signature.source.node.body
            if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
        }
        self.lent: dict[str, object] = {}  # tensors whose names are others' until then
        empty = any(0 in fact.shape for fact in known.tensors.values())
        self.may_be_empty = empty or signature.tiles is not None

    def declare_parameters(self) -> None:
        """All that the signature has, the tensors first: they give the sizes."""
        # Of several kernels all but the first are given what T.empty makes, too.
        made = self.signature.allocated if self.signature.options.part else ()
        own = [p for p in self.signature.parameters if p.name not in made]
        for p in own:
            if p.kind == "tensor":
                self._tensor(p)
        while any([self._solve_sizes(p) for p in own if p.kind == "tensor"]):
            pass  # one may give what another needs
        for name in self.signature.lost:
            self.size_values.setdefault(name, 0)
        for p in self.signature.parameters:
            with self.at(p.loc):
                if p.kind == "scalar":
                    self._scalar_parameter(p)
                elif p.kind == "constexpr":
                    self._constant_parameter(p)
        for name in self.size_params.keys() & (self.tensors.keys() | self.scalar_params.keys()):
            raise self.error(f"{name} is both a parameter and a size", "rename one of them")

    def _tensor(self, p: Parameter) -> None:
        fact = self.known.tensors.get(p.name)
        if fact is None:
            raise InternalError(f"no fact about the tensor {p.name} was given", p.loc)
        with self.at(p.loc):
            self._check_fact(p, fact)
        self.names[p.name] = made = self._argument(p.name, p.loc, fact)
        for written, given in ((p.shape, made.stored or made.shape), (p.strides, made.strides)):
            for name, v in zip(written or (), given):
                if isinstance(name, str) and name.isidentifier():
                    self._bind_size(p, name, v)
        if p.is_output:
            self.outputs.append((p.name, fact.shape, fact.dtype))

    def _argument(self, name: str, loc: Loc, fact: TensorFact) -> Buffer:
        """A tensor of a name; its elements may be narrower in memory, whose extents and strides
        are those of the fact."""
        packed = fact.dtype if fact.dtype in types.ON_CHIP else None
        extents, steps = fact.shape or (1,), fact.strides or (1,)
        dtype = types.UINT8 if packed else fact.dtype
        value = Value(types.BufferType(extents, dtype, "global", steps, fact.align), name)
        shape = tuple(self._size_of(name, d, e) for d, e in enumerate(extents))
        strides = tuple(self._stride_of(name, d, e) for d, e in enumerate(steps))
        self.tensors[name] = Param(value, "tensor", name)
        made = Buffer(value, shape, loc, strides, single=not fact.shape)
        if packed is None:
            return made
        if packed.bits < 8:
            *outer, last = shape
            shape = (*outer, integer(self.binary("mul", last, 2)))
        return replace(made, shape=shape, packed=packed, stored=made.shape)

    def _check_fact(self, p: Parameter, fact: TensorFact) -> None:
        if p.dtype is not None and p.dtype is not fact.dtype:
            message = f"{p.name} is annotated as {p.dtype.name}, the argument is {fact.dtype.name}"
            hint = f"pass an array of {p.dtype.name}, or annotate {fact.dtype.name}"
            raise self.error(message, hint)
        for what, written, given in (
            ("extent", p.shape, fact.shape),
            ("stride", p.strides, fact.strides),
        ):
            if written is None:
                continue
            if len(written) != len(given):
                raise self.error(
                    f"{p.name} is annotated with {len(written)} dimensions, "
                    f"the argument has {len(given)}",
                    "give the annotation an extent for each dimension",
                )
            for dim, (w, g) in enumerate(zip(written, given)):
                if isinstance(w, int) and isinstance(g, int) and w != g:
                    message = f"{what} {dim} of {p.name} is annotated as {w}, the argument has {g}"
                    hint = "pass an array of the annotated shape, or annotate a size of T.dynamic"
                    raise self.error(message, hint)

    def _size_of(self, tensor: str, dim: int, extent: int | str) -> int | Scalar:
        if isinstance(extent, int):
            return extent
        if extent not in self.size_params:
            value = Value(types.ScalarType(self.index_dtype), extent)
            self.size_params[extent] = Param(value, "size", tensor, dim)
            self.size_values.setdefault(extent, self.scalar(value, Reach(0)))
        return self.size_values[extent]

    def _stride_of(self, tensor: str, dim: int, stride: int | str) -> int | Scalar:
        if isinstance(stride, int):
            return stride
        if stride in self.size_params:
            return self.size_values[stride]
        if stride not in self.stride_params:
            value = Value(types.ScalarType(types.INT64), stride)
            self.stride_params[stride] = Param(value, "stride", tensor, dim)
        return self.scalar(self.stride_params[stride].value)

    def _solve_sizes(self, p: Parameter) -> bool:
        """Sizes that only arithmetic names, `T.Tensor((n * 2, m + 2 * r), …)`: from the extents
        that give one each. Whether there are some."""
        buffer = self.names[p.name]
        assert isinstance(buffer, Buffer)
        named = (*(p.shape or ()), *(p.strides or ()))
        extents = buffer.stored or buffer.shape if p.shape else ()
        before = len(self.sizes)
        for written, extent in zip(named, (*extents, *buffer.strides)):
            if not isinstance(written, str) or written.isidentifier():
                continue
            found = linear_text(written)
            with self.at(p.loc):
                if found is not None and found[0] not in self.sizes:
                    name, factor, constant = found
                    rest = self.binary("sub", extent, constant)
                    rest = self.binary("mul", rest, factor.denominator)
                    value = self.binary("floordiv", rest, factor.numerator)
                    self._bind_size(p, name, integer(value))
                elif found is None:
                    self._solve_size(p, ast.parse(written, mode="eval").body, extent)
        return len(self.sizes) > before

    def _solve_size(self, p: Parameter, written: ast.expr, extent: int | Scalar) -> None:
        """The one size in an extent that is not known, if it is a number of these and no more."""
        unknown = names_in(written) - self.sizes.keys()
        found = self._line(written) if len(unknown) == 1 else None
        if found is not None and found[1] != 0:
            value = self.binary("floordiv", self.binary("sub", extent, found[0]), found[1])
            self._bind_size(p, unknown.pop(), integer(value))

    def _line(self, node: ast.expr) -> tuple[int | Scalar, int | Scalar] | None:
        """What arithmetic on sizes is where the one that is not known is 0, and how much more for
        each that it is; None of what is no sums and products."""
        match node:
            case ast.Constant(int() as n):
                return n, 0
            case ast.Name(name):
                return (self.sizes[name], 0) if name in self.sizes else (0, 1)
            case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() as op, right):
                a, b = self._line(left), self._line(right)
                if a is None or b is None:
                    return None
                if not isinstance(op, ast.Mult):
                    kind = "add" if isinstance(op, ast.Add) else "sub"
                    return self._of_sizes(kind, a[0], b[0]), self._of_sizes(kind, a[1], b[1])
                (a, b) = (a, b) if b[1] == 0 else (b, a)
                if b[1] == 0:
                    return self._of_sizes("mul", a[0], b[0]), self._of_sizes("mul", a[1], b[0])
        return None

    def _of_sizes(self, kind: str, a: int | Scalar, b: int | Scalar) -> int | Scalar:
        if b == (kind == "mul"):  # which changes nothing
            return a
        if kind != "sub" and a == (kind == "mul"):
            return b
        return 0 if kind == "mul" and 0 in (a, b) else integer(self.binary(kind, a, b))

    def _bind_size(self, p: Parameter, name: str, value: int | Scalar) -> None:
        old = self.size_values.setdefault(name, value)
        if isinstance(old, int) and isinstance(value, int) and old != value:
            message = f"the size {name} is {old}, but {p.name} has {value} there"
            raise self.error(message, "give one of the two another name", p.loc)

    def _scalar_parameter(self, p: Parameter) -> None:
        dtype = self.known.scalars.get(p.name, p.dtype)
        value = Value(types.ScalarType(dtype or types.INT32), p.name)
        self.scalar_params[p.name] = Param(value, "scalar", p.name)
        self.names[p.name] = self.scalar(value)
        if value.dtype.kind in ("int", "uint"):
            self.scalar_names[value] = p.name

    def _constant_parameter(self, p: Parameter) -> None:
        value = self.known.constants.get(p.name, p.default)
        if value is REQUIRED:
            hint = f"pass {p.name}=…, or give it a default: {p.name}: T.constexpr = 128"
            raise self.error(f"the constexpr parameter {p.name} was given no value", hint)
        self.names[p.name] = self.captured(p.name, value)

    # --- names ------------------------------------------------------------------------------------

    def annotated(self, node: ast.AnnAssign) -> None:
        known = {p.name for p in self.signature.parameters}
        if (
            len(self.frames) > 1
            or not isinstance(node.target, ast.Name)
            or node.target.id not in known
        ):
            super().annotated(node)
            return
        name = node.target.id
        self.described_later.discard(name)
        if name in self.lent:
            self.names[name] = self.lent.pop(name)

    def assign_name(self, name: str, value: object, place: ast.expr) -> None:
        """A tensor's name may be a number's until the body says what the tensor is: `K = dim`, then
        `K: T.Tensor((rows, K), dtype)`."""
        lent = len(self.frames) == 1 and name in self.tensors and name in self.described_later
        if not lent:
            super().assign_name(name, value, place)
            return
        self.lent.setdefault(name, self.names[name])
        self.names[name] = self.read_value(value)

    # --- outputs ----------------------------------------------------------------------------------

    def declare_output(self, name: str, empty: EmptyTensor) -> Buffer:
        part = self.signature.options.part
        begun = self.grid is not None and part is None
        inside = len(self.frames) > 1 and name not in self.signature.allocated
        if inside or len(self.builders) > 1 or begun:
            hint = "move it up; a tile inside of T.Kernel is made by T.alloc_shared"
            raise self.error("T.empty stands at the top of the kernel, before T.Kernel", hint)
        if part is not None and name not in self.signature.allocated:
            raise self.error(
                f"whether there is {name} depends on the call, and this kernel is several launches",
                "make as many tensors whatever the arguments are",
            )
        if name in self.tensors:
            raise self.error(f"{name} is already a tensor of this kernel", "choose another name")
        extents: list[types.Extent] = []
        texts: list[types.Extent] = []
        dtype, whole = empty.dtype, empty.shape
        if dtype in types.ON_CHIP:
            dtype, whole = types.UINT8, narrow.in_bytes(self, whole, dtype)
        # What is known before a call allocates: its sizes, and its integer arguments.
        known = {p.value: n for n, p in self.size_params.items()} | self.scalar_names
        for dim, e in enumerate(whole):
            text: types.Extent | None = e if isinstance(e, int) else None
            if isinstance(e, Scalar):
                text = size_text(e.value, self.builder.ops, known)
            if text is None:
                raise self.error(
                    f"extent {dim} of T.empty is {describe(e)}, which is not known before the call",
                    "compute it from ints, sizes of T.const or T.dynamic, and integer parameters",
                )
            plain = isinstance(text, int) or text in self.size_params
            extents.append(text if plain else f"{name}_size{dim}")
            texts.append(text)
        fact = self.known.tensors.get(name)
        strides = fact.strides if fact else types.named_strides(name, extents)
        align = 16
        if fact is not None:
            align = fact.align
        elif any(isinstance(s, str) for s in strides):
            align = max(1, dtype.bits // 8)
        if not part:  # others of several kernels are given it
            self.outputs.append((name, tuple(texts), dtype))
        made = TensorFact(tuple(extents), empty.dtype, strides, align)
        return self._argument(name, empty.loc, made)
