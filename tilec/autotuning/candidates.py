"""What is tried: each configuration of the user's, with what tilec predicts for the rest of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilec.ir.errors import CompileError, LaunchError, TilecError, did_you_mean, shown
from tilec.ir.schedule import Plan
from tilec.jit.specialise import Asked, Chosen
from tilec.kernel import Kernel
from tilec.tune import Ranked


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A way to run a call: `config` is what the call is given for compile-time parameters (and
    threads), `chosen` the plan, `asked` the call with these. `seconds`: the prediction, inf where
    there is none. `predicted`: it is what the kernel does untuned."""

    config: Mapping[str, Any]
    asked: Asked
    chosen: Chosen
    seconds: float = math.inf
    predicted: bool = False

    @property
    def name(self) -> str:
        plan = self.chosen.plan.describe() if self.chosen.plan else ""
        packed = ", ".join(f"{name} packed" for name in self.chosen.packed)
        return named(self.config, " ".join(x for x in (plan, packed) if x))


def named(config: Mapping[str, Any], plan: str) -> str:
    """A configuration and its plan in words."""
    given = ", ".join(f"{k}={v}" for k, v in config.items())
    return ": ".join(x for x in (given, plan) if x) or "as it is"


@dataclasses.dataclass(frozen=True)
class Problem:
    """A call that is tuned for: its arguments by name, the grid if the launch gives one, the target
    of the device that the arguments are on. `configs`: those to try; `lent`: what the first of them
    gives parameters that have no value otherwise, so that the call can be described without one."""

    kernel: Kernel
    given: Mapping[str, Any]
    grid: Any
    target: str | None
    configs: Sequence[Mapping[str, Any]] = ()
    lent: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def asked(self, config: Mapping[str, Any]) -> Asked:
        """The call with this configuration. Raises LaunchError, CompileError."""
        constants = {**self.given, **(config or self.lent)}
        found = self.kernel.described((), self.target, constants)
        if self.grid is None:
            return found
        return dataclasses.replace(found, grid=self.grid, grid_given=True)


def answer_of(what: str, hint: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What the user's function answers. Raises LaunchError where that fails for Python."""
    try:
        return function(*args, **kwargs)
    except TilecError:
        raise
    except Exception as e:
        message = f"{what} of tilec.autotune failed: {type(e).__name__}: {e}"
        raise LaunchError(message, hint=hint) from e


def check_configs(kernel: Kernel, configs: Any) -> list[dict[str, Any]]:
    """The user's list of configurations. Raises LaunchError for what is none."""
    known = [p.name for p in kernel.parameters if p.kind == "constexpr"]
    hint = f"write configs=[{{{(known or ['BM'])[0]!r}: 64}}, …]"
    if isinstance(configs, str | Mapping) or not isinstance(configs, Sequence) or not configs:
        raise LaunchError(
            f"configs of autotune are {shown(configs)}, not a list of some", hint=hint
        )
    for config in configs:
        if not isinstance(config, Mapping):
            raise LaunchError(f"a configuration is {shown(config)}, not a dictionary", hint=hint)
        for name in config:
            if name not in known and name != "threads":
                near = did_you_mean(str(name), known)
                message = f"a configuration names {name!r}, which is no compile-time parameter of "
                names = ", ".join([*known, "threads"])
                raise LaunchError(f"{message}{kernel.name}{near}", hint=f"it may name {names}")
    return [dict(c) for c in configs]


def check_key(kernel: Kernel, key: Any) -> None:
    """Raises LaunchError for what is no list of names that tell problems apart."""
    parameters = [p for p in kernel.parameters if p.kind != "constexpr"]
    sizes = {e: None for p in parameters for e in p.shape or () if isinstance(e, str)}
    known = [p.name for p in parameters] + [e for e in sizes if e.isidentifier()]
    hint = f"name parameters and sizes: {', '.join(known)}"
    if isinstance(key, str) or not isinstance(key, Sequence):
        raise LaunchError(f"key of autotune is {shown(key)}, not a list of names", hint=hint)
    for name in key:
        if name not in known:
            near = did_you_mean(str(name), known)
            message = f"key of autotune names {shown(name)}, which {kernel.name} has not{near}"
            raise LaunchError(message, hint=hint)


def candidates(problem: Problem, topk: int) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """The candidates, best prediction first, and configurations that cannot be (name and reason).
    Raises the error of the first one where none can."""
    found: dict[Any, Candidate] = {}
    refused: list[tuple[str, str]] = []
    first: TilecError | None = None
    for config in problem.configs or [{}]:
        try:
            for candidate in _of_config(problem, config, topk):
                plan = candidate.chosen.plan
                found.setdefault((repr(candidate.config), plan), candidate)
        except (CompileError, LaunchError) as error:
            first = first or error
            name = ", ".join(f"{k}={v}" for k, v in config.items())
            refused.append((name, error.message))
    if not found:
        assert first is not None
        raise first
    return sorted(found.values(), key=lambda c: c.seconds), refused


def _of_config(problem: Problem, config: Mapping[str, Any], topk: int) -> list[Candidate]:
    asked = problem.asked(config)
    most = topk if asked.open or not config else 1
    made: list[Candidate] = []
    for entry in _predicted(problem, asked, most):
        seconds = math.inf if entry.estimate is None else entry.estimate.seconds
        made.append(_candidate(problem, {**config, **entry.constants}, entry.plan, seconds))
    if not made and not asked.open:
        made.append(_candidate(problem, config, None, math.inf))
    if not made:
        raise LaunchError(f"no values of {', '.join(asked.open)} can run")
    return made


def _predicted(problem: Problem, asked: Asked, most: int) -> Sequence[Ranked]:
    """What is predicted to be fast, best first. On the CPU, which has one order only, by what is
    given for the open parameters alone."""
    choices = problem.kernel.choices
    if problem.target != "cpu":
        return [entry for entry in choices.recommend(asked, most) if not entry.reason]
    found = choices.rank(asked.key(), asked) if asked.open else None
    apart: dict[Any, Ranked] = {}
    for entry in () if found is None else found.ranked:
        apart.setdefault(tuple(entry.constants.items()), entry)
    return [*apart.values()][:most]


def _candidate(
    problem: Problem, config: Mapping[str, Any], plan: Plan | None, seconds: float
) -> Candidate:
    plan = None if problem.target == "cpu" else plan  # which has one order only
    return Candidate(dict(config), problem.asked(config), Chosen({}, plan), seconds)


def untuned(problem: Problem, config: Mapping[str, Any]) -> Candidate:
    """What the kernel does by itself: the tiles and the plan that it chooses without a measurement,
    with the operands that it packs. Raises CompileError."""
    asked = problem.asked(config)
    open_ = [*asked.open]
    key = problem.kernel.choices.key(asked)
    full = {**config, **{n: asked.call.constants[n] for n in open_}}
    chosen = Chosen({}, key.plan, packed=key.packed)
    return Candidate(full, problem.asked(full), chosen, 0.0, predicted=True)
