"""T.atomic_*: of elements and of tiles, in memory that all threads see, on every target."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from form_help import SM90, tile_func
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.errors import CompileError
from tilec.ir.ops import DeviceFence, MemAtomic
from tilec.ir.schedule import Plan
from tilec.passes import run_plan

pytestmark = pytest.mark.usefixtures("unassembled")

TARGETS = ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu"]
N, M, K = T.dynamic("N, M, K")
UPDATES = {
    "add": np.add.at, "max": np.maximum.at, "min": np.minimum.at, "and": np.bitwise_and.at,
    "or": np.bitwise_or.at, "xor": np.bitwise_xor.at,
}  # fmt: skip
INTS = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")


def scattering(kind: str, dtype: str) -> Any:
    update = getattr(T, f"atomic_{kind}")

    @tilec.kernel
    def scattered(I: T.Tensor((N,), "int32"), X: T.Tensor((N,), dtype), Y: T.Tensor((M,), dtype)):
        with T.Kernel(T.ceildiv(N, 128), threads=64) as bx:
            for i in T.Parallel(128):
                if bx * 128 + i < N:
                    update(Y[I[bx * 128 + i]], X[bx * 128 + i])

    return scattered


def scattered(kernel: Any, kind: str, dtype: str, target: str, rng: np.random.Generator) -> None:
    """Whole numbers, few enough for every sum to be exact; some places are outside of Y."""
    kinds = getattr(ml_dtypes, dtype, None) or dtype
    places = rng.integers(-1, 21, 300).astype(np.int32)
    low = 0 if dtype.startswith("u") else -3
    x, y = rng.integers(low, 4, 300).astype(kinds), rng.integers(0, 4, 20).astype(kinds)
    want = y.astype(np.float64 if kinds is not dtype or dtype in FLOATS else dtype)
    inside = (places >= 0) & (places < 20)
    UPDATES[kind](want, places[inside], x[inside].astype(want.dtype))
    run(kernel, target, places, x, y)
    np.testing.assert_array_equal(y.astype(want.dtype), want)


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", (*INTS, *FLOATS))
@pytest.mark.parametrize("kind", ["add", "max"])
def test_dtypes(kind: str, dtype: str, target: str, rng: np.random.Generator) -> None:
    scattered(scattering(kind, dtype), kind, dtype, target, rng)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind, dtype", [("min", "float32"), *((k, "uint32") for k in UPDATES)])
def test_kinds(kind: str, dtype: str, target: str, rng: np.random.Generator) -> None:
    scattered(scattering(kind, dtype), kind, dtype, target, rng)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", (*INTS, *FLOATS))
@pytest.mark.parametrize("target", TARGETS[:3])
def test_assembles(dtype: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine lacks becomes a loop; nothing spills."""
    monkeypatch.undo()  # the fixture that leaves out the assembler
    specs = [tilec.spec((300,), "int32"), tilec.spec((300,), dtype), tilec.spec((20,), dtype)]
    for kind in ("add", "min"):
        made = scattering(kind, dtype).compile(*specs, target=target)
        assert made.resources.spilled_bytes in (0, None)


@tilec.kernel
def histogram(X: T.Tensor((N,), "int32"), H: T.Tensor((64,), "int32")):
    with T.Kernel(T.ceildiv(N, 512), threads=128) as bx:
        own = T.alloc_shared((64,), "int32")
        T.clear(own)
        for i in T.Parallel(512):
            if bx * 512 + i < N:
                T.atomic_add(own[X[bx * 512 + i]], 1)
        T.atomic_add(H[0], own)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("count", [1, 512, 1777])
def test_histogram(count: int, target: str, rng: np.random.Generator) -> None:
    """Shared memory first, then a whole tile at once; what is there is kept."""
    x, h = rng.integers(0, 64, count).astype(np.int32), np.arange(64, dtype=np.int32)
    run(histogram, target, x, h)
    np.testing.assert_array_equal(h, np.arange(64) + np.bincount(x, minlength=64))


@tilec.kernel
def split_k(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32"), parts: T.constexpr = 4):  # fmt: skip  # noqa: E501
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), parts, threads=128) as (bx, by, bz):
        a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        each = T.ceildiv(T.ceildiv(K, 32), parts)
        for k in T.Pipelined(each, num_stages=2):
            T.copy(A[by * 64, (bz * each + k) * 32], a)
            T.copy(B[(bz * each + k) * 32, bx * 64], b)
            T.gemm(a, b, acc)
        T.atomic_add(C[by * 64, bx * 64], acc)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(64, 64, 128), (70, 33, 200)])
