"""Sums through global memory on an NVIDIA GPU: against float64 with poisoned outputs, repeated bit
for bit, on several streams, in threads and in graphs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from test_clusters_gpu import SHAPES, check, plan  # noqa: E402
from test_gpu import build_matmul, operands  # noqa: E402

import tilec.language as T  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("shape", [*SHAPES, (16, 512, 14336), (64, 64, 0)], ids=str)
@pytest.mark.parametrize("specialise", [True, False])
@pytest.mark.parametrize(("split", "parts"), [(1, 2), (1, 3), (1, 8), (1, 40), (2, 3), (8, 2)])
def test_shared_sums(split, parts, specialise, shape):
    kernel = build_matmul("float16", False, True, 64, 128, 64, 4, 128, T.GemmWarpPolicy.Square)
    chosen = plan(split=split, parts=parts, specialise=specialise, persistent=False,
                  staged_store=specialise)  # fmt: skip
    check(kernel, chosen, *shape, True)


def several(count):
    """A kernel that shares its sums, and calls of it: arguments, and what they give."""
    kernel = build_matmul("float16", False, True, 64, 64, 64, 4, 128, T.GemmWarpPolicy.Square)
    made = None
    calls = []
    for i in range(count):
        a, b = operands(256, 192, 8192, False, True, torch.half)
        a *= i + 1
        c = torch.empty((256, 192), device="cuda", dtype=torch.half)
        if made is None:
            made = kernel.compile_with_plan(plan(parts=8, persistent=False), a, b, c)
        made(a, b, c)
        calls.append(((a, b, c), c.clone()))
    torch.cuda.synchronize()
    return made, calls


def test_streams_and_threads():
    """Launches in flight at once do not share their parts."""
    made, calls = several(4)
    streams = [torch.cuda.Stream() for _ in calls]

    def run(i, count):
        with torch.cuda.stream(streams[i]):
            for _ in range(count):
                made(*calls[i][0])

    for _ in range(20):
        for args, _ in calls:
            args[-1].fill_(float("nan"))
        torch.cuda.synchronize()
        for _ in range(5):
            for i in range(len(calls)):
                run(i, 2)
        torch.cuda.synchronize()
        assert all(torch.equal(args[-1], want) for args, want in calls)
    for args, _ in calls:
        args[-1].fill_(float("nan"))
    torch.cuda.synchronize()
    with ThreadPoolExecutor(len(calls)) as pool:  # of threads that have no context yet
        list(pool.map(run, range(len(calls)), [100] * len(calls)))
    torch.cuda.synchronize()
    assert all(torch.equal(args[-1], want) for args, want in calls)


def test_a_graph_beside_launches_on_its_stream():
    made, calls = several(3)
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=first):
        made(*calls[0][0])
        second.wait_stream(first)
        with torch.cuda.stream(second):
            made(*calls[1][0])
        made(*calls[0][0])
        first.wait_stream(second)
    for _ in range(50):
        for args, _ in calls:
            args[-1].fill_(float("nan"))
        torch.cuda.synchronize()
        with torch.cuda.stream(second):
            graph.replay()
        with torch.cuda.stream(first):
            made(*calls[2][0])
        torch.cuda.synchronize()
        assert all(torch.equal(args[-1], want) for args, want in calls)
