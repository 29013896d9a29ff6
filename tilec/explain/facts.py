"""Everything the page shows of one kernel, for one target and one set of arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilec.explain import layouts, schedule, stages
from tilec.explain.schedule import Loop, Role, Statement
from tilec.explain.stages import Stage
from tilec.ir.core import Func
from tilec.ir.errors import LaunchError
from tilec.ir.lines import function_lines
from tilec.jit import build
from tilec.jit.attempts import occupancy_limits
from tilec.jit.compiled import ASSEMBLY, CompiledKernel
from tilec.jit.simulate import simulate
from tilec.kernel import Kernel
from tilec.runtime.tensors import Tensor, array_dtype, numpy_dtype
from tilec.sim.report import Report
from tilec.target import Target, find_target
from tilec.tune import Ranked, Recommendations, fit

MOST_CONFIGURATIONS = 12
EVERY_TILE = 1 << 30  # blocks of a persistent kernel that run at once: each has one tile


@dataclass(frozen=True)
class Source:
    """The kernel's function: its file, its lines by number, and that of its `def`, which stands for
    what belongs to no statement."""

    file: str
    lines: Mapping[int, str]
    head: int


@dataclass
class Facts:
    """`constants`: the compile-time arguments, those that were chosen too. `limits`: blocks that
    each resource of a multiprocessor has room for. `report` of the blocks that were simulated
    (None: none was, for the reason in `uncounted`)."""

    kernel: str
    target: Target
    compiled: CompiledKernel
    shapes: str
    constants: Mapping[str, Any]
    source: Source
    stages: list[Stage]
    layouts: list[dict[str, Any]] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    outside: list[Statement] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    recommended: Recommendations = field(default_factory=Recommendations)
    report: Report | None = None
    uncounted: str = ""

    @property
    def chosen(self) -> Ranked | None:
        """The prediction for the plan that was kept."""
        plan = self.compiled.plan
        known = [r for r in self.recommended if r.estimate is not None]
        for r in known:
            tile = all(self.constants.get(name) == value for name, value in r.constants.items())
            if tile and (plan is None or r.plan is None or r.plan.name == plan.name):
                return r
        return None


def gather(
    kernel: Kernel,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    target: str,
    blocks: int,
    grid: tuple[int, ...] | None = None,
) -> Facts:
    """Compile the kernel for these arguments of `compile` and look at all that is left of it; run
    so many blocks in the simulator (0: none). Raises CompileError and LaunchError."""
    machine = find_target(target)
    key = kernel.key_of(args, target, keywords)
    compiled = kernel.variant(key)
    seen: dict[str, Func] = {}
    found: list[Stage] = []

    def on_stage(name: str, func: Func) -> None:
        again = sum(s.name.partition("-")[0] == name for s in found)
        found.append(stages.of_func(f"{name}-{again + 1}" if again else name, func))
        seen[name] = func

    traced = build.trace_variant(kernel.signature, key)
    found.append(stages.of_func("tile", traced))
    plan = compiled.plan
    if plan is None:
        final = fit.first_fit(traced, machine, on_stage)
    else:
        final = build.lowered_again(traced, compiled.image, plan, on_stage)
    found = stages.changed(found)
    for name in ("plan", "llvm", "llvm-opt", ASSEMBLY[machine.kind], "sass"):
        if name in compiled.stages:
            found.append(stages.of_text(name, compiled.stages[name]))
    facts = Facts(
        kernel.name,
        machine,
        compiled,
        _shapes(kernel, args, keywords),
        dict(key.values),
        _source(kernel),
        found,
        recommended=kernel.recommend(*args, target=target, topk=MOST_CONFIGURATIONS, **keywords),
    )
    if plan is not None:
        laid_out = seen["arrange"]
        facts.layouts = layouts.drawn(laid_out, layouts.reasons_of(laid_out))
        facts.roles = schedule.roles(final, machine)
        facts.loops = schedule.loops(laid_out, machine)
        facts.outside = schedule.outside(laid_out, machine)
        r = compiled.resources
        facts.limits = occupancy_limits(machine, r.registers, r.shared_bytes, r.threads)
    facts.report, facts.uncounted = _counted(kernel, args, keywords, machine, blocks, grid)
    return facts


def _counted(
    kernel: Kernel,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    target: Target,
    blocks: int,
    grid: tuple[int, ...] | None,
) -> tuple[Report | None, str]:
    """The report of some blocks, or why there is none."""
    if target.kind == "cpu":
        return None, "the simulator counts what GPUs do"
    if blocks < 1:
        return None, "no block was simulated (--blocks 0)"
    if grid is None and kernel.signature.grid_from_launch:
        return None, "the launch gives the grid: add --grid to have a block simulated"
    try:
        given = [_in_memory(a, target.name) for a in args]
        named = {k: _in_memory(v, target.name) for k, v in keywords.items()}
        report = simulate(
            kernel,
            *given,
            grid=grid,
            target=target.name,
            blocks=blocks,
            resident_blocks=EVERY_TILE,
            **named,
        )
    except LaunchError as e:
        return None, f"the simulator does not run it: {e.message}"
    return report, ""


def _in_memory(value: Any, target: str) -> Any:
    """An array for what was only described: zeros."""
    if isinstance(value, Tensor):
        return np.zeros(value.shape, numpy_dtype(array_dtype(value.dtype, target)))
    return value


def _shapes(kernel: Kernel, args: Sequence[Any], keywords: Mapping[str, Any]) -> str:
    """The arguments, for the page's head: "A 4096x4096, B 4096x4096, gain=0.5"."""
    parameters = [p for p in kernel.parameters if p.kind != "output"]
    given = {**dict(zip((p.name for p in parameters), args)), **keywords}
    constants = {p.name for p in parameters if p.kind == "constexpr"}
    said = []
    for name, value in given.items():
        shape = getattr(value, "shape", None)
        if shape is not None:
            said.append(f"{name} {'x'.join(map(str, shape))}")
        elif name not in constants and isinstance(value, int | float):
            said.append(f"{name}={value}")
    return ", ".join(said)


def _source(kernel: Kernel) -> Source:
    """The function's lines; none where its file cannot be read."""
    file = inspect.getsourcefile(kernel.function) or kernel.signature.loc.file
    lines, first = function_lines(kernel.function), kernel.function.__code__.co_firstlineno
    text = {first + n: line.rstrip("\n") for n, line in enumerate(lines)}
    head = kernel.signature.loc.line if text else 0
    margin = min((len(x) - len(x.lstrip()) for x in text.values() if x.strip()), default=0)
    return Source(Path(file).name, {n: x[margin:] for n, x in text.items()}, head)
