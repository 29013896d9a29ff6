"""Machine code -> text, with whatever disassembler the machine has."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tilec.support.tools import find_ptxas
from tilec.target import Target


def disassemble(binary: bytes, target: Target) -> str | None:
    """The instructions of a cubin, hsaco or host object; None where no disassembler can read it.

    Tried in order: `nvdisasm` and `cuobjdump` (PATH, then beside ptxas) for cuda; `llvm-objdump`
    for hip, and also `objdump` for cpu.
    """
    with tempfile.TemporaryDirectory(prefix="tilec-") as folder:
        path = Path(folder, "kernel.bin")
        path.write_bytes(binary)
        for command in _commands(target):
            tool = _find(command[0], target)
            if tool is None:
                continue
            done = subprocess.run([tool, *command[1:], str(path)], capture_output=True, text=True)
            if done.returncode == 0 and done.stdout.strip():
                return done.stdout.replace(str(path), "kernel")
    return None


def _commands(target: Target) -> list[list[str]]:
    match target.kind:
        case "cuda":
            return [["nvdisasm", "-c"], ["cuobjdump", "--dump-sass"]]
        case "hip":
            return [["llvm-objdump", "-d", f"--mcpu={target.arch}"]]
        case _:
            return [["llvm-objdump", "-d"], ["objdump", "-d"]]


def _find(tool: str, target: Target) -> str | None:
    found = shutil.which(tool)
    if found is None and target.kind == "cuda":
        ptxas = find_ptxas()
        beside = ptxas.resolve().with_name(tool) if ptxas else None
        found = str(beside) if beside and beside.exists() else None
    return found
