"""`tilelang.autotuner`: a program of TileLang's with the best of its configurations.

TileLang compiles and times each. Here they are predicted, as `T.auto`'s choices are, which takes
milliseconds for each and needs no GPU; `tilec.autotune` measures."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tilec.ir.errors import TilecError
from tilec.jit.choose import place_of
from tilec.jit.disk import load_choices, store_choices
from tilec.jit.fingerprint import describe, exact
from tilec.jit.specialise import Asked
from tilec.support.progress import Progress
from tilec.tilelang.programs import (
    NOTES,
    WITHOUT_MEANING,
    JITImpl,
    JITKernel,
    check_options,
    compile,
)

__all__ = ["AutoTuner", "AutotuneResult", "autotune", "set_autotune_inputs"]
_SECONDS = 30.0  # for the predictions of a program's configurations; one takes .01 to .2


def _fastest(
    configs: Sequence[Mapping[str, Any]], make: Callable[[Mapping[str, Any]], JITKernel]
) -> Mapping[str, Any]:
    """The configuration whose kernel is predicted to take the fewest seconds, of equals the first;
    the first where none can run, whose error says why. It is kept on disk."""
    if len(configs) < 2:
        return configs[0] if configs else {}
    asked: Asked | None = None
    shelf, where, known = f"predicted {describe(configs)}", "", dict[str, Any]()
    with contextlib.suppress(TilecError):
        asked = make(configs[0]).asked()
        where, known = place_of(asked), load_choices(asked.key(), shelf)
    kept = known.get(where)
    if isinstance(kept, int):
        return configs[kept]
    n = _least(configs, lambda config: make(config).predicted())
    if asked is not None:
        store_choices(asked.key(), {**known, where: n}, shelf)
    return configs[n]


def _least(
    configs: Sequence[Mapping[str, Any]], seconds: Callable[[Mapping[str, Any]], float]
) -> int:
    """The number of the configuration that takes the fewest seconds. Lists of thousands are looked
    at here and there, as far as time goes."""
    found: list[tuple[float, int]] = [(math.inf, 0)]
    order = random.Random(0).sample(range(len(configs)), len(configs))
    end = time.monotonic() + _SECONDS
    with Progress("predicting", len(configs), "configurations") as bar:
        for bar.done, n in enumerate(order, 1):
            with contextlib.suppress(TilecError):  # one that cannot run
                found.append((seconds(configs[n]), n))
            if time.monotonic() > end:
                NOTES.info("tilelang.autotune: %d of %d are predicted", bar.done, len(configs))
                break
    return min(found)[1]


def _values(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without the options that mean nothing here."""
    return {n: v for n, v in config.items() if n not in WITHOUT_MEANING}


def _as_key(value: Any) -> Any:
    """What of an argument tells problems apart: of a tensor its shape and dtype."""
    shape = getattr(value, "shape", None)
    return exact(value) if shape is None else (tuple(shape), str(value.dtype))


class _Tuned:
    """A program with the one of its configurations that is predicted to be the fastest. As in
    TileLang, a call that gives one of its values gets the program's own defaults for the others."""

    def __init__(self, program: Callable[..., Any], configs: Any) -> None:
        functools.update_wrapper(self, program)
        self.program, self.configs = program, configs
        self._found: dict[Any, Mapping[str, Any]] = {}

    def _config(self, args: Any, kwargs: Any) -> Mapping[str, Any]:
        offered = self.configs(*args, **kwargs) if callable(self.configs) else self.configs
        config = offered[0] if offered else {}
        named = inspect.signature(self.program).parameters  # an eager program's sizes are not
        known = {n: v for n, v in kwargs.items() if n in named}
        given = inspect.signature(self.program).bind_partial(*args, **known).arguments
        if not config.keys().isdisjoint(given):
            without = {n for n, p in named.items() if p.default in (p.empty, None)}
            return {n: v for n, v in config.items() if n in without and n not in given}
        if not isinstance(self.program, JITImpl):
            return config
        make = self.program.make
        return _fastest(offered, lambda c: make(*args, **kwargs, **_values(c)))

    def _with_config(self, of: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        key = (*map(_as_key, args), *((n, _as_key(v)) for n, v in sorted(kwargs.items())))
        if key not in self._found:
            self._found[key] = self._config(args, kwargs)
        made = of(*args, **kwargs, **_values(self._found[key]))
        if isinstance(made, JITKernel):
            made.config = self._found[key]
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_config(self.program, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name not in ("compile", "get_kernel_source", "get_tir"):
            raise AttributeError(f"a program of tilelang.autotune has no {name!r}", name=name)
        of = getattr(self.program, name)
        return lambda *args, **kwargs: self._with_config(of, args, kwargs)


def autotune(func: Callable[..., Any] | None = None, *, configs: Any = (), **options: Any) -> Any:
    """The program with the one of `configs` (a list, or a function of the program's arguments) that
    is predicted to be the fastest, or as it is where a call gives a value of it. Nothing is
    measured, so `options` say nothing."""
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
    """TileLang's tuner of a function that returns a T.prim_func: takes the configuration that is
    predicted to be the fastest."""

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
        """The kernel of the best configuration, and its time with random inputs."""

        def made(config: Mapping[str, Any]) -> JITKernel:
            options = {n: v for n, v in config.items() if n in WITHOUT_MEANING}
            return compile(self.program(**_values(config)), **{**self.compiled, **options})

        config = dict(_fastest(self.configs, made))
        kernel = made(config)
        profiler = kernel.get_profiler()
        wanted = None if self.reference is None else profiler.do_bench(self.reference)
        return AutotuneResult(kernel, config, profiler.do_bench(), wanted)


@contextlib.contextmanager
def set_autotune_inputs(*inputs: Any) -> Iterator[None]:
    """Nothing: autotune measures nothing, and needs no inputs."""
    yield
