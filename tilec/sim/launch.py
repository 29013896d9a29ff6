"""One launch: which blocks run, in what order, for how long, and the report of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilec.ir.errors import LaunchError, shown
from tilec.sim.block import Launch, Setting
from tilec.sim.counts import Counts
from tilec.sim.findings import Findings
from tilec.sim.program import Program
from tilec.sim.records import read_program
from tilec.sim.regions import GlobalMemory, host_memory
from tilec.sim.report import Report
from tilec.sim.scheduler import LaunchRun, lines_of_loop
from tilec.sim.thread_state import ThreadState
from tilec.sim.threads import Coordinates
from tilec.sim.trace import OnChange, Tracer
from tilec.support.progress import Progress

DEFAULT_STEPS = 20_000_000
"""Segments that a cluster may run before it counts as running for ever."""

LONGEST = 600.0  # seconds that a run may take which did not say which blocks
FIRST_LONGEST = 60.0  # the same, for the first of several clusters
_FIRST = 10.0  # seconds after which the time of the others is estimated


@dataclass(frozen=True)
class Wishes:
    """What the caller of `tilec.simulate` may choose; see there."""

    blocks: int | Sequence[int | tuple[int, ...]] | None = None
    checks: bool = True
    schedules: int = 1
    trace: tuple[str, ...] = ()
    on_change: OnChange | None = None
    seed: int = 0
    steps: int = DEFAULT_STEPS
    check_outputs: bool = False


class BlocksDone(Progress):
    """Progress in blocks. `judged`: whether the time of the rest has been looked at."""

    def __init__(self, name: str, total: int) -> None:
        super().__init__(f"simulating {name}", total, "blocks")
        self.judged = False


def run(launch: Launch, wishes: Wishes) -> Report:
    """Run the blocks and report. Raises LaunchError for blocks and traces that do not exist, and
    for a run that would take too long."""
    chosen = choose_clusters(launch, wishes.blocks)
    if launch.func.attrs.get("cooperative") and wishes.blocks is not None:
        message = f"{launch.name}: its blocks wait for one another: all of them run"
        raise LaunchError(message, hint="leave blocks= out")
    per_cluster = math.prod(launch.cluster)
    x, y, z = launch.grid
    report = Report(launch.name, launch.target.name, launch.plan, launch.grid, x * y * z)
    report.schedules = wishes.schedules
    report.by_hand = bool(launch.func.attrs.get("by_hand"))
    tracer, program = None, launch.program
    if wishes.trace:
        watched = launch.registers, launch.tensors
        tracer = Tracer(wishes.trace, launch.func, launch.target, *watched, wishes.on_change)
        program = read_program(launch.function, tuple(tracer.watched))
    common = program.granule, wishes.checks, wishes.seed, tracer
    setting = Setting(launch, _globals(launch, wishes), Findings(), Counts(), *common)
    everything = len(chosen) * per_cluster == x * y * z
    if wishes.check_outputs and not everything:
        report.notes += ("outputs are not checked where some blocks only are run",)
    total = len(chosen) * per_cluster * wishes.schedules
    with BlocksDone(launch.name, total) as progress:
        turn = None
        if wishes.blocks is None and len(chosen) > 1:
            turn = functools.partial(_check_first, launch, program, progress)
        try:
            for number in range(wishes.schedules):
                if number:
                    setting.globals.restore()
                    setting.globals = _globals(launch, wishes)
                seed = None if number == 0 else wishes.seed + number
                running = LaunchRun(setting, program, seed, wishes.steps, turn)
                limit = wishes.blocks is None
                order = chosen
                if seed is not None:  # blocks may come in any order
                    rng = np.random.default_rng(seed)
                    order = [chosen[i] for i in rng.permutation(len(chosen))]
                if launch.func.attrs.get("cooperative"):
                    if not running.run_together(order):
                        break
                    progress.done += total // wishes.schedules
                elif not _run_clusters(launch, running, order, progress, limit):
                    break
                if everything:
                    setting.globals.check_counters(setting.findings)
                if wishes.check_outputs and everything:
                    written = [t.name for t in launch.tensors if t.written]
                    setting.globals.finish(setting.findings, written)
        except KeyboardInterrupt:
            report.complete = False
        report.seconds = progress.spent
        report.blocks = min(progress.done, len(chosen) * per_cluster)
    report.findings, report.dropped = tuple(setting.findings), setting.findings.dropped
    report.counts = setting.counts
    report.trace = tuple(tracer.traces) if tracer else ()
    report.printed = tuple(setting.printed)
    report.keep_sources()
    return report


def _run_clusters(
    launch: Launch,
    running: LaunchRun,
    clusters: Sequence[Coordinates],
    progress: BlocksDone,
    limit: bool,
) -> bool:
    """Run clusters until one does not end; whether all have. `limit`: raise LaunchError if that
    takes too long."""
    each = math.prod(launch.cluster)
    for cluster in clusters:
        ended = running.run_cluster(cluster)
        if running.setting.tracer is not None:
            running.setting.tracer.tell()
        progress.done += each
        if not ended:
            return False
        if limit:
            _check_time(launch, progress)
    return True


def _globals(launch: Launch, wishes: Wishes) -> GlobalMemory:
    keep = wishes.schedules > 1
    elsewhere = None
    if any(p.role == "memory" for p in launch.func.params):
        elsewhere = functools.partial(host_memory, checks=wishes.checks, keep=keep)
    return GlobalMemory(launch.tensors, wishes.checks, keep, elsewhere)


# --- which blocks ---

_BLOCKS = "blocks=4 runs the first four, blocks=[5, (0, 1)] those two"


def choose_clusters(
    launch: Launch, blocks: int | Sequence[int | tuple[int, ...]] | None
) -> list[Coordinates]:
    """The clusters (coordinates of their first blocks) that hold the wanted blocks, in the order of
    the launch. Raises LaunchError."""
    x, y, z = launch.grid
    total = x * y * z
    if blocks is None:
        wanted: Sequence[int] = range(total)
    elif isinstance(blocks, bool | str) or not isinstance(
        blocks, int | Sequence | np.integer | np.ndarray
    ):
        message = f"blocks: expected a number or a list of blocks, got {shown(blocks)}"
        raise LaunchError(message, hint=_BLOCKS)
    elif isinstance(blocks, Sequence) or (isinstance(blocks, np.ndarray) and blocks.ndim):
        wanted = [_linear(launch, b) for b in blocks]
        if not wanted and total:
            raise LaunchError("blocks is an empty list: there is nothing to run", hint=_BLOCKS)
    elif blocks < 1:
        hint = "blocks=1 runs one"
        raise LaunchError(f"blocks={shown(blocks)}: there is nothing to run", hint=hint)
    else:
        wanted = range(min(int(blocks), total))
    cx, cy, cz = launch.cluster
    first = dict[Coordinates, None]()
    for b in wanted:
        at = (b % x // cx * cx, b // x % y // cy * cy, b // (x * y) // cz * cz)
        first.setdefault(at)
    return list(first)


def _linear(launch: Launch, block: object) -> int:
    """The number of a block, which is given by number or coordinates."""
    x, y, z = launch.grid
    at: Sequence[Any] = list(block) if isinstance(block, tuple | list | np.ndarray) else (block,)
    if not 1 <= len(at) <= 3 or not all(hasattr(i, "__index__") for i in at):
        message = f"blocks: {block!r} is neither a number nor coordinates of a block"
        raise LaunchError(message, hint=_BLOCKS)
    inside = all(0 <= i < n for i, n in zip(at, launch.grid))
    if len(at) == 1:
        inside = 0 <= at[0] < x * y * z
    if not inside:
        message = f"blocks: {block!r} is not a block of the {x}x{y}x{z} blocks that are launched"
        hint = f"numbers go from 0 to {x * y * z - 1}, coordinates are (x, y, z)"
        raise LaunchError(message, hint=hint)
    i, j, k = (*(int(a) for a in at), 0, 0)[:3]
    return i + x * (j + y * k)


def _check_time(launch: Launch, progress: BlocksDone) -> None:
    """Raise LaunchError if the rest would take too long; once, when there is an estimate."""
    spent, done, total = progress.spent, progress.done, progress.total
    if spent < _FIRST or progress.judged:
        return
    progress.judged = True
    each = spent / done
    if each * total <= LONGEST:
        return
    fit = max(1, int(60 / each))
    x, y, z = launch.grid
    raise LaunchError(
        f"{launch.name}: simulating {total} blocks would take about {each * total / 60:.0f} "
        f"minutes; {fit} fit in one",
        hint=f"pass blocks={fit}, or smaller arrays; blocks={x * y * z} runs all of them",
    )


def _check_first(
    launch: Launch, program: Program, progress: BlocksDone, active: ThreadState
) -> None:
    """Raise LaunchError, placed at the loop that the active is in, if even the first cluster takes
    too long."""
    if progress.done or progress.spent < FIRST_LONGEST:
        return
    lines = lines_of_loop(program, active.at)
    raise LaunchError(
        f"{launch.name}: the first of {progress.total} blocks is not through after "
        f"{progress.spent:.0f} s; thread {active.lanes[0]} is in this loop",
        lines[0] if lines else None,
        "if it has to end, pass smaller arrays, or blocks=1 to wait for one block",
    )
