"""Where the time of a compile goes: seconds by part, for programs of growing length, for matrix
products with strides that are a multiple of 16 bytes and that are not, and for attention.

    python -m benchmarks.compile_parts [--target cuda:sm_90a] [--only statements] [--json FILE]

Everything is compiled in one process, after a small kernel that loads what is loaded once; the disk
cache is off, and each program is new. A part's time is its own, without that of the parts it calls:

    read      Python source to TILE
    choose    tiles and plans predicted and ranked (what it traces is under "read")
    passes    all passes of all plans that were tried
    verify    the IR checked between passes
    print     LOWERED to LLVM text
    llvm      parse, verify, optimise, emit
    ptxas     the assembler's process, or the wait for one that runs beside
    rest      what is left of the whole call of `compile`

"codes" counts how many times a kernel was taken to machine code: one for each plan tried.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tilec
from benchmarks import attention_kernels, kernels
from benchmarks.harness import save

# Part -> the functions whose time it is, as (module, attribute): where their callers look them up.
PARTS = {
    "read": [("tilec.jit.build", "trace")],
    "choose": [("tilec.tune", "Chooser.choose")],
    "passes": [("tilec.passes", "apply")],
    "verify": [("tilec.passes", "verify")],
    "print": [("tilec.codegen", "emit"), ("tilec.codegen", "emit_records")],
    "llvm": [("tilec.jit.attempts", "assemble")],
    "ptxas": [("tilec.codegen.assemble", "run_ptxas"), ("tilec.support.ahead", "wait")],
}
STEPS = (10, 100, 300, 1000)
HEADER = """
import tilec
import tilec.language as T

N = T.dynamic("N")


@tilec.kernel
def chain(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 128), threads=128) as b:
"""


def statements(n: int) -> str:
    """One statement in a line, all with one name."""
    return _elements(["x = A[b * 128 + i]", *["x = x * 0.5 + 1.0"] * n, "B[b * 128 + i] = x"])


def expression(n: int) -> str:
    """One expression."""
    return _elements(["B[b * 128 + i] = A[b * 128 + i]" + " + 1.5" * n])


def indices(n: int) -> str:
    """Steps of an index."""
    return _elements(["j = i", *["j = (j + j - i) % 128"] * n, "B[b * 128 + i] = A[b * 128 + j]"])


def fragments(n: int) -> str:
    """A fragment that is changed in place."""
    body = ['f = T.alloc_fragment((128,), "float32")', "T.copy(A[b * 128], f)"]
    loop = ["for i in T.Parallel(128):", *["    f[i] = f[i] * 0.5 + 1.0"] * n]
    return _source([*body, *loop, "T.copy(f, B[b * 128])"])


def _elements(lines: list[str]) -> str:
    return _source(["for i in T.Parallel(128):", *(f"    {line}" for line in lines)])


def _source(lines: list[str]) -> str:
    return HEADER + "".join(f"        {line}\n" for line in lines)


def chain(source: str) -> Callable[[str], Any]:
    """A function that compiles the kernel of `source` for a target."""

    def compile_for(target: str) -> Any:
        with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
            file.write(source)
        path = Path(file.name)
        try:
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module.chain.compile(*[tilec.spec((4096,), "float32")] * 2, target=target)
        finally:
            path.unlink()

    return compile_for


def product(m: int, n: int, k: int, **constants: int) -> Callable[[str], Any]:
    """A function that compiles C = A B in float16 for these sizes; what `constants` do not say is
    left to tilec."""

    def compile_for(target: str) -> Any:
        kernel = kernels.product.__wrapped__("float16")
        specs = [tilec.spec(shape, "float16") for shape in ((m, k), (k, n), (m, n))]
        return kernel.compile(*specs, target=target, **constants)

    return compile_for


def attention(causal: bool) -> Callable[[str], Any]:
    """A function that compiles attention over 4096 keys in tiles of 128x128: two products and what
    threads do between them."""

    def compile_for(target: str) -> Any:
        kernel = attention_kernels.forward.__wrapped__(128, causal)
        return kernel.compile(*[tilec.spec((8, 4096, 32, 128), "float16")] * 4, target=target)

    return compile_for


def programs() -> dict[str, Callable[[str], Any]]:
    """What is compiled, by its name."""
    found = {
        f"{form.__name__} {n}": chain(form(n))
        for form in (statements, expression, indices, fragments)
        for n in STEPS
    }
    found["product 4096^3, 128x128x64"] = product(4096, 4096, 4096, BM=128, BN=128, BK=64)
    for m, n, k in ((4096, 4096, 4096), (1000, 1001, 1000), (7777, 1234, 2346), (4095, 4095, 4095)):
        found[f"product {m}x{n}x{k}"] = product(m, n, k)
    return found | {"attention": attention(False), "attention, causal": attention(True)}


class Clock:
    """Seconds by part; what a part calls of another part counts for that one alone."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys((*PARTS, "rest"), 0.0)
        self.calls = dict.fromkeys(PARTS, 0)
        self._running = ["rest"]
        self._since = time.perf_counter()

    def _switch(self) -> None:
        now = time.perf_counter()
        self.seconds[self._running[-1]] += now - self._since
        self._since = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._switch()
        self._running.append(name)
        self.calls[name] += 1
        try:
            yield
        finally:
            self._switch()
            self._running.pop()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return function(*args, **kwargs)
            with self.part(name):
                return function(*args, **kwargs)

        return call

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Time the functions of PARTS for as long as this lasts."""
        kept = []
        for name, places in PARTS.items():
            for module, path in places:
                *outer, attribute = path.split(".")
                owner = functools.reduce(getattr, outer, importlib.import_module(module))
                kept.append((owner, attribute, getattr(owner, attribute)))
                setattr(owner, attribute, self.timed(name, getattr(owner, attribute)))
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self._switch()
            for owner, attribute, function in kept:
                setattr(owner, attribute, function)


def measure(compile_for: Callable[[str], Any], target: str) -> dict[str, Any]:
    """One row: seconds of the whole, by part, and how many codes were made."""
    clock = Clock()
    with clock.watching():
        compile_for(target)
    return {
        "seconds": sum(clock.seconds.values()),
        **{f"{name}_s": seconds for name, seconds in clock.seconds.items()},
        "codes": clock.calls["llvm"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="programs with this name")
    parser.add_argument("--json", default="", help="write the figures here")
    options = parser.parse_args()
    os.environ["TILEC_DISABLE_CACHE"] = "1"
    chain(statements(1))(options.target)
    rows = []
    print(f"{'seconds':28}{'whole':>8}" + "".join(f"{p:>8}" for p in (*PARTS, "rest")) + "  codes")
    for name, compile_for in programs().items():
        if options.only not in name:
            continue
        row = measure(compile_for, options.target)
        rows.append({"what": name, "target": options.target, **row})
        parts = "".join(f"{row[f'{p}_s']:8.3f}" for p in (*PARTS, "rest"))
        print(f"{name:28}{row['seconds']:8.3f}{parts}{row['codes']:7}", flush=True)
    if options.json:
        save(options.json, "compile_parts", rows)


if __name__ == "__main__":
    main()
