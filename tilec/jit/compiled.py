"""`CompiledKernel`: one variant of a kernel, to look at, to launch, to keep in a file."""

from __future__ import annotations

import builtins
import functools
import re
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilec.ir.caller import end_at_caller, for_users, opaque
from tilec.ir.errors import LaunchError, TilecError, shown
from tilec.ir.types import rows_along
from tilec.jit.captured import Reads
from tilec.jit.export import export_c
from tilec.jit.fastpath import can_be_written, written_teller
from tilec.jit.launchpath import Launchable, LaunchPath, spread_grid, write_path
from tilec.jit.packing import Packing
from tilec.jit.recipe import NO_KEYS, Keys, Recipe
from tilec.jit.stages import Stages
from tilec.runtime.arguments import REQUIRED, Call, Parameter, as_index, bind_call, read_arguments
from tilec.runtime.devices import driver
from tilec.runtime.driver import Grid, Kernel, Ready, argument_block, check_grid, launched_grid
from tilec.runtime.expressions import evaluate
from tilec.runtime.facts import (
    alignment,
    alignment_fact,
    dense_fact,
    is_wide,
    overlapping,
    row_fact,
)
from tilec.runtime.image import (
    Argument,
    Image,
    ImageError,
    Resources,
    file_errors,
    path_of,
)
from tilec.runtime.tensors import (
    allocator,
    common_kind,
    read_tensor,
    stands_for_others,
    usual_array,
)
from tilec.support.lazy import Lazy
from tilec.target import find_target

if TYPE_CHECKING:
    from tilec.codegen import Emitter
    from tilec.ir import schedule
    from tilec.ir.core import Func
    from tilec.jit import describe
else:  # whoever only launches does not need them
    schedule = Lazy("tilec.ir.schedule")
    describe = Lazy("tilec.jit.describe")

FEW_SPILLED = 160  # bytes of a thread that a choice may spill without a look at the next one
ASSEMBLY = {"cuda": "ptx", "hip": "gcn", "cpu": "asm"}


