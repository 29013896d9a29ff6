"""`tilelang.jit`, `compile` and `lower`: TileLang's ways to a kernel, made of `tilec.Kernel`.

A lazy program is a function that returns a `T.prim_func`; each set of its arguments has a kernel of
its own. An eager one is itself the kernel: its tensors are annotated in the body, its other
parameters are compile-time values. Which it is stands in the function's own code: an eager one
names T.Kernel.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import logging
import math
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilec import language as T
from tilec.builtins.annotations import dtype_of
from tilec.ir.caller import caller_loc
from tilec.ir.errors import CompileError, shown
from tilec.ir.options import TILELANG, Options
from tilec.jit.compiled import CompiledKernel
from tilec.jit.fingerprint import exact, remember_surroundings
from tilec.jit.specialise import Asked, spec_in_memory
from tilec.kernel import Kernel, make_kernel
from tilec.runtime.arguments import as_index
from tilec.runtime.expressions import evaluate, names_in
from tilec.support.syntax import every
from tilec.target import find_target
from tilec.tilelang.dtypes import dtype
from tilec.tilelang.profiler import Profiler, TensorSupplyType

NOTES = logging.getLogger("tilec.tilelang")
# Options that choose how TileLang compiles. tilec has one way, so they change nothing but what
# `_options` reads from them.
WITHOUT_MEANING = frozenset(
    "compile_flags debug_root_path execution_backend pass_configs target_host verbose".split()
)


class _OptionName(str):
    @property
    def value(self) -> str:
        """The text, as of a member of an enumeration."""
        return str(self)


class _PassConfigNames(type):
    def __getattr__(cls, name: str) -> _OptionName:
        if not name.isupper():
            raise AttributeError(name)
        return _OptionName(name)


class PassConfigKey(metaclass=_PassConfigNames):
    """Names of TileLang's pass options, each its own text: they are accepted, and change nothing
    in tilec but TL_ENABLE_FAST_MATH and TL_DISABLE_THREAD_STORAGE_SYNC (see `_options`)."""


def check_options(what: str, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name not in WITHOUT_MEANING:
            known = ", ".join(("out_idx", "target", *sorted(WITHOUT_MEANING)))
            message = f"tilelang.{what} has no keyword {name!r}"
            raise CompileError(message, caller_loc(), f"it has: {known}")
        if value and _options({name: value}) == TILELANG:
            NOTES.info("%s of tilelang.%s means nothing to tilec", name, what)


def _options(given: Mapping[str, Any]) -> Options:
    """What of a program's options means something here."""
    flags = given.get("compile_flags") or ()
    return TILELANG.with_flags(
        [flags] if isinstance(flags, str) else flags, given.get("pass_configs")
    )


def _target(given: object) -> str | None:
    """A target as `tilec.Kernel.compile` takes it; None where the machine decides. Raises
    TargetError for what is none."""
    name = None if given is None or given == "auto" else str(given)
    return name if name in (None, "cuda", "hip") else find_target(name).name


def _outputs(kernel: Kernel, out_idx: int | Sequence[int] | None) -> tuple[str, ...]:
    """The names of the parameters that a call allocates. Raises CompileError where an index names
    no tensor."""
    if out_idx is None:
        return ()
    named = dict(enumerate(kernel.parameters))
    named |= {n - len(named): p for n, p in named.items()}
    names = []
    for given in out_idx if isinstance(out_idx, list | tuple) else (out_idx,):
        index = as_index(given)
        found = None if index is None else named.get(index)
        if found is None or found.kind not in ("tensor", "output"):
            message = f"out_idx {shown(given)} names no tensor of {kernel.name}"
            known = ", ".join(f"{i} {p.describe()}" for i, p in enumerate(kernel.parameters))
            raise CompileError(message, caller_loc(), f"its parameters: {known}")
        names.append(found.name)
    return tuple(names)


def _extent(
    written: int | str | None, sizes: Mapping[str, int], unknown: int | None = 4096
) -> int | None:
    """The value of an extent, a number or arithmetic of sizes; an open one is `unknown`."""
    if isinstance(written, int) or written is None:
        return unknown if written is None else written
    known = {name: sizes.get(name, unknown) for name in names_in(written)}
    return None if None in known.values() else int(evaluate(written, known, "an extent"))


