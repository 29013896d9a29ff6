"""float16 arithmetic two at a time and loads of several iterations at once, in the code of threads;
the paper's product of one row with weights of four bits, which wants both."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = pytest.mark.filterwarnings("error::tilec.PerformanceWarning")

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
SEED = Path(__file__).parent / "seeds" / "tilelang_dequantize_gemv.py"


def listing():
    spec = importlib.util.spec_from_file_location(SEED.stem, SEED)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.dequantize_gemv


def decoded(packed):
    """Nibbles of 32 bits are elements 0 2 4 6 1 3 5 7."""
    words = packed.view("<u4")
    parts = [words >> 4 * n & 15 for n in (0, 4, 1, 5, 2, 6, 3, 7)]
    return np.stack(parts, -1).reshape(len(packed), -1)


def in_order(a, b, threads):
    """The sums of the listing as it states them: products rounded to float16, each thread's added
    up in float32 one by one."""
    k = a.shape[1]
    step = 8 * threads
    wide = np.zeros((len(b), -(-k // step) * step), "f2")
    wide[:, :k] = a * b.astype("f2")
    own = wide.reshape(len(b), -1, threads, 8).swapaxes(1, 2).reshape(len(b), threads, -1)
    sums = np.zeros((len(b), threads), "f4")
    for e in range(own.shape[-1]):
        sums += own[..., e].astype("f4")
    while sums.shape[1] > 1:  # neighbours first
        sums = sums[:, 0::2] + sums[:, 1::2]
    return sums[:, 0].astype("f2")


SIZES = [(6, 512, 4, 32), (7, 1304, 2, 32), (3, 2560, 1, 64), (1, 8, 4, 32), (5, 4096, 2, 16)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n, k, rows, threads", SIZES)
def test_the_paper_s_listing(n, k, rows, threads, target, rng):
    a = rng.standard_normal((1, k)).astype("f2")
    packed = rng.integers(0, 256, (n, k // 2), dtype=np.uint8)
    c = np.full((1, n), 77, "f2")
    kernel = listing()(1, n, k, n_partition=rows, reduce_thread=threads)
    run(kernel, target, a, packed.view("i1"), c)
    b = decoded(packed)
    exact = a.astype("f8") @ b.T.astype("f8")
    assert np.abs(c - exact).max() <= 2e-3 * (np.abs(a) @ b.T).max()
    np.testing.assert_array_equal(c[0], in_order(a, b, threads))


def compiled(n=64, k=8192, target="cuda:sm_90a", **given):
    specs = [tilec.spec((1, k), "float16"), tilec.spec((n, k // 2), "int8")]
    return listing()(1, n, k, **given).compile(*specs, tilec.spec((1, n), "float16"), target=target)


def loop_of(asm):
    """The code between the loop's label and the jump back."""
    return max(re.findall(r"\n(\$L__BB0_\d+):(.*?)bra(?:\.uni)? +\t?\1;", asm, re.S),
               key=lambda found: len(found[1]))[1]  # fmt: skip


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a"])
def test_its_instructions(target):
    code = loop_of(compiled(target=target).asm)
    together = 8
    assert code.count("ld.global.nc.v4") == together  # of A: 16 bytes
    assert len(re.findall(r"ld.global.nc.(b|u)32", code)) == together  # of B: a word, once
    assert code.count("lop3.b32") == 4 * together
    assert code.count("add.rn.f16x2") == code.count("fma.rn.f16x2") == 2 * together
    assert code.count("mul.rn.f16x2") == 4 * together
    assert code.count("cvt.f32.f16") == 8 * together
    assert not re.search(r"(add|mul|sub|fma).rn.f16 ", code) and "prmt" not in code


def test_its_instructions_on_amd():
    asm = compiled(target="hip:gfx942").asm
    assert asm.count("v_pk_mul_f16") >= 32 and asm.count("v_pk_fma_f16") >= 16
    assert not re.search(r"v_(mul|add)_f16", asm)


def test_what_is_left_of_the_iterations(rng):
    """11 of them: 8 and 3; of a run-time number, too."""
    text = compiled(k=11 * 256).stages["unroll_loads"]
    assert text.count("for.serial %") == 1 + 8 + 1 + 1  # (the loops over ki are there yet)
    assert compiled().stages["unroll_loads"].count("for.serial %") == 1 + 8


K = T.dynamic("K")