class CompiledKernel(Launchable):
    """A kernel compiled for one target and one set of facts about its arguments.

    `stages` maps the name of each stage to its text, `resources` says what the kernel takes of
    the machine, `binary` is a cubin (PTX text where no assembler was found), hsaco or host
    object. Call it like the kernel, less the compile-time arguments; `compiled[grid](…)` where
    the launch gives the grid. `lowered` is its LOWERED function, where this process has compiled it
    for a GPU; `emitted`, where that was for the simulator, who emitted its LLVM text, and the text.
    """

    def __init__(self, image: Image, stages: Stages, lowered: Func | None = None) -> None:
        self.image = image
        self.stages = stages
        self.lowered = lowered
        self.emitted: tuple[Emitter, str] | None = None
        self._parameters = tuple(_parameter(a) for a in image.arguments if not a.output)
        self._loaded: dict[int, Kernel] = {}
        self._paths: dict[str, LaunchPath] = {}
        self._path: LaunchPath | None = None
        self._lock = threading.Lock()

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What a call passes: the kernel's less the compile-time ones and what it allocates."""
        return self._parameters

    @property
    def name(self) -> str:
        """The kernel's."""
        return self.image.name

    @property
    def target(self) -> str:
        """What it was compiled for, as "cuda:sm_90a"."""
        return self.image.target

    @property
    def plan(self) -> schedule.Plan | None:
        """The plan it was compiled with; None on the CPU. `stages["plan"]` says what it was chosen
        from."""
        if not self.image.plan:
            return None
        found = schedule.plan_in(self.image.plan)
        if found is None:
            hint = "compile the kernel again"
            raise ImageError(f"{self.name} was saved with a plan of another version", hint=hint)
        return found

    @property
    def resources(self) -> Resources:
        """Registers and shared memory that it takes, and its threads."""
        return self.image.resources

    @property
    def binary(self) -> bytes:
        """A cubin, a code object of AMD's, or an object file of the host; PTX where no assembler
        was found."""
        return self.image.binary

    @property
    def asm(self) -> str:
        """PTX, GCN assembly or host assembly."""
        return self.stages[ASSEMBLY[self.target.split(":")[0]]]

    def __repr__(self) -> str:
        arguments = ", ".join(_parameter(a).describe() for a in self.image.arguments)
        return f"<{self.name}({arguments}) for {self.target}>"

    def __str__(self) -> str:
        """What it takes, the plan, the resources: for people."""
        return describe.text_of(self.image, self._plan_text())

    def _repr_html_(self) -> str:
        return describe.html_of(self.image, self._plan_text())

    def _plan_text(self) -> str:
        plan = self.plan
        return plan.describe() if plan else ""

    @for_users
    def save(self, path: str | Path) -> None:
        """Write the kernel with all its stages to a file for `tilec.load`. Raises ImageError, which
        is an OSError too, if that cannot be."""
        file, content = path_of(path), self._whole()
        with file_errors(file, "written"):
            file.write_bytes(content)

    def _whole(self) -> bytes:
        return Image(**{**self.image.__dict__, "stages": dict(self.stages)}).to_bytes()

    @for_users
    def export_c(self, path: str | Path) -> tuple[Path, Path]:
        """Write the binary and a C header with its launch parameters, named after `path`. Raises
        ImageError, which is an OSError too, if that cannot be."""
        file = path_of(path)
        with file_errors(file, "written"):
            return export_c(self.image, file)

    def __reduce__(self) -> tuple[Callable[[bytes, str], CompiledKernel], tuple[bytes, str]]:
        """Pickled as it is saved."""
        return _from_bytes, (self._whole(), "the pickled kernel")

    def loaded(self, index: int) -> Kernel:
        """The kernel on device `index`, loaded there at the first use."""
        found = self._loaded.get(index)
        if found is None:
            with self._lock:
                found = self._loaded.get(index)
                if found is None:
                    found = driver(self.target.split(":")[0]).load(self.image, index)
                    self._loaded[index] = found
        return found

    def codes(self) -> list[tuple[weakref.ref[Kernel], Callable[[], None]]]:
        """Each kernel that was loaded, and a function that unloads its code once it is gone."""
        return [(weakref.ref(kernel), kernel.unloader()) for kernel in [*self._loaded.values()]]

    def grid(self, call: Call, given: Grid | None) -> Grid:
        """The grid of a launch: the kernel's own, or the one `given` with it.

        Where it has no block there is nothing to launch. Raises LaunchError if there are both or
        neither, or if it has too many blocks or less than none.
        """
        if self.image.grid and given is not None:
            raise LaunchError(
                f"{self.name} gives its grid in T.Kernel and was called with the grid {given} too",
                hint=f"call {self.name}(…), or leave the extents out of T.Kernel",
            )
        if given is None and not self.image.grid:
            message = f"{self.name} leaves its grid to the launch, which gives none"
            hint = f"call {self.name}[grid](…), or write the extents into T.Kernel"
            raise LaunchError(message, hint=hint)
        values = {}
        if given is None or self.image.assumed:
            values = {
                p.name: _value(p.role, p.arg, p.dim, call) for p in self.image.params if p.name
            }
            self._check_assumed(values)
        if given is None:
            given = spread_grid(evaluate(self.image.grid, values, f"the grid of {self.name}"), {})
        if self.image.own_grid:
            given = (max(0, given[0]), max(0, given[1]), max(0, given[2]))
        target = find_target(self.target)
        check_grid(self.image, given, target.grid_limits, target.grid_blocks)
        return given

    def _check_assumed(self, values: Mapping[str, Any]) -> None:
        """Raise LaunchError for sizes and scalars that are not what the kernel's author assumes."""
        for text in self.image.assumed:
            if not evaluate(text, values, f"an assumption of {self.name}"):
                of = {n for n in re.findall(r"[A-Za-z_]\w*", text) if n in values}
                raise LaunchError(
                    f"{self.name} assumes {text}, and "
                    + ", ".join(f"{n} is {shown(values[n])}" for n in sorted(of)),
                    hint="T.assume in the kernel says so; pass what it was written for",
                )

    def output_makers(self, call: Call) -> dict[str, Callable[[], Any]]:
        """For each array that a call makes and returns, a function that makes it, of the kind
        `like` is."""
        made: dict[str, Callable[[], Any]] = {}
        for a in self.image.arguments:
            if a.output:
                known = {**call.scalars, **call.sizes.values}
                shape = tuple(
                    e if isinstance(e, int) else evaluate(e, known, f"{a.name}.shape")
                    for e in a.shape
                )
                if not all(as_index(e) is not None and e >= 0 for e in shape):
                    message = f"the output {a.name} would have the shape {shown(shape)}"
                    raise LaunchError(message, hint="pass sizes that give it extents from 0")
                like = call.first
                if like is None:
                    like = usual_array(call.device, call.index, a.name)
                made[a.name] = allocator(like, shape, a.dtype, a.name, self.target)
        return made

    def allocate(
        self, call: Call, made: Sequence[Any] | None = None
    ) -> tuple[dict[str, Any], list[Callable[[], Any]]]:
        """The arrays that a call allocates, `made` for it already or made now, which are arguments
        of it from now on; and the functions that make them. Raises LaunchError, also if the kernel
        would write what cannot be written."""
        makers = self.output_makers(call)
        outputs = dict(zip(makers, made or [make() for make in makers.values()]))
        for name, value in outputs.items():
            tensor = read_tensor(value, name)
            assert tensor is not None
            if tensor.device == "meta":  # what torch makes while it traces
                kind = stands_for_others(value) or "a meta tensor"
                message = f"{self.name}: the output {name} has no memory: it is {kind}"
                hint = f"call the operator that tilec.torch.register({self.name}, …) makes"
                raise LaunchError(message, hint=hint)
            call.tensors[name] = tensor
        self.check_writable(call)
        return outputs, [*makers.values()]

    def ready(self, call: Call, grid: Grid, stream: int) -> tuple[Kernel, Ready]:
        """The kernel on the call's device and a launch of it made ready."""
        kernel = self.loaded(call.index)
        launched = launched_grid(kernel, grid)
        if not self.image.packed:
            block = argument_block(kernel, call.tensors, call.scalars, grid)
            return kernel, kernel.ready(launched, block, stream)
        packing = Packing(kernel, call)
        block = argument_block(kernel, packing.tensors, call.scalars, grid)
        return kernel, packing.ready(launched, block, packing.blocks(), stream)

    def launch(
        self, kernel: Kernel, ready: Ready, call: Call, stream: int, bound: Mapping[str, Any]
    ) -> str:
        """Launch what has been made ready, behind what still writes the arguments on other streams,
        and tell torch's autograd which of them have been written. Gives the kind of the call's
        arrays, "" where they are of several."""
        for t in call.tensors.values():
            if t.stream is not None:
                driver(t.device).order(t.index, t.stream, stream)
        kernel.launch(ready)
        torch = sys.modules.get("torch")
        if torch is not None:
            written = [bound[name] for name in self.image.written]
            written_teller()([x for x in written if isinstance(x, torch.Tensor)])
        return common_kind(bound[name] for name in call.tensors if name in bound)

    @opaque
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            path = self._path
            if path is not None:
                return path.call(self, *args, **kwargs)
            return self._launch(None, args, kwargs)
        except TilecError as e:  # `for_users` takes longer
            end_at_caller(e)
            raise

    @opaque
    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        path = self._path
        if path is not None:
            return functools.partial(path.on_grid, self, grid)
        return for_users(lambda *args, **kwargs: self._launch(grid, args, kwargs))

    @for_users
    def _launch(
        self, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any], keys: Keys = NO_KEYS
    ) -> Any:
        named = {p.name for p in self._parameters}
        options = [] if "stream" in named else ["stream"]
        bound = bind_call(self.name, self._parameters, args, kwargs, options)
        stream = bound.pop("stream", None) if options else None
        call = read_arguments(self.name, self._parameters, bound, self.target)
        require_memory(self.name, self._parameters, call)
        if not call.tensors:
            call.device = self.target.split(":")[0]
        self._check_facts(call)
        outputs, makers = self.allocate(call, keys.made)
        handle = stream_handle(stream, call)
        given = None if grid is None else spread_grid(grid, {})
        blocks = self.grid(call, given)
        if 0 not in blocks:
            kernel, ready = self.ready(call, blocks, handle)
            path = self._path_for(self.launch(kernel, ready, call, handle, bound))
            if path is not None and path is not self._path:
                self._path = path
            elif path is not None:
                recipe = functools.partial(Recipe, self, call, self._parameters, given, handle)
                path.prepared.remember(keys, {}, makers, ready, recipe)
        return returned(self.image, {**bound, **outputs})

    def _path_for(self, kind: str) -> LaunchPath | None:
        """The launch path for arrays of `kind`, if they are all of one and there can be one."""
        if not kind or not can_be_written(self._parameters):
            return None
        with self._lock:
            found = self._paths.get(kind)
            if found is None:
                module = {"__name__": __name__, "__builtins__": builtins}  # torch.compile asks
                found = write_path(self._parameters, self.image, kind, module, Reads())
                self._paths[kind] = found
        return found

    def _check_facts(self, call: Call) -> None:
        """Raise LaunchError where the arguments break what this variant was compiled under."""
        kind = self.target.split(":")[0]
        if call.device != kind:
            raise LaunchError(
                f"{self.name} was compiled for {self.target}, the arguments are on {call.device}",
                hint="pass .cpu() of each array"
                if kind == "cpu"
                else f"pass .cuda() of each array, or compile with target={call.device!r}",
            )
        for a in self.image.arguments:
            if a.kind != "tensor" or a.output:
                continue
            t, unfit = call.tensors[a.name], ""
            fact = alignment_fact(t, a.strides)
            if fact < a.align:
                unfit = f"an address and strides divisible by {a.align} bytes, got {fact}"
            elif dense_fact(t) < a.dense:
                unfit = f"rows without gaps and an address divisible by {a.dense} bytes, got "
                unfit += f"strides {t.strides} and an address divisible by {alignment(t.pointer)}"
            elif row_fact(t, a.align) < a.row:
                row = t.shape[rows_along(t.strides)]
                unfit = f"rows of whole {a.row} bytes, got rows of {row} elements"
            if unfit:
                message = f"{a.name}: this variant was compiled for {unfit}"
                hint = "compile it for a specification of such an array, or pass a copy"
                raise LaunchError(message, hint=hint)
            if is_wide(t) and not self.image.wide:
                message = f"{a.name}: this variant was compiled for tensors below 2**31 elements"
                raise LaunchError(message, hint="compile it for a specification of that size")
        if not self.image.may_alias and (pair := self.aliases(call)):
            raise LaunchError(
                f"{pair[0]} and {pair[1]} share memory and one is written; "
                "this variant takes them to be apart",
                hint="pass a copy of one, or call the kernel itself, which compiles for that",
            )

    def check_writable(self, call: Call) -> None:
        """Raise LaunchError if the kernel would write an array that its owner has made read-only,
        or several elements that are one in memory."""
        for a in self.image.arguments:
            if not a.written:
                continue
            t = call.tensors[a.name]
            if not t.writable:
                hint = "pass a copy"
                message = f"{self.image.name}: {a.name} is read-only, and the kernel writes it"
                raise LaunchError(message, hint=hint)
            if t.overlaps_itself():
                where = f"some of its elements are one in memory (strides {t.strides})"
                for dim, (extent, stride) in enumerate(zip(t.shape, t.strides)):
                    if extent > 1 and stride == 0:
                        where = f"along dimension {dim} its {extent} elements are one in memory "
                        where += "(stride 0)"
                hint = f"pass {a.name}.contiguous()"
                raise LaunchError(f"{a.name} is written, and {where}", hint=hint)

    def aliases(self, call: Call) -> tuple[str, str] | None:
        """Two arguments that share memory, one of them written; None if there are none."""
        written = {a.name for a in self.image.arguments if a.written}
        for pair in overlapping(call.tensors):
            if written & set(pair):
                return pair
        return None


