"""Programs beside tilec. Finding them loads nothing of the compiler: the key of a variant in the
disk cache names the one that assembled it."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
from pathlib import Path

from tilec.ir.errors import TilecError

ENVIRONMENT = "TILEC_PTXAS"
"""Names the assembler to use; "off" means none, so that the driver assembles."""


def find_ptxas() -> Path | None:
    """The assembler: $TILEC_PTXAS, else the one on PATH, else the one of the `nvidia-cuda-nvcc`
    wheel.

    Raises TilecError if $TILEC_PTXAS names something that cannot be executed.
    """
    named = os.environ.get(ENVIRONMENT, "")
    if named == "off":
        return None
    if named:
        found = shutil.which(named)
        if found is None:
            raise TilecError(
                f"{ENVIRONMENT}={named!r} is not an executable file",
                hint=f"unset {ENVIRONMENT}, or let it name ptxas (or 'off': the driver assembles)",
            )
        return Path(found)
    found = shutil.which("ptxas")
    return Path(found) if found else _ptxas_of_wheel()


@functools.cache
def _ptxas_of_wheel() -> Path | None:
    """ptxas below site-packages/nvidia: `cu13/bin` in today's wheels, `cuda_nvcc/bin` in those
    before."""
    spec = importlib.util.find_spec("nvidia")
    if spec is None or spec.submodule_search_locations is None:
        return None
    for folder in spec.submodule_search_locations:
        for path in sorted(Path(folder).glob("*/bin/ptxas*"), reverse=True):
            if path.stem == "ptxas" and os.access(path, os.X_OK):
                return path
    return None
