"""Compile a kernel for one target or several, without a device, and write its stages. Nothing is
run; arguments are described by shapes. Status 0: compiled; 2: it could not be."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tilec.cli.arguments import Words, make_arguments, read_call
from tilec.cli.kernels import find_kernel
from tilec.cli.options import (
    UsageError,
    add_call_options,
    add_target,
    check_writable,
    make_folder,
    write_text,
)
from tilec.ir.errors import LaunchError, TilecError, did_you_mean
from tilec.jit.compiled import CompiledKernel
from tilec.kernel import Kernel
from tilec.runtime.devices import default_target, resolve_target
from tilec.support.progress import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the subcommand."""
    add_call_options(parser, grid=False)
    add_target(parser, "TILEC_TARGET, else the GPU found, else cpu; may be repeated")
    add = parser.add_argument
    add("--stages", action="store_true", help="list the stages")
    add(
        "--stage",
        action="append",
        default=[],
        metavar="NAME",
        help="print this stage (ptx, tile, plan, …; may be repeated)",
    )
    add("--out", type=Path, metavar="DIR", help="write stages as numbered files: all, or --stage")
    add("--save", type=Path, metavar="FILE.tilec", help="keep the kernel, for tilec.load")
    add("--export-c", type=Path, metavar="PATH", help="write the binary and a C header")


def main(options: argparse.Namespace) -> int:
    """Compile; the exit status."""
    place, words, _ = read_call(options, "compile")
    targets = [named_target(name) for name in dict.fromkeys(options.target or [""])]
    several = len(targets) > 1
    for option, file in (("--save", options.save), ("--export-c", options.export_c)):
        if file is not None:
            check_writable(option, file)
    out = None if options.out is None else make_folder("--out", options.out)
    kernel = find_kernel(place)
    with Progress(f"compiling {kernel.name}", len(targets), "targets", silent=0.5) as progress:
        for target in targets:
            progress.label = target
            made = compile_parts(kernel, words, target)
            progress.done += 1
            progress.clear()
            for number, compiled in enumerate(made):
                only = not several and len(made) == 1
                name = part_name(compiled.name, target, number)
                _check_stages(compiled, options.stage)
                _tell(compiled, options)
                if out is not None:
                    folder = out if only else make_folder("--out", out / name)
                    _write(compiled, folder, options.stage)
                if options.save is not None:
                    compiled.save(part_file(options.save, name, only))
                if options.export_c is not None:
                    compiled.export_c(part_file(options.export_c, name, only))
    return 0


def named_target(name: str) -> str:
    """A target's full name; the usual one where none is given. Raises UsageError."""
    try:
        return resolve_target(name) if name else default_target()
    except TilecError as e:
        raise UsageError(f"--target {name}: {e.message}", hint=e.hint) from None


def compile_parts(kernel: Kernel, words: Words, target: str) -> list[CompiledKernel]:
    """The kernel for what the words describe: one for each T.Kernel that it has."""
    given = make_arguments(kernel, words, target, memory=False)
    args, keywords = list(given.by_name.values()), dict(given.keywords)
    try:
        if kernel.is_sequence:
            return list(kernel.parts.compile(args, target, keywords))
        return [kernel.compile(*args, target=target, **keywords)]
    except LaunchError as e:
        # There is no line of a call to show: the kernel's own says what it takes.
        raise LaunchError(e.message, e.loc or kernel.signature.loc, e.hint) from None


def _check_stages(compiled: CompiledKernel, wanted: Sequence[str]) -> None:
    known = list(compiled.stages) if wanted else []
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"--stage {name}: {compiled.name} for {compiled.target} has no stage "
                f"{name!r}{did_you_mean(name, known)}",
                hint="--stages lists them",
            )


def _tell(compiled: CompiledKernel, options: argparse.Namespace) -> None:
    """Print the stages that were asked for, else what was compiled."""
    if options.stage and options.out is None:
        for name in options.stage:
            print(compiled.stages[name].rstrip("\n"))
    elif options.stages:
        print("\n".join(compiled.stages))
    else:
        print(compiled)
    sys.stdout.flush()


def _write(compiled: CompiledKernel, folder: Path, wanted: Sequence[str]) -> None:
    """The stages as files, numbered as TILEC_DUMP_DIR has them."""
    for number, (name, text) in enumerate(compiled.stages.items()):
        if not wanted or name in wanted:
            write_text("--out", folder / f"{number:02d}-{name}.txt", text)


def part_name(kernel: str, target: str, number: int) -> str:
    """What files about the T.Kernel of this number are called."""
    part = f"-{number}" if number else ""
    return re.sub(r"[^\w.-]", "-", f"{kernel}-{target}{part}")


def part_file(file: Path, name: str, only: bool) -> Path:
    """A file of that name; where there are several, this one's."""
    return file if only else file.with_stem(f"{file.stem}-{name}")
