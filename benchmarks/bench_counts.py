"""What the simulator counts, beside what Nsight Compute counts on a GPU: sectors of global memory
and wavefronts of shared memory (which bank conflicts multiply), of loads and stores by threads.
Through shared memory's pipe go others too: `ncu` counts a wavefront for each shuffle, each barrier
of a block and each warp that starts, so they are added here.

    python -m benchmarks.bench_counts [--json results/counts.json]

Every kernel runs once under `ncu` in a process of its own and once in the simulator, on the same
arrays. Without `ncu` or a GPU only the simulator's counts are printed.
"""

# mypy: disable-error-code="valid-type,assignment,no-untyped-def,no-untyped-call,untyped-decorator"
# (the annotations of a kernel are its own)
from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import tilec
import tilec.language as T
from benchmarks.harness import save

M, N, K = T.dynamic("M, N, K")
METRICS = {  # a count is the sum of its metrics
    "shared wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",),
    "global sectors": (
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
        "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    ),
}
# Barriers that a block comes to.
BARRIERS = {"transpose": 1, "transpose_padded": 1, "transpose_half": 1, "stencil": 1, "product": 6}
Arrays = list[np.ndarray]


@tilec.kernel
def add(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 1024), threads=128) as b:
        for i in T.Parallel(1024):
            C[b * 1024 + i] = A[b * 1024 + i] + B[b * 1024 + i]


@tilec.kernel
def column(A: T.Tensor((M, N), "float32"), C: T.Tensor((M,), "float32")):
    with T.Kernel(T.ceildiv(M, 256), threads=128) as b:
        for i in T.Parallel(256):
            C[b * 256 + i] = A[b * 256 + i, 3]


@tilec.kernel
def gather(
    A: T.Tensor((M, N), "float32"), index: T.Tensor((K,), "int32"), C: T.Tensor((K, N), "float32")
):
    with T.Kernel(T.ceildiv(K, 16), threads=128) as b:
        for i, j in T.Parallel(16, 64):
            C[b * 16 + i, j] = A[index[b * 16 + i], j]


@tilec.kernel
def transpose(A: T.Tensor((M, N), "float32"), C: T.Tensor((N, M), "float32")):
    """Through a tile whose columns are in one bank."""
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (x, y):
        tile = T.alloc_shared((32, 32), "float32")
        for i, j in T.Parallel(32, 32):
            tile[i, j] = A[y * 32 + i, x * 32 + j]
        for i, j in T.Parallel(32, 32):
            C[x * 32 + i, y * 32 + j] = tile[j, i]


@tilec.kernel
def transpose_padded(A: T.Tensor((M, N), "float32"), C: T.Tensor((N, M), "float32")):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (x, y):
        tile = T.alloc_shared((32, 33), "float32")
        for i, j in T.Parallel(32, 32):
            tile[i, j] = A[y * 32 + i, x * 32 + j]
        for i, j in T.Parallel(32, 32):
            C[x * 32 + i, y * 32 + j] = tile[j, i]


@tilec.kernel
def transpose_half(A: T.Tensor((M, N), "float16"), C: T.Tensor((N, M), "float16")):
    """Elements of half a bank."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (x, y):
        tile = T.alloc_shared((64, 64), "float16")
        for i, j in T.Parallel(64, 64):
            tile[i, j] = A[y * 64 + i, x * 64 + j]
        for i, j in T.Parallel(64, 64):
            C[x * 64 + i, y * 64 + j] = tile[j, i]


@tilec.kernel
def stencil(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 16), threads=128) as (x, y):
        tile = T.alloc_shared((18, 66), "float32")
        for i, j in T.Parallel(18, 66):
            tile[i, j] = A[y * 16 + i - 1, x * 64 + j - 1]
        for i, j in T.Parallel(16, 64):
            C[y * 16 + i, x * 64 + j] = (
                tile[i, j + 1] + tile[i + 2, j + 1] + tile[i + 1, j] + tile[i + 1, j + 2]
            )


@tilec.kernel
def product(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    """Operands that threads bring to shared memory, ldmatrix, mma; results from registers."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=64) as (bx, by):
        T.annotate_schedule(store="direct")
        A_s = T.alloc_shared((64, 32), "float16")
        B_s = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.serial(T.ceildiv(K, 32)):
            T.copy(A[by * 64, k * 32], A_s)
            T.copy(B[k * 32, bx * 64], B_s)
            T.gemm(A_s, B_s, acc)
        T.copy(acc, C[by * 64, bx * 64])


