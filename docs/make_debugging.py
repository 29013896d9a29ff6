"""Writes docs/debugging.md: five faults, each found by the simulator.

    python docs/make_debugging.py

A test runs this and compares, so the page cannot go stale.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np

import tilec
import tilec.language as T
from tilec.__main__ import main
from tilec.ir.core import Func
from tilec.ir.ops import CpAsyncWait, MbarrierArrive
from tilec.jit.simulate import simulate_changed
from tilec.sim.report import Report

PAGE = Path(__file__).with_name("debugging.md")

M, N, K = T.dynamic("M, N, K")


# --- kernels with a fault ---


@tilec.kernel
def last_of_each_bin(
    X: T.Tensor((128,), "float32"),
    bins: T.Tensor((128,), "int32"),
    Y: T.Tensor((64,), "float32"),
):
    with T.Kernel(1, threads=128) as _:
        s = T.alloc_shared((64,), "float32")
        T.clear(s)
        for i in T.Parallel(128):
            s[bins[i]] = X[i]
        T.copy(s, Y)


@tilec.kernel
def look_up(
    table: T.Tensor((64,), "float32"),
    index: T.Tensor((N,), "int32"),
    Y: T.Tensor((N,), "float32"),
):
    with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
        s = T.alloc_shared((64,), "float32")
        T.copy(table, s)
        for i in T.Parallel(128):
            Y[bx * 128 + i] = s[index[bx * 128 + i]]


@tilec.kernel
def carried(A: T.Tensor((M, K), "float16"), B: T.Tensor((64, 64), "float16"),
            C: T.Tensor((M, 64), "float32")):  # fmt: skip
    with T.Kernel(T.ceildiv(M, 64), threads=128) as by:
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        T.copy(B, b)
        for k in T.serial(T.ceildiv(K, 64)):
            T.gemm(a, b, acc)
            T.copy(A[by * 64, k * 64], a)
        T.copy(acc, C[by * 64, 0])


@tilec.kernel
def fed(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float32")):  # fmt: skip
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.annotate_schedule(specialise=True, split=1, stages=2)
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32)):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * 64, bx * 64])


@tilec.kernel
def matmul(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"),
           C: T.Tensor((M, N), "float32")):  # fmt: skip
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * 64, bx * 64])


@tilec.kernel
def running_sum(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M,), "float32")):
    with T.Kernel(M, threads=32) as row:
        total = T.alloc_shared((4,), "float32")
        T.clear(total)
        for n in T.serial(N // 4):
            for i in T.Parallel(4):
                total[i] = total[i] + X[row, n * 4 + i]
        for _ in T.Parallel(1):
            Y[row] = total[0] + total[1] + total[2] + total[3]
            T.print(total[0], msg="first column")


# --- faults of a compiler: what it has placed is taken away again ---


def without_release(func: Func) -> Func:
    """Who has used a tile never says so."""
    return func.rewrite(MbarrierArrive, lambda o: [])


def waits_for_less(func: Func) -> Func:
    """Each wait for cp.async leaves one group more unfinished."""
    return func.rewrite(CpAsyncWait, lambda o: replace(o, pending=o.pending + 1))


# --- the page ---


def random(*shape: int, dtype: str = "float16") -> np.ndarray:
    return np.random.default_rng(0).integers(-3, 4, shape).astype(dtype)


def race() -> Report:
    bins = np.repeat(np.arange(64), 2).astype(np.int32)
    values = np.arange(128, dtype=np.float32)
    return tilec.simulate(last_of_each_bin, values, bins, np.zeros(64, np.float32))


def outside() -> Report:
    index = np.arange(200, dtype=np.int32) % 64
    index[137] = 64
    table = np.arange(64, dtype=np.float32)
    return tilec.simulate(look_up, table, index, np.zeros(200, np.float32))


def unwritten() -> Report:
    A, B, C = random(64, 128), random(64, 64), np.zeros((64, 64), np.float32)
    return tilec.simulate(carried, A, B, C)


def deadlock() -> Report:
    A, B, C = random(64, 256), random(256, 64), np.zeros((64, 64), np.float32)
    return simulate_changed(without_release, fed, A, B, C)


def early() -> Report:
    A, B, C = random(64, 256), random(256, 64), np.zeros((64, 64), np.float32)
    report = simulate_changed(waits_for_less, matmul, A, B, C, target="cuda:sm_80")
    assert np.array_equal(C, A.astype(np.float32) @ B.astype(np.float32))
    return report


def traced() -> Report:
    X, Y = random(2, 12, dtype="float32"), np.zeros(2, np.float32)
    return tilec.simulate(running_sum, X, Y, blocks=[1], trace=["total[:]", "Y[1]"])


INTRODUCTION = """# Finding faults without a GPU

