"""Which of TileLang's own tests give right results on the CPU.

    TILELANG_SOURCE=checkout python tests/tilelang/right.py [--jobs 1] [--out right.json] [file …]

Every test of `testing/python/{language,issue,kernel}` runs with its own numbers and comparisons,
its tensors on the CPU, where kernels are compiled for that target; torch is told that there is a
GPU, so that nothing is skipped for want of one. Plain assertions are left out: many look for CUDA
in what was compiled. A test fails for what the target lacks, or because a comparison of its own
fails, which is what this is for.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import multiprocessing
import os
import resource
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from census import FOLDERS, MOST_BYTES, Anything, _ComparedFinder, _ProgramFinder, on_cpu

SECONDS = 240  # of a file
EACH = 60  # of a test
WRONG = ("not close", "not equal", "Mismatched", "elements differ", "mismatch")

# mypy: ignore-errors


class Results:
    """A pytest plugin: what became of each test, in a line."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}

    def pytest_runtest_protocol(self, item: Any) -> None:
        signal.alarm(EACH)

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.rpartition("::")[2]
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash else str(report.longrepr)[-300:]
            kind = "wrong" if any(w in text for w in WRONG) else "failed"
            self.said[name] = f"{kind}: {' '.join(text.split())[:300]}"
        elif report.skipped:
            self.said[name] = "skipped"
        elif report.when == "call":
            self.said[name] = "right"

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            lines = [x for x in str(report.longrepr).splitlines() if x.startswith("E ")]
            self.said["(import)"] = f"failed: {(lines or ['E'])[-1][1:].strip()[:300]}"


def on_this_machine(torch: Any) -> None:
    """A GPU for those who ask, which is the CPU."""
    cuda, nothing = torch.cuda, lambda *_, **__: None
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda.get_device_name = lambda *_: "NVIDIA H200"
    cuda.synchronize = cuda.manual_seed = cuda.manual_seed_all = cuda.empty_cache = nothing
    cuda.init = cuda.set_device = nothing
    cuda.Event = cuda.Stream = cuda.current_stream = cuda.stream = cuda.device = Anything
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda t, *_, **__: t


def run_file(path: Path, out: Path, source: Path) -> None:
    import pytest
    import torch

    import tilec.tilelang

    results = Results()

    def late(*_: Any) -> None:
        raise TimeoutError(f"not done after {EACH} s")

    signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    tilec.tilelang.install()
    sys.meta_path.insert(1, _ProgramFinder(source))
    sys.meta_path.append(_ComparedFinder())
    on_this_machine(torch)
    from tilec.tilelang import profiler

    profiler.do_bench = lambda fn, *_, **__: (fn(), 1.0)[1]
    torch.set_num_threads(1)
    os.chdir(path.parent)
    sys.path[:0] = [str(path.parent), str(source)]
    options = ["-q", "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull]
    options += ["--assert=plain", "--import-mode=importlib"]
    with on_cpu(), contextlib.suppress(BaseException):
        pytest.main([str(path), *options], plugins=[results])
    out.write_text(json.dumps(results.said))
    os._exit(0)


def one(path: Path, source: Path) -> dict[str, str]:
    out = Path("/tmp") / f"{abs(hash(path))}.right.json"
    out.unlink(missing_ok=True)
    run = multiprocessing.get_context("fork").Process(target=_quietly, args=(path, out, source))
    run.start()
    run.join(SECONDS)
    if run.is_alive():
        run.kill()
    return json.loads(out.read_text()) if out.exists() else {"(file)": "failed: no result"}


def _quietly(*given: Any) -> None:
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    run_file(*given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    source = Path(os.environ["TILELANG_SOURCE"]).resolve()
    os.environ["TILEC_TARGET"] = "cuda:sm_90a"
    files = [f.resolve() for f in given.files]
    for folder in () if files else FOLDERS[1:]:
        files += sorted((source / folder).rglob("test_*.py"))
    for module in ("torch._dynamo", "pytest", "tilec.tilelang.testing", "tilec.jit.build"):
        __import__(module)
    with ThreadPoolExecutor(given.jobs) as pool:
        found = dict(zip(files, pool.map(lambda f: one(f, source), files), strict=True))
    counts = collections.Counter(v.split(":")[0] for r in found.values() for v in r.values())
    for path, results in found.items():
        for name, said in results.items():
            if said.startswith("wrong"):
                print(path.name, name, said)
    print(dict(counts))
    if given.out:
        shown = {str(p.relative_to(source)): r for p, r in found.items()}
        given.out.write_text(json.dumps(shown, indent=1) + "\n")


if __name__ == "__main__":
    main()
