"""`Kernel`: what `@tilec.kernel` makes of a Python function.

A call goes one of three ways:

1. made before: everything it depends on is found in one dictionary (`jit.fastpath`), about 1 us;
2. a variant exists: the arguments are read and checked, their facts (`jit.specialise`) name a
   compiled variant, and a launch is made ready for these addresses;
3. a new variant: it comes from the disk cache, or is traced, compiled and stored there.

Passes see facts, never values: alignment, compile-time extents and strides, constants. Sizes,
other strides, addresses and scalars are arguments of the machine code. Globals and closure values
are read when a variant is compiled, and are part of its key; each launch looks whether they have
changed (`jit.revision`).
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilec.ir.caller import caller_loc, for_users, told_as_internal
from tilec.ir.errors import CompileError, CompileWarning, LaunchError, ResourceError, shown, warn
from tilec.ir.options import PLAIN, Options
from tilec.jit.choose import Choices
from tilec.jit.collector import collector_paused
from tilec.jit.compiled import CompiledKernel, returned, stream_handle
from tilec.jit.disk import load_variant, store_variant
from tilec.jit.fastpath import can_be_written
from tilec.jit.launchpath import Launchable, LaunchPath, name_of, spread_grid
from tilec.jit.parts import Parts
from tilec.jit.recipe import NO_KEYS, Keys, Recipe
from tilec.jit.revision import Revision, read_revision
from tilec.jit.specialise import Asked, SpecialisationKey
from tilec.jit.stages import Stages
from tilec.runtime.arguments import Call, Parameter, as_index
from tilec.runtime.devices import resolve_target
from tilec.runtime.driver import DriverError, Ready
from tilec.runtime.image import NO_BLOCKS
from tilec.support.lazy import Lazy
from tilec.support.settings import warn_of_unknown

if TYPE_CHECKING:
    from tilec.frontend import Signature
    from tilec.ir.schedule import Plan
    from tilec.jit import build
    from tilec.runtime.image import Image
    from tilec.tune import Recommendations
else:  # loaded by the first kernel that is compiled
    build = Lazy("tilec.jit.build")


@dataclasses.dataclass(frozen=True)
class Planned:
    """A launch that is resolved and not made: the checked arguments, the variant and the facts it
    was compiled under, the arrays that the call allocated, the grid as its author wrote it."""

    call: Call
    key: SpecialisationKey
    variant: CompiledKernel
    outputs: Mapping[str, Any]
    grid: tuple[int, int, int]


MOST_REVISIONS = 64
MOST_KEPT = 1024
"""Variants that a kernel keeps in memory. Where there are more, the quarter that was asked for
longest ago is dropped; the disk cache still has them."""


class Kernel(Launchable):
    """A kernel: call it, `kernel[grid](…)`, or `kernel.compile(…)` for a variant to look at.

    Launches are asynchronous, on torch's current stream or the one given as `stream=`, on the
    device where the tensors are. A kernel that takes no array is launched on `device=` ("cpu",
    "cuda:1"), else the first one of `target=`, else of TILEC_TARGET, else on the CPU; what it
    allocates is a NumPy array on the CPU and a torch tensor on a GPU.
    """

    @for_users
    def __new__(cls, *given: object, **named: object) -> Kernel:
        if cls is Kernel:
            message = "tilec.Kernel is what @tilec.kernel makes; it is not called"
            raise CompileError(message, caller_loc(), "write @tilec.kernel above the function")
        return super().__new__(cls)

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, function)
        self.function, self.options = function, options
        self.name = function.__name__
        self._variants: OrderedDict[SpecialisationKey, CompiledKernel] = OrderedDict()
        self.choices = Choices(self._chosen)
        self._compiling: dict[SpecialisationKey, threading.Lock] = {}
        self._lock = threading.RLock()
        self._revisions: dict[str, Revision] = {}
        self._revision: Revision | None = None
        self._path: LaunchPath | None = None
        self._parts: Parts | None = None
        self._on_grid: Callable[..., Any] = self._launch_on_grid

    def _current(self) -> Revision:
        """The kernel as its names have it now. Raises CompileError where it cannot be read."""
        found = self._revision
        if found is not None and found.reads.unchanged():
            return found
        with self._lock:
            read = read_revision(self.function, self.options)
            found = self._revisions.get(read.source)
            if found is None:
                if len(self._revisions) >= MOST_REVISIONS:
                    self._revisions.clear()
                found = self._revisions[read.source] = read
            else:
                found.renew(read.reads)
            self._revision = found
        return found

    @property
    def signature(self) -> Signature:
        """The function's parameters as the front end reads them. Raises CompileError."""
        return self._current().signature

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What a call passes: the function's parameters less those that the call allocates."""
        return self._current().parameters

    def parameters_for(self, constants: Mapping[str, Any]) -> tuple[Parameter, ...]:
        """`parameters` where annotations depend on compile-time values: on these, else on the
        defaults. Raises CompileError where one has no value."""
        revision = self._current()
        values = {p.name: constants.get(p.name, p.default) for p in revision.parameters}
        return revision.resolve(values)[1]

    def __reduce__(self) -> str:
        """Pickled by name, as functions are. Raises LaunchError where no name leads to it."""
        return name_of(self, self.function)

    def __repr__(self) -> str:
        return f"<kernel {self.name}({', '.join(p.describe() for p in self.parameters)})>"

    # --- several T.Kernel ---------------------------------------------------------------------

    @property
    def is_sequence(self) -> bool:
        """Whether the body has several T.Kernel, which are launched one after the other."""
        return self.options.part is None and self._current().signature.kernels > 1

    @property
    def parts(self) -> Parts:
        """A kernel for each T.Kernel of the body. Raises CompileError where it cannot be read."""
        with self._lock:
            signature = self._current().signature
            if self._parts is None or self._parts.signature is not signature:
                first = dataclasses.replace(self.options, part=0)
                others = (
                    dataclasses.replace(first, out=(), part=k) for k in range(1, signature.kernels)
                )
                kernels = [make_kernel(self.function, said) for said in (first, *others)]
                self._parts = Parts(signature, kernels)
            return self._parts

    # --- launching ----------------------------------------------------------------------------

    @for_users
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._launch(None, args, kwargs)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """The kernel with its grid: an int, up to three of them, or a function of the constants.
        One with an extent of 0 launches nothing."""
        return functools.partial(self._on_grid, (None,) if grid is None else grid)  # is refused

    @for_users
    def _launch_on_grid(self, grid: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._launch(grid, args, kwargs)

    def _launch(
        self, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any], keys: Keys = NO_KEYS
    ) -> Any:
        revision = self._current()
        if self.is_sequence:
            return self._launch_parts(revision, grid, args, kwargs)
        asked, bound, options = revision.asked(self.name, args, kwargs, None, grid, launched=True)
        call, left = asked.call, asked.open  # nothing is, behind the choice
        key = self.choices.key(asked)
        chosen = {name: call.constants[name] for name in left}
        given = None if grid is None else spread_grid(grid, call.constants)
        variant = self.variant(key)
        outputs, makers = variant.allocate(call, keys.made)
        if variant.aliases(call):
            variant = self.variant(dataclasses.replace(key, may_alias=True, packed=()))
        stream = stream_handle(options.get("stream"), call)
        grid = variant.grid(call, given)
        if 0 in grid:  # nothing to launch, and nothing worth remembering
            return returned(variant.image, {**bound, **outputs})
        try:
            loaded, ready = variant.ready(call, grid, stream)
        except DriverError:
            if not key.packed:
                raise
            # No room for the copies, say: it can do without.
            variant = self.variant(dataclasses.replace(key, packed=()))
            loaded, ready = variant.ready(call, grid, stream)
        kind = variant.launch(loaded, ready, call, stream, bound)
        path = revision.paths.get(kind)
        if kind and (path is None or path is not self._path) and can_be_written(asked.parameters):
            self._take_path(revision, kind, lambda: revision.write_path(kind, variant))
        elif path is not None:
            recipe = functools.partial(Recipe, variant, call, asked.parameters, given, stream)
            path.prepared.remember(keys, chosen, makers, ready, recipe)
        return returned(variant.image, {**bound, **outputs})

    def _launch_parts(
        self, revision: Revision, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        parts = self.parts
        found = parts.launch(grid, args, kwargs)
        if self._path is None or "parts" not in revision.paths:
            self._take_path(revision, "parts", lambda: parts.write_path(self.name, revision))
        return found

    def _take_path(
        self, revision: Revision, kind: str, write: Callable[[], LaunchPath | None]
    ) -> None:
        """Put the generated launch path for arrays of `kind`, or for "parts", in the place of
        `__call__`, if there can be one."""
        with self._lock:
            path = revision.paths.get(kind) or write()
            if path is None:
                return
            revision.paths[kind] = path
            self._path = path
            self._on_grid = functools.partial(path.on_grid, self)
            setattr(type(self), "__call__", path.call)  # noqa: B010 (mypy refuses an assignment)

    @property
    def path(self) -> LaunchPath | None:
        """The generated launch path, if calls go through one."""
        return self._path

    @property
    def prepared(self) -> Mapping[Any, dict[tuple[Any, ...], Ready]]:
        """The launches made ready so far, by all that they depend on but addresses and scalars,
        then by these: calling one launches it again."""
        return {} if self._path is None else self._path.prepared.memo

    # --- compiling ----------------------------------------------------------------------------

    def plan_launch(
        self, target: str, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Planned:
        """What a launch with these arguments would run if they were on a device of `target`: for
        the simulator, which takes arrays of the CPU. Raises LaunchError and CompileError."""
        asked, _, _ = self._current().asked(self.name, args, kwargs, target, grid)
        call, passed = asked.call, [p.name for p in self.parameters]
        for name, t in call.tensors.items():
            if t.device != "cpu":
                where = "has a shape but no memory" if t.device == "meta" else f"is on {t.place}"
                hint = "pass an array" if t.device == "meta" else f"pass {name}.cpu()"
                argument = f"{self.name}, argument {passed.index(name) + 1}: {name}"
                message = f"{argument} {where}; the simulator takes arrays of the CPU"
                raise LaunchError(message, hint=hint)
        if not call.tensors:
            call.device = "cpu"
        key = self.choices.key(asked)
        variant = self._simulated(key)
        outputs, _ = variant.allocate(call)
        if variant.aliases(call):
            key = dataclasses.replace(key, may_alias=True, packed=())
            variant = self._simulated(key)
        given = None if grid is None else spread_grid(grid, call.constants)
        noted = bool(variant.image.asserts)
        key = dataclasses.replace(key, debug=False, simulated=noted or key.simulated)
        return Planned(call, key, variant, outputs, variant.grid(call, given))

    @for_users
    def compile(self, /, *args: Any, target: str | None = None, **kwargs: Any) -> CompiledKernel:
        """The variant for these arguments, without launching it; no GPU is needed.

        Each tensor is given as an array, a torch `meta` tensor or a `tilec.spec`; scalars may be
        left out, and so are the outputs that a call allocates. Of a kernel with several T.Kernel it
        is the first, with a warning; `kernel.parts.compile` gives all. Raises CompileError and its
        kinds.
        """
        return self.compile_for(args, target, kwargs)

    def compile_for(
        self, args: tuple[Any, ...], target: str | None, kwargs: Mapping[str, Any]
    ) -> CompiledKernel:
        """`compile`, for parameters of any name."""
        if self.is_sequence:
            first, *others = self.parts.compile(args, target, kwargs)
            more = sum(v.image.grid != NO_BLOCKS for v in others)
            if more and (loc := caller_loc()) is not None:
                message = f"{self.name} is {more + 1} launches, and what is compiled is the first"
                hint = f"{self.name}.parts.compile((…), target, {{…}}) gives all of them, in order"
                warn(CompileWarning, message, loc, hint)
            return first
        return self.variant(self.key_of(args, target, kwargs))

    def compile_with_plan(
        self, plan: Plan, *args: Any, target: str | None = None, **kwargs: Any
    ) -> CompiledKernel:
        """`compile` with the schedule `plan` and no other, past every cache: for measuring and for
        tests. Raises ResourceError where the plan does not fit."""
        key = dataclasses.replace(self.key_of(args, target, kwargs), packed=())
        func = self.choices.traced(self.signature, key)
        made: CompiledKernel = build.compile_variant(self.signature, key, func, plan)
        return made

    @for_users
    def recommend(
        self, /, *args: Any, target: str | None = None, topk: int = 10, **kwargs: Any
    ) -> Recommendations:
        """The configurations that T.auto and the open schedule leave for these arguments of
        `compile`, predicted, best first: at most `topk` that can run, then as many that cannot,
        with the reasons. Raises CompileError."""
        whole = as_index(topk)
        if whole is None or whole < 1:
            message = f"topk is {shown(topk)}, not a positive int"
            raise LaunchError(message, hint="write topk=10, or leave it out")
        if self.is_sequence:
            message = f"{self.name} is several launches, each with a best of its own"
            hint = f"ask for one: {self.name}.parts.kernels[0].recommend(…)"
            raise LaunchError(message, hint=hint)
        return self.choices.recommend(self.described(args, target, kwargs), whole)

    def key_of(
        self, args: Sequence[Any], target: str | None, kwargs: Mapping[str, Any]
    ) -> SpecialisationKey:
        """The facts that these arguments of `compile` give."""
        return self.choices.key(self.described(args, target, kwargs))

    def described(
        self, args: Sequence[Any], target: str | None, kwargs: Mapping[str, Any]
    ) -> Asked:
        """What these arguments of `compile` ask for: scalars may be left out. Raises
        LaunchError."""
        chosen = None if target is None else resolve_target(target)
        asked, _, _ = self._current().asked(self.name, args, kwargs, chosen, optional=True)
        return dataclasses.replace(asked, grid_given=asked.signature.grid_from_launch)

    def variant(self, key: SpecialisationKey) -> CompiledKernel:
        """The variant compiled under `key`: from memory, else from the disk cache, else
        compiled now."""
        found = self._kept(key)
        if found is not None:
            return found
        warn_of_unknown()
        with self._lock:
            lock = self._compiling.setdefault(key, threading.Lock())
        with lock:
            found = self._kept(key)
            if found is None:
                found = load_variant(key, lambda: self._again(key, found).stages)
                if found is None:
                    found = self._build(key)
                    store_variant(key, found)
                self._keep(key, found)
        return found

    def take_up(self, key: SpecialisationKey, image: Image) -> CompiledKernel:
        """The variant of machine code that was compiled under `key` elsewhere."""
        made = CompiledKernel(image, Stages(make=lambda: self._again(key, made).stages))
        store_variant(key, made)
        self._keep(key, made)
        return made

    def _kept(self, key: SpecialisationKey) -> CompiledKernel | None:
        """The variant in memory, which is now the one that was asked for last. Keys are compared in
        Python, where threads may change: an OrderedDict that two of them change is no more."""
        with self._lock:
            found = self._variants.get(key)
            if found is not None:
                self._variants.move_to_end(key)
        return found

    def _keep(self, key: SpecialisationKey, variant: CompiledKernel) -> None:
        with self._lock:
            self._variants[key] = variant
            self._compiling.pop(key, None)
            if len(self._variants) > MOST_KEPT:
                for _ in range(MOST_KEPT // 4):
                    self._variants.popitem(last=False)
                for revision in self._revisions.values():
                    revision.forget_launches()

    def clear(self) -> None:
        """Drop everything that was made for this kernel in this process: variants, choices,
        launches made ready. The next call begins anew, with what the disk cache has.

        Machine code that nothing else refers to is unloaded, once the device has done its work;
        that of a `CompiledKernel` which is kept elsewhere stays. A CUDA graph does not keep the
        code of its kernels: do not replay one that was captured before.
        """
        with self._lock:
            codes = [code for v in self._variants.values() for code in v.codes()]
            self._variants.clear()
            self._revisions.clear()
            self._compiling.clear()
            self.choices = Choices(self._chosen)
            self._revision = self._path = self._parts = None
            self._on_grid = self._launch_on_grid
            if "__call__" in vars(type(self)):
                delattr(type(self), "__call__")
        gc.collect()  # tables of launches made ready are parts of cycles
        for alive, unload in codes:
            if alive() is None:
                unload()

    def _chosen(self, key: SpecialisationKey) -> CompiledKernel:
        """The variant by which tiles and plans are chosen, debugging or not."""
        key = dataclasses.replace(key, debug=False)
        try:
            return self.variant(key)
        except build.OnlySimulated:
            return self.variant(dataclasses.replace(key, simulated=True))

    def _simulated(self, key: SpecialisationKey) -> CompiledKernel:
        """The variant whose records the simulator runs: it looks at assertions, debugging or not,
        and goes on behind them."""
        key = dataclasses.replace(key, debug=False)
        variant = self._chosen(key)
        if variant.image.asserts and not key.simulated:
            return self.variant(dataclasses.replace(key, simulated=True))
        return variant

    def _again(self, key: SpecialisationKey, known: CompiledKernel | None) -> CompiledKernel:
        """What another program has compiled, with its plan: which are tried before that one depends
        on what else a program has chosen."""
        try:
            return self._build(key, known.plan if known else None)
        except ResourceError:  # it held because something may spill
            return self._build(key)

    @collector_paused()
    def _build(self, key: SpecialisationKey, plan: Plan | None = None) -> CompiledKernel:
        revision = self._current()
        if revision.source != key.source:
            raise CompileError(
                f"{self.name} or a value that it names has changed since its facts were taken",
                revision.signature.loc,
                "call it, or compile it, again",
            )
        func = self.choices.traced(revision.signature, key)
        with told_as_internal("compiling this kernel", revision.signature.loc):
            return build.compile_variant(revision.signature, key, func, plan)


def kernel_in(value: Any) -> Any:
    """`value`; the kernel of what launches one: a tuned kernel, an operator of torch's."""
    is_ours = str(type(value).__module__).startswith("tilec.")  # of code without a module: None
    held = getattr(value, "kernel", None) if is_ours else None
    return held if isinstance(held, Kernel) else value


def make_kernel(function: Callable[..., Any], options: Options = PLAIN) -> Kernel:
    """The kernel of a function whose surroundings are remembered already."""
    # Each kernel is the only object of a class of its own: `kernel(…)` runs the class's
    # `__call__`, which becomes the generated launch path after the first launch. No other way is
    # as fast.
    cls = type(function.__name__, (Kernel,), {"__module__": function.__module__})
    made: Kernel = cls(function, options)
    return made