def _launch(kernel: Kernel) -> Callable[..., Any]:
    """What launches a kernel; one block of it, where its T.Kernel gives no grid."""
    return kernel[1] if kernel.signature.grid_from_launch else kernel


def _listed(results: Any) -> Any:
    """What a call gives, several results as a list."""
    return [*results] if isinstance(results, tuple) else results


@dataclasses.dataclass(frozen=True)
class KernelParam:
    """A tensor or number that a kernel takes or gives, as programs ask for it; a number has no
    shape."""

    dtype: str
    shape: list[int]


class JITKernel:
    """A kernel as TileLang's programs hold it: called with its tensors, less those of `out_idx`,
    which the call allocates and returns. `config` is what `autotune` chose."""

    def __init__(
        self,
        kernel: Kernel,
        out_idx: int | Sequence[int] | None = None,
        target: object = None,
        constants: Mapping[str, Any] | None = None,
        sizes: Mapping[str, int] | None = None,
        options: Options = TILELANG,
    ) -> None:
        out = _outputs(kernel, out_idx)
        self.config: Mapping[str, Any] = {}
        self.constants, self.sizes = dict(constants or {}), dict(sizes or {})
        self.prim_func = kernel
        options = kernel.options.joined(options)
        options = dataclasses.replace(options, out=out or options.out)
        self.kernel = make_kernel(kernel.function, options)
        self.target = _target(target)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _listed(_launch(self.kernel)(*args, **self.constants, **kwargs))

    def run_once(self, func: Callable[..., Any] | None = None) -> None:
        """Call the kernel, or `func`, with a profiler's inputs."""
        (func or self)(*self.get_profiler().inputs())

    def compile(self) -> CompiledKernel:
        """The variant for contiguous tensors of the annotated shapes; a size that only a call
        gives counts as 4096. Raises CompileError."""
        return self.kernel.compile_for((), self.target, self._described())

    def predicted(self) -> float:
        """Seconds that a call of the variant that `compile` gives is predicted to take; inf where
        it cannot run, or nothing is known. Raises CompileError."""
        if self.kernel.is_sequence:
            return math.inf
        found = self.kernel.choices.recommend(self.asked(), 1)
        seconds = [x.estimate.seconds for x in found if x.estimate is not None and not x.reason]
        return min(seconds, default=math.inf)

    def asked(self) -> Asked:
        """What `compile` asks for."""
        return self.kernel.described((), self.target, self._described())

    def _described(self) -> dict[str, Any]:
        """Tensors and constants of a call, by name."""
        given = {}
        for parameter in self.kernel.parameters_for(self.constants):
            if parameter.kind == "tensor":
                whole = [_extent(e, self.sizes) or 0 for e in parameter.shape or ()]
                steps = [s for s in parameter.strides or () if isinstance(s, int)]
                strides = steps if steps and len(steps) == len(whole) else None
                given[parameter.name] = spec_in_memory(whole, parameter.dtype, strides)
        return {**given, **self.constants}

    @property
    def params(self) -> list[KernelParam]:
        """What the kernel takes, and what it allocates: its parameters in their order, then what
        T.empty makes. A size that only a call gives counts as 4096."""
        known: dict[str, Any] = {p.name: p for p in self.prim_func.parameters_for(self.constants)}
        if self.prim_func.signature.allocated:
            known |= {a.name: a for a in self.compile().image.arguments if a.output}
        taken = (p for p in known.values() if p.kind != "constexpr")
        shapes = ((dtype_of(p.dtype), p.shape or ()) for p in taken)
        return [KernelParam(dtype(d), [_extent(e, self.sizes) or 0 for e in s]) for d, s in shapes]

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """The assembly of the variant that `compile` gives (PTX where the target is CUDA): tilec
        writes no CUDA C++, and no code for the host that `kernel_only` could add."""
        del kernel_only
        return self.compile().asm

    def print_source_code(self, which: str = "kernel", file: str | None = None) -> None:
        """Print `get_kernel_source`, or write it to a file."""
        if file is None:
            print(self.get_kernel_source())
        else:
            Path(file).write_text(self.get_kernel_source())

    def get_host_source(self) -> str:
        """Nothing: launches go through the driver's interface, without generated code."""
        return ""

    def get_profiler(
        self, tensor_supply_type: TensorSupplyType = TensorSupplyType.Auto
    ) -> Profiler:
        """Inputs of the annotated shapes, of a kind, and the time of a call."""
        given = [p for p in self.kernel.parameters_for(self.constants) if p.kind == "tensor"]
        extent = functools.partial(_extent, sizes=self.sizes, unknown=None)
        device = "cpu" if self.target == "cpu" else None
        return Profiler(self, given, extent, tensor_supply_type, device)