`tilec.simulate` runs a kernel on the CPU, thread by thread: not a model of it, but the code that
LLVM is given for the GPU. It needs no GPU. The arrays are filled as a launch would fill them, and
the report says what is wrong, at your own lines, even where this run happened to go well: it
follows which access is ordered behind which, so that a missing barrier, wait or fence is found
whether or not it has bitten. Where a pipeline keeps several copies of a buffer, the first index is
the copy's number.

    report = tilec.simulate(kernel, A, B, C, target="cuda:sm_90a")
    print(report)
    assert report.ok

| argument | what it does |
|---|---|
| `target` | any but `"cpu"`; `"cuda:sm_90a"` if left out |
| `grid` | as in `kernel[grid](…)` |
| `blocks` | run some blocks only: the first `n`, or a list of numbers or coordinates |
| `checks=False` | numbers only, in less time |
| `schedules=n` | run `n` times, with warps and blocks in another order each time (`seed` chooses) |
| `trace="acc[0, :4]"` | follow elements of a buffer through time (also a list) |
| `on_change=f` | call `f(trace, change)` after each line that has written them |
| `check_outputs=True` | report elements of outputs that no block has written |
| `optimised=True` | run what LLVM's optimiser makes of the code: see below |
| `steps=n` | how many steps a block may take before it counts as running for ever |

A `Report` has `findings` (each with `kind`, `message`, `locations`, `buffer`, `indices`, `threads`,
`warps`, `roles`, `block`), `counts` (bank conflicts, sectors, bytes and operations of each line),
`trace`, `printed`, `outputs`, `blocks`, `seconds` and `complete` (False after Ctrl-C, which gives
the report of what has been run). `report.save("x.json")` keeps it, and `Report.load` of
`tilec.sim.report` prints it again, without the sources.

What is run is what LLVM is given. LLVM leaves some operations undefined (a division by 0, a shift
by too many bits, an overflow where `nsw` promises that there is none) and draws conclusions: it may
delete the test of a bound because a division behind it would be by 0. The simulator reports such an
operation as "undefined behaviour". With `optimised=True` it runs what LLVM's optimiser has left, as
well checked, so that what follows from such a conclusion is seen where it happens; buffers in
registers are gone then, and `trace` cannot follow them.

Five faults follow, and what the simulator says of each. This page is written by
`docs/make_debugging.py`; a test keeps it true.
"""

COMMAND = ("simulate", "docs/make_debugging.py:look_up", "--dim", "N=200", "--arg", "index=::0..64")

COMMAND_LINE = """
## From the command line

`python -m tilec simulate FILE.py:kernel` makes the arguments and prints the report. The file is
imported, so what stands behind `if __name__ == "__main__"` does not run; `:kernel` may be left out
where there is one, and `'FILE.py:matmul("float16")'` calls a function that makes a kernel.

| option | what it does |
|---|---|
| `--dim M=256` | a size that the annotations name; those of given arrays are known |
| `--arg A=256x64:float16:zeros` | an array: its shape, dtype and content |
| `--arg A=a.npy`, `--arg A=all.npz:key` | an array from a file |
| `--arg all.npz` | all arrays of the file that have the names of parameters |
| `--set BM=64` | a number, a constant, or `threads` |
| `--grid 4,2` | as in `kernel[grid](…)` |
| `--target hip:gfx942` | may be repeated |
| `--blocks 4`, `--blocks '[(0, 1)]'` | as `blocks` above |
| `--trace 'acc[0, :4]'` | may be repeated |
| `--no-checks`, `--check-outputs`, `--optimised`, `--schedules`, `--seed`, `--steps` | as above |
| `--save r.json`, `--show r.json` | keep the report; print one that was kept |

