"""What is said of a wrong call of a command."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from tilec.ir.errors import TilecError, did_you_mean


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