@tilec.kernel
def sums(
    A: T.Tensor((4, K), "float16"), B: T.Tensor((4, K), "float16"), C: T.Tensor((4, 32), "float32")
):
    """A run-time number of iterations; multiplied, added, subtracted, fused."""
    with T.Kernel(4, threads=32) as bx:
        a = T.alloc_local((4,), "float16")
        b = T.alloc_local((4,), "float16")
        total = T.alloc_var("float32")
        total = 0.0
        tx = T.get_thread_binding()
        for k in T.serial(K // 128):
            for v in T.vectorized(4):
                a[v] = A[bx, k * 128 + tx * 4 + v]
                b[v] = B[bx, k * 128 + tx * 4 + v]
            for v in T.serial(4):
                total += T.cast((a[v] + b[v]) * (a[v] - b[v]), "float32")
        C[bx, tx] = total


@tilec.kernel
def rows_between(
    A: T.Tensor((64, 64), "float32"), C: T.Tensor((32,), "float32"), lo: T.int32, hi: T.int32
):
    """More rows than none, or fewer."""
    with T.Kernel(1, threads=32):
        a = T.alloc_local((2,), "float32")
        total = T.alloc_var("float32")
        total = 0.0
        tx = T.get_thread_binding()
        for k in T.serial(lo, hi):
            for v in T.vectorized(2):
                a[v] = A[T.clamp(k, 0, 63), tx * 2 + v]
            total += a[0] * a[1]
        C[tx] = total


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lo, hi", [(0, 64), (3, 41), (5, 5), (9, 6), (7, -30), (-9, 2)])
def test_from_one_number_to_another(lo, hi, target, rng):
    a, c = rng.standard_normal((64, 64)).astype("f4"), np.full(32, 77, "f4")
    run(rows_between, target, a, c, lo, hi)
    want = np.zeros(32, "f4")
    for k in range(lo, hi):
        want += a[min(max(k, 0), 63), 0::2] * a[min(max(k, 0), 63), 1::2]
    np.testing.assert_allclose(c, want, rtol=1e-5, atol=1e-5)
    made = rows_between.compile(a, c, lo, hi, target="cuda:sm_90a")
    assert made.asm.count("ld.global.nc.v2") >= 8


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("k", [128, 1280, 0, 100])
def test_a_run_time_number_of_iterations(k, target, rng):
    a, b = rng.standard_normal((2, 4, k)).astype("f2")
    c = np.full((4, 32), 77, "f4")
    run(sums, target, a, b, c)
    x, y = (z[:, : k // 128 * 128].reshape(4, -1, 32, 4).swapaxes(1, 2) for z in (a, b))
    want = np.zeros((4, 32), "f4")
    made = ((x + y) * (x - y)).reshape(4, 32, -1)
    for e in range(made.shape[-1]):
        want += made[..., e].astype("f4")
    np.testing.assert_array_equal(c, want)


def test_pairs_are_neighbours():
    specs = [tilec.spec((4, 1280), "float16")] * 2 + [tilec.spec((4, 32), "float32")]
    asm = sums.compile(*specs, target="cuda:sm_90a").asm
    assert not re.search(r"(add|mul|sub).rn.f16 ", asm)
    assert asm.count("mul.rn.f16x2") == 2 * (asm.count("cvt.f32.f16") // 4)


@tilec.kernel
def crossed(A: T.Tensor((64, 4), "float16"), C: T.Tensor((64, 4), "float16")):
    """Elements change places, and what is stored in between counts."""
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        a = T.alloc_local((4,), "float16")
        b = T.alloc_local((4,), "float16")
        for v in T.serial(4):
            a[v] = A[tx, v]
        for v in T.serial(4):
            b[v] = a[3 - v] * a[v]
        a[1] = b[2] + b[3]
        for v in T.serial(4):
            b[v] = b[v] - a[v]
        for v in T.serial(4):
            C[tx, v] = b[v]


@pytest.mark.parametrize("target", TARGETS)
def test_elements_that_change_places(target, rng):
    a, c = rng.standard_normal((64, 4)).astype("f2"), np.zeros((64, 4), "f2")
    run(crossed, target, a, c)
    b = a[:, ::-1] * a
    changed = a.copy()
    changed[:, 1] = b[:, 2] + b[:, 3]
    np.testing.assert_array_equal(c, b - changed)


@pytest.mark.gpu
@pytest.mark.parametrize("n, k, rows, threads", [(1024, 8192, 1, 256), (130, 2816, 4, 32)])
def test_on_a_gpu(n, k, rows, threads, rng):
    torch = pytest.importorskip("torch")
    a = rng.standard_normal((1, k)).astype("f2")
    packed = rng.integers(0, 256, (n, k // 2), dtype=np.uint8)
    kernel = listing()(1, n, k, n_partition=rows, reduce_thread=threads)
    c = torch.full((1, n), 77.0, dtype=torch.float16, device="cuda")
    for _ in range(5):
        kernel(torch.tensor(a).cuda(), torch.tensor(packed.view("i1")).cuda(), c)
        want = in_order(a, decoded(packed), threads)
        np.testing.assert_allclose(c.cpu().numpy()[0], want, rtol=2e-3, atol=0.1)