def test_split_k(shape: tuple[int, int, int], target: str, rng: np.random.Generator) -> None:
    m, n, k = shape
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((m, k), (k, n)))
    c = np.ones((m, n), np.float32)
    run(split_k, target, a, b, c)
    np.testing.assert_array_equal(c, 1 + a.astype(np.float64) @ b.astype(np.float64))


@tilec.kernel
def numbered(C: T.Tensor((1,), "int32"), O: T.Tensor((N,), "int32"), M_: T.Tensor((1,), "int64")):
    """Each thread takes a number; the largest of a key and its place by one word."""
    with T.Kernel(T.ceildiv(N, 64), threads=64) as bx:
        tx = T.get_thread_binding(0)
        ticket = T.atomic_add(C[0], 1, return_prev=True)
        O[ticket] = bx * 64 + tx
        key = T.cast((bx * 64 + tx) * 37 % 101, "int64")
        T.atomic_max(M_[0], key * 65536 + bx * 64 + tx, memory_order="relaxed")


@pytest.mark.parametrize("target", TARGETS)
def test_previous_values(target: str) -> None:
    c, o, m = np.zeros(1, np.int32), np.full(192, -1, np.int32), np.zeros(1, np.int64)
    run(numbered, target, c, o, m)
    assert c[0] == 192
    np.testing.assert_array_equal(np.sort(o), np.arange(192))
    keys = np.arange(192) * 37 % 101
    assert m[0] >> 16 == keys.max() and keys[m[0] & 65535] == keys.max()


@tilec.kernel
def last_block(X: T.Tensor((N,), "float32"), P: T.Tensor((K,), "float32"), C: T.Tensor((1,), "int32"), S: T.Tensor((1,), "float32")):  # fmt: skip  # noqa: E501
    """The last block to come adds up what all have left."""
    with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
        tx = T.get_thread_binding(0)
        x, total = T.alloc_fragment((128,), "float32"), T.alloc_fragment((1,), "float32")
        T.copy(X[bx * 128], x)
        T.reduce_sum(x, total, dim=0)
        came = T.alloc_shared((1,), "int32")
        if tx == 0:
            P[bx] = total[0]
            came[0] = T.atomic_add(C[0], 1, memory_order="acq_rel", return_prev=True)
        T.sync_threads()
        if tx == 0:
            if came[0] == T.num_programs(0) - 1:
                sum = T.alloc_var("float32", 0.0)
                for k in T.serial(K):
                    sum = sum + P[k]
                S[0] = sum


@pytest.mark.parametrize("target", TARGETS)
def test_the_last_block(target: str, rng: np.random.Generator) -> None:
    x = rng.integers(-9, 10, 1000).astype(np.float32)
    p, c, s = np.zeros(8, np.float32), np.zeros(1, np.int32), np.zeros(1, np.float32)
    run(last_block, target, x, p, c, s)
    assert s[0] == x.sum() and c[0] == 8


@tilec.kernel
def neighbours(A: T.Tensor((N, 8), "float32"), B: T.Tensor((8,), "float32"), F: T.Tensor((2,), "int32")):  # fmt: skip  # noqa: E501
    with T.Kernel(1, threads=64):
        for i in T.Parallel(N if isinstance(N, int) else 16):
            T.atomic_addx4(B[0], A[i, 0])
            T.atomic_addx2(B[4], A[i, 4])
        tx = T.get_thread_binding(0)
        if tx == 0:
            T.atomic_store(F[0], 5)
            F[1] = T.atomic_load(F[0]) + T.atomic_exchange(F[0], 7)


@pytest.mark.parametrize("target", TARGETS)
def test_neighbours_loads_and_stores(target: str, rng: np.random.Generator) -> None:
    a = rng.integers(-9, 10, (16, 8)).astype(np.float32)
    b, f = np.zeros(8, np.float32), np.zeros(2, np.int32)
    run(neighbours, target, a, b, f)
    np.testing.assert_array_equal(b, [*a.sum(0)[:6], 0, 0])
    assert f.tolist() == [7, 10]


def test_what_is_made_of_them() -> None:
    """An atomic for each element, no more where threads hold the same; fences where asked for."""

    def few(A: T.Tensor((4,), "float32"), B: T.Tensor((1,), "int32")):
        with T.Kernel(1, threads=128):
            f = T.alloc_fragment((4,), "float32")
            T.fill(f, 1.0)
            T.atomic_add(A[0], f)
            T.atomic_or(B[0], 1, memory_order="acq_rel")

    kept: dict[str, Any] = {}
    arrays = {"A": np.zeros(4, np.float32), "B": np.zeros(1, np.int32)}
    run_plan(tile_func(few, arrays), SM90, Plan("plain"), kept.__setitem__)
    ops = [*walk(kept["lower_parallel"].body)]
    atomics = [o for o in ops if isinstance(o, MemAtomic)]
    assert [o.kind for o in atomics] == ["add", "or"]
    assert sum(isinstance(o, DeviceFence) for o in ops) == 2


