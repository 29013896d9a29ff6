"""The CUDA assembler: how it is called, what its report says. `tilec.support.tools` finds it.

`ptxas` is not needed to compile: without it the driver assembles PTX at load time. With it a kernel
loads in a fraction of a millisecond and its registers, spills and serialised instructions are known
at compile time. Its options and report: https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilec.ir.errors import InternalError, ResourceError

_REGISTERS = re.compile(r"Used (\d+) registers")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_ADVISORY = re.compile(r"\bC75\d\d\b|\bC76\d\d\b|\bwarning\b", re.IGNORECASE)
# C7507: setmaxnreg is ignored; C7508 to C7518: wgmma is serialised. C7519 only adds a fence.
_LOST = re.compile(r"\bC75(?!19)\d\d\b|\bC76\d\d\b|\bspilled\b")
# C7602 counts an instruction's operands against the registers at launch, whatever setmaxnreg says.
_TOO_FEW = re.compile(r"C7602.*?Insufficient registers \((\d+)\).*?target of (\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PtxasResult:
    """A cubin and the assembler's report on it.

    `registers` per thread; `spilled_bytes` (stores to local memory) and `stack_bytes` per thread:
    each the largest over the file's functions. `advisories` are the lines that a kernel should not
    cause: warnings, C75xx (serialised wgmma), spills.
    """

    cubin: bytes
    registers: int
    spilled_bytes: int
    stack_bytes: int
    advisories: tuple[str, ...]
    log: str


def run_ptxas(ptxas: Path, ptx: str, arch: str) -> PtxasResult:
    """Assemble `ptx` for `arch` ("sm_90a"), keeping line information where the PTX has it.

    Raises ResourceError if one instruction has more operands than a thread has registers when the
    block starts (C7602), and InternalError with ptxas's own message if it refuses the text for
    another reason: that, tilec should have refused before.
    """
    with tempfile.TemporaryDirectory(prefix="tilec-") as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        command = [str(ptxas), f"-arch={arch}", "-v", "-o", str(cubin), str(source)]
        if "\t.loc\t" in ptx:
            command.append("-lineinfo")
        done = subprocess.run(command, capture_output=True, text=True)
        log = done.stdout + done.stderr
        if done.returncode != 0:
            if too_few := _TOO_FEW.search(log):
                raise ResourceError(
                    f"an instruction needs {too_few[2]} registers of each thread ({arch}, C7602); "
                    f"a block of this size starts with {too_few[1]}",
                    hint="use fewer threads or narrower tiles",
                )
            raise InternalError(f"ptxas refuses the kernel ({arch}): {_complaint(log, ptx)}")
        return parse_report(cubin.read_bytes(), log)


def parse_report(cubin: bytes, log: str) -> PtxasResult:
    """The figures of `ptxas -v`; a report without them counts as zero."""
    frames = [tuple(map(int, m.groups())) for m in _FRAME.finditer(log)]
    spilled = max((max(stores, loads) for _, stores, loads in frames), default=0)
    advisories = [line.strip() for line in log.splitlines() if _ADVISORY.search(line)]
    if spilled:
        advisories.append(f"{spilled} bytes of registers spilled to local memory")
    return PtxasResult(
        cubin,
        max((int(r) for r in _REGISTERS.findall(log)), default=0),
        spilled,
        max((stack for stack, _, _ in frames), default=0),
        tuple(advisories),
        log,
    )


def trouble(advisories: Sequence[str]) -> str:
    """The advisory that makes another plan worth trying: registers that spill, wgmma that is
    serialised, a split of the registers that is ignored; "" if there is none."""
    return next((line for line in advisories if _LOST.search(line)), "")


def _complaint(log: str, ptx: str) -> str:
    """ptxas's first error, with the line of PTX that it names."""
    errors = [line for line in log.splitlines() if "error" in line or "fatal" in line]
    first = errors[0] if errors else log.strip().split("\n")[-1] or "no message"
    named = re.search(r"line (\d+)", first)
    lines = ptx.splitlines()
    if named and 0 < int(named[1]) <= len(lines):
        return f"{first}\n    {lines[int(named[1]) - 1].strip()}"
    return first
