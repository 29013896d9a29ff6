"""What tilec finds here: targets, devices, tools, the cache of compiled kernels and the TILEC_
variables with their values. Status 2 where a variable says something that tilec cannot use."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tilec import __version__
from tilec.ir.errors import TilecError, did_you_mean
from tilec.jit.stages import wanted_stages
from tilec.runtime import cpu
from tilec.runtime.cache import DiskCache, cache_root
from tilec.runtime.devices import default_target, driver
from tilec.runtime.driver import DriverError
from tilec.runtime.gpu import GpuDriver
from tilec.support.progress import is_wanted
from tilec.support.rich import aligned, size_text
from tilec.support.settings import VARIABLES, is_on
from tilec.support.tools import find_ptxas
from tilec.target import TARGETS, Target

PACKAGES = ("llvmlite", "numpy", "ml_dtypes", "torch", "cuda-bindings", "hip-python",
            "nvidia-cuda-nvcc")  # fmt: skip

# What they are asked for, so that a value that cannot be used is found here.
_CHECKS: dict[str, Callable[[], object]] = {
    "TILEC_TARGET": default_target,
    "TILEC_PTXAS": find_ptxas,
    "TILEC_NUM_THREADS": cpu.thread_count,
    "TILEC_DUMP": wanted_stages,
    "TILEC_DEBUG": lambda: is_on("TILEC_DEBUG"),
    "TILEC_DISABLE_CACHE": lambda: is_on("TILEC_DISABLE_CACHE"),
    "TILEC_PROGRESS": lambda: is_wanted(open(os.devnull)),  # noqa: SIM115
}


@dataclass
class Variable:
    """`value`: as it is set, None where it is not. `error`: why it cannot be used."""

    meaning: str
    value: str | None
    error: str = ""


@dataclass
class Environment:
    """What was found. `devices` and `tools` hold a reason where there is none."""

    tilec: str
    python: str
    machine: str
    packages: dict[str, str]
    targets: list[dict[str, Any]]
    devices: dict[str, list[str] | str]
    tools: dict[str, str]
    cache: dict[str, Any]
    variables: dict[str, Variable] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not any(v.error for v in self.variables.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the subcommand."""
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")


def main(options: argparse.Namespace) -> int:
    """Look around and print."""
    found = look_around(os.environ)
    print(json.dumps(asdict(found), indent=2) if options.json else text_of(found))
    return 0 if found.ok else 2


def look_around(environ: Mapping[str, str]) -> Environment:
    """What is here; nothing is compiled and no memory of a device is taken."""
    return Environment(
        tilec=__version__,
        python=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}",
        packages={name: v for name in PACKAGES if (v := _version(name))},
        targets=[_target(t) for t in TARGETS.values()],
        devices={kind: _devices(kind) for kind in ("cuda", "hip", "cpu")},
        tools={"ptxas": _ptxas()},
        cache=_cache(),
        variables=_variables(environ),
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _target(t: Target) -> dict[str, Any]:
    return {
        "name": t.name,
        "warp": t.warp_size,
        "shared_bytes": t.shared_bytes if t.kind != "cpu" else 0,
        "multiprocessors": t.multiprocessors if t.kind != "cpu" else 0,
        "features": sorted(t.features),
    }


def _devices(kind: str) -> list[str] | str:
    """The targets of the devices of a kind, or why there are none."""
    if kind == "cpu":
        with contextlib.suppress(DriverError):  # a variable that cannot be used is told below
            return [f"cpu, {cpu.thread_count()} threads"]
        return ["cpu"]
    try:
        found = driver(kind)
        assert isinstance(found, GpuDriver)
    except DriverError as e:
        return e.message
    return [_device(found, kind, n) for n in range(found.device_count)]


def _device(found: Any, kind: str, number: int) -> str:
    try:
        sm = found.multiprocessors(number)
        return f"{kind}:{number} runs {found.target_of(number)}, {sm} multiprocessors"
    except DriverError as e:
        return f"{kind}:{number}: {e.message}"


def _ptxas() -> str:
    """Path and version of the assembler."""
    try:
        path = find_ptxas()
    except TilecError as e:
        return e.message
    if path is None:
        return "none: the driver assembles, and registers and spills are not known before a launch"
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
        said = next((x for x in done.stdout.splitlines() if "release" in x), done.stderr.strip())
    except (OSError, subprocess.SubprocessError) as e:
        said = f"which cannot be run: {e}"
    return f"{path}, {said.rpartition('release ')[2] or said}"


def _cache() -> dict[str, Any]:
    root = cache_root()
    if root is None:
        return {"folder": None, "kernels": 0, "bytes": 0}
    sizes = [facts.st_size for _, facts in DiskCache(root).images()]
    return {"folder": str(root), "kernels": len(sizes), "bytes": sum(sizes)}


def _variables(environ: Mapping[str, str]) -> dict[str, Variable]:
    made = {name: Variable(what, environ.get(name)) for name, what in VARIABLES.items()}
    for name, check in _CHECKS.items():
        if made[name].value:
            try:
                check()
            except TilecError as e:
                made[name].error = e.message
    for name in sorted(environ):
        if name.startswith("TILEC_") and name not in made:
            near = did_you_mean(name, VARIABLES)
            made[name] = Variable("", environ[name], f"tilec reads no such variable{near}")
    return made


def text_of(e: Environment) -> str:
    """For people."""
    packages = ", ".join(f"{name} {version}" for name, version in e.packages.items())
    targets = [
        (
            t["name"],
            str(t["warp"]),
            size_text(t["shared_bytes"]) if t["shared_bytes"] else "-",
            str(t["multiprocessors"] or "-"),
            " ".join(t["features"]),
        )
        for t in e.targets
    ]
    devices = []
    for kind, found in e.devices.items():
        devices += [(kind, x) for x in (found if isinstance(found, list) else [f"none: {found}"])]
    folder = e.cache["folder"]
    cache = f"{folder}: {e.cache['kernels']} kernels, {size_text(e.cache['bytes'])}"
    variables = []
    for name, v in e.variables.items():
        said = "not set" if v.value is None else f"= {v.value}"
        variables.append((name, said, v.meaning or v.error))
        if v.error and v.meaning:
            variables.append(("", "", f"wrong: {v.error}"))
    head = ("target", "warp", "shared memory", "multiprocessors", "features")
    parts = [
        f"tilec {e.tilec}, Python {e.python}, {e.machine}\n{packages}",
        aligned(targets, head, right=(1, 2, 3)),
        "devices\n" + _indented(aligned(devices)),
        "tools\n" + _indented(aligned(list(e.tools.items()))),
        "cache\n" + _indented(cache if folder else "disabled"),
        "variables\n" + _indented(aligned(variables)),
    ]
    return "\n\n".join(parts)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))
