"""From a signature and what is known of one call's arguments to a `Func` of the TILE contract."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tilec import language as T
from tilec.frontend import narrow
from tilec.frontend.arithmetic import integer, static_int
from tilec.frontend.body import grid_syncs
from tilec.frontend.builtins_scalar import block_index
from tilec.frontend.context import Frame
from tilec.frontend.index import Reach
from tilec.frontend.recovery import LeftOut, trace_with_recovery
from tilec.frontend.signature import REQUIRED, Parameter, Signature, bind_constants
from tilec.frontend.values import (
    Buffer,
    EmptyTensor,
    KernelHeader,
    Number,
    Scalar,
    as_syntax,
    describe,
)
from tilec.frontend.whole_loops.forms import WholeLoops
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Param, Substitution, Value, clone
from tilec.ir.errors import CompileError, InternalError
from tilec.ir.faults import told_as_internal
from tilec.ir.ops import Yield
from tilec.ir.pdl import PDL
from tilec.ir.python_text import linear_text, size_text
from tilec.ir.types import (
    INT32,
    INT64,
    ON_CHIP,
    UINT8,
    BufferType,
    DType,
    Extent,
    ScalarType,
    named_strides,
)
from tilec.ir.uniformity import LANES


@dataclass(frozen=True)
class TensorFact:
    """What one variant of a kernel knows of a tensor argument.

    Ints are compile-time; a str in `shape` or `strides` names a run-time size or stride (elements).
    `align`: the largest power of two up to 16 that divides the base address and, in bytes, every
    run-time stride.
    """

    shape: tuple[int | str, ...]
    dtype: DType
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
    of a kernel of mathematics alone; 0, none does; `magnitudes`: about how large its sizes are,
    and a power of two that divides them.
    """

    tensors: Mapping[str, TensorFact]
    scalars: Mapping[str, DType] = field(default_factory=dict)
    constants: Mapping[str, object] = field(default_factory=dict)
    threads: int | None = None
    grid: tuple[int, ...] | str | None = None
    wide: bool = False
    warp_size: int = LANES
    asserts: Literal["", "noted", "fatal"] = ""
    row_lanes: int = 0
    magnitudes: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def trace(signature: Signature, specialisation: Specialisation) -> Func:
    """The kernel as TILE IR for one specialisation.

    - `params`, in ABI order: tensors (parameters in order, then those of `T.empty`), scalars, sizes
      (role "size": i32, i64 if wide, named after the size; `arg` and `dim` say where it is read),
      strides that are not known (role "stride": i64), what T.make_tensor takes parts of ("memory").
    - `grid`: a block that computes the extents from sizes and scalars and yields up to three of
      them, in the index dtype; it yields nothing if the launch gives the grid.
    - `body`: ends in an empty Yield. Indices and offsets are i32, i64 if wide.
    - `attrs`: "threads" (int or None), "grid_from_launch" (bool), "outputs": (name, shape, dtype)
      of each tensor the call allocates; entries of a shape are ints, names of sizes, or arithmetic
      on them as text. "cluster_dims": the user's cluster, "min_blocks": the least number of blocks
      that a multiprocessor should hold, "pdl": what of PDL threads do first, where there is one,
      "fp_fusion": False where `a * b + c` is rounded twice.

    Raises CompileError, at the user's line, for what tilec cannot compile, with all such lines
    that are found.
    """
    bound = bind_constants(signature, specialisation.constants)

    def once(left_out: LeftOut) -> Func:
        tracer = _KernelTracer(bound, specialisation)
        tracer.left_out = left_out
        return tracer.run()

    with told_as_internal("reading this", signature.loc):
        return trace_with_recovery(once)


