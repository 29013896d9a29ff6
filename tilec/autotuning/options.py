"""What `tilec.autotune` is told, and what it tells."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from tilec.autotuning.candidates import named
from tilec.autotuning.trials import Trial
from tilec.ir.errors import LaunchError, did_you_mean, shown


@dataclasses.dataclass(frozen=True)
class Options:
    """What `autotune` was told; see there."""

    configs: Any = None
    key: Sequence[str] | None = None
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
        best = named(self.config, self.plan)
        how = f"{len(self.trials)} tried in {self.seconds:.1f} s" if self.trials else "from disk"
        lines = [f"{self.kernel} on {self.device}: {self.milliseconds:.4g} ms with {best} ({how})"]
        return "\n".join([*lines, *(f"  {trial}" for trial in self.trials)])


_INSTEAD = {  # keywords of Triton's and TileLang's
    **dict.fromkeys(("warmup", "rep", "timeout"), "budget= limits the seconds of all of it"),
    "ref_prog": "write reference=…, a function of the same arguments",
}


def refuse_unknown(kwargs: Mapping[str, Any]) -> None:
    known = ["space", *(f.name for f in dataclasses.fields(Options))]
    name = next(iter(kwargs))
    near = "" if name in _INSTEAD else did_you_mean(name, known)
    message = f"tilec.autotune has no keyword {name!r}{near}"
    raise LaunchError(message, hint=_INSTEAD.get(name, f"it has {', '.join(known)}"))


def configs_of(space: Any) -> list[dict[str, Any]]:
    """Every combination of the values that `space` lists by name. Raises LaunchError."""
    hint = 'write space={"BM": [64, 128], "BN": [64, 128]}'
    if not isinstance(space, Mapping) or not space:
        message = f"space of tilec.autotune is {shown(space)}, not a dictionary of lists"
        raise LaunchError(message, hint=hint)
    for name, values in space.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            message = (
                f"space of tilec.autotune has {shown(values)} for {name!r}, not a list of some"
            )
            raise LaunchError(message, hint=hint)
    return [dict(zip(space, each)) for each in itertools.product(*space.values())]


def check_options(options: Options) -> None:
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
