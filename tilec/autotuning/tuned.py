"""`tilec.autotune`: a kernel that measures, at its first call for a problem, how it runs best.

What was measured stands in the place of what is predicted (`tilec.jit.choose`): a call of the tuned
kernel is a call of the kernel with the constants that were found, and the plan that was found is
its choice. Results are kept on disk, by device and by everything that a prediction depends on.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from tilec.autotuning.candidates import Candidate, Problem, candidates, check_configs, untuned
from tilec.autotuning.compiling import Made, compile_job, load_compiler, make_job
from tilec.autotuning.trials import Trial, Trials, Unlike
from tilec.autotuning.workers import Processes, processors
from tilec.ir.caller import for_users, opaque
from tilec.ir.errors import CompileError, LaunchError, TilecError, did_you_mean, shown
from tilec.ir.schedule import plan_in
from tilec.jit.choose import place_of
from tilec.jit.compiled import CompiledKernel, require_memory
from tilec.jit.disk import load_choices, load_variant, store_choices
from tilec.jit.fingerprint import describe
from tilec.jit.specialise import Asked, Chosen
from tilec.jit.stages import Stages
from tilec.kernel import Kernel
from tilec.runtime.arguments import bind_call
from tilec.runtime.devices import device_target, driver
from tilec.runtime.gpu import GpuDriver
from tilec.runtime.image import Image
from tilec.runtime.tensors import read_tensor
from tilec.support.progress import Progress

_MOST_FOUND = 4096  # problems that a tuned kernel remembers
_FINALISTS, _WITHIN = 3, 1.1  # how many are timed again, and how far behind the best
_QUICK, _LONG = (2.0, 10.0), (5.0, 50.0)  # warm-up and repetition, milliseconds
_COMPILING = 0.6  # of the budget, where candidates run on the processors that compile them


@dataclasses.dataclass(frozen=True)
class Options:
    """What `autotune` was told; see there."""

    configs: Any = None
    topk: int = 16
    budget: float | None = 10.0
    executor: Executor | None = None
    reference: Callable[..., Any] | None = None
    rtol: float | None = None
    atol: float | None = None
    progress: bool | None = None
    cache: bool = True


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What was found for one problem: the best configuration, and all `trials`, the fastest first.
    `seconds`: what tuning took; 0 where the result was on disk."""

    kernel: str
    device: str
    config: Mapping[str, Any]
    plan: str
    milliseconds: float
    trials: tuple[Trial, ...]
    seconds: float

    def __str__(self) -> str:
        given = ", ".join(f"{k}={v}" for k, v in self.config.items())
        best = ": ".join(x for x in (given, self.plan) if x) or "as it is"
        how = f"{len(self.trials)} tried in {self.seconds:.1f} s" if self.trials else "from disk"
        lines = [f"{self.kernel} on {self.device}: {self.milliseconds:.4g} ms with {best} ({how})"]
        return "\n".join([*lines, *(f"  {trial}" for trial in self.trials)])


