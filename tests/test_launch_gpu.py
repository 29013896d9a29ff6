"""Launches on an NVIDIA GPU: streams, graphs, threads, other libraries' arrays."""

import threading
from typing import Any

import pytest

import tilec
import tilec.language as T

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

M, N = T.dynamic("M, N")


@tilec.kernel
def add(
    A: T.Tensor((M, N), "float32"),
    B: T.Tensor((M, N), "float32"),
    C: T.Tensor((M, N), "float32"),
):
    with T.Kernel(T.ceildiv(N, 128), M, threads=128) as (bx, by):
        for j in T.Parallel(128):
            C[by, bx * 128 + j] = A[by, bx * 128 + j] + B[by, bx * 128 + j]


@tilec.kernel(out=["C"])
def doubled(A: T.Tensor((M, N), "float16"), C: T.Tensor((M, N), "float16")):
    with T.Kernel(M, threads=128) as bx:
        for j in T.serial(N):
            C[bx, j] = A[bx, j] + A[bx, j]


def operands(*shape: int) -> tuple[Any, Any, Any]:
    a, b = (torch.randn(shape, device="cuda") for _ in range(2))
    return a, b, torch.full(shape, float("nan"), device="cuda")


@pytest.mark.parametrize("shape", [(1, 1), (3, 129), (17, 1000)])
def test_repeated_launches(shape: tuple[int, int]) -> None:
    for _ in range(4):
        a, b, c = operands(*shape)
        add(a, b, c)
        assert torch.equal(c, a + b)


def test_the_current_stream() -> None:
    a, b, c = operands(64, 4096)
    add(a, b, c)
    assert torch.equal(c, a + b) and c.any()  # loads what the checks below use
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(3):
        c.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            add(a, b, c)
        assert not c.any(), "the launch waits for its own stream, the check is on another"
        stream.synchronize()
        assert torch.equal(c, a + b)


@pytest.mark.parametrize("as_handle", [False, True])
def test_a_stream_given(as_handle: bool) -> None:
    a, b, c = operands(5, 300)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(3):
        add(a, b, c, stream=stream.cuda_stream if as_handle else stream)
        stream.synchronize()
        assert torch.equal(c, a + b)
        c.zero_()
        torch.cuda.synchronize()


def test_graph_capture() -> None:
    a, b, c = operands(33, 500)
    add(a, b, c)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add(a, b, c)
        add(c, b, a)
    for _ in range(3):
        a.copy_(torch.randn_like(a))
        want = a + b
        graph.replay()
        assert torch.equal(c, want) and torch.equal(a, want + b)


def test_a_thread_that_never_touched_the_gpu() -> None:
    a, b, c = operands(9, 77)
    add(a, b, c)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(3):
                add(a, b, c)
        except BaseException as e:
            failures.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert not failures and torch.equal(c, a + b)


def test_outputs_are_allocated_on_the_device() -> None:
    for rows in (3, 3, 3, 8):
        a = torch.randn(rows, 50, device="cuda").half()
        c = doubled(a)
        assert c.device == a.device and c.dtype == a.dtype
        assert torch.equal(c, a + a)


def test_array_interface_and_dlpack() -> None:
    class Interface:
        def __init__(self, tensor: Any) -> None:
            self.__cuda_array_interface__ = tensor.__cuda_array_interface__

    class Dlpack:
        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

        def __dlpack__(self, **options: Any) -> Any:
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.tensor.__dlpack_device__()

    for wrap in (Interface, Dlpack):
        a, b, c = operands(6, 130)
        add(wrap(a), wrap(b), wrap(c))
        torch.cuda.synchronize()
        assert torch.equal(c, a + b)


def test_no_grid_is_too_large_in_silence() -> None:
    wide = torch.empty(70_000, 1, device="cuda")
    with pytest.raises(tilec.LaunchError, match="70000 blocks in y"):
        add(wide, wide, torch.empty_like(wide))


def test_cpu_and_gpu_mixed() -> None:
    a, b, c = operands(3, 4)
    with pytest.raises(tilec.LaunchError, match="B is on cpu, A is on cuda:0"):
        add(a, b.cpu(), c)


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two GPUs"
)
def test_the_device_of_the_tensors() -> None:
    for _ in range(3):
        a, b = (torch.randn(7, 90, device="cuda:1") for _ in range(2))
        c = torch.empty_like(a)
        assert torch.cuda.current_device() == 0
        add(a, b, c)
        assert torch.equal(c, a + b)
        assert torch.cuda.current_device() == 0
