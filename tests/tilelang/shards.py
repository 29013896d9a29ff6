"""Parts of test files, run in processes of their own that are watched.

A process writes a line when a test begins and one when it has ended. Where no line comes for too
long the process is killed, and where it ends early it was taken down; either way the test that had
begun is told, and the rest of the part runs in a new process. So does the rest behind a test that
has broken the GPU's context.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.machinery
import json
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from census import MOST_BYTES, Anything, _Compared, _ComparedFinder, _ProgramFinder, on_cpu
from sorts import WithoutTexts

# mypy: ignore-errors

# What kernels may do on GPUs alone.
OF_GPUS = ("cpu has no", "compiled for the CPU", "CPU target", "compile it for a GPU")
WRONG = ("not close", "not equal", "Mismatched", "elements differ", "mismatch")
BROKEN = ("CUDA error", "CUDA_ERROR", "illegal memory access", "cudaError", "AcceleratorError")
TO_START = 60.0  # seconds for imports and the first context of a GPU
MOST_DEATHS = 8  # of the processes of one part


@dataclass(frozen=True)
class Shard:
    """Every `parts`-th test of a file, from the `number`-th on."""

    path: Path
    number: int
    parts: int


class Results:
    """A pytest plugin: what became of each test, in lines of JSON as it happens."""

    def __init__(self, shard: Shard, done: set[str], out: Path, each: float) -> None:
        self.shard, self.done, self.each = shard, done, each
        self.out = out.open("a", buffering=1)

    def say(self, name: str, said: str) -> None:
        self.out.write(json.dumps([name, said]) + "\n")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        tests = [i for i in items if isinstance(i.obj, types.FunctionType | types.MethodType)]
        mine = tests[self.shard.number :: self.shard.parts]
        items[:] = [i for i in mine if _name(i.nodeid) not in self.done]

    def pytest_runtest_protocol(self, item: Any) -> None:
        self.say(_name(item.nodeid), "begun")
        signal.alarm(int(self.each))

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = _name(report.nodeid)
        if report.failed:
            said = what_failed(report)
            self.say(name, said)
            if any(w in said for w in BROKEN):
                os._exit(0)
        elif report.skipped:
            self.say(name, f"skipped: {report.longrepr[2][:100]}")
        elif report.when == "call":
            self.say(name, "right")

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            lines = [x for x in str(report.longrepr).splitlines() if x.startswith("E ")]
            self.say("(import)", f"failed: {(lines or ['E'])[-1][1:].strip()[:300]}")


def _name(nodeid: str) -> str:
    return nodeid.partition("::")[2].replace("::", ".") or nodeid


def what_failed(report: Any) -> str:
    """The message of a test that has failed, and whether a comparison has."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)[-300:]
    compared = text.startswith("AssertionError") or text.startswith("assert ")
    wrong = compared or any(w in text for w in WRONG)
    if wrong and any(isinstance(m, _Compared) for m in [*sys.modules.values()]):
        return "skipped: it compares with a package that is not installed"
    if any(w in text for w in OF_GPUS):
        return f"skipped: for GPUs: {' '.join(text.split())[:100]}"
    place = f" at {Path(crash.path).name}:{crash.lineno}" if crash else ""
    return f"{'wrong' if wrong else 'failed'}: {' '.join(text.split())[:300]}{place}"


class _WithoutTexts(importlib.machinery.SourceFileLoader):
    """Loads tests without their assertions about texts."""

    def source_to_code(self, data: Any, path: Any, **_: Any) -> Any:
        plain = ast.parse(data)
        tree = ast.fix_missing_locations(WithoutTexts(plain).visit(plain))
        return compile(tree, path, "exec", dont_inherit=True)

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _TestFinder(_ProgramFinder):
    loader = _WithoutTexts


