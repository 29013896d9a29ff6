"""`tilelang.autotuner`: a program of TileLang's with the first of its configurations."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tilec.tilelang.programs import NOTES, WITHOUT_MEANING, JITKernel, check_options, compile


class _Tuned:
    """A program with the first of its configurations. As in TileLang, a call that gives one of its
    values gets the program's own defaults for the others."""

    def __init__(self, program: Callable[..., Any], configs: Any) -> None:
        functools.update_wrapper(self, program)
        self.program, self.configs = program, configs

    def _with_config(self, of: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        offered = self.configs(*args, **kwargs) if callable(self.configs) else self.configs
        named = inspect.signature(self.program).parameters  # an eager program's sizes are not
        known = {n: v for n, v in kwargs.items() if n in named}
        given = inspect.signature(self.program).bind_partial(*args, **known).arguments
        config = offered[0] if offered else {}
        if not config.keys().isdisjoint(given):
            without = {n for n, p in named.items() if p.default in (p.empty, None)}
            config = {n: v for n, v in config.items() if n in without}
        more = {n: v for n, v in config.items() if n not in given and n not in WITHOUT_MEANING}
        made = of(*args, **kwargs, **more)
        if isinstance(made, JITKernel):
            made.config = config
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_config(self.program, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name not in ("compile", "get_kernel_source", "get_tir"):
            raise AttributeError(f"a program of tilelang.autotune has no {name!r}", name=name)
        of = getattr(self.program, name)
        return lambda *args, **kwargs: self._with_config(of, args, kwargs)


def autotune(func: Callable[..., Any] | None = None, *, configs: Any = (), **options: Any) -> Any:
    """The program with the first of `configs` (a list, or a function of the program's arguments),
    or as it is where a call gives a value of it. Nothing is measured: T.auto is tilec's own way."""
    if options:
        NOTES.info("%s of tilelang.autotune: nothing is measured", ", ".join(options))
    return (lambda program: _Tuned(program, configs)) if func is None else _Tuned(func, configs)


@dataclasses.dataclass(frozen=True)
class AutotuneResult:
    """What `AutoTuner.run` found: the kernel, its configuration, and milliseconds of a call (of the
    reference, too, where there is one)."""

    kernel: JITKernel
    config: Mapping[str, Any]
    latency: float
    ref_latency: float | None = None


class AutoTuner:
    """TileLang's tuner of a function that returns a T.prim_func: takes the first configuration."""

    def __init__(self, program: Callable[..., Any], configs: Sequence[Mapping[str, Any]]) -> None:
        self.program, self.configs = program, configs
        self.compiled: dict[str, Any] = {}
        self.reference: Callable[..., Any] | None = None

    @classmethod
    def from_kernel(
        cls, kernel: Callable[..., Any], configs: Sequence[Mapping[str, Any]]
    ) -> AutoTuner:
        """A tuner of `kernel`, a function of a configuration's values."""
        return cls(kernel, configs)

    def set_compile_args(
        self, out_idx: int | Sequence[int] | None = None, target: object = None, **options: Any
    ) -> AutoTuner:
        """How kernels are made, as in `compile`. Raises CompileError for an unknown option."""
        check_options("compile", options)
        self.compiled = {"out_idx": out_idx, "target": target, **options}
        return self

    def set_profile_args(
        self, *, ref_prog: Callable[..., Any] | None = None, **_: Any
    ) -> AutoTuner:
        """The reference whose time is measured; the rest means nothing here."""
        self.reference = ref_prog
        return self

    def run(self, **_: Any) -> AutotuneResult:
        """The kernel of the first configuration, and its time with random inputs."""
        config = dict(self.configs[0]) if self.configs else {}
        values = {n: v for n, v in config.items() if n not in WITHOUT_MEANING}
        options = {n: v for n, v in config.items() if n in WITHOUT_MEANING}
        kernel = compile(self.program(**values), **{**self.compiled, **options})
        profiler = kernel.get_profiler()
        wanted = None if self.reference is None else profiler.do_bench(self.reference)
        return AutotuneResult(kernel, config, profiler.do_bench(), wanted)


@contextlib.contextmanager
def set_autotune_inputs(*inputs: Any) -> Iterator[None]:
    """Nothing: autotune measures nothing, and needs no inputs."""
    yield
