"""Which of TileLang's own kernels compile.

    TILELANG_SOURCE=checkout python tests/tilelang/census.py [--jobs 1] [--out census.json]
        [--table docs/tilelang.md] [--programs programs.json] [file …]

A kernel is a function that holds `T.Kernel`. Every file of `examples` and of four folders of
`testing/python` runs in a process of its own: its tests, else its `main`. There is no GPU and no
memory: tensors are torch's fake ones, each launch only compiles for TARGET with the sizes of the
program, and comparisons of results are left out. What a kernel's first variants say is its result;
a kernel that was never asked for is told by what stopped its file.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import importlib.abc
import importlib.machinery
import json
import multiprocessing
import os
import re
import runpy
import signal
import sys
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

TARGET = "cuda:sm_90a"
FOLDERS = ("examples", "testing/python/language", "testing/python/issue", "testing/python/kernel")
MOST_VARIANTS = 1
SECONDS = 45
COMPARED = frozenset("triton fla bitblas flash_attn flashinfer deep_gemm vllm".split())
OTHER_HARDWARE = {
    "sm100": r"tcgen05|alloc_tmem|sm_?1[0-2]0|blackwell|blockscaled|utcmma|tmem",
    "amd": r"mfma|wmma|gfx\d|rocm|cdna|preshuffle|/amd/",
    "metal, webgpu, ascend": r"metal|webgpu|wgsl|ascend",
}

# mypy: ignore-errors


def kernels_of(path: Path) -> list[tuple[int, str]]:
    """(line, name) of each function that holds T.Kernel itself; the line is its decorator's."""

    def own(function: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(function):
            if not isinstance(child, ast.FunctionDef | ast.Lambda):
                yield child
                yield from own(child)

    def launches(n: ast.AST) -> bool:
        named = isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
        return named and n.func.attr in ("Kernel", "ClusterKernel")

    tree = ast.parse(path.read_text())
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    found = [f for f in found if any(map(launches, own(f)))]
    return [(min(d.lineno for d in (*f.decorator_list, f)), f.name) for f in found]


def elsewhere(path: str, name: str, text: str) -> str:
    """The other hardware that a kernel is written for, by its file and its own text; "" if none."""
    for kind, pattern in OTHER_HARDWARE.items():
        if re.search(pattern, f"{path} {name} {text}", re.IGNORECASE):
            return kind
    return ""


class AnySource(str):
    """The source of a kernel in which tests find whatever they look for."""

    def __contains__(self, text: object) -> bool:
        return True

    def count(self, *_: Any) -> int:
        return 1


class Recorder:
    """What became of the variants that a file asks for, by file and line of the kernel."""

    def __init__(self) -> None:
        self.results: dict[tuple[str, int], list[str]] = collections.defaultdict(list)
        self.asked: set[Any] = set()
        self.made: dict[types.CodeType, Any] = {}

    def compile(self, kernel: Any, described: Any) -> Any:
        """Note what the compiler says of one variant, and return it or None; `described` makes its
        arguments."""
        code = kernel.function.__code__
        said = self.results[code.co_filename, code.co_firstlineno]
        if len(said) >= MOST_VARIANTS:
            return self.made.get(code)
        import tilec

        try:
            args, kwargs = described()
            key = (id(kernel), repr(args), repr(kwargs))
            if key in self.asked:
                return self.made.get(code)
            self.asked.add(key)
            self.made[code] = kernel.real_compile(*args, target=TARGET, **kwargs)
            said.append("")
        except tilec.TilecError as e:
            said.append(getattr(e, "message", None) or str(e).splitlines()[0])
        except Exception as e:  # the compiler's own fault
            said.append(f"fault: {type(e).__name__}: {e}")
        return self.made.get(code)


def watch(recorder: Recorder) -> None:
    """Let kernels be compiled, and never launched, and torch think that there is a GPU."""
    import torch

    import tilec
    from tilec.kernel import Kernel
    from tilec.tilelang import profiler, programs

    Kernel.real_compile = Kernel.compile

    def spec_of(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return tilec.spec(tuple(value.shape), str(value.dtype), tuple(value.stride()))

    def launch(kernel: Any, grid: Any, args: Any, kwargs: Any, keys: Any = None) -> Any:
        specs = [spec_of(a) for a in args], {k: spec_of(v) for k, v in kwargs.items()}
        variant = recorder.compile(kernel, lambda: specs)
        return made_by(kernel, variant, args, kwargs)

    def made_by(kernel: Any, variant: Any, args: Any, kwargs: Any) -> Any:
        """Fake tensors of the shapes that the call would allocate."""
        signature = kernel.signature
        known = {a.name: a.shape for a in variant.image.arguments} if variant else {}
        given = dict(zip([p.name for p in kernel.parameters], args, strict=False)) | kwargs
        sizes = {}
        for p in kernel.parameters:
            if p.kind == "tensor" and p.shape is not None and p.name in given:
                sizes |= dict(zip(map(str, p.shape), given[p.name].shape, strict=False))
        shapes = {p.name: p.shape for p in signature.parameters if p.shape is not None} | known
        dtypes = {p.name: p.dtype for p in signature.parameters}
        dtypes |= {a.name: a.dtype for a in variant.image.arguments} if variant else {}
        made = []
        for name in signature.returns:
            if name not in shapes:
                raise RuntimeError(f"{kernel.name} was refused, and its {name} has no shape")
            shape = [e if isinstance(e, int) else sizes.get(str(e), 4096) for e in shapes[name]]
            dtype = str(getattr(dtypes[name], "name", dtypes[name]))
            dtype = {"float8_e4m3": "float8_e4m3fn"}.get(dtype, dtype)
            made.append(torch.empty(shape, dtype=getattr(torch, dtype), device="cpu"))
        return made[0] if len(made) == 1 else tuple(made) or None

    def compiled(kernel: Any, *args: Any, target: Any = None, **kwargs: Any) -> Any:
        recorder.compile(kernel, lambda: ([spec_of(a) for a in args], kwargs))
        return types.SimpleNamespace(asm=AnySource(), stages={})

    Kernel._launch, Kernel.compile = launch, compiled
    made = programs.JITKernel.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        self.compile()

    programs.JITKernel.__init__ = init
    profiler.Profiler.do_bench = lambda self, *_, **__: (self.kernel(*self.inputs()), 1.0)[1]
    profiler.Profiler.assert_allclose = lambda self, *_, **__: self.kernel(*self.inputs())
    profiler.do_bench = lambda fn, *_, **__: (fn(), 1.0)[1]
    fake_gpu(torch)


def fake_gpu(torch: Any) -> None:
    """Answers of a Hopper GPU, where torch has none; comparisons of fake numbers succeed."""
    from torch._subclasses.fake_tensor import FakeTensor

    cuda, nothing = torch.cuda, lambda *_, **__: None
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda.get_device_name = lambda *_: "NVIDIA H200"
    cuda.synchronize = cuda.manual_seed = cuda.manual_seed_all = cuda.empty_cache = nothing
    facts = types.SimpleNamespace(multi_processor_count=132, major=9, minor=0, name="NVIDIA H200")
    cuda.get_device_properties = lambda *_: facts
    torch.Tensor.cuda = lambda t, *_, **__: t
    torch.testing.assert_close = nothing
    torch.allclose = torch.equal = lambda *_, **__: True
    FakeTensor.__bool__ = lambda _: True
    FakeTensor.item = lambda t: 1.0 if t.dtype.is_floating_point else 1
    FakeTensor.__float__, FakeTensor.__int__ = lambda _: 1.0, lambda _: 1


class _Compared(types.ModuleType):
    """A package that programs only compare with."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock(name=name)


class _ComparedFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] in COMPARED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Compared(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def on_cpu() -> Any:
    """A mode in which what torch is asked to put on a GPU is put on the CPU: fake tensors of a GPU
    cannot be indexed without one."""
    import torch
    from torch.overrides import TorchFunctionMode

    def moved(value: Any) -> Any:
        device = isinstance(value, str | torch.device) and str(value).startswith("cuda")
        return torch.device("cpu") if device else value

    class OnCpu(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, _: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = {k: moved(v) for k, v in (kwargs or {}).items()}
            if function is torch.Tensor.to:
                args = tuple(map(moved, args))
            return function(*args, **kwargs)

    return OnCpu()


class Failures:
    """A pytest plugin: what stopped each test, in a line."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.said.append(
                crash.message.splitlines()[0] if crash else str(report.longrepr)[-200:]
            )
        elif report.skipped:
            self.said.append(f"skipped: {report.longrepr[2]}")

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            lines = [x for x in str(report.longrepr).splitlines() if x.startswith("E ")]
            self.said.append((lines or ["not collected"])[-1].removeprefix("E").strip())


def run_file(path: Path, out: Path) -> None:
    """Run one file in this process and write what became of its kernels."""
    import pytest
    from torch._subclasses.fake_tensor import FakeTensorMode

    import tilec.tilelang

    recorder, failures = Recorder(), Failures()

    def write() -> None:
        found = [[f, n, said] for (f, n), said in recorder.results.items()]
        out.write_text(json.dumps({"kernels": found, "stopped": failures.said}))

    def late(*_: Any) -> None:
        failures.said.append(f"not done after {SECONDS} s")
        write()
        os._exit(1)

    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    tilec.tilelang.install()
    sys.meta_path.append(_ComparedFinder())  # asked last: where they are installed, they are used
    watch(recorder)
    os.chdir(path.parent)
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path)]
    tests = re.search(r"^def test_|^class Test", path.read_text(), re.MULTILINE)
    with FakeTensorMode(allow_non_fake_inputs=True), on_cpu():
        try:
            if tests:
                options = ["-q", "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull]
                pytest.main([str(path), *options], plugins=[failures])
            else:
                runpy.run_path(str(path), run_name="__main__")
        except BaseException as e:
            failures.said.append(f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]}")
    write()
    os._exit(0)