def compile(
    func: Kernel | JITKernel,
    out_idx: int | Sequence[int] | None = None,
    target: object = None,
    **options: Any,
) -> JITKernel:
    """A `T.prim_func`, or what `get_tir` gives, as a callable kernel; machine code is made at the
    first call. Raises CompileError for what is neither."""
    check_options("compile", options)
    if isinstance(func, JITKernel):
        known = func.constants, func.sizes
        return JITKernel(func.prim_func, out_idx, target, *known, options=_options(options))
    if not isinstance(func, Kernel):
        message = f"tilelang.compile takes a T.prim_func, not {shown(func)}"
        raise CompileError(message, caller_loc(), "give it what the program returns")
    return JITKernel(func, out_idx, target, options=_options(options))


class JITImpl:
    """A function below `tilelang.jit`: what `compile` makes a kernel of, for its arguments, and
    `make` anew. `func`: the function itself."""

    compile: Callable[..., JITKernel]
    make: Callable[..., JITKernel]
    func: Callable[..., Any]

    def par_compile(self, configs: Sequence[Any], **_: Any) -> list[JITKernel]:
        """`compile` of each of `configs`: arguments as a tuple, or by name."""
        return [self.compile(**c) if isinstance(c, dict) else self.compile(*c) for c in configs]

    def get_kernel_source(self, *args: Any, **kwargs: Any) -> str:
        """`JITKernel.get_kernel_source` of what `compile` gives."""
        return self.compile(*args, **kwargs).get_kernel_source()


class _Lazy(JITImpl):
    """A function that returns a T.prim_func: called with its arguments, it gives the kernel."""

    def __init__(
        self, function: Callable[..., Any], out_idx: Any, target: object, options: Options
    ) -> None:
        functools.update_wrapper(self, function)
        self.func, self.out_idx, self.target = function, out_idx, target
        self.options = options
        self.signature = inspect.signature(function)
        # By its arguments: the kernel, and the arguments, some of which are told by which they are.
        self._made: dict[Any, tuple[JITKernel, Any]] = {}

    def get_tir(self, *args: Any, **kwargs: Any) -> Kernel:
        """The T.prim_func for these arguments. Raises CompileError if there is none."""
        made = self.func(*args, **kwargs)
        if not isinstance(made, Kernel):
            message = f"{self.func.__name__} returned {shown(made)}, not a T.prim_func"
            raise CompileError(message, caller_loc(), "return the function below @T.prim_func")
        return made

    def compile(self, *args: Any, **kwargs: Any) -> JITKernel:
        """The kernel for these arguments, the same one for the same values."""
        key = (*map(exact, args), *((n, exact(v)) for n, v in sorted(kwargs.items())))
        if key not in self._made:
            self._made[key] = self.make(*args, **kwargs), (args, kwargs)
        return self._made[key][0]

    __call__ = compile

    def make(self, *args: Any, **kwargs: Any) -> JITKernel:
        """The kernel for these arguments, which is not kept."""
        func = self.get_tir(*args, **kwargs)
        return JITKernel(func, self.out_idx, self.target, options=self.options)


def par_compile(funcs: Iterable[Kernel], **options: Any) -> list[JITKernel]:
    """`compile` of each of `funcs`, one after the other."""
    waits = ("num_workers", "ignore_error")  # of threads that there are not
    options = {name: value for name, value in options.items() if name not in waits}
    return [compile(f, **options) for f in funcs]


