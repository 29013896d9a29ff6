"""What the process is given: the environment variables that tilec reads, and processors. A value
that it does not know is an error where it is read, with those it takes; a name that it does not
read is warned of, once."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable

from tilec.ir.errors import TilecError, did_you_mean

VARIABLES: dict[str, str] = {
    "TILEC_TARGET": "the target where no argument tells one (else of the GPU found, else cpu)",
    "TILEC_CACHE_DIR": "the folder of compiled kernels (else ~/.cache/tilec)",
    "TILEC_DISABLE_CACHE": "1: neither read nor write that folder",
    "TILEC_DUMP": "stages to write as kernels are compiled: all, or names with commas between",
    "TILEC_DUMP_DIR": "the folder for them (else stderr)",
    "TILEC_DEBUG": "1: T.device_assert is checked when a kernel runs",
    "TILEC_PTXAS": "the assembler for NVIDIA GPUs; off: the driver assembles",
    "TILEC_NUM_THREADS": "threads of a launch on the CPU (else one for each processor)",
    "TILEC_PROGRESS": "1: say how far long work is, also where stderr is no terminal; 0: never",
}

_MEANS = {"": False, "0": False, "1": True}
_MEANS |= {"false": False, "no": False, "off": False, "true": True, "yes": True, "on": True}
_told: set[str] = set()


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_on(name: str) -> bool:
    """Whether a variable that is 1 or 0 is on. Raises TilecError for anything else."""
    said = os.environ.get(name, "")
    found = _MEANS.get(said.strip().lower())
    if found is None:
        raise TilecError(f"{name} is {said!r}; it takes 1 or 0", hint=f"set {name}=1, or unset it")
    return found


def chosen_names(name: str, known: Iterable[str]) -> frozenset[str]:
    """The names of a variable that holds "all" or names with commas between. Raises TilecError for
    one that is not known."""
    said = os.environ.get(name, "")
    wanted = [n.strip() for n in said.split(",") if n.strip()]
    if not wanted:
        return frozenset()
    takes = [*dict.fromkeys(known)]
    for one in wanted:
        if one != "all" and one not in takes and re.sub(r"-\d+$", "", one) not in takes:
            near = did_you_mean(one, ["all", *takes])
            raise TilecError(
                f"{name} names {one!r}, which is no stage{near}",
                hint=f"it takes all, or of these, with commas between: {', '.join(takes)}",
            )
    return frozenset(wanted)


def warn_of_unknown() -> None:
    """Warn of variables whose names begin as tilec's do and that it does not read."""
    for name in os.environ.keys() - VARIABLES.keys() - _told:
        if name.startswith("TILEC_"):
            _told.add(name)
            near = did_you_mean(name, VARIABLES) or f" (it reads {', '.join(VARIABLES)})"
            warnings.warn(f"tilec reads no environment variable {name}{near}", stacklevel=2)
