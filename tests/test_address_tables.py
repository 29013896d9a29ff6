"""Tables of addresses: T.Tensor((n,), T.ptr), and T.make_tensor of what an element of one says."""

import ctypes
import linecache
import mmap
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from frontend_help import traced
from simulated import run

import tilec
import tilec.language as T

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")


def aligned(array: np.ndarray, past: int = 0) -> np.ndarray:
    """A copy that begins `past` bytes behind a multiple of 64."""
    room = np.empty(array.nbytes + 128, np.uint8)
    first = -room.ctypes.data % 64 + past
    made = room[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def table(arrays: list[np.ndarray]) -> np.ndarray:
    return np.array([a.ctypes.data for a in arrays], np.int64)


def grouped(sizes: list[int], n: int, k: int, bm: int, bn: int, bk: int, stages: int) -> Any:
    """One product for each group, of operands that lie anywhere."""
    most, tiles = max(sizes), [-(-s // bm) for s in sizes]
    count = len(sizes)

    @tilec.kernel
    def products(
        a_at: T.Tensor([count], T.ptr),
        b_at: T.Tensor([count], T.ptr),
        c_at: T.Tensor([count], T.ptr),
        first_tile: T.Tensor([count], T.int32),
    ):
        with T.Kernel(sum(tiles), T.ceildiv(n, bn), threads=64) as (bx, by):
            A_s = T.alloc_shared((bm, bk), "float16")
            B_s = T.alloc_shared((bk, bn), "float16")
            acc = T.alloc_fragment((bm, bn), "float32")
            group = T.alloc_var(T.int32)
            first = T.alloc_var(T.int32)
            group = 0
            first = 0
            for i in range(count):
                here = bx >= first_tile[i]
                group = T.if_then_else(here, i, group)
                first = T.if_then_else(here, first_tile[i], first)
            row = (bx - first) * bm
            A = T.make_tensor(a_at[group], (most, k), "float16")
            B = T.make_tensor_from_addr(b_at[group], (k, n), T.float16)
            C = T.make_tensor(c_at[group], (most, n), dtype="float16")
            T.clear(acc)
            for ko in T.Pipelined(T.ceildiv(k, bk), num_stages=stages):
                T.copy(A[row, ko * bk], A_s)
                T.copy(B[ko * bk, by * bn], B_s)
                T.gemm(A_s, B_s, acc)
            T.copy(acc, C[row, by * bn])

    return products


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n, k, stages", [(32, 64, 2), (40, 24, 1), (33, 19, 3)])
def test_products_of_operands_anywhere(target: str, n: int, k: int, stages: int) -> None:
    sizes = [8, 33, 1]
    rng = np.random.default_rng(5)
    most = max(sizes)
    As = [aligned(rng.integers(-3, 4, (most, k)).astype("f2")) for _ in sizes]
    Bs = [aligned(rng.integers(-3, 4, (k, n)).astype("f2")) for _ in sizes]
    Cs = [aligned(np.full((most, n), 99, "f2")) for _ in sizes]
    starts = np.cumsum([0, *(-(-s // 16) for s in sizes[:-1])]).astype(np.int32)
    kernel = grouped(sizes, n, k, 16, 16, 32, stages)
    run(kernel, target, table(As), table(Bs), table(Cs), starts)
    for a, b, c, size in zip(As, Bs, Cs, sizes):
        wanted = a.astype("f8") @ b.astype("f8")
        rows = min(-(-size // 16) * 16, most)
        np.testing.assert_array_equal(c[:rows], wanted[:rows])
        assert (c[rows:] == 99).all()


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a"])
def test_addresses_as_low_as_those_of_shared_memory(target: str) -> None:
    low = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_32BIT", 0x40)
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    at = libc.mmap(None, 1 << 16, mmap.PROT_READ | mmap.PROT_WRITE, low, -1, 0)
    if not 0 < at < 1 << 40:
        pytest.skip("this system has no low addresses to give")
    room = np.ctypeslib.as_array((ctypes.c_uint8 * (1 << 16)).from_address(at))
    shapes = (32, 64), (64, 32), (32, 32)
    a, b, c = (
        room[i << 14 :][: m * n * 2].view("f2").reshape(m, n) for i, (m, n) in enumerate(shapes)
    )
    rng = np.random.default_rng(7)
    for x in (a, b):
        x[...] = rng.integers(-3, 4, x.shape)
    starts = np.zeros(1, np.int32)
    run(grouped([32], 32, 64, 16, 16, 32, 2), target, table([a]), table([b]), table([c]), starts)
    np.testing.assert_array_equal(c, a.astype("f8") @ b.astype("f8"))


def test_what_is_emitted() -> None:
    specs = [tilec.spec((3,), d) for d in ("int64", "int64", "int64", "int32")]
    made = grouped([8, 33, 1], 64, 64, 16, 16, 32, 2).compile(*specs, target="cuda:sm_90a")
    assert "cp.async.cg.shared.global" in made.asm  # 16 bytes at a time
    assert "cp.async.bulk" not in made.asm  # a tensor map is of one address
    assert "ld.global.nc" not in made.asm.split("st.global")[-1]


@tilec.kernel
def rows(src: T.Tensor((T.dynamic("G"),), T.ptr), dst: T.ptr, m: T.int32, n: T.int32):
    D = T.make_tensor(dst, (T.dynamic("G"), m), "float32")
    with T.Kernel(T.dynamic("G"), threads=32) as g:
        S = T.make_tensor(src[g], (m, n), "float32", align=4)
        total = T.alloc_local((1,), "float32")
        for i in T.serial(m):
            total[0] = 0
            for j in T.serial(n + 2):
                total[0] += S[i, j]  # two behind each row: they read as 0
            if T.get_thread_binding() == 0:
                D[g, i] = total[0]
                S[i, n] = 7  # out of bounds
                T.atomic_add(S[i, n - 1], 1.0)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m, n", [(3, 5), (1, 1), (4, 16)])
def test_extents_that_the_call_gives(target: str, m: int, n: int) -> None:
    arrays = [aligned(np.random.rand(m, n).astype("f4"), past=4 * p) for p in range(3)]
    before = [a.copy() for a in arrays]
    D = np.zeros((3, m), "f4")
    run(rows, target, table(arrays), D, m, n)
    np.testing.assert_allclose(D, np.stack([b.astype("f8").sum(1) for b in before]), rtol=1e-5)
    for a, b in zip(arrays, before):
        b[:, -1] += 1
        np.testing.assert_array_equal(a, b)


def elements(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """Every way of going to elements, in a loop over the table and under an if."""
    m, n = shape
    out = T.float32 if dtype.startswith("float8") else dtype

    @tilec.kernel
    def doubled(src: T.Tensor((3,), T.ptr), one: T.int64, dst: T.Tensor((4, m, n), out)):
        with T.Kernel(1, threads=128):
            for g in T.serial(3):
                if g != 1:
                    S = T.make_tensor(src[g], shape, dtype, strides=strides)
                    for i, j in T.Parallel(m, n):
                        dst[g, i, j] = T.cast(S[i, j], out) + T.cast(S[i, j], out)
                else:
                    S = T.make_tensor(src[g], shape, dtype, strides=strides)
                    tile = T.alloc_fragment(shape, out)
                    T.copy(S, tile)
                    for i, j in T.Parallel(m, n):
                        tile[i, j] = tile[i, j] + tile[i, j]
                    T.copy(tile, dst[g, :, :])
            One = T.make_tensor(one, shape, dtype, strides=strides)
            for i, j in T.Parallel(m, n):
                dst[3, i, j] = T.cast(One[i, j], out)

    return doubled


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "dtype, shape", [("float16", (7, 24)), ("int8", (5, 3)), ("float64", (4, 16)),
                     ("int32", (1, 33)), ("bfloat16", (16, 16)), ("float8_e5m2", (3, 32))]
)  # fmt: skip
def test_elements_of_all_dtypes(target: str, dtype: str, shape: tuple[int, int]) -> None:
    numpy = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if target == "hip:gfx942" and dtype == "float8_e5m2":
        numpy = np.dtype(ml_dtypes.float8_e5m2fnuz)
    rng = np.random.default_rng(3)
    held = [aligned(rng.integers(0, 3, (shape[0], shape[1] + 8)).astype(numpy)) for _ in range(4)]
    out = "f4" if dtype.startswith("float8") else numpy
    dst = np.zeros((4, *shape), out)
    kernel = elements(dtype, shape, (shape[1] + 8, 1))
    run(kernel, target, table(held[:3]), held[3].ctypes.data, dst)
    wanted = np.stack([h[:, : shape[1]].astype("f8") for h in held])
    wanted[:3] *= 2
    np.testing.assert_array_equal(dst.astype("f8"), wanted)


@tilec.kernel
def racing(at: T.Tensor((1,), T.ptr), bad: T.constexpr):
    with T.Kernel(1, threads=32):
        A = T.make_tensor(at[0], (32,), "int32")
        tx = T.get_thread_binding()
        if bad:
            A[tx // 2] = tx
        else:
            A[tx] = tx


def test_races_and_wild_addresses() -> None:
    held = aligned(np.zeros(32, np.int32))
    assert tilec.simulate(racing, table([held]), False, target="cuda:sm_90a").ok
    np.testing.assert_array_equal(held, np.arange(32))
    report = tilec.simulate(racing, table([held]), True, target="cuda:sm_90a")
    assert not report.ok and any(f.kind == "data race" for f in report.findings), report
    wild = np.array([1 << 44], np.int64)
    report = tilec.simulate(racing, wild, False, target="cuda:sm_90a")
    assert any(f.kind == "out of bounds" for f in report.findings), report


MISTAKES = {
    "A = T.make_tensor(at, (4, 4))": ("annotated T.ptr, not at", "an element of"),
    'A = T.make_tensor(at[0], (4, 4), "int4")': ("elements are int4", "whole bytes"),
    "A = T.make_tensor(at[0], (4, 4), align=3)": ("align of T.make_tensor is 3", "power of two"),
    "A = T.make_tensor(at[0], (4, 4), align=2)": ("align of T.make_tensor is 2", "its bytes"),
    "A = T.make_tensor(at[0], (4, at[0]))": ("shape of T.make_tensor has", "the largest"),
    "A = T.make_tensor(at[0], (4, n, n))": ("stride 0 is a product", "strides"),
    "A = T.make_tensor(at[0], (4, 4), strides=(4,))": ("1 strides for 2", "each dimension"),
    "A = T.view(T.make_tensor(at[0], (4, 4)), (16,))": ("a view of", "T.make_tensor again"),
    "A = T.make_tensor(n, (4, 4))": ("annotated T.ptr, not a", "an int64"),
}


@pytest.mark.parametrize("written", MISTAKES)
def test_addresses_that_are_none(written: str) -> None:
    source = (
        "import tilec.language as T\n\n\n"
        "def k(at: T.Tensor((2,), T.ptr), n: T.int32):\n"
        "    with T.Kernel(1, threads=32):\n"
        f"        {written}\n"
    )
    message, hint = MISTAKES[written]
    with pytest.raises(tilec.CompileError, match=message) as error:
        name = f"<{written}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        scope: dict[str, Any] = {}
        exec(compile(source, name, "exec"), scope)
        traced(scope["k"], {"at": np.zeros(2, np.int64)})
    assert hint in error.value.hint
    assert error.value.loc is not None and error.value.loc.line == 6


@pytest.mark.gpu
def test_products_of_operands_anywhere_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    sizes, n, k = [64, 300, 17], 200, 136
    most = max(sizes)
    As = [torch.randn(most, k, device="cuda", dtype=torch.float16) for _ in sizes]
    Bs = [torch.randn(k, n, device="cuda", dtype=torch.float16) for _ in sizes]
    Cs = [torch.zeros(most, n, device="cuda", dtype=torch.float16) for _ in sizes]
    tables = [
        torch.tensor([x.data_ptr() for x in xs], device="cuda", dtype=torch.int64)
        for xs in (As, Bs, Cs)
    ]
    starts = torch.tensor([0, 1, 6], device="cuda", dtype=torch.int32)
    for stages in (1, 3):
        grouped(sizes, n, k, 64, 64, 32, stages)(*tables, starts)
        for a, b, c, size in zip(As, Bs, Cs, sizes):
            torch.testing.assert_close(c[:size], (a @ b)[:size], atol=2e-2, rtol=2e-2)
