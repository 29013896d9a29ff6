"""Launches on an NVIDIA GPU: streams, graphs, threads, other libraries' arrays."""

import threading
from typing import Any

import pytest

import tilec
import tilec.language as T
from tilec.runtime.tensors import read_tensor

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

M, N, K = T.dynamic("M, N, K")


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


@tilec.kernel
def product(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr = T.auto,
    BN: T.constexpr = T.auto,
    BK: T.constexpr = T.auto,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM)) as (bx, by):
        A_s = T.alloc_shared((BM, BK), "float16")
        B_s = T.alloc_shared((BK, BN), "float16")
        acc = T.alloc_fragment((BM, BN), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, BK)):
            T.copy(A[by * BM, k * BK], A_s)
            T.copy(B[k * BK, bx * BN], B_s)
            T.gemm(A_s, B_s, acc)
        T.copy(acc, C[by * BM, bx * BN])


def map_movers(kernel: Any) -> list[Any]:
    """What moves each tensor map of the kernel's variants."""
    loaded = [variant.loaded(0) for variant in kernel._variants.values()]
    x = torch.zeros(4096, 8192, device="cuda", dtype=torch.float16)
    return [
        code.map_mover(code.tensor_map(number, read_tensor(x, "x")))
        for code in loaded
        for number, p in enumerate(code.image.params)
        if p.role == "tensor_map"
    ]


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


PRODUCTS = [(128, 128, 128), (64, 64, 8192)]  # with tensor maps; with sums in a workspace


def factors(m: int, n: int, k: int) -> tuple[Any, Any, Any]:
    a, b = (torch.randn(s, device="cuda", dtype=torch.float16) for s in ((m, k), (k, n)))
    return a, b, torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)


def right(a: Any, b: Any, c: Any) -> bool:
    exact = a.float() @ b.float()
    return bool(
        (c.float() - exact).abs().max() <= 1e-3 * a.shape[1] ** 0.5 + exact.abs().max() / 500
    )


@pytest.mark.parametrize("shape", PRODUCTS)
def test_new_addresses(shape: tuple[int, int, int]) -> None:
    """Each launch has its own, while earlier ones are still waiting."""
    pool = [factors(*shape) for _ in range(60)]
    product(*pool[0])
    torch.cuda.synchronize()
    torch.cuda._sleep(20_000_000)
    for _ in range(2):
        for one in pool:
            product(*one)
    assert all(right(*one) for one in pool)
    leads = [move is None for move in map_movers(product)]
    if torch.cuda.get_device_capability() == (9, 0):
        assert leads and all(leads), "this driver keeps a map's address in front"


@pytest.mark.parametrize("shape", PRODUCTS)
def test_new_addresses_in_a_graph(shape: tuple[int, int, int]) -> None:
    pool = [factors(*shape) for _ in range(30)]
    for one in pool[:2]:
        product(*one)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for one in pool:
            product(*one)
    beside = [factors(*shape) for _ in range(30)]
    for _, _, c in pool:
        c.fill_(float("nan"))
    for one in beside:
        product(*one)
    graph.replay()
    assert all(right(*one) for one in pool + beside)


def test_new_addresses_in_threads() -> None:
    pools = [[factors(128, 128, 128) for _ in range(200)] for _ in range(4)]
    for one in pools[0][:2]:
        product(*one)
    torch.cuda.synchronize()

    def work(pool: list[Any]) -> None:
        for one in pool:
            product(*one)

    threads = [threading.Thread(target=work, args=(pool,)) for pool in pools]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(right(*one) for pool in pools for one in pool)


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
