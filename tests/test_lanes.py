"""Short vectors: T.float32x2 and its like, T.Ramp, T.Broadcast, pairs, their bits."""

import ml_dtypes
import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
N = T.dynamic("N")
KINDS = {"bfloat16": ml_dtypes.bfloat16}


def some(*shape, dtype="float32", seed=3):
    made = np.random.default_rng(seed).integers(-40, 40, shape) / 8
    return made.astype(KINDS.get(dtype, dtype))


def pairs(dtype):
    @tilec.kernel
    def paired(
        A: T.Tensor((N,), dtype),
        B: T.Tensor((N,), dtype),
        C: T.Tensor((7, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, 96), threads=48) as bx:
            i = T.Ramp(bx * 96 + T.get_thread_binding(0) * 2, 1, 2)
            C[0, i] = T.add2(A[i], B[i])
            C[1, i] = T.sub2(A[i], B[i])
            C[2, i] = T.mul2(A[i], B[i])
            C[3, i] = T.fma2(A[i], B[i], A[i])
            C[4, i] = T.max2(A[i], B[i])
            C[5, i] = T.min2(A[i], B[i])
            C[6, i] = T.abs2(A[i])

    return paired


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_pairs(target, dtype):
    n = 133
    a, b = some(n, dtype=dtype), some(n, dtype=dtype, seed=4)
    c = np.zeros((7, n), a.dtype)
    run_compiled(pairs(dtype), target, a, b, c)
    x, y = a.astype(np.float64), b.astype(np.float64)
    want = [x + y, x - y, x * y, x * y + x, np.maximum(x, y), np.minimum(x, y), np.abs(x)]
    assert np.array_equal(c, np.stack(want).astype(a.dtype))


@tilec.kernel
def windows(A: T.Tensor((64,), "float32"), B: T.Tensor((4, 4), "float32")):
    """Lanes before the tensor count from its end; behind it reads are 0, writes do nothing."""
    with T.Kernel(1, threads=1):
        for t in T.serial(4):
            B[t, T.Ramp(0, 1, 4)] = A[T.Ramp(t - 2, 1, 4)]
        for t in T.serial(2):
            A[T.Ramp(t - 1, 33, 3)] = -B[t, T.Ramp(0, 1, 3)] * 2 - 1


@pytest.mark.parametrize("target", TARGETS)
def test_ramps_out_of_bounds(target):
    a, b = np.arange(1, 65, dtype=np.float32), np.zeros((4, 4), np.float32)
    run_compiled(windows, target, a, b)
    padded = np.concatenate([[63, 64], np.arange(1, 65)])
    assert np.array_equal(b, [padded[t : t + 4] for t in range(4)])
    want = np.arange(1, 65, dtype=np.float32)
    for t in range(2):
        for k in range(3):
            if t - 1 + 33 * k < 64:
                want[t - 1 + 33 * k] = -2 * b[t, k] - 1
    assert np.array_equal(a, want)


def packing(dtype, vector):
    @tilec.kernel
    def packed(A: T.Tensor((N, 4), dtype), B: T.Tensor((N, 4), dtype)):
        with T.Kernel(T.ceildiv(N, 32), threads=32) as bx:
            row = bx * 32 + T.get_thread_binding(0)
            v = T.alloc_var(vector)
            v = vector(A[row, 0], A[row, 1], A[row, 2], A[row, 3])
            for _ in T.serial(3):
                if row % 2 == 0:
                    v += A[row, T.Ramp(0, 1, 4)]
            turned = vector(v[3], v[2], T.extract_lane(v, 1), T.extract_lane(v, 0))
            B[row, 0:4] = turned

    return packed


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("dtype", "vector"),
    [("float32", T.float32x4), ("int8", T.int8x4), ("bfloat16", T.bfloat16x4)],
)
def test_variables(target, dtype, vector):
    a = some(77, 4, dtype=dtype)
    b = np.zeros_like(a)
    run_compiled(packing(dtype, vector), target, a, b)
    times = np.where(np.arange(77) % 2, 1, 4)[:, None]
    assert np.array_equal(b.astype(float), (a.astype(float) * times)[:, ::-1])


@tilec.kernel
def in_tiles(A: T.Tensor((64, 32), "float32"), B: T.Tensor((64, 32), "float16")):
    with T.Kernel(2, threads=64) as bx:
        s = T.alloc_shared((32, 32), "float32")
        h = T.alloc_shared((32, 32), "float16")
        T.copy(A[bx * 32, 0], s)
        for i, j in T.Parallel(32, 8):
            x = T.exp2(s[i, T.Ramp(j * 4, 1, 4)])
            h[i, T.Ramp(j * 4, 1, 4)] = T.cast(T.max(x, 1), "float16x4")
        T.copy(h, B[bx * 32, 0])


@pytest.mark.parametrize("target", TARGETS)
def test_in_parallel_loops(target):
    a, b = np.round(some(64, 32)), np.zeros((64, 32), np.float16)
    run_compiled(in_tiles, target, a, b)
    assert np.array_equal(b, np.maximum(np.exp2(a), 1).astype(np.float16))


@tilec.kernel
def bits(
    A: T.Tensor((8, 4), "uint8"),
    F: T.Tensor((8,), "float32"),
    H: T.Tensor((8, 2), "float16"),
    W: T.Tensor((16,), "float32"),
    D: T.Tensor((16,), "float32"),
):
    with T.Kernel(1, threads=8):
        t = T.get_thread_binding(0)
        F[t] = T.reinterpret(A[t, T.Ramp(0, 1, 4)], "float32")
        H[t, 0:2] = T.reinterpret(F[t], T.float16x2)
        D[t * 2 : t * 2 + 2] = T.reinterpret(T.ldg64(W[t * 2]), T.float32x2)


