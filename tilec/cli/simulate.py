"""`python -m tilec simulate FILE.py:kernel`: run a kernel's GPU code on the CPU and say what is
wrong with it. Status 0: nothing; 1: there are findings; 2: it could not be run."""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilec.cli.arguments import Words, make_arguments, read_call
from tilec.cli.kernels import find_kernel
from tilec.cli.options import UsageError, add_call_options, add_target, check_writable
from tilec.ir.errors import LaunchError, TargetError, TilecError
from tilec.jit.simulate import GPU_TARGETS, simulate, simulated_target
from tilec.kernel import Kernel
from tilec.sim.launch import DEFAULT_STEPS
from tilec.sim.report import Report

DEFAULT_TARGET = "cuda:sm_90a"
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the subcommand."""
    add_call_options(parser, grid=True)
    add_target(parser, f"{DEFAULT_TARGET}; may be repeated", GPU_TARGETS)
    add = parser.add_argument
    add("--blocks", help="4: the first four; [0,5] or [(0,1)]: these")
    add("--no-checks", action="store_true", help="numbers only, faster")
    add("--optimised", action="store_true", help="run what LLVM's optimiser makes of the code")
    add("--check-outputs", action="store_true", help="report outputs that nobody has written")
    add("--schedules", type=int, default=1, help="run so often, with warps in another order")
    add("--trace", action="append", default=[], metavar="'acc[0, :4]'", help="follow elements")
    add("--steps", type=int, default=DEFAULT_STEPS, help="after which a block runs for ever")
    add("--save", type=Path, metavar="FILE.json", help="keep the report")
    add("--show", type=Path, metavar="FILE.json", help="print a report that was kept")


def main(options: argparse.Namespace) -> int:
    """Run; the exit status."""
    try:
        return _show(options) if options.show is not None else _simulate(options)
    except TilecError as e:
        print(e, file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before there was anything to report
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _show(options: argparse.Namespace) -> int:
    if options.kernel is not None:
        message = f"--show prints a report and runs nothing, but {options.kernel} is given"
        hint = f"leave one out: python -m tilec simulate --show {options.show}"
        raise UsageError(message, hint=hint)
    report = Report.load(options.show)
    print(report)
    return status_of([report])


def _simulate(options: argparse.Namespace) -> int:
    place, words, grid = read_call(options, "simulate")
    targets = [_target(name) for name in dict.fromkeys(options.target or [DEFAULT_TARGET])]
    blocks = _blocks(options.blocks)
    files = _files(options.save, targets)
    kernel = find_kernel(place)
    reports = list[Report]()
    for name in targets:
        report = _run(kernel, words, name, options, grid, blocks)
        print(report if not reports else f"\n{report}", flush=True)
        reports.append(report)
        if files:
            report.save(files[name])
        if not report.complete:
            break
    return status_of(reports)


def status_of(reports: Sequence[Report]) -> int:
    """1 where something was found, else 130 where one was interrupted, else 0."""
    if any(r.findings for r in reports):
        return 1
    return 0 if all(r.complete for r in reports) else INTERRUPTED


def _run(
    kernel: Kernel, words: Words, target: str, options: argparse.Namespace, grid: Any, blocks: Any
) -> Report:
    given = make_arguments(kernel, words, target)
    if grid is None and kernel.signature.grid_from_launch:
        message = f"{kernel.name} takes its grid from the launch"
        hint = "add --grid 4,2, or put the body under `with T.Kernel(…)`"
        raise UsageError(message, kernel.signature.loc, hint)
    try:
        return simulate(
            kernel,
            *given.by_name.values(),
            grid=grid,
            target=target,
            blocks=blocks,
            checks=not options.no_checks,
            schedules=options.schedules,
            trace=options.trace,
            seed=options.seed,
            steps=options.steps,
            check_outputs=options.check_outputs,
            optimised=options.optimised,
            **given.keywords,
        )
    except LaunchError as e:
        # There is no line of a call to show: the kernel's own says what it takes.
        raise LaunchError(e.message, kernel.signature.loc, _in_words(e.hint)) from None


def _in_words(hint: str) -> str:
    """A hint that speaks of arguments of `tilec.simulate`, as options."""
    for name in ("blocks", "grid", "steps"):
        hint = hint.replace(f"{name}=", f"--{name} ")
    return hint


def _target(name: str) -> str:
    try:
        return simulated_target(name).name
    except TargetError as e:
        raise UsageError(f"--target {name}: {e}") from None


def _blocks(text: str | None) -> Any:
    """As in Python: a number, or a list of numbers and coordinates."""
    if text is None:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        hint = "write --blocks 4 for the first four, or --blocks '[(0, 1)]' for that one"
        raise UsageError(f"--blocks {text}: expected a number or a list", hint=hint) from None


def _files(save: Path | None, targets: Sequence[str]) -> Mapping[str, Path]:
    """Where the report of each target goes. Raises UsageError at once if that cannot be written,
    not after the run."""
    if save is None:
        return {}
    files = {t: save for t in targets}
    if len(targets) > 1:
        files = {t: save.with_stem(f"{save.stem}-{t.replace(':', '-')}") for t in targets}
    for file in files.values():
        check_writable("--save", file)
    return files
