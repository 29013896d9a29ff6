"""A kernel under the values that the names in its source have at one time, and what a call asks of
it then.

What a kernel names outside of itself may change between two launches: a global, a list, a closure's
variable, a macro. Whatever follows from these belongs to a `Revision`: the signature, the generated
launch path, and `source`, which is a part of the key of every variant. The launch path looks first
whether anything has changed (`tilec.jit.captured`); a kernel whose names change to and fro finds
what it had.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilec.ir.caller import caller_loc
from tilec.ir.errors import LaunchError, TilecError, shown
from tilec.ir.options import Options
from tilec.jit.captured import Reads
from tilec.jit.compiled import CompiledKernel, require_memory
from tilec.jit.fastpath import LAUNCH_KEYWORDS, renew_launcher
from tilec.jit.fingerprint import Describer, describe
from tilec.jit.launchpath import LaunchPath, write_path
from tilec.jit.specialise import Asked, parameters_of
from tilec.runtime.arguments import REQUIRED, Parameter, bind_call, read_arguments
from tilec.runtime.cache import hash_parts
from tilec.runtime.devices import default_target, device_target, named_place
from tilec.support.lazy import Lazy

if TYPE_CHECKING:
    from tilec import frontend
    from tilec.frontend import Signature
else:  # loaded by the first kernel that is used
    frontend = Lazy("tilec.frontend")


class Revision:
    """What a kernel is as long as its names stand for the same; see the module's opening.

    `source` tells it from every other revision of this kernel and any other. `reads`: where the
    values were found. `paths`: the launch path for each kind of array.
    """

    def __init__(
        self, function: Callable[..., Any], options: Options, source: str, reads: Reads
    ) -> None:
        self.source, self.reads = source, reads
        self.paths: dict[str, LaunchPath] = {}
        self._function, self._options = function, options
        self._none: set[str] = set()  # tensors that calls gave None for
        self._resolved: dict[str, tuple[Signature, tuple[Parameter, ...]]] = {}

    @functools.cached_property
    def signature(self) -> Signature:
        """The function's parameters as the front end reads them. Raises CompileError."""
        return frontend.read_signature(self._function, self._options)

    @functools.cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """What a call passes: the function's parameters less those that the call allocates."""
        return tuple(p for p in parameters_of(self.signature) if p.kind != "output")

    @functools.cached_property
    def optional(self) -> tuple[str, ...]:
        """The tensors that may be None."""
        return tuple(sorted(frontend.optional_tensors(self.signature)))

    @functools.cached_property
    def keywords(self) -> tuple[str, ...]:
        """The launch's own keywords, less those that are names of the kernel's parameters."""
        names = {p.name for p in self.parameters}
        placed = any(p.kind == "tensor" for p in self.parameters)
        known = LAUNCH_KEYWORDS if placed else (*LAUNCH_KEYWORDS, "target", "device")
        return tuple(k for k in known if k not in names)

    def resolve(self, bound: Mapping[str, Any]) -> tuple[Signature, tuple[Parameter, ...]]:
        """The signature and all parameters for these constants, on which annotations may depend,
        and for the optional tensors that are given."""
        constants = {p.name: bound[p.name] for p in self.parameters if p.kind == "constexpr"}
        left_out = {name: None for name in self.optional if bound[name] is None}
        if not self._none.issuperset(left_out):  # the generated paths take them for tensors
            self._none |= left_out.keys()
            self.paths.clear()
        key = describe(constants) if self.signature.pending else ""
        key += " ".join(left_out)
        constants |= left_out
        found = self._resolved.get(key)
        if found is None:
            signature = frontend.bind_constants(self.signature, constants)
            found = self._resolved[key] = signature, parameters_of(signature)
        return found

    def asked(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        target: str | None,
        grid: Any = None,
        launched: bool = False,
        optional: bool = False,
    ) -> tuple[Asked, dict[str, Any], dict[str, Any]]:
        """What these arguments of the kernel `name` ask for, compiled for `target` or for the
        device they are on; with it the arguments by parameter, and the options of a launch, which
        are `threads` alone where nothing is `launched`. `optional`: scalars may be left out. Raises
        LaunchError."""
        keywords = [k for k in self.keywords if launched or k == "threads"]
        parameters = tuple(map(_optional, self.parameters)) if optional else self.parameters
        bound = bind_call(name, parameters, args, kwargs, keywords)
        options = {k: bound.pop(k, None) for k in keywords}
        threads = options.get("threads")
        check_threads(threads, "threads", LaunchError)
        signature, known = self.resolve(bound)
        call = read_arguments(name, known, bound, target or _target_of)
        call.constants |= dict.fromkeys(signature.idle, 0)
        if launched:
            require_memory(name, self.parameters, call)
            if not call.tensors:
                place = options.get("target"), options.get("device")
                call.device, call.index = named_place(*place)
        found = target or _target_of(call.device, call.index)
        given = grid is not None
        asked = Asked(call, signature, known, self.source, found, threads, grid, given)
        return asked, bound, options

    def renew(self, reads: Reads) -> None:
        """The names stand for the same values again, now found as `reads` says."""
        module = self._function.__globals__
        old, new = self.reads.test(module, ()), reads.test(module, ())
        self.reads = reads
        if (old.text, [*map(id, old.cells.values())]) != (new.text, [*map(id, new.cells.values())]):
            self.paths.clear()
        for path in self.paths.values():
            renew_launcher(path.call, new.values)
            renew_launcher(path.on_grid, new.values)

    def forget_launches(self) -> None:
        """Let go of the variants that launches were made ready of."""
        for path in self.paths.values():
            path.prepared.forget()

    def write_path(self, kind: str, variant: CompiledKernel) -> LaunchPath:
        """The launch path for arrays of `kind`, made by a kernel's first launch, of `variant`."""
        module = self._function.__globals__
        known = [replace(p, default=None) if p.name in self._none else p for p in self.parameters]
        return write_path(tuple(known), variant.image, kind, module, self.reads)


def read_revision(function: Callable[..., Any], options: Options) -> Revision:
    """The revision that the kernel made of `function` is at now. Raises CompileError where its
    source cannot be read."""
    function = inspect.unwrap(function)
    describer = Describer()
    text = describer.source(function)
    source = hash_parts([text, describe(dataclasses.astuple(options))])
    return Revision(function, options, source, describer.reads)


def check_threads(threads: object, what: str, error: type[TilecError]) -> None:
    """Raise `error`, placed at the call, unless `threads` is None or a positive int."""
    whole = isinstance(threads, int) and not isinstance(threads, bool) and threads > 0
    if threads is not None and not whole:
        message = f"{what} is {shown(threads)}, not a positive int"
        raise error(message, caller_loc(), "write threads=128")


def _optional(p: Parameter) -> Parameter:
    """The parameter of a scalar that may be left out."""
    return replace(p, default=0) if p.kind == "scalar" and p.default is REQUIRED else p


def _target_of(device: str, index: int) -> str:
    """What arguments on this device are compiled for."""
    return default_target() if device == "meta" else device_target(device, index)