@pytest.mark.parametrize("target", TARGETS)
def test_bits(target):
    a = np.random.default_rng(0).integers(0, 120, (8, 4)).astype(np.uint8)
    f, h = np.zeros(8, np.float32), np.zeros((8, 2), np.float16)
    w, d = some(16), np.zeros(16, np.float32)
    run_compiled(bits, target, a, f, h, w, d)
    assert np.array_equal(f.view(np.uint8).reshape(8, 4), a)
    assert np.array_equal(h.view(np.uint8).reshape(8, 4), a)
    assert np.array_equal(d, w)


@tilec.kernel
def broadcasts(A: T.Tensor((1,), "int8"), B: T.Tensor((2, 32), "int8")):
    with T.Kernel(1, threads=1):
        x = T.alloc_local((32,), "int8")
        x[0:32] = T.Broadcast(A[0], 32)
        for i in T.serial(32):
            B[0, i] = x[i]
        x[0:32] = T.Broadcast(T.cast(-37, "int8"), 32)
        for i in T.serial(32):
            B[1, i] = x[i]


@pytest.mark.parametrize("target", TARGETS)
def test_broadcasts(target):
    a, b = np.array([99], np.int8), np.zeros((2, 32), np.int8)
    run_compiled(broadcasts, target, a, b)
    assert (b[0] == 99).all() and (b[1] == -37).all()


def test_a_barrier_stands_between_lanes_and_tiles():
    text = in_tiles.compile(
        some(64, 32), np.zeros((64, 32), np.float16), target="cuda:sm_80"
    ).stages["insert_sync"]
    assert text.count("barrier") >= 2


WRONG = {
    "lanes": ("C[i] = A[T.Ramp(0, 1, 2)] + A[T.Ramp(0, 1, 3)]", "vector of 2 lanes and a vector"),
    "number": ("C[0] = A[i]", "this value is a vector of 2 lanes, not a number"),
    "too many": ("C[0:3] = A[i]", "has 3 elements, the vector 2 lanes"),
    "ramp": ("C[T.Ramp(0, 1, 64)] = A[i]", "lanes of T.Ramp is 64, the most is 32"),
    "slices": ("D[i, 0:2] = A[i]", "vectors beside slices"),
    "count": ("C[i] = T.float32x2(A[0], A[1], A[2])", "T.float32x2 of 3 numbers: it has 2 lanes"),
    "pairs": ("C[i] = T.add2(A[0], A[i])", "x of T.add2 is an element of A"),
    "mixed": ("C[i] = T.add2(A[i], T.cast(A[i], 'float16x2'))", "T.add2 of float32x2 and float16"),
    "lane": ("C[0] = T.extract_lane(A[i], 2)", "lane 2 of a vector of 2 lanes"),
    "no lanes": ("C[0] = T.extract_lane(A[0], 0)", "which has no lanes"),
    "width": ("C[i] = T.reinterpret(A[0], T.float32x2)", "32 and 64"),
    "cast": ("C[i] = T.cast(A[i], 'float16x4')", "to float16x4, which has 4"),
    "tile": ("x = T.alloc_shared((4,), 'float32x2')", "is not a dtype"),
}


@pytest.mark.parametrize("which", WRONG)
def test_what_is_no_vector(which, tmp_path):
    line, said = WRONG[which]
    path = tmp_path / "wrong.py"
    path.write_text(
        "import tilec\nimport tilec.language as T\n\n@tilec.kernel\n"
        "def wrong(A: T.Tensor((8,), 'float32'), C: T.Tensor((8,), 'float32'), "
        "D: T.Tensor((8, 8), 'float32')):\n"
        f"    with T.Kernel(1, threads=32):\n        i = T.Ramp(0, 1, 2)\n        {line}\n"
    )
    names = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    given = np.zeros(8, np.float32), np.zeros(8, np.float32), np.zeros((8, 8), np.float32)
    with pytest.raises(tilec.CompileError) as e:
        names["wrong"].compile(*given, target="cpu")
    assert said in str(e.value) and "wrong.py:8" in str(e.value), e.value


def test_vectors_have_no_meaning_outside():
    with pytest.raises(tilec.CompileError, match="only inside a kernel"):
        T.float32x2(1, 2)
    with pytest.raises(AttributeError, match="no builtin 'float32x99'"):
        _ = T.float32x99
    assert T.float16x2.name == "float16x2" and T.float16x2.bits == 32


@tilec.kernel
def twice_and_one(A: T.Tensor((N, 6), "float32"), B: T.Tensor((N, 6), "float32")):
    """Literals take the dtype of the pair beside them."""
    with T.Kernel(T.ceildiv(N, 32), threads=32) as b:
        i = b * 32 + T.get_thread_binding()
        if i < N:
            for j in range(3):
                pair = A[i, T.Ramp(j * 2, 1, 2)]
                v = T.alloc_var(T.float32x2)
                v = T.fma2(pair, T.Broadcast(2.0, 2), T.Broadcast(1.0, 2))
                B[i, j * 2] = v[1]
                B[i, j * 2 + 1] = T.extract_lane(v, 0)


def test_literals_in_pairs() -> None:
    a = np.random.default_rng(3).standard_normal((40, 6)).astype(np.float32)
    b = np.zeros_like(a)
    twice_and_one(a, b)
    np.testing.assert_array_equal(b, a[:, [1, 0, 3, 2, 5, 4]] * 2 + 1)
