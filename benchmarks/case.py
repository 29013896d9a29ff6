"""What an operator module declares: cases, each with inputs, a reference and candidates.

A module `benchmarks/operators/NAME.py` has a docstring and one function,

    def cases(scope: Scope) -> list[Case]

and is found by its name. Everything else (timing, checking, tuning, storing, tables, figures) is
done for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Candidate:
    """One implementation of a case.

    `bind(tensors, config)` gives a call that computes the case on these tensors and returns its
    result; what its kernels read or write lives as long as the call. `identity(config)` tells
    everything that could change its speed: a row is measured again when that text changes. More
    than one config: the fastest is found once and stored under `tuned_as`; `prepare(config)`
    compiles one, in several threads at a time, or processes where the code is kept `on_disk`.
    `launches`: roughly how many kernels a call starts. `about(config)` is for the row's reader
    alone. A `yardstick` computes something else, which takes the device as much: its result is not
    checked.
    """

    name: str
    identity: Callable[[Config], str]
    bind: Callable[[Tensors, Config], Callable[[], torch.Tensor]]
    configs: tuple[Config, ...] = ({},)
    tuned_as: str = ""
    prepare: Callable[[Config], object] | None = None
    on_disk: bool = False
    launches: int = 1
    about: Callable[[Config], dict[str, Any]] | None = None
    yardstick: bool = False


@dataclass(frozen=True)
class Case:
    """One row of a result.

    `make(device)` allocates and fills one set of inputs, and "out", which candidates may write to.
    `reference(tensors, rows)` gives those rows of the result in float64. `work` counts floating or
    integer operations, `bytes` what a perfect cache would move. `tolerance` is the relative
    Frobenius error above which a result counts as wrong. Cases of low `priority` come first;
    those with `quick` belong to `--quick`. `facts` go into the row as they are. At least
    `sets` copies of the tensors take turns.
    """

    operator: str
    name: str
    facts: Mapping[str, Any]
    work: float
    bytes: float
    tolerance: float
    make: Callable[[str], Tensors]
    reference: Callable[[Tensors, torch.Tensor], torch.Tensor]
    candidates: Callable[[], list[Candidate]]
    priority: int = 0
    quick: bool = True
    baseline: str = "cuBLAS"
    seed: int = field(default=0)
    sets: int = 1

    @property
    def key(self) -> str:
        return f"{self.operator}: {self.name}"
