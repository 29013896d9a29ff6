"""From a signature and what is known of one call's arguments to a `Func` of the TILE contract."""

from __future__ import annotations

import ast

from tilec.frontend.arithmetic import static_int
from tilec.frontend.body import grid_syncs
from tilec.frontend.builtins.scalar import block_index
from tilec.frontend.narrow import tiles_of_bytes
from tilec.frontend.parameters import Parameters, Specialisation
from tilec.frontend.prefetches import in_their_iteration
from tilec.frontend.recovery import Again, Forms, LeftOut, trace_with_recovery
from tilec.frontend.signature import Signature, bind_constants
from tilec.frontend.values import Buffer, KernelHeader, Number, Scalar, as_syntax, describe
from tilec.ir.builder import Builder
from tilec.ir.caller import told_as_internal
from tilec.ir.clusters import PDL
from tilec.ir.core import Block, Func, Op, Param, Substitution, makers, upstream
from tilec.ir.errors import CompileError
from tilec.ir.ops import Yield
from tilec.ir.uniformity import LANES
from tilec.support.syntax import every


def trace(signature: Signature, specialisation: Specialisation, forms: Forms | None = None) -> Func:
    """The kernel as TILE IR for one specialisation; `forms`: what its loops over whole tensors have
    become under one that differs in the sizes of tiles alone, and become now.

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
        func = tracer.run()
        if left_out.in_bytes is None and (tiles := tiles_of_bytes(tracer, func.body)):
            left_out.in_bytes = frozenset(tiles)
            raise Again
        return func

    with told_as_internal("reading this", signature.loc):
        return trace_with_recovery(once, {} if forms is None else forms)


class _KernelTracer(Parameters):
    """The kernel's own level: the grid, and all that the function has."""

    def __init__(self, signature: Signature, known: Specialisation) -> None:
        super().__init__(signature, known)
        self.warp_size = known.warp_size
        self.row_lanes, self.together = known.row_lanes, known.together
        self.magnitudes = known.magnitudes
        self.asserts, self.options = known.asserts, signature.options
        self.finished = False
        self.kernels = 0  # that have been met
        self.behind = False  # what stands behind the only one is read
        self.threads = known.threads if known.threads is not None else self.options.threads
        if self.options.pdl:
            self.attributes["pdl"] = PDL
        self.block_shape = () if self.threads is None else (self.threads,)

    def run(self) -> Func:
        self.declare_parameters()
        self._check_returned(self.run_body())
        if self.is_above_grid():
            raise self._no_grid()
        memories = {str(n): Param(v, "memory", "") for n, v in enumerate(self.memories)}
        params = (self.tensors, self.scalar_params, self.size_params, self.stride_params, memories)
        cluster = {} if self.cluster is None else {"cluster_dims": self.cluster}
        self.builder.emit(Yield, loc=self.loc)
        name = self.signature.name
        func = Func(
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
        return in_their_iteration(func, self.own_loops)

    def _empty_grid(self) -> Block:
        builder = Builder(self.signature.source.decorator_loc("threads"))
        builder.emit(Yield)
        return builder.block()

    def _no_grid(self) -> CompileError:
        if self.options.part is not None:
            return self.error(
                f"{self.signature.name} has no T.Kernel number {self.options.part + 1} for these "
                "arguments: how many it has must not depend on them",
                "write a kernel for each case",
            )
        if any(isinstance(s, ast.For) for s in self.signature.source.node.body):
            return self.error(
                f"{self.signature.name} has no grid, and is not loops over whole tensors alone",
                "put the body under with T.Kernel(T.ceildiv(N, BN), threads=128) as bx:, or leave "
                "loops alone: for i, j in T.Parallel(M, N): …",
            )
        return self.error(
            f"{self.signature.name} has no grid",
            "write with T.Kernel(gx, gy) as (bx, by): around the body, or launch it with "
            f"{self.signature.name}[grid](…)",
        )

    def is_above_grid(self) -> bool:
        return self.grid is None and self.known.grid is None

    def _check_returned(self, value: object) -> None:
        returned = value if isinstance(value, tuple | list) else () if value is None else (value,)
        for v in returned:
            if not isinstance(v, Buffer) or not v.is_global:
                hint = "return what T.empty made, or a tensor parameter"
                raise self.error(f"a kernel returns tensors, not {describe(v)}", hint)
        names = tuple(v.value.name for v in returned)
        if isinstance(value, list | tuple) and names != self.signature.given_back:
            hint = "return what it was made with, in this order"
            last = self.signature.source.node.body[-1]
            raise self.error("the list that is returned is not what it was made as", hint, last)

    # --- the grid ---------------------------------------------------------------------------------

    def kernel_block(self, node: ast.With) -> None:
        syncs = grid_syncs(node.body, self.expression)
        number, self.kernels = self.kernels, self.kernels + 1 + syncs
        if self.options.part is not None:
            segment = self.options.part - number
            if not 0 <= segment <= syncs:
                return
            self.segment = segment if syncs else None
        if len(node.items) != 1:
            second = node.items[1].context_expr
            raise self.error("a with has one T.Kernel", "write as (bx, by):", at=second)
        item = node.items[0]
        named = any(every(ast.NamedExpr, item.context_expr))  # which the body uses, too
        early = self.expression(item.context_expr) if named else None
        with self.inside() as builder:
            header = early or self.expression(item.context_expr)
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
        if self.signature.tiles is not None and 0 in header.grid:  # its loops run over nothing
            self.finished = True
            return
        with self.at(item.optional_vars or item.context_expr):
            self._bind_blocks(item.optional_vars, header)
        self.block(node.body)
        self.finished = True

    def statement(self, node: ast.stmt) -> None:
        if self.finished and self.options.part is None and not self.behind:
            self.behind = True
            count = len(self.builder.ops)
            self.statement(node)
            self.behind = False
            if len(self.builder.ops) > count:
                hint = "move it into the with"
                raise self.error("code after T.Kernel would belong to no block", hint, at=node)
            return
        whole = self.signature.tiles is not None and self.known.grid is None
        if whole and isinstance(node, ast.For) and self._is_outside():
            if self.options.part not in (None, self.kernels):  # another launch
                self.kernels += 1
                return
            blocks, names = self.blocks_of(node, self.signature.tiles or {})
            self.names.update(names)
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
        used = (v for o in ops for v in o.operands)
        needed = {*upstream(used, makers(self.builder.ops))}
        if not all(o.pure or isinstance(o, Yield) for o in (*ops, *needed)):
            message = "the grid must follow from sizes and scalar parameters by arithmetic"
            hint = "compute it outside and pass it as a scalar, or launch with kernel[grid]"
            raise self.error(message, hint, at=header.loc)
        subst: Substitution = {}
        copied = [o.clone(subst) for o in self.builder.ops if o in needed]
        return Block((), (*copied, *(o.clone(subst) for o in ops)))

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