ERRORS = {
    "fragment": ("T.atomic_add(f[0], 1.0)", "dst of T.atomic_add is in f .*no other thread sees"),
    "variable": ("T.atomic_add(v, 1.0)", "dst of T.atomic_add is"),
    "number": ("T.atomic_add(3, 1.0)", "dst of T.atomic_add is the int 3, not an element"),
    "order": ("T.atomic_add(A[0], 1.0, memory_order='strong')", "memory_order of T.atomic_add"),
    "bits": ("T.atomic_or(A[0], 1)", "T.atomic_or combines the bits of ints, not those of A"),
    "dtype": ("T.atomic_add(B[0], 1)", "there are no atomics on float8_e4m3"),
    "bool": ("T.atomic_or(m[0], True)", "there are no atomics on bool: dst of T.atomic_or is in m"),
    "tile shape": ("T.atomic_add(A[0:4], f)", "32"),
    "tile returns": ("T.atomic_add(A[0], f, return_prev=True)", "gives no previous values"),
    "bounds": ("T.atomic_add(s[64], 1.0)", "out of bounds"),
    "keyword": ("T.atomic_add(A[0], 1.0, scope='gpu')", "T.atomic_add has no keyword 'scope'"),
    "text": ("T.atomic_add(A[0], 'x')", "value of T.atomic_add"),
    "pair": ("T.atomic_addx2(A[0], 1.0)", "value of T.atomic_addx2 is"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str, tmp_path: Any) -> None:
    line, message = ERRORS[name]
    text = (
        "import tilec, tilec.language as T\n"
        "@tilec.kernel\n"
        "def kernel(A: T.Tensor((64,), 'float32'), B: T.Tensor((64,), 'float8_e4m3')):\n"
        "    with T.Kernel(1, threads=64):\n"
        "        f = T.alloc_fragment((32,), 'float32')\n"
        "        s = T.alloc_shared((64,), 'float32')\n"
        "        m = T.alloc_shared((64,), 'bool')\n"
        "        v = T.alloc_var('float32', 0.0)\n"
        "        T.clear(f); T.clear(s)\n"
        f"        {line}\n"
    )
    path = tmp_path / "kernel.py"
    path.write_text(text)
    scope: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), scope)
    specs = tilec.spec((64,), "float32"), tilec.spec((64,), "float8_e4m3")
    with pytest.raises(CompileError, match=message) as caught:
        scope["kernel"].compile(*specs, target="cuda:sm_90a")
    assert caught.value.loc is not None and caught.value.loc.line == 10


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["int32", "int64", "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("kind", ["add", "max", "min"])
def test_on_a_gpu(torch: Any, kind: str, dtype: str) -> None:
    update = scattering(kind, dtype)
    places = torch.randint(0, 20, (5000,), device="cuda", dtype=torch.int32)
    x = torch.randint(-1, 2, (5000,), device="cuda").to(getattr(torch, dtype))
    y = torch.randint(0, 4, (20,), device="cuda").to(getattr(torch, dtype))
    how = {"add": "sum", "max": "amax", "min": "amin"}[kind]
    want = y.double().scatter_reduce(0, places.long(), x.double(), how)
    for _ in range(50):
        got = y.clone()
        update(places, x, got)
        assert torch.equal(got.double(), want)


@pytest.mark.gpu
def test_programs_on_a_gpu(torch: Any) -> None:
    x = torch.randint(0, 64, (100_000,), device="cuda", dtype=torch.int32)
    a, b = (torch.randint(-3, 4, s, device="cuda").half() for s in ((200, 1000), (1000, 130)))
    values = torch.randint(-9, 10, (128 * 500,), device="cuda").float()
    for _ in range(50):
        h = torch.zeros(64, device="cuda", dtype=torch.int32)
        histogram(x, h)
        assert torch.equal(h.long(), torch.bincount(x, minlength=64))
        c = torch.zeros(200, 130, device="cuda")
        split_k(a, b, c)
        assert torch.equal(c.double(), a.double() @ b.double())
        p, n, s = (torch.zeros(k, device="cuda") for k in (500, 1, 1))
        n = n.int()
        last_block(values, p, n, s)
        assert s.item() == values.sum().item()


@tilec.kernel
def by_each_thread(A: T.Tensor((8,), "int32"), B: T.Tensor((8,), "int32"), threads: T.constexpr, asks: T.constexpr):  # fmt: skip  # noqa: E501
    """Nothing says which thread it is: each of them adds."""
    with T.Kernel(3, threads=threads):
        if asks:
            B[T.get_thread_binding(0) % 4 + 4] = 5
        T.atomic_add(B[0], 1)
        for _k in T.serial(2):
            T.atomic_addx2(B[1], A[1])
        if A[3] > 0:
            T.atomic_max(B[3], A[3])


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "hip:gfx942"])
@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 32, 100])
def test_atomics_of_every_thread(target, asks, threads):
    a = np.arange(1, 9, dtype=np.int32)
    b = np.zeros(8, np.int32)
    run(by_each_thread, target, a, b, threads=threads, asks=asks)
    each = 3 * threads
    assert b[:4].tolist() == [each, 2 * each * 2, 2 * each * 3, 4]


