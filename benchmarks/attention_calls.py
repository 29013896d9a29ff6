"""What the cases of attention share: tilec's examples and TileLang's as candidates, and one head in
float64."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import tilec
from benchmarks import peers
from benchmarks.case import Candidate, Config, Tensors
from benchmarks.peers import TILELANG, TRITON, version
from benchmarks.products import code_hash, schedule_of
from benchmarks.store import OURS

_EXAMPLES = Path(__file__).parents[1] / "examples" / "attention"
Call = Callable[[], torch.Tensor]


@functools.cache
def example(name: str) -> ModuleType:
    """A module of examples/attention: they import each other by their own names."""
    if str(_EXAMPLES) not in sys.path:
        sys.path.insert(0, str(_EXAMPLES))
    return importlib.import_module(name)


# --- tilec's ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One kernel of those that make a call: what it is compiled for, and the names of the tensors
    that it takes."""

    kernel: Any
    specs: list[Any]
    names: tuple[str, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def compiled(self) -> Any:
        return self.kernel.compile(*self.specs, **self.meta)

    def run(self, t: Tensors) -> None:
        self.kernel(*(t[name] for name in self.names), **self.meta)


def tilec_candidate(
    steps: Callable[[Config], list[Step]],
    views: Callable[[Tensors, Config], Tensors],
    configs: tuple[Config, ...] = ({},),
    tuned_as: str = "",
    name: str = OURS,
    yardstick: bool = False,
) -> Candidate:
    """The kernels of `steps(config)`, one after another. `views(tensors, config)` names what they
    take: views of the case's tensors, and scratch, made once for each set of these."""

    @functools.cache
    def made(config: tuple[tuple[str, Any], ...]) -> list[Step]:
        return steps(dict(config))

    def of(config: Config) -> list[Step]:
        return made(tuple(config.items()))

    def bind(t: Tensors, config: Config) -> Call:
        given, all_steps = {**t, **views(t, config)}, of(config)

        def call() -> torch.Tensor:
            for step in all_steps:
                step.run(given)
            return t["out"]

        return call

    def identity(config: Config) -> str:
        return " ".join(code_hash(step.compiled()) for step in of(config))

    def about(config: Config) -> dict[str, Any]:
        found = [schedule_of(step.compiled()) for step in of(config)]
        return found[0] if len(found) == 1 else {"steps": found}

    return Candidate(
        name,
        identity,
        bind,
        configs,
        tuned_as=f"{name} {tuned_as}",
        prepare=lambda config: [step.compiled() for step in of(config)],
        on_disk=True,
        launches=len(of(configs[0])),
        about=about,
        yardstick=yardstick,
    )


def split_configs(
    counts: Sequence[int], kinds: Sequence[str] = ("float32", "float16")
) -> tuple[Config, ...]:
    """Into how many parts the keys are split, and what the parts of several are kept in."""
    return tuple(
        {"splits": n, "parts": kind} for n in counts for kind in (kinds if n > 1 else ("float16",))
    )


def split_views(t: Tensors, config: Config) -> Tensors:
    """Parts, their sums and the lse for such a configuration and "out" (batch, heads, dim); one
    part is the result itself."""
    batch, heads, dim = t["out"].shape
    splits, device = config["splits"], t["out"].device
    parts = t["out"].view(batch, 1, heads, dim)
    if splits > 1:
        kind = getattr(torch, config["parts"])
        parts = torch.empty((batch, splits, heads, dim), dtype=kind, device=device)
    return {
        "parts": parts,
        "sums": torch.empty((batch, splits, heads), device=device),
        "lse": torch.empty((batch, heads), device=device),
    }


def spec_by_tokens(shape: tuple[int, int, int, int]) -> Any:
    """Of a tensor (batch, heads, sequence, dim) in memory, as (batch, sequence, heads, dim)."""
    b, h, s, d = shape
    return tilec.spec((b, s, h, d), "float16", strides=(h * s * d, d, s * d, 1))


def by_tokens(t: Tensors, *names: str) -> Tensors:
    """Views of such tensors."""
    return {name: t[name].transpose(1, 2) for name in names}


# --- the peers' ---------------------------------------------------------------------------------


def tilelang_candidate(
    tuned_as: str,
    configs: tuple[Config, ...],
    compiled: Callable[[ModuleType, Config], Any],
    run: Callable[[Any, Tensors, Config], Call],
) -> Candidate | None:
    """A program of TileLang's examples. `compiled(examples, config)`: its kernel, by
    `peers.tilelang_examples`; `run(kernel, tensors, config)`: a call of it. None where TileLang or
    its checkout is not there."""
    examples = peers.module_of(TILELANG, "examples")
    if examples is None:
        return None

    def bind(t: Tensors, config: Config) -> Call:
        return run(compiled(examples, config), t, config)

    return Candidate(
        TILELANG,
        lambda config: f"{version(TILELANG)} example {dict(config)}",
        bind,
        configs,
        tuned_as=f"{TILELANG} example {tuned_as}",
        prepare=lambda config: compiled(examples, config),
        launches=2,  # some allocate what they return, or put parts together
    )


def triton_candidate(path: str, run: Callable[[ModuleType, Tensors], Call]) -> Candidate | None:
    """Triton's kernel in a program of TileLang's examples; None as above."""
    examples = peers.module_of(TILELANG, "examples")
    if examples is None or peers.module_of(TRITON) is None:
        return None
    return Candidate(
        TRITON,
        lambda _: f"{version(TRITON)} of TileLang's {path}",
        lambda t, _: run(examples.program(path), t),
        launches=2,
    )


# --- the result in float64 ----------------------------------------------------------------------


def attended(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float = 0.0,
    seen: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(q kᵀ scale) v in float64: q (queries, dim), k (keys, dim), v (keys, value dim),
    `seen` (queries, keys); `sink` (queries,) is one more score of each, of a value 0."""
    q, k, v = q.double(), k.double(), v.double()
    s = q @ k.T * (scale or q.shape[1] ** -0.5)
    if seen is not None:
        s = s.masked_fill(~seen, -torch.inf)
    if sink is not None:
        s = torch.cat([s, sink.double()[:, None]], 1)
        v = torch.cat([v, torch.zeros_like(v[:1])])
    return torch.softmax(s, 1) @ v
