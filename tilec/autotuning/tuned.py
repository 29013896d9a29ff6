"""`tilec.autotune`: a kernel that measures, at its first call for a problem, how it runs best.

What was measured stands in the place of what is predicted (`tilec.jit.choose`): a call of the tuned
kernel is a call of the kernel with the constants that were found, and the plan that was found is
its choice. Results are kept on disk, by device and by everything that a prediction depends on.
"""

from __future__ import annotations

import dataclasses
import functools
import platform
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

from tilec.autotuning.candidates import Candidate, Problem, answer_of, check_configs, check_key
from tilec.autotuning.options import Options, Tuning, check_options, configs_of, refuse_unknown
from tilec.autotuning.search import measure
from tilec.ir.caller import for_users, opaque
from tilec.ir.errors import CompileError, LaunchError, shown
from tilec.ir.schedule import plan_in
from tilec.jit.choose import place_of
from tilec.jit.compiled import CompiledKernel, require_memory
from tilec.jit.disk import load_choices, store_choices
from tilec.jit.fingerprint import describe
from tilec.jit.launchpath import Sole, name_of
from tilec.jit.specialise import Asked, Chosen, SpecialisationKey
from tilec.kernel import Kernel
from tilec.runtime.arguments import REQUIRED, bind_call
from tilec.runtime.devices import device_target, driver
from tilec.runtime.gpu import GpuDriver
from tilec.runtime.tensors import read_tensor
from tilec.support.settings import processors

_MOST_FOUND = 4096  # problems that a tuned kernel remembers


class Found(NamedTuple):
    """What was found for a problem: the configuration, and the plan (`chosen`), which fits calls of
    the variant `key`."""

    config: Mapping[str, Any]
    chosen: Chosen
    key: SpecialisationKey