def one(path: Path, scratch: Path) -> dict[str, Any]:
    """The result of a file, by a forked process that has everything imported already."""
    out = scratch / f"{abs(hash(path))}.json"
    process = multiprocessing.get_context("fork").Process(target=quietly, args=(path, out))
    process.start()
    process.join(SECONDS + 20)
    if process.is_alive():
        process.kill()
    if out.exists():
        return json.loads(out.read_text())
    return {"kernels": [], "stopped": [f"the process ended with {process.exitcode}"]}


def quietly(path: Path, out: Path) -> None:
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        run_file(path, out)


def census(source: Path, files: list[Path], jobs: int, scratch: Path) -> list[dict[str, str]]:
    """One entry for each kernel: path, name, status, and what was said."""
    # torch._dynamo lists torch's functions when it is loaded, which is before they are replaced.
    for module in ("torch._dynamo", "pytest", "tilec.tilelang.testing", "tilec.jit.build"):
        __import__(module)
    listed = {str(f): kernels_of(f) for f in files}
    said: dict[tuple[str, int], list[str]] = collections.defaultdict(list)
    stopped = {}
    with ThreadPoolExecutor(jobs) as pool:
        for file, found in zip(files, pool.map(lambda f: one(f, scratch), files), strict=True):
            stopped[str(file)] = found["stopped"]
            for path, line, messages in found["kernels"]:
                said[str(Path(path).resolve()), line] += messages
    entries = []
    for path, kernels in listed.items():
        lines = Path(path).read_text().splitlines()
        short = str(Path(path).relative_to(source))
        for line, name in kernels:
            messages = said.get((path, line), [])
            wrong = next((m for m in messages if m), "")
            text = "\n".join(lines[line - 1 : line + 80]) if not messages or wrong else ""
            other = elsewhere(short, name, f"{wrong} {text if 'tcgen05' in text else ''}")
            if messages and not wrong:
                status = "compiles"
            elif other:
                status, wrong = "other hardware", other
            elif wrong:
                status = "refused"
            else:
                status, wrong = (
                    "not reached",
                    (stopped[path] or ["nothing of the file asks for it"])[0],
                )
            entries.append({"path": short, "kernel": name, "line": str(line), "status": status})
            entries[-1]["said"] = wrong
    return entries