What `--arg` leaves out comes from the annotation (`A=::zeros`, `A=256x64`), and the content is
random then. Contents are `random`, `zeros`, `ones`, `arange`, or numbers between two, as `0..63`.
The exit status is 0 if nothing was found, 1 if something was, 2 if the kernel could not be run, and
130 after Ctrl-C.

"""

SECTIONS = (
    (
        "A race",
        "Two iterations of a parallel loop write different values to the same element. Which of "
        "them stays is chance.",
        last_of_each_bin,
        None,
        race,
    ),
    (
        "An index out of bounds",
        "`index` holds a 64, and the table has 64 entries. On a GPU this reads whatever comes "
        "next in shared memory.",
        look_up,
        None,
        outside,
    ),
    (
        "A tile that nobody has written",
        "The product of the first iteration uses `a` before the first copy into it.",
        carried,
        None,
        unwritten,
    ),
    (
        "A deadlock",
        "tilec places the barriers of a pipeline itself, so this fault has to be made: each op by "
        "which consumers say that they are done with a tile is taken out of the compiled program. "
        "The loaders then wait for ever for a free slot. (`simulate_changed` of "
        "`tilec.jit.simulate` runs a program that has been changed; tilec's own tests use it to "
        "see that no change of this kind goes unnoticed.)",
        fed,
        without_release,
        deadlock,
    ),
    (
        "A wait that is too short",
        "A product for `cuda:sm_80`, where tiles come by `cp.async`. Each wait is made to leave "
        "one group more in flight than it may. The numbers of this run are right, as they are on "
        "a GPU when memory happens to be fast.",
        matmul,
        waits_for_less,
        early,
    ),
    (
        "Following values",
        "No fault here: `trace` shows what the elements of a buffer hold after each line that "
        "writes them. `on_change` is told of each such row as it comes about, with "
        "`change.values`, `.loc`, `.block` and `.step`: with "
        "`def f(trace, change): if change.values[0] > 100: breakpoint()` the run stops in `pdb` at "
        "the first value that is too large. `T.print` "
        "prints what it prints on the cpu and cuda targets: what all "
        "threads of a block would print is printed once, in a parallel loop each iteration prints, "
        "in thread-level code each thread that comes to it, and a whole buffer an element a line. "
        "For hip targets the simulator prints too; machine code for them with a `T.print` in it is "
        'refused, because printing takes a library there. `T.device_assert(x < 100, "big")` is '
        'a finding, "assertion failed", where it does not hold, and the run goes on; what is '
        "launched checks it under `TILEC_DEBUG=1`: a GPU's thread prints the line, its block and "
        "its number and traps, and the CPU's launch raises DriverError.",
        running_sum,
        None,
        traced,
    ),
)


def page() -> str:
    parts = [INTRODUCTION, COMMAND_LINE, _command()]
    shown = set()
    for title, words, kernel, change, run in SECTIONS:
        parts.append(f"\n## {title}\n\n{_filled(words)}\n")
        for source in (kernel.function, change, run):
            if source is not None and source not in shown:
                parts.append(f"\n```python\n{inspect.getsource(source)}```\n")
                shown.add(source)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            report = run()
        report.notes = ()  # they tell of the machine
        parts.append(f"\n```text\n{printed.getvalue()}{_steady(str(report))}\n```\n")
    return "".join(parts)


def _command() -> str:
    """A call of the command, and the findings that it prints."""
    words = [COMMAND[0], str(PAGE.parent.parent / COMMAND[1]), *COMMAND[2:]]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = main(words)
    assert status == 1
    found = printed.getvalue().rpartition("\n\n")[0]  # the counts stand below in other sections
    return f"```text\n$ python -m tilec {' '.join(COMMAND)}\n{_steady(found)}\n```\n"


def _filled(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _steady(text: str) -> str:
    """The report without what differs from run to run: times, and where this file is."""
    text = text.replace(str(Path(__file__).parent.parent) + "/", "")
    return re.sub(r"in \d+\.\d s:", "in 0.1 s:", text)


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"wrote {PAGE.name}\n")
