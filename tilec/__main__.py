"""`tilec COMMAND …`, or `python -m tilec COMMAND …`: a module for each command, loaded when it is
asked for.

A module of `COMMANDS` has `add_arguments(parser)`, which adds its options to an
`argparse.ArgumentParser`, and `main(options)`, which runs it and returns the exit status.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tilec import __version__
from tilec.cli.options import Parser
from tilec.ir.errors import TilecError, did_you_mean

# Name: its module, and what it does.
COMMANDS: dict[str, tuple[str, str]] = {
    "compile": ("tilec.cli.compile", "compile a kernel for any target and write its stages"),
    "explain": ("tilec.cli.explain", "one HTML page: source beside stages, layouts, schedule"),
    "simulate": ("tilec.cli.simulate", "run a kernel's GPU code on the CPU and find its faults"),
    "bench": ("tilec.cli.bench", "time a kernel on this machine"),
    "fuzz": ("tilec.fuzz.cli", "run random programs on every target and compare the results"),
    "cache": ("tilec.cli.cache", "what the cache of compiled kernels holds; deletes it"),
    "env": ("tilec.cli.env", "targets, devices, tools, cache and variables as found here"),
}
PACKAGE = Path(__file__).parent
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status: 2 for a wrong call and for what tilec refuses, 130 after
    Ctrl-C, else the command's own."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(usage())
        return 0 if given else 2
    if given[0] in ("-V", "--version"):
        print(f"tilec {__version__}")
        return 0
    name, rest = given[0], given[1:]
    if name not in COMMANDS:
        kind = "option" if name.startswith("-") else "command"
        near = did_you_mean(name, [*COMMANDS, "--version", "--help"])
        print(f"tilec has no {kind} {name!r}{near}\n\n{usage()}", file=sys.stderr)
        return 2
    module = importlib.import_module(COMMANDS[name][0])
    parser = Parser(f"{program()} {name}", description=module.__doc__)
    module.add_arguments(parser)
    try:
        status = int(module.main(parser.parse_args(rest)))
        sys.stdout.flush()
        return status
    except TilecError as e:
        if e.loc is not None and Path(e.loc.file).is_relative_to(PACKAGE):
            e.loc = None  # a place of the command, not of the user
        print(e, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def program() -> str:
    """How this was started."""
    return "tilec" if Path(sys.argv[0]).stem == "tilec" else "python -m tilec"


def usage() -> str:
    """All commands, one a line."""
    width = max(map(len, COMMANDS))
    lines = [f"usage: {program()} COMMAND [options]", ""]
    lines += [f"  {name:{width}}  {what}" for name, (_, what) in COMMANDS.items()]
    lines += ["", f"{program()} COMMAND --help shows a command's options"]
    return "\n".join([*lines, f"{program()} --version says which version this is"])


if __name__ == "__main__":
    sys.exit(main())