@for_users
def load(path: str | Path) -> CompiledKernel:
    """The kernel that `CompiledKernel.save` wrote; its Python source is not needed.

    The file holds native code, which runs with all your rights: load only what you trust, as you
    would a shared library. The checksum in it finds damage, not malice. Raises ImageError if the
    file is damaged or of another version; one that is an OSError too if it cannot be read.
    """
    file = path_of(path)
    with file_errors(file, "read"):
        content = file.read_bytes()
    return _from_bytes(content, str(file))


def _from_bytes(content: bytes, origin: str) -> CompiledKernel:
    image = Image.from_bytes(content, origin)
    return CompiledKernel(image, Stages(image.stages))


def stream_handle(stream: Any, call: Call) -> int:
    """`stream=` as the driver's handle: None is the current one; an int, a torch stream or an
    object with `__cuda_stream__` is taken at its word."""
    if stream is None:
        return driver(call.device).current_stream(call.index)
    try:
        if hasattr(stream, "cuda_stream"):
            handle = int(stream.cuda_stream)
        elif hasattr(stream, "__cuda_stream__"):
            handle = int(stream.__cuda_stream__()[1])
        else:
            handle = -1 if isinstance(stream, str | float) else int(stream)
    except Exception:  # its attributes may be anybody's
        handle = -1
    if not 0 <= handle < 2**64:
        message = f"stream: expected a stream or its handle, got {shown(stream)}"
        raise LaunchError(message, hint="leave it out, or pass torch.cuda.Stream()")
    return handle


