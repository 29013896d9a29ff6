"""Two ways to time candidates against each other, whatever a candidate is.

HOT      all candidates in one stream of calls, in a new random order in every round: clock,
         temperature and power budget are shared, so a ratio compares work per cycle.
STEADY   one candidate alone, back to back for at least 0.3 s after it has settled, then a short
         rest; several passes in random order. At its power limit a chip slows down until it keeps
         to it, so a ratio compares work per joule.

What runs calls and reads clocks is a `Timer`: CUDA events in `benchmarks.gpu`, a fake in the tests.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Call = Callable[[], Any]
Samples = dict[str, list[float]]


class Timer(Protocol):
    """Runs calls on a device, in order, without waiting for each."""

    def each(self, calls: Sequence[Call]) -> list[float]:
        """Milliseconds of every call, the calls running back to back."""

    def all(self, settle: Sequence[Call], calls: Sequence[Call]) -> float:
        """Milliseconds of `calls` together, which follow `settle` without a gap."""

    def batch(self, calls: Sequence[Call]) -> Call:
        """The calls as one that costs the host next to nothing (a CUDA graph)."""


@dataclass(frozen=True)
class Effort:
    """How much is measured. HOT: at least `rounds`, as many as last `together` seconds, at most
    `most_rounds`; `sample` is the least a timed call lasts: shorter ones are batched."""

    rounds: int = 31
    most_rounds: int = 151
    together: float = 0.5
    warm: int = 3
    passes: int = 3
    seconds: float = 0.3
    settle: float = 0.1
    rest: float = 0.05
    sample: float = 200e-6
    most_calls: int = 400


FULL = Effort()
QUICK = Effort(rounds=13, most_rounds=71, together=0.25, warm=2, passes=2)


def hot(timer: Timer, calls: Mapping[str, Call], effort: Effort, rng: random.Random) -> Samples:
    """Milliseconds of each candidate, one sample per round."""
    names = list(calls)

    def run(rounds: int) -> Samples:
        order: list[str] = []
        for _ in range(rounds):
            rng.shuffle(names)
            order += names
        samples: Samples = {name: [] for name in calls}
        for name, ms in zip(order, timer.each([calls[name] for name in order])):
            samples[name].append(ms)
        return samples

    one = sum(statistics.median(ms) for ms in run(effort.warm).values()) * 1e-3
    lasting = math.ceil(effort.together / max(one, 1e-9))
    return run(max(effort.rounds, min(effort.most_rounds, lasting)))


def steady(
    timer: Timer,
    calls: Mapping[str, Call],
    expected: Mapping[str, float],
    effort: Effort,
    rng: random.Random,
    sleep: Callable[[float], None] = time.sleep,
) -> Samples:
    """Mean milliseconds of each candidate, one sample per pass; `expected` are those of `hot`."""
    names = list(calls)
    samples: Samples = {name: [] for name in calls}
    for _ in range(effort.passes):
        rng.shuffle(names)
        for name in names:
            per_second = 1e3 / expected[name]
            settle = math.ceil(effort.settle * per_second)
            count = math.ceil(1.1 * effort.seconds * per_second)
            total = timer.all([calls[name]] * settle, [calls[name]] * count)
            while total < effort.seconds * 1e3:  # faster alone than among others
                count = math.ceil(count * max(1.05 * effort.seconds * 1e3 / total, 1.05))
                total = timer.all([calls[name]] * settle, [calls[name]] * count)
            samples[name].append(total / count)
            sleep(effort.rest)
    return samples


def calls_per_sample(
    timer: Timer, call: Call, sets: int, effort: Effort, several_launches: bool
) -> int:
    """How many calls make one sample: 1, or a multiple of `sets` that lasts `effort.sample`.

    1 means that the call is timed as it is; a call of several launches is always batched.
    """
    alone = statistics.median(timer.each([call] * 5)[1:]) * 1e-3
    if alone >= effort.sample and sets == 1 and not several_launches:
        return 1
    wanted = min(math.ceil(effort.sample / max(alone, 1e-9)), effort.most_calls)
    return max(1, math.ceil(wanted / sets)) * sets


def spread(samples: Sequence[float]) -> dict[str, float]:
    """Median and the 10th and 90th percentile."""
    ordered = sorted(samples)
    low, high = (ordered[min(len(ordered) - 1, int(q * len(ordered)))] for q in (0.1, 0.9))
    return {"median": statistics.median(ordered), "p10": low, "p90": high}


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """How many times faster `mine` is than `theirs`: the ratio of the medians, with the spread of
    the ratios of single rounds."""
    figure = spread([t / m for m, t in zip(mine, theirs)])
    return {**figure, "median": statistics.median(theirs) / statistics.median(mine)}


def geometric_mean(values: Sequence[float]) -> float:
    """Raises ValueError if there are none, or one is not positive."""
    if not values:
        raise ValueError("the geometric mean of nothing")
    return math.exp(sum(math.log(v) for v in values) / len(values))
