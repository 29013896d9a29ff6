"""Ten mutants on an NVIDIA GPU of the Hopper generation: what the hardware makes of what the
simulator reports.

    python tests/mutants.py --gpu [--json benchmarks/results/mutants.json]

`docs/make_mutants.py` shows the file. Each kernel, unmutated and mutated, is compiled to machine
code in the usual way and run many times with larger arrays than the simulator's, in a process of
its own that is ended when it hangs. Prints for each how many runs were right, and what the
simulator had found. The exit status is 1 if an unmutated kernel was not right each time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from mutant_families import FAMILIES, SM90, Arrays, matrix, operands, turned
from mutants import Mutant, Prepared, mutants, prepare, try_out

from benchmarks.harness import machine
from tilec.codegen import assemble, emit
from tilec.ir.core import Func
from tilec.jit.compiled import CompiledKernel
from tilec.jit.stages import Stages
from tilec.runtime.image import Image
from tilec.target import find_target

RUNS = 50
SECONDS = 30  # of one process, with its compilation
CHOSEN: tuple[tuple[str, str], ...] = (
    ("transposition", "remove barrier: no barrier"),
    ("GEMM, TMA + wgmma", "remove mbarrier_wait: no mbarrier_wait ring0_full stage"),
    ("GEMM, TMA + wgmma", "remove mbarrier_wait: no mbarrier_wait ring0_empty stage"),
    ("GEMM, TMA + wgmma", "bytes expected: 4096, not 8192"),
    ("GEMM, TMA + wgmma", "bytes expected: 8208, not 8192"),
    ("GEMM, TMA + wgmma", "parity flipped: mbarrier_wait ring0_empty stage"),
    ("GEMM, wgmma without roles", "remove cp_async_wait: no cp_async_wait"),
    ("persistent", "ring too short: a: 2 stages, not 3"),
    ("GEMM, staged TMA store", "remove proxy_fence: no proxy_fence"),
    ("split-K shared sums", "remove mbarrier_wait: no mbarrier_wait parts_written"),
)
LARGE: dict[str, Callable[..., Arrays]] = {
    "transposition": matrix(1000, 1000, turned),
}
_PRODUCTS = operands(1000, 1032, 1000)


def larger(name: str) -> Arrays:
    """Arrays of several waves of blocks."""
    make: Callable[..., Arrays] = LARGE.get(name, _PRODUCTS)
    return make(np.random.default_rng(5))


def find(p: Prepared, text: str) -> Mutant:
    """The mutant of this name. Raises LookupError."""
    for m in mutants(p):
        if m.name == f"{p.name}: {text}":
            return m
    raise LookupError(f"{p.name} has no mutant {text!r}")


def image_of(p: Prepared, lowered: Func) -> Image:
    """The family's image with the machine code of `lowered`."""
    target = find_target(SM90)
    made: Any = assemble(emit(lowered, target), target)
    before = p.planned.variant.image
    threads, shared = int(lowered.attrs["launch_threads"]), int(lowered.attrs["shared_bytes"])
    resources = replace(
        before.resources,
        registers=made.registers,
        spilled_bytes=made.spilled_bytes,
        threads=threads,
        shared_bytes=shared,
    )
    binary = made.asm.encode() if made.binary is None else made.binary
    kind = "ptx" if made.binary is None else "cubin"
    return replace(before, binary=binary, format=kind, resources=resources)


def on_device(a: np.ndarray) -> Any:
    """The array on the GPU, with the same strides."""
    import torch

    whole = torch.from_numpy(a if a.base is None else a.base.copy()).cuda()
    return whole[..., : a.shape[-1]]


def run_one(name: str, text: str) -> dict[str, int]:
    """Run a kernel, mutated if `text` names a mutant, and count its right and wrong results."""
    import torch

    arrays = larger(name)
    p = prepare(name, arrays)
    lowered = find(p, text).lowered() if text else p.lowered
    kernel = CompiledKernel(image_of(p, lowered), Stages())
    given = {n: on_device(a) for n, a in arrays.items()}
    wanted = {n: torch.from_numpy(w).cuda() for n, w in p.family.want(arrays).items()}
    count = {"right": 0, "wrong": 0}
    for _ in range(RUNS):
        for n in wanted:
            given[n].fill_(77)
        kernel(*given.values())
        torch.cuda.synchronize()
        off = [float((given[n].double() - w).norm() / w.norm()) for n, w in wanted.items()]
        count["right" if max(off) <= 1e-3 else "wrong"] += 1
    return count


def in_a_process(name: str, text: str) -> str:
    """What became of the runs, in a few words."""
    command = [sys.executable, __file__, name, text]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "hung"
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return f"failed: {next((x for x in lines if 'CUDA error' in x), lines[-1])[:100]}"
    count = json.loads(done.stdout.splitlines()[-1])
    return f"{count['right']} right, {count['wrong']} wrong"


def main(path: str) -> int:
    rows: list[dict[str, str]] = []
    for name in dict.fromkeys(n for n, _ in CHOSEN):
        p = prepare(name)
        for text in ("", *(t for n, t in CHOSEN if n == name)):
            found = ", ".join(try_out(find(p, text)).kinds) if text else ""
            row = {"kernel": name, "mutant": text, "gpu": in_a_process(name, text)}
            rows.append({**row, "simulator": found})
            print("| " + " | ".join(rows[-1].values()) + " |", flush=True)
    if path:
        text = json.dumps({"benchmark": "mutants", "machine": machine(), "rows": rows}, indent=1)
        Path(path).write_text(text + "\n")
    return int(any(r["gpu"] != f"{RUNS} right, 0 wrong" for r in rows if not r["mutant"]))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] != "--json":
        print(json.dumps(run_one(sys.argv[1], sys.argv[2])))
    else:
        assert all(FAMILIES[name].target == SM90 for name, _ in CHOSEN)
        raise SystemExit(main(sys.argv[2] if len(sys.argv) == 3 else ""))
