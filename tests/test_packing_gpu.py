"""Packed operands on an NVIDIA GPU: values of all kinds of rows, launches in flight at once on
several streams and from several threads, graphs, files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from test_packing import product  # noqa: E402

import tilec  # noqa: E402

pytestmark = pytest.mark.gpu

M, N, K = 1501, 1999, 2051


def operand(rows, columns, gap, first, dtype):
    """A matrix of small integers with `gap` elements between its rows, `first` elements into its
    memory."""
    memory = torch.randint(-3, 4, (first + rows * (columns + gap),), device="cuda").to(dtype)
    return memory.as_strided((rows, columns), (columns + gap, 1), first)


def arguments(kind="NT", dtype=torch.half, scale=1):
    a = operand(*((K, M) if kind[0] == "T" else (M, K)), 0, 3, dtype) * scale
    b = operand(*((N, K) if kind[1] == "T" else (K, N)), 2, 1, dtype)
    return a, b, torch.empty((M, N), device="cuda")


def check(args, kind="NT"):
    """Sums of such integers are exact."""
    a, b, c = args
    a, b = (a.T if kind[0] == "T" else a), (b.T if kind[1] == "T" else b)
    assert torch.equal(c.double(), a.double() @ b.double())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("kind", ["NN", "NT", "TN", "TT"])
def test_values(kind, dtype):
    kernel, args = product(dtype, kind), arguments(kind, getattr(torch, dtype))
    assert kernel.compile(*args).image.packed == ("A", "B")
    args[-1].fill_(float("nan"))
    kernel(*args)
    check(args, kind)


def test_streams_and_threads():
    """Two threads on each stream: no launch reads the copies of another."""
    kernel, calls = product(kind="NT"), [arguments(scale=i + 1) for i in range(6)]
    streams = [torch.cuda.Stream() for _ in range(3)]
    kernel(*calls[0])
    torch.cuda.synchronize()

    def run(i):
        with torch.cuda.stream(streams[i % 3]):
            for _ in range(50):
                kernel(*calls[i])

    for _ in range(3):
        for args in calls:
            args[-1].fill_(float("nan"))
        torch.cuda.synchronize()
        with ThreadPoolExecutor(len(calls)) as pool:
            list(pool.map(run, range(len(calls))))
        torch.cuda.synchronize()
        for args in calls:
            check(args)


def test_a_graph_beside_launches_on_its_stream():
    kernel, calls = product(kind="NT"), [arguments(scale=i + 1) for i in range(3)]
    kernel(*calls[0])
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for args in calls[:2]:
            kernel(*args)
    for _ in range(10):
        for args in calls:
            args[-1].fill_(float("nan"))
        torch.cuda.synchronize()
        graph.replay()
        with torch.cuda.stream(stream):
            kernel(*calls[2])
        torch.cuda.synchronize()
        for args in calls:
            check(args)


def test_a_file(tmp_path):
    args = arguments()
    product(kind="NT").compile(*args).save(tmp_path / "k.tilec")
    tilec.load(tmp_path / "k.tilec")(*args)
    check(args)


def test_many_addresses():
    kernel = product(kind="NT")
    for i in range(40):
        args = arguments(scale=i % 3 + 1)
        kernel(*args)
        check(args)
