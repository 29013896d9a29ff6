"""Runs a program on every target and compares the results with its meaning."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilec.fuzz import gpu, prepared
from tilec.fuzz.buffers import Invalid
from tilec.fuzz.numbers import Number, Unclear
from tilec.fuzz.program import PLAIN, Array, Launch, Made, Program, make_arguments
from tilec.fuzz.waits import unfinished_at_barriers
from tilec.ir.errors import CompileError
from tilec.kernel import Kernel
from tilec.target import TARGETS as ALL_TARGETS
from tilec.target import find_target

USUAL = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "hip:gfx950")
TARGETS = ("cpu", *USUAL)
OPTIMISED = ":optimised"  # behind a simulated target: what LLVM's optimiser makes of the code
GPU_RUNS = 20  # what depends on who is sooner may go well once
SLACK = 4.0  # bounds are those of orderly sums; targets may cut them into parts


@dataclass(frozen=True)
class Outcome:
    """What a target made of a program. `kind`: "ok"; "refused" (a CompileError other than an
    internal one); else a failure: "numbers", "outside" (memory beside an array was written),
    "finding" (of the simulator), "runs" (two on a GPU that differ), "error", "ended" (its process,
    `workers`), "endless". `detail` tells failures of one kind apart; `text` is for people."""

    target: str
    kind: str
    detail: str = ""
    text: str = ""

    @property
    def failed(self) -> bool:
        return self.kind not in ("ok", "refused")

    def same(self, other: Outcome) -> bool:
        """Whether both are the same failure."""
        return (self.target, self.kind, self.detail) == (other.target, other.kind, other.detail)


def targets(simulated: Sequence[str] = USUAL) -> tuple[str, ...]:
    """The targets that can run here: the CPU, the simulated ones, before and after LLVM's
    optimiser, and a GPU where there is one."""
    here = ("cpu", *simulated, *(t + OPTIMISED for t in simulated))
    return (*here, "gpu") if gpu.present() else here


def known_targets() -> tuple[str, ...]:
    """`targets`, and those that are simulated only where they are asked for."""
    return targets([name for name, t in ALL_TARGETS.items() if t.kind != "cpu"])


def check(
    kernel: Kernel,
    arguments: Mapping[str, Array | int | float],
    chosen: Sequence[str] = TARGETS,
    launch: Launch = PLAIN,
) -> None:
    """Assert that `kernel` gives on every target what its source means: what a test file that the
    fuzzer wrote calls."""
    wants = Wants(kernel, arguments, launch)
    for target in chosen:
        outcome = run_on(kernel, arguments, wants, target)
        assert not outcome.failed, f"{outcome.target}: {outcome.kind}\n{outcome.text}"


class Wants:
    """What the arrays must hold in the end, with OCP's float8 and, where it differs, AMD's; those
    that the call makes, `returned`, among them."""

    def __init__(
        self, kernel: Kernel, arguments: Mapping[str, Array | int | float], launch: Launch = PLAIN
    ) -> None:
        """Raises Invalid or Unclear for a program without a meaning."""
        self._kernel, self._arguments, self.launch = kernel, arguments, launch
        self.returned = prepared.returned(kernel.function, kernel.options.out)
        decorated = {"threads": kernel.options.threads} if kernel.options.threads else {}
        self._full = replace(launch, keywords={**decorated, **launch.keywords})
        self._made: dict[bool, dict[str, Number]] = {}
        arrays = [a for a in arguments.values() if isinstance(a, Array)]
        constants = kernel.function.__code__.co_consts
        self._float8 = "float8" in f"{arrays} {constants}"
        self.of(False)

    def of(self, fnuz: bool) -> dict[str, Number]:
        fnuz = fnuz and self._float8
        if fnuz not in self._made:
            made = make_arguments(self._arguments, fnuz)
            given = {n: a.view if isinstance(a, Made) else a for n, a in made.items()}
            with np.errstate(all="ignore"):
                self._made[fnuz] = prepared.run(self._kernel.function, given, self._full, fnuz)
        return self._made[fnuz]


def outcomes(program: Program, chosen: Sequence[str], runs: int = GPU_RUNS) -> Iterator[Outcome]:
    """The outcome on each target, one after the other, on a GPU of so many runs. Raises Invalid or
    Unclear for a program without a meaning."""
    try:
        kernel = program.load()
        wants = Wants(kernel, program.arguments, program.launch)
        for target in chosen:
            yield run_on(kernel, program.arguments, wants, target, runs)
    finally:
        program.forget()


def run_program(
    program: Program, chosen: Sequence[str], runs: int = GPU_RUNS
) -> tuple[Outcome, ...]:
    """`outcomes`, all of them, in this process."""
    return tuple(outcomes(program, chosen, runs))


def run_on(
    kernel: Kernel,
    arguments: Mapping[str, Array | int | float],
    wants: Wants,
    target: str,
    runs: int = GPU_RUNS,
) -> Outcome:
    """The outcome on one target: "cpu", a simulated one, with `OPTIMISED` or without, or "gpu"."""
    on = find_target(target.removesuffix(OPTIMISED)) if ":" in target else None
    fnuz = on is not None and on.has("float8_fnuz")
    made = make_arguments(arguments, fnuz)
    before = {n: a.outside() for n, a in made.items() if isinstance(a, Made)}
    given = [a.view if isinstance(a, Made) else a for a in made.values()]
    later: list[list[Any]] = []
    results: dict[str, Any] = {n: a.view for n, a in made.items() if isinstance(a, Made)}
    try:
        with warnings.catch_warnings(), silent("print" in kernel.function.__code__.co_names):
            warnings.simplefilter("ignore")
            if target == "cpu":
                results |= zip(wants.returned, wants.launch.call(kernel, given))
            elif target == "gpu":
                at_first, *later = gpu.launch(kernel, made, wants.launch, runs=runs)
                results |= zip(wants.returned, at_first)
            else:
                name, optimised = target.removesuffix(OPTIMISED), target.endswith(OPTIMISED)
                report = wants.launch.simulate(kernel, given, name, optimised)
                if not report.complete:
                    raise KeyboardInterrupt  # which the simulator has taken for itself
                if report.findings:
                    head = str(report).split("\n\n")[: 1 + len(report.findings)]  # no tables
                    text = "\n\n".join(head)[:4000]
                    return Outcome(target, "finding", report.findings[0].kind, text)
                results |= report.outputs
                if on is not None and on.kind == "hip" and not optimised:
                    assembly = wants.launch.assembly(kernel, given, name)
                    text = "\n".join(unfinished_at_barriers(assembly))
                    if text:
                        return Outcome(target, "finding", "barrier without a wait", text)
    except (Invalid, Unclear):
        raise
    except gpu.Unable as e:
        return Outcome(target, "refused", "arrays", str(e))
    except gpu.Differs as e:
        return Outcome(target, "runs", "bits", str(e))
    except CompileError as e:
        return Outcome(target, "refused", type(e).__name__, str(e))
    except Exception as e:  # whatever goes wrong in the compiler is what is looked for
        return Outcome(target, "error", type(e).__name__, _error(e))
    for name, a in made.items():
        if isinstance(a, Made) and a.outside() != before[name]:
            return Outcome(target, "outside", name, f"memory beside {name} was written")
    for name, want in wants.of(fnuz).items():
        wrong = differing(results[name], want)
        if wrong:
            return Outcome(target, "numbers", name, f"{name}: {wrong}")
    for number, made_later in enumerate(later, 2):
        for name, got in zip(wants.returned, made_later):
            wrong = differing(got, wants.of(fnuz)[name])
            if wrong:
                return Outcome(target, "runs", name, f"run {number} of {runs}: {name}: {wrong}")
    return Outcome(target, "ok")


@contextlib.contextmanager
def silent(deep: bool) -> Iterator[None]:
    """Drop what Python writes to its two outputs, and where `deep` what anybody does: T.print
    writes to the process's own output."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        if not deep:
            yield
            return
        kept = os.dup(1)
        nothing = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nothing, 1)
            yield
        finally:
            ctypes.CDLL(None).fflush(None)  # what C has kept back goes where it belongs
            os.dup2(kept, 1)
            os.close(kept)
            os.close(nothing)