def require_memory(kernel: str, parameters: Sequence[Parameter], call: Call) -> None:
    """Raise LaunchError for an array that has a shape only."""
    passed = [p.name for p in parameters if p.kind != "output"]
    for name, t in call.tensors.items():
        if t.device == "meta":
            message = (
                f"{kernel}, argument {passed.index(name) + 1}: {name} has a shape but no memory"
            )
            hint = "pass an array; kernel.compile takes those without memory"
            if kind := stands_for_others(t.owner):
                message += f": it is {kind}"
                hint = f"call the operator that tilec.torch.register({kernel}, …) makes"
                if kind.startswith("a batch"):
                    hint = "give the kernel a dimension for the batch, or call it in a loop"
            raise LaunchError(message, hint=hint)


def returned(image: Image, arrays: Mapping[str, Any]) -> Any:
    """What a call returns: nothing, one array, or a tuple of arrays."""
    values = tuple(arrays[name] for name in image.returned)
    return values[0] if len(values) == 1 else values or None


def _value(role: str, arg: str, dim: int, call: Call) -> Any:
    match role:
        case "size":
            return call.tensors[arg].shape[dim]
        case "stride":
            return call.tensors[arg].strides[dim]
        case "scalar":
            return call.scalars[arg]
    return None


def _parameter(a: Argument) -> Parameter:
    default = REQUIRED if a.default is None else a.default
    return Parameter(a.name, a.kind, a.dtype, a.shape, a.strides, default)