class Tuned(Sole):
    """A kernel that is tuned by measurement; call it as the kernel, `tuned(…)` or `tuned[grid](…)`.

    `tune(…)` measures for these arguments without a call; `results` has what was found since the
    program began, the latest last. `kernel` is the kernel itself.
    """

    def __init__(self, kernel: Kernel, options: Options) -> None:
        functools.update_wrapper(self, kernel.function)
        self.kernel, self.options = kernel, options
        self.results: list[Tuning] = []
        # By all of a call but its numbers: what was found. With its whole numbers, which a plan is
        # chosen by, too: the configuration, once the plan stands for these.
        self._tuned: dict[Any, Found] = {}
        self._found: dict[Any, Mapping[str, Any]] = {}
        self._measuring = threading.RLock()  # one at a time, or each is slower for the others

    def __repr__(self) -> str:
        return f"<tuned {self.kernel!r}>"

    def __reduce__(self) -> str:
        """Pickled by name, as kernels are."""
        return name_of(self, self.kernel.function)

    @for_users
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._call(None, args, kwargs)

    @opaque
    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return for_users(lambda *args, **kwargs: self._call(grid, args, kwargs))

    @for_users
    def tune(self, /, *args: Any, grid: Any = None, **kwargs: Any) -> Tuning:
        """Measure for these arguments, whether a result is on disk or not, and let calls like this
        one have it. Raises what the first candidate raises where none can run."""
        with self._measuring:
            tuning, found = self._tune(grid, args, kwargs, again=True)
        self._remember(*self._keys(grid, args, kwargs), found)
        return tuning

    @for_users
    def compile(self, /, *args: Any, target: str | None = None, **kwargs: Any) -> CompiledKernel:
        """`Kernel.compile`, without a device: constants that are not given are as they are untuned,
        or as `T.auto` predicts them."""
        return self.kernel.compile_for(args, target, kwargs)

    def _call(self, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        problem, call = self._keys(grid, args, kwargs)
        config = self._found.get((problem, call))
        if config is None:
            config = self._config(problem, call, grid, args, kwargs)
        kernel: Any = self.kernel if grid is None else self.kernel[grid]
        return kernel(*args, **{**config, **kwargs})

    @for_users
    def _config(
        self, problem: Any, call: Any, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        with self._measuring:
            if problem in self._tuned:
                found = self._tuned[problem]
                asked = self._problem(grid, args, kwargs).asked(found.config)
                if asked.key() == found.key:  # else the plan may not fit
                    self.kernel.choices.adopt(asked, found.chosen)
            else:
                _, found = self._tune(grid, args, kwargs, again=False)
            self._remember(problem, call, found)
        return found.config

    def _remember(self, problem: Any, call: Any, found: Found) -> None:
        if len(self._found) >= _MOST_FOUND:
            self._found.clear()
            self._tuned.clear()
        if self._tuned.get(problem, found) != found:  # tuned again
            self._found = {k: v for k, v in [*self._found.items()] if k[0] != problem}
        self._tuned[problem] = found
        self._found[problem, call] = found.config

    def _keys(self, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """What tells a problem from others, and a call from others of one problem."""
        parameters, key = self.kernel.parameters, self.options.key
        read = {**dict(zip((p.name for p in parameters), args)), **kwargs}
        numbers = {p.name for p in parameters if p.kind == "scalar"}
        rest = {n: v for n, v in read.items() if n not in numbers and n != "stream"}
        shape = None if grid is None or callable(grid) else describe(grid)
        whole = [(n, v) for n, v in read.items() if n in numbers and isinstance(v, int)]
        told = {n: _told_apart(v) for n, v in rest.items()}
        if key is None:
            return (shape, *told.items()), tuple(whole)
        arrays = {p.name: told[p.name] for p in parameters if p.kind == "tensor" and p.name in told}
        shapes = {n: x[0] for n, x in arrays.items() if isinstance(x, tuple)}
        sizes = {
            e: extent
            for p in parameters
            for e, extent in zip(p.shape or (), shapes.get(p.name, ()))
            if isinstance(e, str)
        }
        known = {**sizes, **read, **shapes}
        kinds = [(n, x[2:4] if n in shapes else x) for n, x in told.items()]
        values = [(n, known.get(n)) for n in key]
        return (shape, *values, *kinds), (*whole, *told.items())

    # --- tuning -----------------------------------------------------------------------------------

    def _problem(self, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Problem:
        """The problem that a call poses. Raises LaunchError for calls that cannot be tuned for."""
        kernel = self.kernel
        if kernel.is_sequence:
            message = f"{kernel.name} has several T.Kernel, each with a best of its own"
            raise LaunchError(message, hint="make a kernel of each, and tune that")
        parameters = kernel.parameters
        needed = {p.name for p in parameters if p.kind == "constexpr" and p.default is REQUIRED}
        others = [
            dataclasses.replace(p, default=None) if p.name in needed else p for p in parameters
        ]
        given = bind_call(kernel.name, others, args, kwargs, ("threads", "stream"))
        given.pop("stream", None)
        said = {p.name for p in parameters[: len(args)]} | kwargs.keys()
        given = {n: v for n, v in given.items() if n in said}
        configs = [{n: v for n, v in c.items() if n not in given} for c in self._configs(given)]
        lent = {n: v for n, v in next(iter(configs), {}).items() if n in needed}
        problem = Problem(kernel, given, grid, None, configs, lent)
        call = kernel.described((), None, {**given, **lent}).call
        require_memory(kernel.name, parameters, call)
        if not call.tensors:
            message = f"{kernel.name} takes no array, so that no device is known to measure on"
            raise LaunchError(message, hint="tune a kernel that takes arrays")
        target = "cpu" if call.device == "cpu" else device_target(call.device, call.index)
        return dataclasses.replace(problem, target=target)

    def _tune(
        self, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any], again: bool
    ) -> tuple[Tuning, Found]:
        options, problem = self.options, self._problem(grid, args, kwargs)
        asked = problem.asked({})
        call = asked.call
        checked = "" if options.reference is None else "and checked "
        device = _device_name(call.device, call.index)
        shelf = f"measured {checked}on {device} {describe(problem.configs)}"
        where = _place(asked)
        if options.key is not None:
            where = f"{options.key}: {self._keys(grid, args, kwargs)[0]}"
        if not again and options.cache:
            known = self._read(problem, asked, shelf, where)
            if known is not None:
                return known
        _refuse_capture(call.device)
        tuning, best = measure(problem, options, args, kwargs)
        self.results.append(tuning)
        if options.cache:
            _store(asked, shelf, where, tuning, best)
        return tuning, Found(best.config, best.chosen, best.asked.key())

    def _configs(self, given: Mapping[str, Any]) -> list[dict[str, Any]]:
        configs = self.options.configs
        if callable(configs):
            hint = "it is given the call's arguments by name: configs=lambda arguments: [{…}, …]"
            configs = answer_of("configs", hint, configs, given)
        return check_configs(self.kernel, configs) if configs is not None else []

    def _read(
        self, problem: Problem, asked: Asked, shelf: str, where: str
    ) -> tuple[Tuning, Found] | None:
        """What an earlier program has measured for this problem; None if nothing."""
        match load_choices(asked.key(), shelf).get(where):
            case [dict() as config, None | dict() as fields, list() as packed, float() as ms]:
                plan = None if fields is None else plan_in(fields)
                if fields is not None and plan is None:
                    return None
                chosen = Chosen({}, plan, packed=tuple(packed))
                try:
                    call = problem.asked(config)
                    self.kernel.choices.adopt(call, chosen)
                except (LaunchError, CompileError):  # of another kernel than today's
                    return None
                words = plan.describe() if plan else ""
                tuning = Tuning(self.kernel.name, asked.call.place, config, words, ms, (), 0.0)
                self.results.append(tuning)
                return tuning, Found(config, chosen, call.key())
        return None


def _place(asked: Asked) -> str:
    """What a choice depends on, less the numbers of the call."""
    call = dataclasses.replace(asked.call, scalars={})
    return place_of(dataclasses.replace(asked, call=call))


def _store(asked: Asked, shelf: str, where: str, found: Tuning, best: Candidate) -> None:
    plan = best.chosen.plan
    fields = None if plan is None else dataclasses.asdict(plan)
    note = [dict(found.config), fields, [*best.chosen.packed], found.milliseconds]
    try:
        known = load_choices(asked.key(), shelf)
        store_choices(asked.key(), {**known, where: note}, shelf)
    except TypeError:  # a constant that JSON does not know
        return


def _told_apart(value: Any) -> Any:
    array = None if isinstance(value, int | float | bool | str) else read_tensor(value, "argument")
    if array is None:
        return value if value.__hash__ is not None else describe(value)
    place = array.device, array.index
    return array.shape, array.strides, array.dtype, place, array.pointer & 15, array.writable


def _device_name(kind: str, index: int) -> str:
    """What tells one kind of device from another whose target is the same."""
    found = None if kind == "cpu" else driver(kind)
    if not isinstance(found, GpuDriver):
        return f"{platform.machine()} with {processors()} processors"
    return f"{found.name_of(index)} with {found.multiprocessors(index)} multiprocessors"


def _refuse_capture(device: str) -> None:
    torch = sys.modules.get("torch")
    if device != "cpu" and torch is not None and torch.cuda.is_current_stream_capturing():
        message = "a kernel cannot be tuned while a CUDA graph is captured"
        raise LaunchError(message, hint="call it once before, or tuned.tune(…)")


@for_users
def autotune(
    kernel: Kernel | Sequence[Any] | None = None,
    /,
    *args: Any,
    configs: Any = None,
    space: Any = None,
    key: Sequence[str] | None = None,
    topk: int = 16,
    budget: float | None = 10.0,
    executor: Executor | None = None,
    reference: Callable[..., Any] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    progress: bool | None = None,
    cache: bool = True,
    **kwargs: Any,
) -> Any:
    """Tune a kernel by measurement.

    As a decorator, `@tilec.autotune` or `@tilec.autotune(configs=[…])` above `@tilec.kernel`, or as
    a function of a kernel it gives a kernel (`Tuned`) that measures at its first call for each
    problem: shapes, strides, dtypes, alignments, device. As a function of a kernel and of arguments
    it measures for these and returns a `Tuning`, whose `config` is the best.

    configs    dictionaries of compile-time parameters (and `threads`), or a function of the
               arguments by name that returns such a list. What they leave to T.auto, and all of it
               without `configs`, is taken from what tilec predicts to be fast.
    space      in the place of `configs`: a dictionary of lists, of which every combination of
               values is a configuration.
    key        names of parameters and sizes: calls in which these are the same (an array: its
               shape), and the dtypes and devices, are one problem. Without it all of a call is but
               its numbers.
    topk       how many of these predictions are tried (of each configuration that leaves
               something open).
    budget     seconds for all of it, None for no limit; the best prediction is always measured.
    executor   a `concurrent.futures` executor whose processes or machines compile; of the same
               kind as this one where the target is its CPU. Without it one process per processor.
    reference  a function of the arguments that gives what is right: the arrays that the kernel
               writes, in order, then those that it returns (or it writes into its arguments).
               Configurations with other results are left out; without it, those that the most do
               not agree with. `rtol`, `atol`: how near; by dtype without them.
    progress   whether to draw a bar on stderr; without it where stderr is a terminal, or
               TILEC_PROGRESS=1 asks for it.
    cache      whether results are read from, and kept in, tilec's cache folder.

    The arrays of a call are written by the call alone: candidates write copies.
    Raises LaunchError, and the first candidate's error where none can run.
    """
    if space is not None:
        if configs is not None:
            message = "tilec.autotune is given both configs and space"
            raise LaunchError(message, hint="space is every combination; leave one of them out")
        configs = configs_of(space)
    options = Options(configs, key, topk, budget, executor, reference, rtol, atol, progress, cache)
    check_options(options)
    if kernel is None:
        if kwargs:
            refuse_unknown(kwargs)
        return functools.partial(_decorated, options)
    tuned = _decorated(options, kernel)
    if not args and not kwargs:
        return tuned
    return tuned.tune(*args, **kwargs)


@for_users
def _decorated(options: Options, kernel: Any) -> Tuned:
    if not isinstance(kernel, Kernel):
        message = f"tilec.autotune takes a kernel, not {shown(kernel)}"
        raise LaunchError(message, hint="write @tilec.autotune above @tilec.kernel")
    if options.configs is not None and not callable(options.configs):
        check_configs(kernel, options.configs)
    if options.key is not None:
        check_key(kernel, options.key)
    return Tuned(kernel, options)