def _floats(*shapes: tuple[int, ...], dtype: Any = np.float32) -> Callable[[], Arrays]:
    def make() -> Arrays:
        rng = np.random.default_rng(0)
        return [rng.standard_normal(s).astype(dtype) for s in shapes]

    return make


def _gathered() -> Arrays:
    rng = np.random.default_rng(0)
    index = rng.integers(0, 512, 256).astype(np.int32)
    return [rng.standard_normal((512, 64)).astype(np.float32), index, np.zeros((256, 64), "f4")]


def _operands() -> Arrays:
    a, b = _floats((128, 96), (96, 192), dtype=np.float16)()
    return [a, b, np.zeros((128, 192), np.float32)]


CASES: dict[str, tuple[Any, Callable[[], Arrays]]] = {
    "add": (add, _floats((8192,), (8192,), (8192,))),
    "column": (column, _floats((1024, 96), (1024,))),
    "gather": (gather, _gathered),
    "transpose": (transpose, _floats((128, 96), (96, 128))),
    "transpose_padded": (transpose_padded, _floats((128, 96), (96, 128))),
    "transpose_half": (transpose_half, _floats((128, 192), (192, 128), dtype=np.float16)),
    "stencil": (stencil, _floats((64, 192), (64, 192))),
    "product": (product, _operands),
}

WARPS = {name: 2 if name == "product" else 4 for name in CASES}


def simulated(name: str, target: str) -> dict[str, int]:
    kernel, make = CASES[name]
    report = tilec.simulate(kernel, *make(), target=target)
    assert not list(report.findings), str(report)
    lines = report.counts.lines
    others = sum(c.shuffles for c in lines) + report.blocks * (WARPS[name] + BARRIERS.get(name, 0))
    return {
        "shared wavefronts": sum(c.wavefronts for c in lines) + others,
        "global sectors": sum(c.sectors for c in lines),
    }


def launched(name: str) -> None:
    """Run one kernel on the GPU: what `ncu` looks at."""
    import torch

    kernel, make = CASES[name]
    kernel(*(torch.from_numpy(a).cuda() for a in make()))
    torch.cuda.synchronize()


def profiled(name: str) -> dict[str, int]:
    """The metrics of one kernel under `ncu`. Raises CalledProcessError where it is refused."""
    metrics = ",".join(m for several in METRICS.values() for m in several)
    kernel = CASES[name][0].name
    command = ["ncu", "--csv", "--metrics", metrics, "-k", f"regex:^{kernel}$", "--cache-control"]
    command += ["none", sys.executable, "-m", "benchmarks.bench_counts", "--one", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    text = done.stdout[done.stdout.index('"ID"') :]
    rows = {
        r["Metric Name"]: int(float(r["Metric Value"].replace(",", "")))
        for r in csv.DictReader(text.splitlines())
    }
    return {what: sum(rows[m] for m in several) for what, several in METRICS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", default="", help="write the figures here")
    parser.add_argument("--one", default="", help="only launch this kernel")
    parser.add_argument("--target", default="cuda:sm_90a")
    options = parser.parse_args()
    if options.one:
        launched(options.one)
        return
    rows = []
    for name in CASES:
        mine = simulated(name, options.target)
        real = profiled(name) if shutil.which("ncu") else {}
        for what, count in mine.items():
            row = {"what": f"{name}: {what}", "unit": "count", "simulated": count}
            known = {"ncu": real[what], "ratio": count / max(real[what], 1)} if real else {}
            rows.append({**row, **known})
            shown = f"{real[what]:10,d} ncu" if real else ""
            same = "" if not real or real[what] == count else "  differs"
            print(f"{name:18s} {what:22s} {count:10,d} simulated {shown}{same}", flush=True)
    if options.json and shutil.which("ncu"):
        save(options.json, "counts", rows)


if __name__ == "__main__":
    main()