def _annotated_in_body(function: Callable[..., Any]) -> set[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    notes = (n.target for n in every(ast.AnnAssign, tree))
    return {target.id for target in notes if isinstance(target, ast.Name)}


def _is_eager(function: Callable[..., Any]) -> bool:
    """Whether the body is the kernel: it names T.Kernel, or it is given tensors, which a macro that
    it calls makes one of."""
    if "Kernel" in function.__code__.co_names:
        return True
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    notes = function.__annotations__.values()
    given = any(isinstance(a, T.Tensor) or (isinstance(a, str) and "Tensor" in a) for a in notes)
    return given or bool(_annotated_in_body(function) & set(names))


class _Eager(JITImpl):
    """A kernel whose tensors are annotated in its body; its other parameters are compile-time
    values. A call launches it."""

    def __init__(
        self, function: Callable[..., Any], target: object, options: Options = TILELANG
    ) -> None:
        functools.update_wrapper(self, function)
        self.func = function
        tensors = _annotated_in_body(function)
        plain = (None, int, float, bool, str, dtype, "int", "float", "bool", "str")
        for name in inspect.signature(function).parameters:
            if function.__annotations__.get(name) in plain and name not in tensors:
                function.__annotations__[name] = T.constexpr
        self.kernel, self.target = make_kernel(function, options), target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _listed(_launch(self.kernel)(*args, **kwargs))

    def get_tir(self, *args: Any, **kwargs: Any) -> JITKernel:
        """What `compile` gives, which `tilelang.compile` and `tilelang.lower` take: the kernel is
        read when it is compiled."""
        return self.compile(*args, **kwargs)

    def compile(self, *tensors: Any, **named: Any) -> JITKernel:
        """The kernel with its compile-time values and sizes given by name, to be called with its
        tensors; or with the tensors themselves, whose sizes it then has."""
        order = [p.name for p in self.kernel.parameters]
        named = dict(zip(order, tensors, strict=False)) | named
        kinds = {p.name: p.kind for p in self.kernel.parameters}
        constants = {n: v for n, v in named.items() if kinds.get(n) in ("constexpr", "scalar")}
        sizes = {n: v for n, v in named.items() if n not in kinds}
        for p in self.kernel.parameters:
            if p.name in named and p.kind == "tensor" and p.shape is not None:
                pairs = zip(p.shape, named[p.name].shape, strict=False)
                sizes |= {n: int(v) for n, v in pairs if isinstance(n, str)}
        return JITKernel(self.kernel, None, self.target, constants, sizes)

    make = compile


def jit(
    func: Callable[..., Any] | None = None,
    *,
    out_idx: int | Sequence[int] | None = None,
    target: object = None,
    **options: Any,
) -> Any:
    """A program of TileLang's: lazy (see `_Lazy`) or eager, which is a `tilec.Kernel`. `out_idx`
    belongs to lazy ones; eager ones return T.empty. Raises CompileError for other options."""
    check_options("jit", options)
    said = _options(options)
    frame = sys._getframe(1)

    def decorate(function: Callable[..., Any]) -> Any:
        if isinstance(function, Kernel):  # above @T.prim_func
            return JITKernel(function, out_idx, target, options=said)
        if not inspect.isfunction(function):
            message = f"tilelang.jit takes a function, not {shown(function)}"
            raise CompileError(message, caller_loc(), "write @tilelang.jit above a def")
        if not _is_eager(function):
            return _Lazy(function, out_idx, target, said)
        if out_idx is not None:
            message = f"out_idx of {function.__name__}, whose body is the kernel"
            raise CompileError(message, caller_loc(), "return T.empty(shape, dtype) instead")
        remember_surroundings(function, frame)
        return _Eager(function, target, said)

    return decorate if func is None else decorate(func)


@dataclasses.dataclass(frozen=True)
class CompiledArtifact:
    """What `lower` gives: the assembly of the device's code."""

    kernel_source: str
    device_mod: object = None
    host_mod: object = None


def lower(func: Kernel | JITKernel, target: object = None, **_: Any) -> CompiledArtifact:
    """The code for a target of what `compile` takes. Raises CompileError for anything else."""
    return CompiledArtifact(compile(func, target=target).get_kernel_source())
