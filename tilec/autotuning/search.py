"""The search: candidates compiled elsewhere, each tried as soon as it is there, within a budget."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from tilec.autotuning.candidates import Candidate, Problem, candidates, untuned
from tilec.autotuning.compiling import Made, compile_job, load_compiler, make_job
from tilec.autotuning.options import Options, Tuning
from tilec.autotuning.trials import Trial, Trials, Unlike
from tilec.autotuning.workers import Processes
from tilec.ir.errors import LaunchError, TilecError
from tilec.jit.compiled import CompiledKernel
from tilec.jit.disk import load_variant
from tilec.jit.stages import Stages
from tilec.runtime.image import Image
from tilec.support.progress import Progress
from tilec.support.settings import processors

_FINALISTS, _WITHIN = 3, 1.1  # how many are timed again, and how far behind the best
_QUICK, _LONG = (2.0, 10.0), (5.0, 50.0)  # warm-up and repetition, milliseconds
_COMPILING = 0.6  # of the budget, where candidates run on the processors that compile them


def measure(
    problem: Problem, options: Options, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Tuning, Candidate]:
    """Try the candidates of a problem; what was found, and the best. `args` and `kwargs` are the
    call's. Raises LaunchError where none can be measured, and the first one's error where none can
    be."""
    begin, kernel = time.monotonic(), problem.kernel
    end = math.inf if options.budget is None else begin + options.budget
    with _executor(options) as executor:
        tried, refused = candidates(problem, options.topk)
        if not problem.configs and problem.target != "cpu":  # nothing is packed there or planned
            own = untuned(problem, {})
            same = [c for c in tried if c.config == own.config and c.chosen == own.chosen]
            rest = [c for c in tried if c not in same]
            tried = [dataclasses.replace(own, seconds=same[0].seconds if same else math.inf), *rest]
        trials = Trials(problem, args, kwargs, options.reference, options.rtol, options.atol)
        bar = Progress(
            f"tuning {kernel.name}", len(tried), "configurations",
            silent=0.0, shown=options.progress, threaded=False,
        )  # fmt: skip
        outcomes: dict[int, Trial] = {}
        variants: dict[int, CompiledKernel] = {}
        try:
            for number, made in _compiled(problem, tried, executor, begin, end):
                candidate = tried[number]
                bar.step(candidate.name)
                outcomes[number] = outcome = _try(trials, candidate, made, _QUICK)
                if outcome.timing is not None and isinstance(made, CompiledKernel):
                    variants[number] = made
            for candidate in trials.outvoted():
                reason = "wrong: its result differs from what most others compute"
                outcomes[tried.index(candidate)] = _trial(candidate, reason=reason)
            _finals(trials, tried, outcomes, variants, end)
        finally:
            bar.close()
    for number, candidate in enumerate(tried):
        outcomes.setdefault(number, _trial(candidate, reason="not tried: the budget is spent"))
    timed = {n: t.timing for n, t in outcomes.items() if t.timing is not None}
    if not timed:
        kernel.variant(tried[0].asked.key(tried[0].chosen))  # its own error says the line
        reasons = "; ".join(f"{t.plan or 'plain'}: {t.reason}" for t in outcomes.values())
        message = f"{kernel.name}: no candidate could be measured: {reasons}"
        raise LaunchError(message, hint="look at kernel.compile(…) with one of them")
    number = min(timed, key=lambda n: timed[n])
    best, plan = tried[number], outcomes[number].plan
    kernel.choices.adopt(best.asked, best.chosen)
    everything = [outcomes[n] for n in sorted(outcomes)]
    everything += [Trial({}, name, math.inf, None, reason) for name, reason in refused]
    everything.sort(key=lambda t: math.inf if t.timing is None else float(t.timing))
    place, spent = best.asked.call.place, time.monotonic() - begin
    ms = float(timed[number])
    return Tuning(kernel.name, place, best.config, plan, ms, tuple(everything), spent), best


@contextlib.contextmanager
def _executor(options: Options) -> Iterator[Executor]:
    """The user's executor, or processes of our own, which are gone at the end."""
    if options.executor is not None:
        yield options.executor
        return
    own = Processes()
    try:
        for _ in range(min(processors(), options.topk)):
            own.submit(load_compiler)
        yield own
    finally:
        own.shutdown(wait=False, cancel_futures=True)


def _try(trials: Trials, candidate: Candidate, made: Any, length: tuple[float, float]) -> Trial:
    """One candidate, compiled or not, run and timed."""
    if not isinstance(made, CompiledKernel):
        return _trial(candidate, reason=str(made))
    try:
        wrong = trials.check(candidate, made)
        if wrong:
            return _trial(candidate, reason=wrong)
        return dataclasses.replace(_trial(candidate), timing=trials.time(candidate, made, *length))
    except Unlike:
        raise
    except TilecError as error:
        return _trial(candidate, reason=error.message)


def _finals(
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
    problem: Problem, tried: Sequence[Candidate], executor: Executor, begin: float, end: float
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
                made = _made(problem, tried[number], future)
                if late:
                    ready.append((number, made))
                elif time.monotonic() < end:
                    yield number, made
    finally:
        for future in futures:
            future.cancel()
    for place, (number, variant) in enumerate(sorted(ready, key=lambda r: r[0]) if late else ()):
        if place == 0 or time.monotonic() < end:
            yield number, variant


def _made(problem: Problem, candidate: Candidate, future: Future[Made]) -> CompiledKernel | str:
    try:
        made = future.result()
    except Exception as error:  # of the executor, or of what ended in it
        return f"compiling failed: {type(error).__name__}: {error}"
    if made.reason:
        return made.reason
    image = Image.from_bytes(made.image, "what was compiled elsewhere")
    return problem.kernel.take_up(candidate.asked.key(candidate.chosen), image)


def _trial(candidate: Candidate, reason: str = "") -> Trial:
    plan, packed = candidate.chosen.plan, candidate.chosen.packed
    words = [plan.describe() if plan else "", *(f"{name} packed" for name in packed)]
    text = " ".join(w for w in words if w)
    return Trial(candidate.config, text, candidate.seconds, None, reason)
