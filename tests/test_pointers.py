"""Parameters annotated T.ptr, whose dtype and shape the body says."""

import linecache
from typing import Any

import numpy as np
import pytest
from frontend_help import traced
from simulated import run

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")


@tilec.kernel
def product(a: T.ptr, b: T.ptr, c: T.ptr, m: T.int32, n: T.int32, k: T.int32):
    A = T.make_tensor(a, (m, k), "float16")
    B = T.make_tensor(b, (n, k), "float16")
    C = T.make_tensor(ptr=c, shape=(m, n))
    with T.Kernel(T.ceildiv(n, 32), T.ceildiv(m, 32), threads=64) as (bx, by):
        A_s = T.alloc_shared((32, 32), "float16")
        B_s = T.alloc_shared((32, 32), "float16")
        acc = T.alloc_fragment((32, 32), "float32")
        T.clear(acc)
        for ko in T.Pipelined(T.ceildiv(k, 32), num_stages=2):
            T.copy(A[by * 32, ko * 32], A_s)
            T.copy(B[bx * 32, ko * 32], B_s)
            T.gemm(A_s, B_s, acc, transpose_B=True)
        T.copy(acc, C[by * 32, bx * 32])


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(32, 64, 64), (45, 33, 40), (1, 1, 8)])
def test_a_product_of_what_pointers_point_to(target: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    rng = np.random.default_rng(0)
    A = rng.standard_normal((m, k)).astype(np.float16)
    B = rng.standard_normal((n, k)).astype(np.float16)
    C = np.zeros((m, n), np.float32)
    run(product, target, A, B, C, m, n, k)
    np.testing.assert_allclose(C, A.astype(float) @ B.astype(float).T, atol=1e-2)


@tilec.kernel
def renamed(A: T.ptr, C: T.ptr, M: T.constexpr, dtype: T.dtype):
    width = 2 * 4
    A = T.make_tensor(A, (M, width), dtype)
    C = T.make_tensor(C, [width, M], dtype, strides=(M + 3, 1))
    with T.Kernel(1, threads=64):
        for i, j in T.Parallel(M, width):
            C[j, i] = A[i, j] + 1


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_shapes_of_constants(target: str, dtype: str) -> None:
    A = np.arange(40).reshape(5, 8).astype(dtype)
    C = np.zeros((8, 8), dtype)[:, :5]
    run(renamed, target, A, C, 5, dtype)
    np.testing.assert_array_equal(C, A.T + 1)
    with pytest.raises(tilec.LaunchError, match="A: expected 2 dimensions, got 1"):
        run(renamed, target, A.ravel(), C, 5, dtype)
    with pytest.raises(tilec.LaunchError, match="5"):
        run(renamed, target, A[:4], C, 5, dtype)


MISTAKES = {
    "pass": ("nothing says what a points to", "A = T.make_tensor(a, "),
    "A = T.make_tensor(a, (4, 4)); B = T.make_tensor(a, (16,))": ("has another shape", "T.view"),
    "A = T.make_tensor(a, (4,)); B = T.make_tensor(n, (4,))": ("annotated T.ptr, not a", ""),
    "A = T.make_tensor(a)": ("nothing says what a points to", ""),
    'A = T.make_tensor(a, (4,), "flaot16")': ("flaot16", ""),
    "A = T.make_tensor(a, (-1,))": ("is negative", ""),
}


@pytest.mark.parametrize("written", MISTAKES)
def test_pointers_to_nothing(written: str) -> None:
    source = (
        "import tilec.language as T\n\n\n"
        "def k(a: T.ptr, n: T.int32):\n"
        f"    {written}\n"
        "    with T.Kernel(1, threads=32):\n"
        "        pass\n"
    )
    message, hint = MISTAKES[written]
    with pytest.raises(tilec.CompileError, match=message) as error:
        name = f"<{written}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        scope: dict[str, Any] = {}
        exec(compile(source, name, "exec"), scope)
        traced(scope["k"], {"a": np.zeros(4, np.float32)})
    assert hint in error.value.hint
    assert error.value.loc is not None and error.value.loc.line in (4, 5)


@pytest.mark.gpu
def test_pointers_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    A = torch.randn(300, 128, device="cuda", dtype=torch.float16)
    B = torch.randn(200, 128, device="cuda", dtype=torch.float16)
    C = torch.zeros(300, 200, device="cuda")
    product(A, B, C, 300, 200, 128)
    torch.testing.assert_close(C, A.float() @ B.float().T, atol=1e-2, rtol=1e-2)
