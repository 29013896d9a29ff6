"""T.tvm_thread_allreduce, T.reinterpret, and the paper's GEMV that uses them."""

import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T

TARGETS = ("cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942")


def gemv(N, K, n_partition, reduce_thread, dtype="float16", accum_dtype="float32"):
    micro = 8
    block_K = reduce_thread * micro

    @tilec.kernel
    def main(A: T.Tensor((1, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((1, N), dtype)):
        with T.Kernel(T.ceildiv(N, n_partition), 1, threads=(reduce_thread, n_partition)) as (
            bx,
            by,
        ):
            A_local = T.alloc_local((micro,), dtype)
            B_local = T.alloc_local((micro,), dtype)
            accum_res = T.alloc_local((1,), accum_dtype)
            reduced = T.alloc_local((1,), accum_dtype)
            kr = T.thread_binding(0, reduce_thread, thread="threadIdx.x")
            ni = T.thread_binding(0, n_partition, thread="threadIdx.y")
            T.clear(accum_res)
            for ko in T.serial(T.ceildiv(K, block_K)):
                for v in T.vectorized(micro):
                    A_local[v] = A[by, ko * block_K + kr * micro + v]
                    B_local[v] = B[bx * n_partition + ni, ko * block_K + kr * micro + v]
                for ki in T.serial(micro):
                    accum_res[0] += T.cast(A_local[ki], accum_dtype) * T.cast(
                        B_local[ki], accum_dtype
                    )
            with T.attr(
                T.comm_reducer(lambda x, y: x + y, [T.Cast(accum_dtype, 0)]),
                "reduce_scope",
                T.reinterpret(T.uint64(0), dtype="handle"),
            ):
                T.evaluate(
                    T.tvm_thread_allreduce(
                        T.uint32(1), accum_res[0], True, reduced[0], kr, dtype="handle"
                    )
                )
            if kr == 0:
                C[by, bx * n_partition + ni] = reduced[0]

    return main


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("parts", [(4, 32), (2, 16), (3, 24), (1, 96), (2, 128), (8, 1)])
def test_the_paper_s_gemv(target, parts):
    rng = np.random.default_rng(7)
    a = rng.standard_normal((1, 200)).astype("float16")
    b = rng.standard_normal((22, 200)).astype("float16")
    c = np.zeros((1, 22), "float16")
    kernel = gemv(22, 200, *parts)
    run_compiled(kernel, target, a, b, c)
    np.testing.assert_allclose(c, a.astype("f8") @ b.astype("f8").T, rtol=2e-2, atol=3e-2)


def test_lanes_exchange_without_memory():
    spec = [tilec.spec(s, "float16") for s in ((1, 200), (22, 200), (1, 22))]
    made = gemv(22, 200, 4, 32).compile(*spec, target="cuda:sm_90a")
    assert "shfl" in made.asm and made.resources.shared_bytes == 0
    made = gemv(22, 200, 3, 24).compile(*spec, target="cuda:sm_90a")
    assert made.resources.shared_bytes >= 4 * 3 * 24
    made = gemv(22, 200, 2, 128).compile(*spec, target="cuda:sm_90a")
    assert "shfl" in made.asm and 4 * 8 <= made.resources.shared_bytes <= 128  # a number a warp


@tilec.kernel
def columns(A: T.Tensor((8, 16), "int32"), B: T.Tensor((2, 8, 16), "int32")):
    """The second dimension is reduced, of those threads that hold a positive number."""
    with T.Kernel(1, threads=(16, 8)):
        tx, ty = T.get_thread_binding(0), T.get_thread_binding(1)
        out = T.alloc_local((2,), "int32")
        with T.attr(T.comm_reducer(lambda x, y: T.max(x, y), [-1000]), "reduce_scope", 0):
            T.tvm_thread_allreduce(1, A[ty, tx], A[ty, tx] > 0, out[0], ty)
        with T.attr(T.comm_reducer(lambda x, y: x * y, [1]), "reduce_scope", 0):
            T.tvm_thread_allreduce(1, A[ty, tx], True, out[1], ty)
        B[0, ty, tx] = out[0]
        B[1, ty, tx] = out[1]


@pytest.mark.parametrize("target", TARGETS)
def test_another_dimension_and_reducer(target):
    a = np.random.default_rng(8).integers(-3, 4, (8, 16)).astype("int32")
    a[:, 3] = -1
    b = np.zeros((2, 8, 16), "int32")
    run_compiled(columns, target, a, b)
    np.testing.assert_array_equal(b[0], np.broadcast_to(np.where(a > 0, a, -1000).max(0), (8, 16)))
    np.testing.assert_array_equal(b[1], np.broadcast_to(a.prod(0), (8, 16)))


@tilec.kernel
def bits(
    A: T.Tensor((64,), "float32"),
    H: T.Tensor((64,), "float16"),
    B: T.Tensor((64,), "uint32"),
    C: T.Tensor((64,), "int16"),
    D: T.Tensor((64,), "float32"),
):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            B[i] = T.reinterpret(A[i], "uint32")
            C[i] = T.reinterpret("int16", H[i])
            D[i] = T.reinterpret(T.reinterpret(A[i], T.uint32) ^ T.uint32(0x80000000), T.float32)


@pytest.mark.parametrize("target", TARGETS)
def test_reinterpret(target):
    a = np.random.default_rng(9).standard_normal(64).astype("float32")
    a[:4] = [np.nan, np.inf, -0.0, 1e-42]
    h = a.astype("float16")
    b, c, d = np.zeros(64, "uint32"), np.zeros(64, "int16"), np.zeros(64, "float32")
    run_compiled(bits, target, a, h, b, c, d)
    np.testing.assert_array_equal(b, a.view("uint32"))
    np.testing.assert_array_equal(c, h.view("int16"))
    np.testing.assert_array_equal(d.view("uint32"), (-a).view("uint32"))


SETUP = "out = T.alloc_local((1,), 'float32'); tx = T.get_thread_binding(0)"
WITH = "with T.attr(T.comm_reducer(lambda x, y: x + y, [0.0]), 'reduce_scope', 0): "
WRONG = {
    "no reducer": ("T.tvm_thread_allreduce(1, A[0], True, out[0], tx)", "has no reducer"),
    "no thread": (WITH + "T.tvm_thread_allreduce(1, A[0], True, out[0], tx + 1)", "is no index"),
    "no element": (WITH + "T.tvm_thread_allreduce(1, A[0], True, 3, tx)", "not an element"),
    "no function": ("T.comm_reducer(1, [0])", "takes a function"),
    "other width": ("A[0] = T.reinterpret(A[0], 'int16')", "32 and 16"),
    "no dtype": ("A[0] = T.reinterpret(A[0], 'nothing')", "is not a dtype"),
}


@pytest.mark.parametrize("line, says", WRONG.values(), ids=WRONG)
def test_wrong_uses(line, says, tmp_path):
    text = f"""
import tilec, tilec.language as T
@tilec.kernel
def wrong(A: T.Tensor((7,), "float32")):
    with T.Kernel(1, threads=64):
        {SETUP}
        {line}
"""
    file = tmp_path / "wrong.py"
    file.write_text(text)
    names: dict = {}
    exec(compile(text, str(file), "exec"), names)
    with pytest.raises(tilec.CompileError, match=says) as caught:
        names["wrong"].compile(np.zeros(7, "float32"), target="cpu")
    assert caught.value.loc.line == 7


@pytest.mark.gpu
@pytest.mark.parametrize("parts", [(4, 32), (3, 24), (1, 96), (2, 128)])
def test_gemv_on_a_gpu(parts):
    torch = pytest.importorskip("torch")
    a = torch.randn(1, 2000, device="cuda", dtype=torch.float16)
    b = torch.randn(1022, 2000, device="cuda", dtype=torch.float16)
    c = torch.empty(1, 1022, device="cuda", dtype=torch.float16)
    kernel = gemv(1022, 2000, *parts)
    for _ in range(20):
        kernel(a, b, c.fill_(77))
        torch.testing.assert_close(c.double(), a.double() @ b.double().T, rtol=2e-2, atol=0.1)


def multiplied(threads, dtype):
    @tilec.kernel
    def main(A: T.Tensor((threads,), dtype), C: T.Tensor((1,), dtype)):
        with T.Kernel(1, threads=threads):
            tx = T.get_thread_binding(0)
            out = T.alloc_local((1,), dtype)
            with T.attr(T.comm_reducer(lambda x, y: x * y, [1]), "reduce_scope", 0):
                T.tvm_thread_allreduce(1, A[tx], True, out[0], tx)
            C[0] = out[0]

    return main


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [1, 7, 8, 12])
def test_few_threads_combine_in_halves(target, threads):
    """Rounded to bfloat16 at each step: from one end to the other 241920 becomes 242688."""
    a = np.ones(threads, "bfloat16")
    a[: min(threads, 8)] = [3, 8, 5, 2, 7, 6, 4, 6][:threads]
    c = np.zeros(1, "bfloat16")
    run_compiled(multiplied(threads, "bfloat16"), target, a, c)
    whole = np.prod(a.astype("f8"))
    assert abs(float(c[0]) - whole) <= whole / 256, c
