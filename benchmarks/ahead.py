"""What is compiled ahead of the measuring: tilec's kernels in processes, several at a time, whose
code is found on disk afterwards; what takes its peers long in threads.

tilec is Python: threads would compile its kernels one after another.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait

from benchmarks.case import Candidate, Case, Config
from tilec.runtime.devices import default_target

Needed = tuple[Case, Candidate, Config]


def compile_ahead(needed: Sequence[Needed], processes: Executor) -> None:
    """Compile these; what fails here fails again, and is told, where it is needed."""
    target = default_target()
    ours = [
        processes.submit(_in_a_process, target, case.operator, case.key, c.name, dict(config))
        for case, c, config in needed
        if c.on_disk
    ]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(_prepare, [(c, config) for _, c, config in needed if not c.on_disk]))
    wait(ours)


def _in_a_process(target: str, operator: str, key: str, name: str, config: Config) -> None:
    from benchmarks import operators, peers

    os.environ["TILEC_TARGET"] = target
    for package in peers.PACKAGES.values():
        sys.modules[package] = None  # type: ignore[assignment]  # to import them takes long
    case = next(case for case in operators.cases(operator) if case.key == key)
    _prepare((next(c for c in case.candidates() if c.name == name), config))


def _prepare(needed: tuple[Candidate, Config]) -> None:
    c, config = needed
    assert c.prepare is not None
    with contextlib.suppress(Exception):
        c.prepare(config)