class Tuned:
    """A kernel that is tuned by measurement; call it as the kernel, `tuned(…)` or `tuned[grid](…)`.

    `tune(…)` measures for these arguments without a call; `results` has what was found since the
    program began, the latest last. `kernel` is the kernel itself.
    """

    def __init__(self, kernel: Kernel, options: Options) -> None:
        functools.update_wrapper(self, kernel.function)
        self.kernel, self.options = kernel, options
        self.results: list[Tuning] = []
        self._found: dict[Any, Mapping[str, Any]] = {}

    def __repr__(self) -> str:
        return f"<tuned {self.kernel!r}>"

    def __copy__(self) -> Tuned:
        return self

    def __deepcopy__(self, memo: Any) -> Tuned:
        return self

    @opaque
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._call(None, args, kwargs)

    @opaque
    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._call(grid, args, kwargs)

    @for_users
    def tune(self, /, *args: Any, grid: Any = None, **kwargs: Any) -> Tuning:
        """Measure for these arguments, whether a result is on disk or not, and let calls like this
        one have it. Raises what the first candidate raises where none can run."""
        found, _ = self._tune(grid, args, kwargs, again=True)
        return found

    def _call(self, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        key = self._key(args, kwargs)
        config = self._found.get(key)
        if config is None:
            config = self._config(key, grid, args, kwargs)
        kernel: Any = self.kernel if grid is None else self.kernel[grid]
        return kernel(*args, **{**config, **kwargs})

    @for_users
    def _config(
        self, key: Any, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        _, config = self._tune(grid, args, kwargs, again=False)
        if len(self._found) >= _MOST_FOUND:
            self._found.clear()
        self._found[key] = config
        return config

    def _key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Everything of a call that a choice may depend on."""
        read = [("", v) for v in args] + [*kwargs.items()]
        return tuple((name, _told_apart(v)) for name, v in read)

    # --- tuning -----------------------------------------------------------------------------------

    def _tune(
        self, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any], again: bool
    ) -> tuple[Tuning, Mapping[str, Any]]:
        kernel, options = self.kernel, self.options
        if kernel.is_sequence:
            message = f"{kernel.name} has several T.Kernel, each with a best of its own"
            raise LaunchError(message, hint="make a kernel of each, and tune that")
        parameters = kernel.parameters
        given = bind_call(kernel.name, parameters, args, kwargs, ("threads", "stream"))
        given.pop("stream", None)
        said = {p.name for p in parameters[: len(args)]} | kwargs.keys()
        given = {n: v for n, v in given.items() if n in said}
        asked = kernel.described((), None, given)
        require_memory(kernel.name, parameters, asked.call)
        call = asked.call
        if not call.tensors:
            message = f"{kernel.name} takes no array, so that no device is known to measure on"
            raise LaunchError(message, hint="tune a kernel that takes arrays")
        target = "cpu" if call.device == "cpu" else device_target(call.device, call.index)
        problem = Problem(kernel, given, grid, target)
        asked = problem.asked({})
        configs = self._configs(given)
        configs = [{n: v for n, v in c.items() if n not in said} for c in configs]
        place = "cpu" if call.device == "cpu" else f"{call.device}:{call.index}"
        shelf = f"measured on {_device_name(call.device, call.index)} {describe(configs)}"
        if not again and options.cache:
            known = self._read(problem, asked, shelf, place)
            if known is not None:
                return known
        _refuse_capture(place)
        found, best = self._measure(problem, configs, args, kwargs, place)
        self.results.append(found)
        if options.cache:
            _store(asked, shelf, found, best)
        return found, best.config

    def _configs(self, given: Mapping[str, Any]) -> list[dict[str, Any]]:
        configs = self.options.configs
        configs = configs(given) if callable(configs) else configs
        return check_configs(self.kernel, configs) if configs is not None else []

    def _read(
        self, problem: Problem, asked: Asked, shelf: str, place: str
    ) -> tuple[Tuning, Mapping[str, Any]] | None:
        """What an earlier program has measured for this problem; None if nothing."""
        match load_choices(asked.key(), shelf).get(place_of(asked)):
            case [dict() as config, None | dict() as fields, list() as packed, float() as ms]:
                plan = None if fields is None else plan_in(fields)
                if fields is not None and plan is None:
                    return None
                chosen = Chosen({}, plan, packed=tuple(packed))
                try:
                    self.kernel.choices.adopt(problem.asked(config), chosen)
                except (LaunchError, CompileError):  # of another kernel than today's
                    return None
                words = plan.describe() if plan else ""
                found = Tuning(self.kernel.name, place, config, words, ms, (), 0.0)
                self.results.append(found)
                return found, config
        return None

    def _measure(
        self,
        problem: Problem,
        configs: Sequence[Mapping[str, Any]],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        place: str,
    ) -> tuple[Tuning, Candidate]:
        options, begin = self.options, time.monotonic()
        with self._executor() as executor:
            return self._measured(problem, configs, args, kwargs, place, executor, begin)

    @contextlib.contextmanager
    def _executor(self) -> Iterator[Executor]:
        """The user's executor, or processes of our own, which are gone at the end."""
        if self.options.executor is not None:
            yield self.options.executor
            return
        own = Processes()
        try:
            for _ in range(min(processors(), self.options.topk)):
                own.submit(load_compiler)
            yield own
        finally:
            own.shutdown(wait=False, cancel_futures=True)

    def _measured(
        self,
        problem: Problem,
        configs: Sequence[Mapping[str, Any]],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        place: str,
        executor: Executor,
        begin: float,
    ) -> tuple[Tuning, Candidate]:
        options = self.options
        tried, refused = candidates(problem, configs, options.topk)
        if not configs and problem.target != "cpu":  # nothing is packed there, no plan chosen
            own = untuned(problem, {})
            same = [c for c in tried if c.config == own.config and c.chosen == own.chosen]
            rest = [c for c in tried if c not in same]
            tried = [dataclasses.replace(own, seconds=same[0].seconds if same else math.inf), *rest]
        trials = Trials(problem, args, kwargs, options.reference, options.rtol, options.atol)
        end = math.inf if options.budget is None else begin + options.budget
        bar = Progress(
            f"tuning {problem.kernel.name}", len(tried), "configurations",
            silent=0.0, shown=options.progress, threaded=False,
        )  # fmt: skip
        outcomes: dict[int, Trial] = {}
        variants: dict[int, CompiledKernel] = {}
        try:
            for number, made in self._compiled(problem, tried, executor, begin, end):
                candidate = tried[number]
                bar.step(candidate.name)
                outcome = self._try(trials, candidate, made, _QUICK)
                outcomes[number] = outcome
                if outcome.timing is not None and isinstance(made, CompiledKernel):
                    variants[number] = made
            for candidate in trials.outvoted():
                number = tried.index(candidate)
                reason = "wrong: its result differs from what most others compute"
                outcomes[number] = _trial(candidate, reason=reason)
            self._finals(trials, tried, outcomes, variants, end)
        finally:
            bar.close()
        for number, candidate in enumerate(tried):
            outcomes.setdefault(number, _trial(candidate, reason="not tried: the budget is spent"))
        timed = {n: t.timing for n, t in outcomes.items() if t.timing is not None}
        if not timed:
            reasons = "; ".join(f"{t.plan or 'plain'}: {t.reason}" for t in outcomes.values())
            message = f"{problem.kernel.name}: no candidate could be measured: {reasons}"
            raise LaunchError(message, hint="look at kernel.compile(…) with one of them")
        number = min(timed, key=lambda n: timed[n])
        best = tried[number]
        problem.kernel.choices.adopt(best.asked, best.chosen)
        everything = [outcomes[n] for n in sorted(outcomes)]
        everything += [Trial({}, name, math.inf, None, reason) for name, reason in refused]
        everything.sort(key=lambda t: math.inf if t.timing is None else float(t.timing))
        plan = outcomes[number].plan
        spent = time.monotonic() - begin
        found = Tuning(
            problem.kernel.name, place, best.config, plan, float(timed[number]),
            tuple(everything), spent,
        )  # fmt: skip
        return found, best

    def _try(
        self, trials: Trials, candidate: Candidate, made: Any, length: tuple[float, float]
    ) -> Trial:
        """One candidate, compiled or not, run and timed."""
        if not isinstance(made, CompiledKernel):
            return _trial(candidate, reason=str(made))
        try:
            wrong = trials.check(candidate, made)
            if wrong:
                return _trial(candidate, reason=wrong)
            return dataclasses.replace(
                _trial(candidate), timing=trials.time(candidate, made, *length)
            )
        except Unlike:
            raise
        except TilecError as error:
            return _trial(candidate, reason=error.message)

    def _finals(
        self,
        trials: Trials,
        tried: Sequence[Candidate],
        outcomes: dict[int, Trial],
        variants: Mapping[int, CompiledKernel],
        end: float,
    ) -> None:
        """Time the fastest again, and longer, while the budget lasts."""
        timed = [(float(t.timing), n) for n, t in outcomes.items() if t.timing is not None]
        close = [n for ms, n in sorted(timed)[:_FINALISTS] if ms <= _WITHIN * min(timed)[0]]
        for number in close if len(close) > 1 else ():
            if time.monotonic() < end:
                timing = trials.time(tried[number], variants[number], *_LONG)
                outcomes[number] = dataclasses.replace(outcomes[number], timing=timing)

    def _compiled(
        self,
        problem: Problem,
        tried: Sequence[Candidate],
        executor: Executor,
        begin: float,
        end: float,
    ) -> Iterator[tuple[int, CompiledKernel | str]]:
        """The candidates' variants, or why there are none, as they are ready. One is made here
        whatever the budget: the best by prediction."""
        kernel = problem.kernel
        futures: dict[Future[Made], int] = {}
        late = problem.target == "cpu"  # candidates run alone, when nothing is compiled any more
        ready: list[tuple[int, CompiledKernel | str]] = []
        try:
            for number, candidate in enumerate(tried[1:], 1):
                key = candidate.asked.key(candidate.chosen)
                known = load_variant(key, Stages)
                if known is not None:
                    ready.append((number, kernel.take_up(key, known.image)))
                    continue
                try:
                    func = kernel.choices.traced(candidate.asked.signature, key)
                except TilecError as error:
                    ready.append((number, error.message))
                    continue
                job = make_job(candidate.asked.signature, key, func, candidate.chosen.plan)
                futures[executor.submit(compile_job, job)] = number
            first = tried[0].asked.key(tried[0].chosen)
            try:
                ready.insert(0, (0, kernel.variant(first)))
            except TilecError as error:
                ready.insert(0, (0, error.message))
            if not late:
                yield from ready
            stop = min(end, begin + _COMPILING * (end - begin)) if late else end
            waiting = set(futures)
            while waiting and time.monotonic() < stop:
                left = None if stop == math.inf else max(0.0, stop - time.monotonic())
                done, waiting = concurrent.futures.wait(
                    waiting, left, concurrent.futures.FIRST_COMPLETED
                )
                for future in done:
                    number = futures[future]
                    made = self._made(tried[number], future)
                    if late:
                        ready.append((number, made))
                    elif time.monotonic() < end:
                        yield number, made
        finally:
            for future in futures:
                future.cancel()
        for place, (number, variant) in enumerate(
            sorted(ready, key=lambda r: r[0]) if late else ()
        ):
            if place == 0 or time.monotonic() < end:
                yield number, variant

    def _made(self, candidate: Candidate, future: Future[Made]) -> CompiledKernel | str:
        try:
            made = future.result()
        except Exception as error:  # of the executor, or of what ended in it
            return f"compiling failed: {type(error).__name__}: {error}"
        if made.reason:
            return made.reason
        image = Image.from_bytes(made.image, "what was compiled elsewhere")
        return self.kernel.take_up(candidate.asked.key(candidate.chosen), image)


def _trial(candidate: Candidate, reason: str = "") -> Trial:
    plan, packed = candidate.chosen.plan, candidate.chosen.packed
    words = [plan.describe() if plan else "", *(f"{name} packed" for name in packed)]
    text = " ".join(w for w in words if w)
    return Trial(candidate.config, text, candidate.seconds, None, reason)


def _store(asked: Asked, shelf: str, found: Tuning, best: Candidate) -> None:
    plan = best.chosen.plan
    fields = None if plan is None else dataclasses.asdict(plan)
    note = [dict(found.config), fields, [*best.chosen.packed], found.milliseconds]
    try:
        known = load_choices(asked.key(), shelf)
        store_choices(asked.key(), {**known, place_of(asked): note}, shelf)
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


def _refuse_capture(place: str) -> None:
    torch = sys.modules.get("torch")
    if place != "cpu" and torch is not None and torch.cuda.is_current_stream_capturing():
        message = "a kernel cannot be tuned while a CUDA graph is captured"
        raise LaunchError(message, hint="call it once before, or tuned.tune(…)")


@for_users
def autotune(
    kernel: Kernel | Sequence[Any] | None = None,
    /,
    *args: Any,
    configs: Any = None,
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
    options = Options(configs, topk, budget, executor, reference, rtol, atol, progress, cache)
    _check_options(options)
    if kernel is None:
        if kwargs:
            _refuse_unknown(kwargs)
        return functools.partial(_decorated, options)
    tuned = _decorated(options, kernel)
    if not args and not kwargs:
        return tuned
    return tuned.tune(*args, **kwargs)


def _decorated(options: Options, kernel: Any) -> Tuned:
    if not isinstance(kernel, Kernel):
        message = f"tilec.autotune takes a kernel, not {shown(kernel)}"
        raise LaunchError(message, hint="write @tilec.autotune above @tilec.kernel")
    if options.configs is not None and not callable(options.configs):
        check_configs(kernel, options.configs)
    return Tuned(kernel, options)


def _refuse_unknown(kwargs: Mapping[str, Any]) -> None:
    known = [f.name for f in dataclasses.fields(Options)]
    name = next(iter(kwargs))
    near = did_you_mean(name, known)
    message = f"tilec.autotune has no keyword {name!r}{near}"
    raise LaunchError(message, hint=f"it has {', '.join(known)}")


def _check_options(options: Options) -> None:
    def number(value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool)

    if not isinstance(options.topk, int) or isinstance(options.topk, bool) or options.topk < 1:
        message = f"topk of tilec.autotune is {shown(options.topk)}"
        raise LaunchError(message, hint="write a positive int: topk=16")
    budget = options.budget
    if budget is not None and (not number(budget) or not 0 < budget < math.inf):
        message = f"budget of tilec.autotune is {shown(budget)}"
        raise LaunchError(message, hint="write seconds: budget=10, or None for no limit")
    if options.executor is not None and not hasattr(options.executor, "submit"):
        message = f"executor of tilec.autotune is {shown(options.executor)}"
        raise LaunchError(message, hint="pass an executor of concurrent.futures, or leave it out")
    if options.reference is not None and not callable(options.reference):
        message = f"reference of tilec.autotune is {shown(options.reference)}"
        raise LaunchError(message, hint="pass a function of the kernel's arguments")
