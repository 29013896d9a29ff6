"""One self-contained HTML page about a kernel: its source beside every stage, line by line; who
does what when; where the elements of tiles live; registers and shared memory; bank conflicts and
sectors by line, counted by the simulator; what the plan was chosen from. No GPU is needed. Status
0: written; 2: it could not be."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilec.cli.arguments import make_arguments, read_call
from tilec.cli.compile import named_target, part_file, part_name
from tilec.cli.kernels import find_kernel
from tilec.cli.options import UsageError, add_call_options, add_target, check_writable, write_text
from tilec.explain.facts import Facts, gather
from tilec.explain.page import page
from tilec.ir.errors import LaunchError
from tilec.kernel import Kernel
from tilec.support.progress import Progress
from tilec.support.rich import size_text

DEFAULT_TARGET = "cuda:sm_90a"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the subcommand."""
    add_call_options(parser, grid=True)
    add_target(parser, f"{DEFAULT_TARGET}; may be repeated: a page for each")
    add = parser.add_argument
    add("--out", type=Path, metavar="FILE.html", help="the page (KERNEL-TARGET.html if left out)")
    add(
        "--blocks",
        type=int,
        default=1,
        help="simulate so many blocks, for what memory costs (1; 0: none)",
    )


def main(options: argparse.Namespace) -> int:
    """Write the pages; the exit status."""
    place, words, grid = read_call(options, "explain")
    if options.blocks < 0:
        raise UsageError(f"--blocks {options.blocks}: expected a number from 0", hint="write 1")
    if options.out is not None:
        check_writable("--out", options.out)
    names = list(dict.fromkeys(options.target or [DEFAULT_TARGET]))
    targets = [named_target(name) for name in names]
    kernel = find_kernel(place)
    with Progress(f"explaining {kernel.name}", len(targets), "targets", silent=1.0) as progress:
        for target in targets:
            progress.label = target
            memory = options.blocks > 0 and target != "cpu" and not kernel.is_sequence
            given = make_arguments(kernel, words, target, memory)
            args = list(given.by_name.values())
            found = explained(kernel, args, given.keywords, target, options.blocks, grid)
            progress.done += 1
            progress.clear()
            only = len(targets) == 1 and len(found) == 1
            for number, facts in enumerate(found):
                write(facts, _file(options.out, facts, number, only))
    return 0


def explained(
    kernel: Kernel,
    args: Sequence[Any],
    keywords: Any,
    target: str,
    blocks: int,
    grid: tuple[int, ...] | None,
) -> list[Facts]:
    """The facts of each T.Kernel. Raises CompileError and LaunchError."""
    every: Sequence[Any] = [(kernel, args, keywords)]
    try:
        if kernel.is_sequence:
            every = kernel.parts.described(args, target, keywords)
        return [gather(k, a, named, target, blocks, grid) for k, a, named in every]
    except LaunchError as e:
        raise LaunchError(e.message, e.loc or kernel.signature.loc, e.hint) from None


def write(facts: Facts, file: Path) -> None:
    """One page. Raises UsageError where it cannot be written."""
    text = page(facts)
    write_text("--out", file, text)
    print(f"{file}: {facts.kernel} for {facts.target.name}, {size_text(len(text.encode()))}")


def _file(out: Path | None, facts: Facts, number: int, only: bool) -> Path:
    name = part_name(facts.kernel, facts.target.name, number)
    return Path(f"{name}.html") if out is None else part_file(out, name, only)
