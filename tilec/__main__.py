"""`python -m tilec COMMAND …`: a module for each command, loaded when it is asked for.

A module of `COMMANDS` has `add_arguments(parser)`, which adds its options to an
`argparse.ArgumentParser`, and `main(options)`, which runs it and returns the exit status.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from tilec.cli.usage import Parser
from tilec.ir.errors import TilecError, did_you_mean

# Name: its module, and what it does.
COMMANDS: dict[str, tuple[str, str]] = {
    "simulate": ("tilec.cli.simulate", "run a kernel's GPU code on the CPU and find its faults"),
    "fuzz": ("tilec.fuzz.cli", "run random programs on every target and compare the results"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status: 2 for a wrong call, 1 for what tilec refuses."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(usage())
        return 0 if given else 2
    name, rest = given[0], given[1:]
    if name not in COMMANDS:
        near = did_you_mean(name, COMMANDS)
        print(f"tilec has no command {name!r}{near}\n\n{usage()}", file=sys.stderr)
        return 2
    module = importlib.import_module(COMMANDS[name][0])
    parser = Parser(f"python -m tilec {name}", description=module.__doc__)
    module.add_arguments(parser)
    try:
        return int(module.main(parser.parse_args(rest)))
    except TilecError as e:
        print(e, file=sys.stderr)
        return 1


def usage() -> str:
    """All commands, one a line."""
    width = max(map(len, COMMANDS))
    lines = ["usage: python -m tilec COMMAND [options]", ""]
    lines += [f"  {name:{width}}  {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join([*lines, "", "python -m tilec COMMAND --help shows a command's options"])


if __name__ == "__main__":
    sys.exit(main())