@tilec.kernel
def by_the_block(
    A: T.Tensor((1,), "int32"),
    B: T.Tensor((5,), "int32"),
    C: T.Tensor((1,), "int32"),
    asks: T.constexpr,
):
    """Whole buffers are tiles, but where the number or the condition is one thread's."""
    with T.Kernel(3, threads=96):
        x = T.alloc_local((1,), "int32")
        x[0] = 2
        T.atomic_add(A, x[0])
        for k in T.serial(2):
            T.atomic_add(B, k + 1)
        if asks:
            tx = T.get_thread_binding(0)
            T.atomic_max(C, tx)
            T.atomic_add(A, 1)
            if tx < 5:
                T.atomic_add(A, 100)
            for i in T.Parallel(7):
                T.atomic_add(A, 1000 * i)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("asks", [False, True])
def test_whole_buffers(target: str, asks: bool) -> None:
    a, b, c = (np.zeros(n, np.int32) for n in (1, 5, 1))
    run(by_the_block, target, a, b, c, asks=asks)
    assert a.tolist() == [3 * (2 + asks * (1 + 500 + 21000))]
    assert b.tolist() == [9] * 5 and c.tolist() == [95 * asks]


@pytest.mark.parametrize("target", TARGETS)
def test_neighbours_named_by_a_vector(target: str, rng: np.random.Generator) -> None:
    @tilec.kernel
    def kernel(
        A: T.Tensor((8,), "float32"), V: T.Tensor((8,), "float32"), P: T.Tensor((8,), "float32")
    ):
        with T.Kernel(1, threads=1):
            P[0:2] = T.atomic_addx2(A[T.Ramp(0, 1, 2)], V[T.Ramp(2, 1, 2)], return_prev=True)
            P[2:4] = T.atomic_addx2(A[T.Ramp(2, 2, 2)], V[T.Ramp(1, 1, 2)] * 2, return_prev=True)
            T.atomic_addx4(A[T.Ramp(4, 1, 4)], V[4:8])

    a, v = (rng.standard_normal(8).astype(np.float32) for _ in range(2))
    p, before = np.zeros(8, np.float32), a.copy()
    want = before.copy()
    want[0:2] += v[2:4]
    first = want[[2, 4]].copy()
    want[[2, 4]] += v[1:3] * 2
    want[4:8] += v[4:8]
    run(kernel, target, a, v, p)
    np.testing.assert_allclose(a, want, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(p[:4], [*before[:2], *first])


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int16", "uint8", "int8"])
@pytest.mark.parametrize("kind", ["min", "max"])
def test_what_begins_a_word_is_combined_in_each_try(target: str, dtype: str, kind: str) -> None:
    """A minimum of fewer than 32 bits is a loop of compare-and-swap on the word around. LLVM took
    the minimum itself out of it where the element begins the word (found on an H200)."""

    @tilec.kernel
    def update(A: T.Tensor((64,), dtype), H: T.Tensor((2,), dtype)):
        with T.Kernel(2, threads=32) as b:
            for i in T.Parallel(32):
                getattr(T, f"atomic_{kind}")(H[0], A[b * 32 + i])

    spec = [tilec.spec((64,), dtype), tilec.spec((2,), dtype)]
    ptx = update.compile(*spec, target=target).stages["ptx"]
    (loop,) = re.findall(r"\$L__BB0_\d+:((?:(?!\$L__BB).)*?atom\.\S*cas.*?) bra", ptx, re.S)
    assert re.search(rf"\b{kind}\.[a-z]+\d+\s", loop), loop