def on_this_machine(torch: Any) -> None:
    """A GPU for those who ask, which is the CPU."""
    from tilec.jit import compiled
    from tilec.tilelang import programs, testing

    cuda, nothing = torch.cuda, lambda *_, **__: None
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda.get_device_name = lambda *_: "NVIDIA H200"
    cuda.synchronize = cuda.manual_seed = cuda.manual_seed_all = cuda.empty_cache = nothing
    cuda.init = cuda.set_device = nothing
    cuda.mem_get_info = lambda *_: (4 << 30, 8 << 30)
    facts = types.SimpleNamespace(multi_processor_count=132, major=9, minor=0, name="NVIDIA H200")
    facts.shared_memory_per_block_optin, facts.total_memory = 232448, 8 << 30
    cuda.get_device_properties = lambda *_: facts
    cuda.Event = cuda.Stream = cuda.current_stream = cuda.stream = cuda.device = Anything
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda t, *_, **__: t
    compiled.usual_array = lambda *_: torch.empty(0)  # what a GPU's launches give, too
    testing._target = lambda: "cuda:sm_90a"
    programs._target = lambda given: None if given is None or "cuda" in str(given) else str(given)
    os.environ["TILEC_TARGET"] = "cpu"  # of kernels that are given no tensor


def _run(shard: Shard, out: Path, source: Path, gpu: bool, done: set[str], each: float) -> None:
    """Run the tests of a part that are not `done`, in this process."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    import pytest
    import torch

    import tilec.tilelang

    def late(*_: Any) -> None:
        raise TimeoutError(f"not done after {each} s")

    signal.signal(signal.SIGALRM, late)
    tilec.tilelang.install()
    sys.meta_path.insert(1, _TestFinder(source))
    sys.meta_path.append(_ComparedFinder())
    if not gpu:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        on_this_machine(torch)
    from tilec.tilelang import profiler

    profiler.do_bench = lambda fn, *_, **__: (fn(), 1.0)[1]
    torch.set_num_threads(1)
    os.chdir(shard.path.parent)
    sys.path[:0] = [str(shard.path.parent), str(source)]
    options = ["-q", "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull]
    options += ["--assert=plain", "--import-mode=importlib"]
    plugin = Results(shard, done, out, each)
    with contextlib.nullcontext() if gpu else on_cpu(), contextlib.suppress(BaseException):
        pytest.main([str(shard.path), *options], plugins=[plugin])
    plugin.say("(end)", "")
    os._exit(0)


def run_shard(shard: Shard, source: Path, gpu: bool, each: float, end: float) -> dict[str, str]:
    """What became of the tests of a part, by name; nothing is begun after the time `end`."""
    said: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for attempt in range(MOST_DEATHS):
            out = Path(folder) / f"said{attempt}.json"
            out.touch()
            if time.monotonic() > end:
                said.setdefault(f"(part {shard.number})", "not reached: out of time")
                break
            given = (shard, out, source, gpu, {*said}, each)
            run = multiprocessing.get_context("fork").Process(target=_run, args=given)
            run.start()
            ended = _watch(run, out, each, end)
            lines = [json.loads(x) for x in out.read_text().splitlines() if x.endswith("]")]
            said |= {name: s for name, s in lines if name != "(end)"}
            for name in [n for n, s in said.items() if s == "begun"]:
                late = time.monotonic() > end
                said[name] = "not reached: out of time" if late else f"failed: {ended}"
            if ["(end)", ""] in lines or "(import)" in said:
                break
            if not lines:
                said["(file)"] = f"failed: {ended}"
                break
    return said


def _watch(run: Any, out: Path, each: float, end: float) -> str:
    """Wait until the process ends, and kill it where it says nothing for too long; how it ended."""
    size, since, patience = 0, time.monotonic(), TO_START + each
    while run.is_alive():
        run.join(0.2)
        now = time.monotonic()
        if (grown := out.stat().st_size) != size:
            size, since, patience = grown, now, 1.25 * each + 2
        if now - since > patience or now > end + each / 4:
            run.kill()
            run.join()
            return f"it hangs: nothing after {now - since:.0f} s"
    return f"the process ended with {run.exitcode}"
