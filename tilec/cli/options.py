"""Options that several commands have: a kernel, its arguments, progress; and what is said of wrong
ones."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tilec.ir.errors import TilecError, did_you_mean
from tilec.support.progress import ENVIRONMENT
from tilec.target import TARGETS

KERNEL = "FILE.py, FILE.py:kernel or 'FILE.py:factory(\"float16\")'"


class UsageError(TilecError):
    """A command's options do not fit one another, or the kernel."""


class Parser(argparse.ArgumentParser):
    """A parser of options that says which one was meant."""

    def error(self, message: str) -> NoReturn:
        """Print the message and the usage, and exit with status 2."""
        known = [o for action in self._actions for o in action.option_strings]
        unknown = re.findall(r"(?<=unrecognized arguments: )--[\w-]+", message)
        near = did_you_mean(unknown[0], known) if unknown else ""
        super().error(message + near)


def add_call_options(parser: argparse.ArgumentParser, *, grid: bool) -> None:
    """The kernel and what it is called with, as `cli.arguments` reads it."""
    add = parser.add_argument
    add("kernel", nargs="?", help=KERNEL)
    add(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=SPEC",
        help="an array: SHAPE:DTYPE:CONTENT (256x64:float16:zeros; parts may be left out; content "
        "random, zeros, ones, arange or LOW..HIGH), FILE.npy, FILE.npz:KEY; or FILE.npz alone",
    )
    add("--dim", action="append", default=[], metavar="M=256", help="a size of the annotations")
    add("--set", action="append", default=[], metavar="BM=64", help="a number or constant")
    if grid:
        add("--grid", help="where the launch gives it: 4 or 4,2")
    add("--seed", type=int, default=0, help="of random arrays and of schedules")
    add_progress(parser)


def add_target(parser: argparse.ArgumentParser, what: str, known: Sequence[str] = ()) -> None:
    """`--target`, which may be repeated."""
    names = ", ".join(known or TARGETS)
    parser.add_argument("--target", action="append", help=f"one of {names} ({what})")


def add_progress(parser: argparse.ArgumentParser) -> None:
    """`--progress`."""
    parser.add_argument(
        "--progress",
        action="store_true",
        help=f"say how far it is, on stderr, also where that is no terminal ({ENVIRONMENT}=1)",
    )


def at_least(least: float, kind: type = int) -> Callable[[str], Any]:
    """The type of an option that is a number from `least` on."""

    def number(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"expected a number from {least}, got {text!r}")
        return value

    return number


def heed_progress(options: argparse.Namespace) -> None:
    """From here on progress is written where the options ask for it."""
    if getattr(options, "progress", False):
        os.environ[ENVIRONMENT] = "1"


def check_writable(option: str, file: Path) -> None:
    """Raise UsageError at once if a file cannot be written, not after long work."""
    there = file if file.exists() else file.parent
    if not os.access(there, os.W_OK) or file.is_dir() or not file.parent.is_dir():
        raise UsageError(f"{option} {file}: that place cannot be written")


def check_folder(option: str, folder: Path) -> None:
    """Raise UsageError if a folder cannot be made, or nothing written there."""
    there = next(p for p in (folder, *folder.parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UsageError(f"{option} {folder}: that place cannot be written")


def write_text(option: str, file: Path, text: str) -> None:
    """Write a file. Raises UsageError where that cannot be."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as e:
        raise UsageError(f"{option} {file}: {e.strerror or e}") from None


def make_folder(option: str, folder: Path) -> Path:
    """The folder, made where it is missing. Raises UsageError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UsageError(f"{option} {folder}: {e.strerror or e}") from None
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{option} {folder}: that place cannot be written")
    return folder