class _KernelTracer(WholeLoops):
    """The kernel's own level: parameters, the grid, outputs."""

    def __init__(self, signature: Signature, known: Specialisation) -> None:
        super().__init__(Frame(signature.source), known.wide)
        self.warp_size = known.warp_size
        self.row_lanes, self.magnitudes = known.row_lanes, known.magnitudes
        self.signature = signature
        self.known = known
        self.asserts, self.options = known.asserts, signature.options
        self.tensors: dict[str, Param] = {}
        self.size_params: dict[str, Param] = {}
        self.stride_params: dict[str, Param] = {}
        self.scalar_params: dict[str, Param] = {}
        self.size_values: dict[str, int | Scalar] = {}
        self.sizes = self.size_values
        self.outputs: list[tuple[str, tuple[Extent, ...], DType]] = []
        self.grid: Block | None = None
        self.finished = False
        self.kernels = 0  # that have been met
        self.behind = False  # what stands behind the only one is read
        self.described_later = {
            s.target.id
            for s in signature.source.node.body
            if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
        }
        self.lent: dict[str, object] = {}  # tensors whose names are others' until then
        self.has_empty_tensor = any(0 in fact.shape for fact in known.tensors.values())
        self.threads = known.threads if known.threads is not None else signature.threads
        if signature.options.pdl:
            self.attributes["pdl"] = PDL
        self.block_shape = () if self.threads is None else (self.threads,)

    def run(self) -> Func:
        own = self._own_parameters()
        for p in own:
            if p.kind == "tensor":
                self._tensor(p)
        for p in own:
            if p.kind == "tensor":
                self._solve_sizes(p)
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
        self._check_returned(self.run_body())
        if self.is_above_grid():
            raise self._no_grid()
        memories = {str(n): Param(v, "memory", "") for n, v in enumerate(self.memories)}
        params = (self.tensors, self.scalar_params, self.size_params, self.stride_params, memories)
        cluster = {} if self.cluster is None else {"cluster_dims": self.cluster}
        self.builder.emit(Yield, loc=self.loc)
        name = self.signature.name
        return Func(
            "kernel" if name == "_" else name,  # PTX has no name of one underscore
            tuple(p for group in params for p in group.values()),
            self._empty_grid() if self.grid is None else self.grid,
            self.builder.block(),
            {
                "threads": self.threads,
                "outputs": tuple(self.outputs),
                "grid_from_launch": self.known.grid is not None,
                **cluster,
                **({"may_alias": True} if memories else {}),
                **({"tilelang": True} if self.options.tilelang else {}),
                **({} if self.options.enable_fp_fusion else {"fp_fusion": False}),
                **({} if self.segment is None else {"segment": self.segment}),
                **({} if self.warp_size == LANES else {"warp_size": self.warp_size}),
                **self.attributes,
            },
            self.signature.loc,
        )

    def _own_parameters(self) -> Sequence[Parameter]:
        """Those that the function has: of several kernels all but the first are given what T.empty
        makes, too."""
        made = self.signature.allocated if self.signature.part else ()
        return [p for p in self.signature.parameters if p.name not in made]

    def _empty_grid(self) -> Block:
        builder = Builder(self.signature.source.decorator_loc("threads"))
        builder.emit(Yield)
        return builder.block()

    def _no_grid(self) -> CompileError:
        if self.signature.part is not None:
            return self.error(
                f"{self.signature.name} has no T.Kernel number {self.signature.part + 1} for these "
                "arguments: how many it has must not depend on them",
                "write a kernel for each case",
            )
        if any(isinstance(s, ast.For) for s in self.signature.source.node.body):
            return self.error(
                f"{self.signature.name} has no grid, and is not one loop over whole tensors",
                "put the body under with T.Kernel(T.ceildiv(N, BN), threads=128) as bx:, or leave "
                "one loop: for i, j in T.Parallel(M, N): …",
            )
        return self.error(
            f"{self.signature.name} has no grid",
            "write with T.Kernel(gx, gy) as (bx, by): around the body, or launch it with "
            f"{self.signature.name}[grid](…)",
        )

    # --- parameters -------------------------------------------------------------------------------

    def _tensor(self, p: Parameter) -> None:
        fact = self.known.tensors.get(p.name)
        if fact is None:
            raise InternalError(f"no fact about the tensor {p.name} was given", p.loc)
        with self.at(p.loc):
            self._check_fact(p, fact)
        packed = fact.dtype if fact.dtype in ON_CHIP else None
        dtype = UINT8 if packed else fact.dtype
        made = BufferType(fact.shape, dtype, "global", fact.strides, fact.align)
        shape = tuple(self._size_of(p.name, d, e) for d, e in enumerate(fact.shape))
        strides = tuple(self._stride_of(p.name, d, e) for d, e in enumerate(fact.strides))
        for written, given in ((p.shape, shape), (p.strides, strides)):
            for name, v in zip(written or (), given):
                if isinstance(name, str) and name.isidentifier():
                    self._bind_size(p, name, v)
        value = Value(made, p.name)
        self.tensors[p.name] = Param(value, "tensor", p.name)
        self.names[p.name] = self._as_packed(Buffer(value, shape, p.loc, strides), packed)
        if p.is_output:
            self.outputs.append((p.name, fact.shape, fact.dtype))

    def _as_packed(self, stored: Buffer, packed: DType | None) -> Buffer:
        """The tensor whose elements are narrower in memory."""
        if packed is None:
            return stored
        if packed.bits == 8:
            return replace(stored, packed=packed, stored=stored.shape)
        *outer, last = stored.shape
        twice = integer(self.binary("mul", last, 2))
        return replace(stored, shape=(*outer, twice), packed=packed, stored=stored.shape)

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
            value = Value(ScalarType(self.index_dtype), extent)
            self.size_params[extent] = Param(value, "size", tensor, dim)
            self.size_values.setdefault(extent, self.scalar(value, Reach(0)))
        return self.size_values[extent]

    def _stride_of(self, tensor: str, dim: int, stride: int | str) -> int | Scalar:
        if isinstance(stride, int):
            return stride
        if stride in self.size_params:
            return self.size_values[stride]
        if stride not in self.stride_params:
            value = Value(ScalarType(INT64), stride)
            self.stride_params[stride] = Param(value, "stride", tensor, dim)
        return self.scalar(self.stride_params[stride].value)

    def _solve_sizes(self, p: Parameter) -> None:
        """Sizes that only arithmetic names, `T.Tensor((n * 2,), …)`: from the extent they give."""
        buffer = self.names[p.name]
        assert isinstance(buffer, Buffer)
        named = (*(p.shape or ()), *(p.strides or ()))
        extents = buffer.stored or buffer.shape if p.shape else ()
        for written, extent in zip(named, (*extents, *buffer.strides)):
            found = linear_text(written) if isinstance(written, str) else None
            if found is not None and found[0] not in self.sizes:
                name, factor, constant = found
                with self.at(p.loc):
                    rest = self.binary("sub", extent, constant)
                    rest = self.binary("mul", rest, factor.denominator)
                    value = self.binary("floordiv", rest, factor.numerator)
                self._bind_size(p, name, integer(value))

    def _bind_size(self, p: Parameter, name: str, value: int | Scalar) -> None:
        old = self.size_values.setdefault(name, value)
        if isinstance(old, int) and isinstance(value, int) and old != value:
            message = f"the size {name} is {old}, but {p.name} has {value} there"
            raise self.error(message, "give one of the two another name", p.loc)

    def _scalar_parameter(self, p: Parameter) -> None:
        dtype = self.known.scalars.get(p.name, p.dtype)
        value = Value(ScalarType(dtype or INT32), p.name)
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

    def is_above_grid(self) -> bool:
        return self.grid is None and self.known.grid is None

    def _check_returned(self, value: object) -> None:
        returned = value if isinstance(value, tuple | list) else () if value is None else (value,)
        for v in returned:
            if not isinstance(v, Buffer) or not v.is_global:
                hint = "return what T.empty made, or a tensor parameter"
                raise self.error(f"a kernel returns tensors, not {describe(v)}", hint)

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
        part = self.signature.part
        begun = self.grid is not None and part is None
        inside = len(self.frames) > 1 and name not in self.signature.allocated
        if inside or len(self.builders) > 1 or begun:
            hint = "move it up; a tile inside of T.Kernel is made by T.alloc_shared"
            raise self.error("T.empty stands at the top of the kernel, before T.Kernel", hint)
        if name in self.tensors:
            raise self.error(f"{name} is already a tensor of this kernel", "choose another name")
        extents: list[Extent] = []
        texts: list[Extent] = []
        packed = empty.dtype if empty.dtype in ON_CHIP else None
        dtype = UINT8 if packed else empty.dtype
        whole = narrow.in_bytes(self, empty.shape, packed) if packed else empty.shape
        for dim, e in enumerate(whole):
            text: Extent | None = e if isinstance(e, int) else None
            if isinstance(e, Scalar):
                text = size_text(e.value, self.builder.ops, self._size_names())
            if text is None:
                raise self.error(
                    f"extent {dim} of T.empty is {describe(e)}, which is not known before the call",
                    "compute it from ints, sizes of T.const or T.dynamic, and integer parameters",
                )
            plain = isinstance(text, int) or text in self.size_params
            extents.append(text if plain else f"{name}_size{dim}")
            texts.append(text)
        shape = tuple(self._size_of(name, d, e) for d, e in enumerate(extents))
        fact = self.known.tensors.get(name)
        strides = fact.strides if fact else named_strides(name, extents)
        align = 16
        if fact is not None:
            align = fact.align
        elif any(isinstance(s, str) for s in strides):
            align = max(1, dtype.bits // 8)
        made = BufferType(tuple(extents), dtype, "global", strides, align)
        value = Value(made, name)
        self.tensors[name] = Param(value, "tensor", name)
        if not part:  # others of several kernels are given it
            self.outputs.append((name, tuple(texts), dtype))
        stride_values = tuple(self._stride_of(name, d, s) for d, s in enumerate(strides))
        return self._as_packed(Buffer(value, shape, empty.loc, stride_values), packed)

    def _size_names(self) -> dict[Value, str]:
        """What is known before a call allocates: its sizes, and its integer arguments."""
        sizes = {p.value: name for name, p in self.size_params.items()}
        return sizes | self.scalar_names

    # --- the grid ---------------------------------------------------------------------------------

    def kernel_block(self, node: ast.With) -> None:
        syncs = grid_syncs(node.body, self.expression)
        number, self.kernels = self.kernels, self.kernels + 1 + syncs
        if self.signature.part is not None:
            segment = self.signature.part - number
            if not 0 <= segment <= syncs:
                return
            self.segment = segment if syncs else None
        if len(node.items) != 1:
            second = node.items[1].context_expr
            raise self.error("a with has one T.Kernel", "write as (bx, by):", at=second)
        item = node.items[0]
        with self.inside() as builder:
            header = self.expression(item.context_expr)
            if not isinstance(header, KernelHeader):
                message = f"with is for T.Kernel, this is {describe(header)}"
                hint = "write with T.Kernel(gx, gy) as (bx, by):"
                raise self.error(message, hint, item.context_expr)
            with self.at(header.loc):
                self._check_header(header)
                extents = tuple(self.index_value(e) for e in header.grid)
            with self.at(header.threads_loc or self.signature.source.decorator_loc("threads")):
                self.emit(Yield, extents)  # its place is that of the number of threads
        self.grid = self._standalone(builder.ops, header)
        if header.threads is not None:
            self.threads = header.threads
        self.block_shape = header.block or (() if self.threads is None else (self.threads,))
        self.cluster = header.cluster
        with self.at(item.optional_vars or item.context_expr):
            self._bind_blocks(item.optional_vars, header)
        self.block(node.body)
        self.finished = True

    def statement(self, node: ast.stmt) -> None:
        if self.finished and self.signature.part is None and not self.behind:
            self.behind = True
            count = len(self.builder.ops)
            self.statement(node)
            self.behind = False
            if len(self.builder.ops) > count:
                hint = "move it into the with"
                raise self.error("code after T.Kernel would belong to no block", hint, at=node)
            return
        whole = self.signature.tiles is not None and self.is_above_grid()
        if whole and isinstance(node, ast.For) and len(self.frames) == len(self.builders) == 1:
            blocks, language = self.blocks_of(node, self.signature.tiles or {})
            self.names.setdefault(language, T)
            self.kernel_block(blocks)
        elif isinstance(node, ast.For) and self._is_outside():
            self._each_launch(node)
        else:
            super().statement(node)

    def _is_outside(self) -> bool:
        """Whether a statement stands outside of all T.Kernel, at the top of the kernel."""
        top = len(self.frames) == len(self.builders) == 1
        return top and (self.grid is None or self.finished)

    def _each_launch(self, node: ast.For) -> None:
        """A loop whose launches, if it has some, are made one after the other."""
        items = self.expression(node.iter)
        if isinstance(items, range):
            node = ast.copy_location(
                ast.For(node.target, as_syntax(list(items)), node.body, node.orelse), node
            )
        super().statement(node)

    def _check_header(self, header: KernelHeader) -> None:
        if len(self.builders) > 2 and self.returned_early:
            raise self.error(
                f"the return on line {self.returned_early} stands before T.Kernel, under a "
                "condition that is only known at run time",
                "move that if under the with: there each block returns; or launch nothing",
            )
        counted = any(flags.builtin != "for" for f in self.frames for flags in f.loops)
        if len(self.builders) > 2 or counted:
            hint = "move it out of loops and conditions"
            raise self.error("T.Kernel stands at the top level of a kernel, once", hint)
        if self.grid is not None:
            hint = "write it behind the other, as far out, to launch one after the other"
            raise self.error("this kernel has a T.Kernel already", hint)
        if header.grid and self.known.grid is not None:
            hint = f"call {self.signature.name}(…), or leave the extents out of T.Kernel"
            raise self.error("the grid is given twice: in T.Kernel and by the launch", hint)
        if not header.grid and self.known.grid is None:
            hint = f"launch with {self.signature.name}[grid](…), or write T.Kernel(gx, …)"
            raise self.error("the grid is not given", hint)
        threads = header.threads
        if threads is not None and self.threads is not None and threads != self.threads:
            raise self.error(
                f"threads is {threads} in T.Kernel and {self.threads} in the decorator or launch",
                "leave it out of one of them",
            )

    def _standalone(self, ops: list[Op], header: KernelHeader) -> Block:
        """The ops as a block of their own: what they use of the body's ops so far is copied in."""
        makers = {r: o for o in self.builder.ops for r in o.results}
        needed: set[Op] = set()
        pending = list(ops)
        while pending:
            o = pending.pop()
            if not o.pure and not isinstance(o, Yield):
                message = "the grid must follow from sizes and scalar parameters by arithmetic"
                hint = "compute it outside and pass it as a scalar, or launch with kernel[grid]"
                raise self.error(message, hint, at=header.loc)
            found = {makers[v] for v in o.operands if v in makers} - needed
            needed |= found
            pending += found
        subst: Substitution = {}
        copied = [clone(o, subst) for o in self.builder.ops if o in needed]
        return Block((), (*copied, *(clone(o, subst) for o in ops)))

    def _bind_blocks(self, target: ast.expr | None, header: KernelHeader) -> None:
        extents: tuple[Number | None, ...] = header.grid
        launch = self.known.grid
        if not header.grid:
            count = len(target.elts) if isinstance(target, ast.Tuple | ast.List) else 1
            extents = launch if isinstance(launch, tuple) else (None,) * count
            if count > len(extents) or count > 3:
                message = f"{count} block indices, but the grid has {min(len(extents), 3)} extents"
                raise self.error(message, "name one index for each extent of the grid")
            extents = extents[:count]
        if target is None:
            return
        names = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        indices = []
        for dim, e in enumerate(extents):
            name = names[dim] if len(names) == len(extents) else None
            named = name.id if isinstance(name, ast.Name) else ""
            index = block_index(self, dim, static_int(e), named)
            quotient = self.quotients.get(e.value) if isinstance(e, Scalar) else None
            if quotient is not None and index.affine is not None:
                self.block_quotients |= dict.fromkeys(index.affine.terms, quotient)
            if isinstance(name, ast.Name):
                index.value.name = name.id
            indices.append(index)
        single = len(indices) == 1 and not isinstance(target, ast.Tuple | ast.List)
        self.bind(target, indices[0] if single else tuple(indices))
