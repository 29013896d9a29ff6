"""CPU time of a launch: what a call of a compiled kernel costs before the GPU does anything.

    python -m benchmarks.bench_launch [--json results/launch.json]

On an NVIDIA GPU: an empty kernel with one tensor, a sum with three, and a small matrix product
with three (on sm_90a: three tensor maps), each with the same tensors in every call, and the latter
two with tensors that no call had before; a kernel that is two launches. Beside them the driver's
own call with the same prepared arguments, and torch's and Triton's sums and products. Microseconds
per call, median of shuffled rounds; a round is short enough that the driver's queue never fills.
Without a GPU the same launch path is timed with a driver's entry that returns at once.
"""

# mypy: disable-error-code="valid-type,assignment,no-untyped-def,no-untyped-call,untyped-decorator"
# (the annotations of a kernel are its own)
from __future__ import annotations

import argparse
import ctypes
import functools
import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import tilec
import tilec.language as T
from benchmarks.harness import save
from benchmarks.kernels import product
from benchmarks.timing import spread

N = T.dynamic("N")
CALLS = 200  # per round; the driver queues about a thousand launches
ROUNDS = 60
EXTENT = 128  # of the matrices
NEW = ", tensors never seen before"

Arrays = tuple[torch.Tensor, ...]
# What is called, and the arrays of each call.
Candidates = dict[str, tuple[Callable[..., Any], Iterator[Arrays]]]


@tilec.kernel
def empty_kernel(A: T.Tensor((N,), "float16")):
    with T.Kernel(1, threads=128):
        pass


@tilec.kernel
def add(A: T.Tensor((N,), "float16"), B: T.Tensor((N,), "float16"), C: T.Tensor((N,), "float16")):
    with T.Kernel(T.ceildiv(N, 256), threads=256) as bx:
        for i in T.Parallel(256):
            C[bx * 256 + i] = A[bx * 256 + i] + B[bx * 256 + i]


@tilec.kernel
def add_twice(
    A: T.Tensor((N,), "float16"), B: T.Tensor((N,), "float16"), C: T.Tensor((N,), "float16")
):
    """Two launches, the second of what the first has left in memory of the call."""
    W = T.empty((N,), "float16")
    with T.Kernel(T.ceildiv(N, 256), threads=256) as bx:
        for i in T.Parallel(256):
            W[bx * 256 + i] = A[bx * 256 + i] + B[bx * 256 + i]
    with T.Kernel(T.ceildiv(N, 256), threads=256) as bx:
        for i in T.Parallel(256):
            C[bx * 256 + i] = W[bx * 256 + i] + B[bx * 256 + i]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", default="", help="write the figures here")
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    rows = []
    for name, samples in timed(candidates("cuda" if on_gpu else "cpu"), on_gpu).items():
        figure = spread(samples)
        rows.append({"what": name, "unit": "us per call", **figure})
        print(f"{figure['median']:7.2f} us  {name}")
    if options.json:
        save(options.json, "launch" if on_gpu else "launch (no driver)", rows)


def candidates(device: str) -> Candidates:
    """What is timed on `device`, each called a few times so that everything it needs is made."""

    def arrays(*shape: int, count: int = 3) -> Arrays:
        return tuple(torch.ones(shape, device=device, dtype=torch.float16) for _ in range(count))

    flat, square = (EXTENT * EXTENT,), (EXTENT, EXTENT)
    matmul = product("float16")
    multiply = functools.partial(matmul, BM=128, BN=128, BK=64)
    found: Candidates = {}
    for name, kernel, call, used, more in (
        ("empty kernel, 1 tensor", empty_kernel, empty_kernel, arrays(*flat, count=1), ()),
        ("sum, 3 tensors", add, add, arrays(*flat), pool(arrays, flat)),
        ("matmul, 3 tensors", matmul, multiply, arrays(*square), pool(arrays, square)),
    ):
        for _ in range(3):
            call(*used)
            if device == "cpu":
                (variant,) = kernel._variants.values()
                variant.loaded(0).ready = lambda *launch: no_driver()
        name += ", without a driver" if device == "cpu" else ""
        found[name] = call, itertools.repeat(used)
        found[f"{name}: the call of the driver alone"] = ready_of(kernel), itertools.repeat(())
        if more:
            found[name + NEW] = call, iter(more)
    used, name = arrays(*flat), "two sums in one call, 3 tensors and 1 of its own"
    for _ in range(4):
        add_twice(*used)
        if device == "cpu":
            for part in add_twice.parts.kernels:
                for variant in part._variants.values():
                    variant.loaded(0).ready = lambda *launch: no_driver()
    found[name + (", without a driver" if device == "cpu" else "")] = (
        add_twice,
        itertools.repeat(used),
    )
    if device != "cpu":
        from benchmarks.peers import triton_add, triton_gemm

        config = triton_gemm.CONFIGS[3]
        for name, call, shape in (
            ("torch add(out=)", lambda a, b, c: torch.add(a, b, out=c), flat),
            ("torch matmul(out=)", lambda a, b, c: torch.matmul(a, b, out=c), square),
            ("Triton sum", triton_add.add, flat),
            ("Triton matmul", lambda a, b, c: triton_gemm.bind(a, b, c, config)(), square),
        ):
            used = arrays(*shape)
            for _ in range(3):
                call(*used)
            found[name] = call, itertools.repeat(used)
            found[name + NEW] = call, iter(pool(arrays, shape))
    return found


def pool(arrays: Callable[..., Arrays], shape: tuple[int, ...]) -> list[Arrays]:
    """Arrays for all calls of a candidate."""
    return [arrays(*shape) for _ in range(CALLS * ROUNDS)]


def ready_of(kernel: Any) -> Callable[[], int]:
    """The launch of the one call that the kernel has seen so far."""
    ((ready,),) = (launches.values() for launches in kernel.prepared.values())
    return ready


def no_driver() -> Callable[[], int]:
    """A C function of four pointers that returns 0 at once, called as the driver is called."""
    entry = ctypes.CDLL(None).labs
    entry.restype, entry.argtypes = ctypes.c_int, [ctypes.c_void_p] * 4
    return functools.partial(entry, None, 1 << 40, 1 << 40, None)


def timed(functions: Candidates, on_gpu: bool) -> dict[str, list[float]]:
    """Microseconds per call, one sample per round, the candidates in a new order in each."""
    names = list(functions)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(ROUNDS):
        random.shuffle(names)
        for name in names:
            fn, arrays = functions[name]
            calls = list(itertools.islice(arrays, CALLS))
            if on_gpu:
                torch.cuda.synchronize()
            start = time.perf_counter()
            for one in calls:
                fn(*one)
            samples[name].append((time.perf_counter() - start) / CALLS * 1e6)
    return samples


if __name__ == "__main__":
    main()
