"""How long tilec takes: to import, to PTX, to a launched kernel, from the disk cache.

    python -m benchmarks.bench_compile [--runs 5] [--json results/compile.json]

Each sample is a fresh process. Imports and the CUDA context are made first and not counted (that
of tilec is a row of its own); everything else that a first kernel needs is: reading the source,
passes, LLVM, ptxas, loading. Without a GPU, "launched" is on the CPU target and PTX is made for
cuda:sm_90a all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import save
from benchmarks.timing import spread

TARGET = "cuda:sm_90a"
CONSTANTS = {"BM": 128, "BN": 256, "BK": 64}
WHAT = {
    "import": "import tilec",
    "ptx": f"matrix product to PTX ({TARGET})",
    "launch": "matrix product, cold, to a launched kernel",
    "cached": "matrix product from the disk cache to a launched kernel",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", default="", help="write the figures here")
    parser.add_argument("--sample", choices=list(WHAT), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sample:
        print(json.dumps(sample(options.sample)))
        return
    rows = []
    for what, label in WHAT.items():
        samples = [fresh_process(what) for _ in range(options.runs)]
        figure = spread([s["ms"] for s in samples])
        rows.append({"what": label, "unit": "ms", "device": samples[0]["device"], **figure})
        print(f"{figure['median']:8.1f} ms  {label} ({samples[0]['device']})")
    if options.json:
        save(options.json, "compile", rows)


def fresh_process(what: str) -> dict[str, Any]:
    """One sample, in a process with a cache directory of its own; for "cached" a first process
    fills it."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TILEC_CACHE_DIR": str(Path(folder, "cache"))}
        command = [sys.executable, "-m", "benchmarks.bench_compile", "--sample", what]
        for _ in range(2 if what == "cached" else 1):
            done = subprocess.run(
                command, env=environment, check=True, capture_output=True, text=True
            )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def sample(what: str) -> dict[str, Any]:
    """Milliseconds of one of the rows in WHAT, measured in this process."""
    if what == "import":
        code = "import time; t = time.perf_counter(); import tilec; print(time.perf_counter() - t)"
        done = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        )
        return {"ms": float(done.stdout) * 1e3, "device": "no torch"}
    import torch

    import tilec
    import tilec.jit.build  # noqa: F401 (loads LLVM: an import, not counted)
    from benchmarks.kernels import product

    matmul = product("float16")

    if what == "ptx":
        os.environ["TILEC_PTXAS"] = "off"
        specs = [tilec.spec(shape, "float16") for shape in ((4096, 4096),) * 3]
        start = time.perf_counter()
        matmul.compile(*specs, target=TARGET, **CONSTANTS)
        return {"ms": (time.perf_counter() - start) * 1e3, "device": TARGET}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    extent = 1024 if device == "cuda" else 128
    a, b, c = (torch.zeros(extent, extent, dtype=torch.float16, device=device) for _ in range(3))
    torch.mm(a, b, out=c)  # makes the context
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    matmul(a, b, c, **CONSTANTS)
    return {"ms": (time.perf_counter() - start) * 1e3, "device": device}


if __name__ == "__main__":
    main()