def _error(e: BaseException) -> str:
    frames = [
        f"{f.filename.rpartition('/tilec/')[2]}:{f.lineno}"
        for f in traceback.extract_tb(e.__traceback__)
    ]
    return f"{type(e).__name__}: {e}\nat {' '.join(frames[-4:])}"


def differing(got: Any, want: Number) -> str:
    """What is wrong with an array, in words; "" where it is within bounds."""
    if got.size == 0:
        return ""
    mine = got.astype(np.float64) if want.dtype.is_float else got
    error = want.errors()
    with np.errstate(all="ignore"):
        same = (mine == want.value) | ((mine != mine) & (want.value != want.value))
        near = np.isinf(error)
        if want.dtype.is_float:
            near = near | (np.abs(mine - want.value) <= SLACK * error)
        else:
            gap = mine.astype(np.float64) - want.value.astype(np.float64)
            near = near | (np.abs(gap) <= SLACK * error)
    bad = ~(same | ((error > 0) & near))
    if not bad.any():
        return ""
    first = tuple(int(i) for i in np.argwhere(bad)[0])
    allowed = SLACK * error[first]
    bound = f" +- {allowed:.3g}" if allowed else ""
    return (
        f"{int(bad.sum())} of {bad.size} elements are wrong; element {list(first)} is "
        f"{got[first]} and must be {want.value[first]}{bound}"
    )