def compiling(entries: list[dict[str, str]]) -> dict[str, list[str]]:
    """The names of the kernels that compile, by file; a name of several only if all of them do."""
    listed: dict[str, list[str]] = {}
    for path in sorted({e["path"] for e in entries}):
        inside = [e for e in entries if e["path"] == path]
        others = {e["kernel"] for e in inside if e["status"] != "compiles"}
        names = sorted({e["kernel"] for e in inside} - others)
        if names:
            listed[path] = names
    return listed


def feature(said: str) -> str:
    """The group of a message: its names and numbers left out, the language's words kept."""
    word = re.search(r"T\.\w+ is not supported|no attribute '\w+'|has no builtin '\w+'", said)
    if word:
        return word[0]
    said = re.sub(r"'[^']*'|\"[^\"]*\"", "…", said)
    return re.sub(r"\d+", "N", said)[:110]


def table(entries: list[dict[str, str]]) -> str:
    """The page docs/tilelang.md."""
    ours = [e for e in entries if e["status"] != "other hardware"]
    lines = [
        "# TileLang's own programs",
        "",
        "`import tilec.tilelang as tilelang` and `import tilec.tilelang.language as T` are",
        "TileLang's spelling of tilec: `@tilelang.jit`, `tilelang.compile`, `@T.prim_func`,",
        "`@tilelang.autotune` (the first configuration; nothing is measured), profilers, dtypes.",
        "Files run as they are by `python -m tilec.tilelang program.py`, or once",
        "`tilec.tilelang.install()` was called. Spelling is translated, nothing is emulated: the",
        "insides of TileLang's compiler, and TVM, raise where a program uses them.",
        "",
        "## How many compile",
        "",
        "Made by `tests/tilelang/census.py`, which says how it counts. Each kernel of TileLang's",
        f"examples and tests is compiled for `{TARGET}` by way of `tilec.tilelang`; none is run.",
        "",
        "| | kernels | compile | refused | not reached | other hardware |",
        "|---|---|---|---|---|---|",
    ]
    for folder in (*FOLDERS, ""):
        inside = [e for e in entries if e["path"].startswith(folder)]
        n = collections.Counter(e["status"] for e in inside)
        counted = [n[s] for s in ("compiles", "refused", "not reached", "other hardware")]
        cells = (folder or "all", len(inside), *counted)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    for status, title in (
        ("refused", "What is missing"),
        ("not reached", "What stops the programs"),
    ):
        groups = collections.Counter(feature(e["said"]) for e in ours if e["status"] == status)
        lines += ["", f"## {title}", "", "| kernels | first message |", "|---|---|"]
        for said, n in groups.most_common():
            shown = said.replace("|", "\\|").replace("<", "&lt;")
            lines.append(f"| {n} | {shown} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--programs", type=Path, help="where to list the kernels that compile")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp"))
    given = parser.parse_args()
    source = Path(os.environ["TILELANG_SOURCE"]).resolve()
    os.environ["TILEC_TARGET"] = TARGET
    files = [f.resolve() for f in given.files]
    for folder in () if files else FOLDERS:
        found = sorted((source / folder).rglob("*.py"))
        files += [f for f in found if kernels_of(f) or f.name.startswith("test_")]
    given.scratch.mkdir(parents=True, exist_ok=True)
    entries = census(source, files, given.jobs, given.scratch)
    if given.out:
        given.out.write_text(json.dumps(entries, indent=1) + "\n")
    if given.programs:
        given.programs.write_text(json.dumps(compiling(entries), indent=1) + "\n")
    if given.table:
        given.table.write_text(table(entries))
    print(table(entries))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
