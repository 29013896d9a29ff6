"""What ptxas makes of 16-bit floats that are selected, of float8 that it finds to be 0 and of upper
halves of products: wrong numbers on an H200."""

from __future__ import annotations

import random
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.codegen.ptxas import run_ptxas
from tilec.codegen.ptxas_faults import with_pairs_of_sums, without_faults
from tilec.support.tools import find_ptxas

N = T.dynamic("N")


@tilec.kernel
def selected(
    A: T.Tensor((7,), "float32"), C: T.Tensor((64, 32), "float32"), Y: T.Tensor((32, 7), "float16")
):
    """A thread has two of Y's rows, which begin with the same number; one may take another."""
    with T.Kernel(1, threads=128):
        other = T.alloc_shared((22, 16), "uint32")
        a = T.alloc_shared((64, 16), "float16")
        b = T.alloc_shared((16, 32), "float16")
        acc = T.alloc_fragment((64, 32), "float32")
        for i, j in T.Parallel(22, 16):
            other[i, j] = T.cast(A[i % 7], "uint32")
        for i, j in T.Parallel(64, 16):
            a[i, j] = T.cast((i + j * 5) % 3, "float16")
        for i, j in T.Parallel(16, 32):
            b[i, j] = T.cast((i + j * 2) % 6, "float16")
        T.gemm(a, b, acc, clear_accum=True)
        T.copy(acc, C)
        for i, j in T.Parallel(32, 7):
            mine = T.cast(acc[48, j + 2], "float16")
            Y[i, j] = T.max(T.cast(other[j, j], "float16") if 3 <= i < 12 else mine, 0.0)


def arrays() -> list[np.ndarray]:
    a = np.random.default_rng(5).integers(0, 9, 7).astype(np.float32)
    return [a, np.zeros((64, 32), np.float32), np.zeros((32, 7), np.float16)]


def check_selected(a: np.ndarray, c: np.ndarray, y: np.ndarray) -> None:
    left = (np.arange(64)[:, None] + np.arange(16) * 5) % 3
    right = (np.arange(16)[:, None] + np.arange(32) * 2) % 6
    np.testing.assert_array_equal(c, left @ right)
    row = np.arange(32)[:, None]
    np.testing.assert_array_equal(y, np.where((row >= 3) & (row < 12), a, c[48, 2:9]))


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a"])
def test_values_are_selected_by_masks(target: str) -> None:
    given = arrays()
    ptx = selected.compile(*given, target=target).stages["ptx"]
    assert re.search(r"max\.f16", ptx) and "selp.b16" not in ptx
    assert "lop3.b32 mask, mask, yes, no, 0xCA" in ptx
    assert not tilec.simulate(selected, *given, target=target).findings
    check_selected(*given)


@tilec.kernel
def shuffled(A: T.Tensor((11, 8), "float8_e4m3"), C: T.Tensor((64, 24), "float32")):
    """The copy has columns beyond A: zeros, which lanes exchange before they are converted."""
    with T.Kernel(1, threads=128) as bx:
        a = T.alloc_shared((16, 64), "float8_e4m3")
        b = T.alloc_shared((16, 24), "float8_e4m3")
        acc = T.alloc_fragment((64, 24), "float32")
        for i, j in T.Parallel(16, 64):
            a[i, j] = T.cast((i + j) % 3, "float8_e4m3")
        for i, j in T.Parallel(16, 24):
            b[i, j] = T.cast((i + j * 2) % 3, "float8_e4m3")
        T.clear(acc)
        T.gemm(a, b, acc, transpose_A=True)
        T.copy(A[bx - 1, 4], acc)
        T.copy(acc, C)


def check_shuffled(a: np.ndarray, c: np.ndarray) -> None:
    want = np.zeros((64, 24), np.float32)
    want[1:12, :4] = a[:, 4:].astype(np.float32)
    np.testing.assert_array_equal(c, want)


def float8(n: int = 88) -> np.ndarray:
    made = np.random.default_rng(5).integers(-7, 8, n).reshape(11, 8)
    return made.astype(ml_dtypes.float8_e4m3fn)


def test_float8_is_converted_from_registers_of_its_own() -> None:
    a, c = float8(), np.zeros((64, 24), np.float32)
    ptx = shuffled.compile(a, c, target="cuda:sm_90a").stages["ptx"]
    assert ptx.count("cvt.rn.f16x2.e4m3x2") == ptx.count("cvt.u32.u16 own") > 0
    tilec.simulate(shuffled, a, c, target="cuda:sm_90a")
    check_shuffled(a, c)


HEAD = """.version 8.4
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p) {
.reg .b64 %rd<4>; .reg .b32 %r<8>; .reg .b16 %rs<8>; .reg .pred %p<4>;
ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; setp.gt.u32 %p1, %r1, 2;
ld.global.v2.b32 {%r2, %r3}, [%rd1];
"""
BODY = """
	mov.b32 	{%rs1, %rs2}, %r2;
	max.f16 	%rs3, %rs1, %rs2;
	selp.b16 	%rs4, 0xFC00, %rs1, %p1;
	selp.b32 	%r4, %r2, %r3, %p1;
	selp.b32 	%r5, %r1, 7, %p1;
	cvt.rn.f16x2.e5m2x2 	%r6, %rs4;
"""
TAIL = "st.global.v4.b32 [%rd1], {%r2, %r4, %r5, %r6};\nst.global.b16 [%rd1+16], %rs3;\nret; }\n"


def test_what_is_rewritten() -> None:
    made = without_faults(HEAD + BODY + TAIL)
    left = [line for line in BODY.splitlines() if line and line in made.splitlines()]
    # The other select is of whole numbers.
    assert [line.split()[0] for line in left] == ["mov.b32", "max.f16", "selp.b32"]
    assert made.count("lop3.b32") == 2
    ptxas = find_ptxas()
    if ptxas is not None:
        assert run_ptxas(ptxas, made, "sm_90a").cubin
    # No arithmetic of 16 bits: nothing to pair.
    alone = BODY.replace("max.f16", "max.u16").replace("cvt.rn.f16x2.e5m2x2", "cvt.u32.u16")
    assert without_faults(alone) == alone


def expressions(seed: int) -> tuple[str, str]:
    """Sums, products, extremes and selections of 16-bit floats, as a kernel and for NumPy."""
    rng = random.Random(seed)
    names, lines = ["x", "a"], []
    for n in range(10):
        u, v = rng.choice(names), rng.choice(names)
        c = rng.choice(["1.5", "-0.5", "2.0"])
        form = rng.choice(["{u} + {c}", "{u} * {c}", "max({u}, {c})", "min({u}, {v})", "{u} + {v}"])
        if n % 2:
            form = f"where(i % {rng.choice([2, 3, 5])} == 1, {{u}}, {{v}})"
        lines.append(f"v{n} = " + form.format(u=u, v=v, c=c))
        names.append(f"v{n}")
    return lines, names[-4:]


def made_kernel(seed: int, folder: str) -> tuple[tilec.Kernel, list[str], list[str]]:
    lines, outs = expressions(seed)
    body = [
        re.sub(r"\b(max|min)\(", r"T.\1(", x).replace("where(", "T.if_then_else(") for x in lines
    ]
    source = "import tilec\nimport tilec.language as T\nN = T.dynamic('N')\n@tilec.kernel\n"
    args = ", ".join(f"{n}: T.Tensor((N,), 'float16')" for n in ("X", "A", "Y0", "Y1", "Y2", "Y3"))
    source += f"def k({args}):\n    with T.Kernel(T.ceildiv(N, 256), threads=64) as b:\n"
    source += "        for i in T.Parallel(256):\n"
    at = "[b * 256 + i]"
    every = [f"x = X{at}", f"a = A{at}", *body, *(f"Y{n}{at} = {o}" for n, o in enumerate(outs))]
    source += "".join(f"            {line}\n" for line in every)
    path = f"{folder}/k{seed}.py"
    with open(path, "w") as f:
        f.write(source)
    scope: dict[str, object] = {}
    exec(compile(source, path, "exec"), scope)
    return scope["k"], lines, outs


def expected(lines: list[str], outs: list[str], x: np.ndarray, a: np.ndarray) -> list[np.ndarray]:
    scope = {"x": x, "a": a, "i": np.arange(len(x)) % 256, "where": np.where}
    half = np.float16
    scope |= {"max": lambda u, v: np.maximum(u, half(v)), "min": np.minimum}
    for line in lines:
        name, _, text = line.partition(" = ")
        text = re.sub(r"(-?\d\.\d)", r"half(\1)", text)
        scope[name] = eval(text, {"half": half}, scope)
    return [scope[o] for o in outs]


def operands(n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.integers(-9, 10, n).astype(np.float16) for _ in range(2)]


@pytest.mark.parametrize("seed", range(3))
def test_chains_of_selections(seed: int, tmp_path: object) -> None:
    kernel, lines, outs = made_kernel(seed, str(tmp_path))
    x, a = operands(700)
    got = [np.zeros_like(x) for _ in range(4)]
    assert not tilec.simulate(kernel, x, a, *got, target="cuda:sm_90a").findings
    for mine, want in zip(got, expected(lines, outs, x, a)):
        np.testing.assert_array_equal(mine, want)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(60))
def test_chains_of_selections_on_the_gpu(seed: int, tmp_path: object, torch: Any) -> None:
    kernel, lines, outs = made_kernel(seed, str(tmp_path))
    x, a = operands(7000)
    got = [torch.zeros(7000, dtype=torch.float16, device="cuda") for _ in range(4)]
    kernel(torch.from_numpy(x).cuda(), torch.from_numpy(a).cuda(), *got)
    for mine, want in zip(got, expected(lines, outs, x, a)):
        np.testing.assert_array_equal(mine.cpu().numpy(), want)


@pytest.mark.gpu
def test_numbers_on_the_gpu(torch: Any) -> None:
    given = [torch.from_numpy(x).cuda() for x in arrays()]
    selected(*given)
    check_selected(*(t.cpu().numpy() for t in given))
    a, c = float8(), torch.zeros(64, 24, device="cuda")
    bits = torch.from_numpy(a.view(np.uint8)).cuda()
    shuffled(bits.view(torch.float8_e4m3fn), c)
    check_shuffled(a, c.cpu().numpy())


# --- products of float8 ---------------------------------------------------------------------------


@tilec.kernel
def product_of_shuffled_zeros(
    A: T.StridedTensor((16, 23), (26, 1), "float8_e4m3"),
    B: T.Tensor((8, 25), "float8_e4m3"),
    C: T.Tensor((10, 70), "float16"),
    D: T.Tensor((8, 96), "int16"),
):
    with T.Kernel(3, 1, threads=256) as (bx, by):
        s = T.alloc_shared((8, 32), "int64")
        a = T.alloc_fragment((32, 16), "float8_e4m3")
        b = T.alloc_shared((32, 24), "float8_e4m3")
        c = T.alloc_fragment((16, 24), "float32")
        for i, j in T.Parallel(8, 32):
            s[i, j] = T.cast(2.0, "int64")
        T.copy(A[by * 8, 2], a)
        T.copy(B[0, 0], b)
        T.gemm(a, b, c, transpose_A=True, policy=T.GemmWarpPolicy.FullCol, clear_accum=True)
        T.copy(c, C[by * 16, bx * 24])
        T.copy(s, D[by * 8, bx * 32])


def numbers(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    A = rng.integers(-4, 5, (16, 26)).astype(ml_dtypes.float8_e4m3fn)[:, :23]
    B = rng.integers(-4, 5, (8, 25)).astype(ml_dtypes.float8_e4m3fn)
    left, right = np.zeros((32, 16)), np.zeros((32, 24))
    left[:16], right[:8] = A[:, 2:18], B[:, :24]
    return A, B, np.tile(left.T @ right, 3)[:10, :70]


def test_float8_products_are_products_of_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversions of which one took the upper half of a register without a number."""
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")
    A, B, _ = numbers(np.random.default_rng(1))
    C, D = np.zeros((10, 70), np.float16), np.zeros((8, 96), np.int16)
    made = product_of_shuffled_zeros.compile(A, B, C, D, target="cuda:sm_90a")
    assert made.stages["ptx"].count("m16n8k32") == 0
    assert made.stages["ptx"].count("mma.sync.aligned.m16n8k16.row.col.f32.f16") == 6
    sass = made.stages["sass"] if "sass" in made.stages else ""
    if "HMMA" in sass:
        assert not re.search(r"UNPACK_B R\d+, -?\d", sass)


@pytest.mark.parametrize("kinds", ["e4m3.e4m3", "e4m3.e5m2", "e5m2.e4m3"])
def test_a_float8_product_for_ptxas(kinds: str) -> None:
    """Sums may lie in the registers of operands: the first product is not written there."""
    line = (
        "\tshfl.sync.bfly.b32 \t%r1, %r1, 4, 31, -1;\n\tadd.u32 \t%r6, %r1, %r6;\n"
        f"\tmma.sync.aligned.m16n8k32.row.col.f32.{kinds}.f32 {{%r2, %r3, %r4, %r5}}, "
        "{%r2, %r3, %r4, %r5}, {%r6, %r7}, {%r2, %r2, %r2, %r2};\n"
    )
    made = without_faults(HEAD + line + TAIL)
    first, second = re.findall(r"m16n8k16\S+ \{(.*?)\}, .*, \{(.*?)\};", made)
    assert first[1] == "%r2, %r2, %r2, %r2" and second[1] == first[0] and "%r2" not in first[0]
    assert second[0] == "%r2, %r3, %r4, %r5"
    assert made.count(f"cvt.rn.f16x2.{kinds[:4]}x2") >= 8
    ptxas = find_ptxas()
    if ptxas is not None:
        assert run_ptxas(ptxas, made, "sm_90a").cubin
    for a, b in (("sm_90a", "sm_89"), ("%r6, %r1, %r6", "%r1, %r1, %r6")):
        assert "m16n8k16" not in without_faults((HEAD + line + TAIL).replace(a, b))


def test_a_float8_product_in_the_simulator(rng: np.random.Generator) -> None:
    A, B, wanted = numbers(rng)
    C, D = np.zeros((10, 70), np.float16), np.zeros((8, 96), np.int16)
    assert not tilec.simulate(product_of_shuffled_zeros, A, B, C, D, target="cuda:sm_90a").findings
    np.testing.assert_array_equal(C, wanted)


@pytest.mark.gpu
def test_a_float8_product_on_the_gpu(rng: np.random.Generator, torch: Any) -> None:
    A, B, wanted = numbers(rng)
    wide = torch.zeros((16, 26), dtype=torch.uint8, device="cuda")
    wide[:, :23] = torch.from_numpy(A.view(np.uint8).copy()).cuda()
    a = wide.view(torch.float8_e4m3fn)[:, :23]
    b = torch.from_numpy(B.view(np.uint8)).cuda().view(torch.float8_e4m3fn)
    C = torch.full((10, 70), float("nan"), dtype=torch.float16, device="cuda")
    D = torch.zeros((8, 96), dtype=torch.int16, device="cuda")
    product_of_shuffled_zeros(a, b, C, D)
    np.testing.assert_array_equal(C.cpu().numpy(), wanted)


@tilec.kernel
def in_flight(
    A: T.Tensor((256, 512), "float16"),
    B: T.Tensor((256, 512), "float16"),
    rows: T.Tensor((4,), "int32"),
    C: T.Tensor((256, 256), "float16"),
    tiles: T.int32,
):
    """A product by hand, one step of which is in flight as an iteration ends; its sums leave in 16
    bits by one of two ways. Tiles without rows are left out."""
    with T.Kernel(1, threads=256):
        a = T.alloc_shared((3, 64, 64), "float16")
        b = T.alloc_shared((3, 256, 64), "float16")
        c = T.alloc_shared((64, 256), "float16")
        acc = T.alloc_fragment((64, 256), "float32")
        half = T.alloc_fragment((64, 256), "float16")
        full, free = T.alloc_barrier([128] * 3), T.alloc_barrier([128] * 3)
        brought, used = T.alloc_var("int32", init=0), T.alloc_var("int32", init=0)
        tx = T.get_thread_binding(0)
        if tx < 128:
            T.dec_max_nreg(24)
            for w in T.serial(tiles):
                if rows[w] > 0:
                    for k in T.serial(8):
                        T.barrier_wait(free[brought % 3], brought // 3 % 2 ^ 1)
                        T.tma_copy(A[w * 64, k * 64], a[brought % 3, :, :], full[brought % 3])
                        T.tma_copy(B[0, k * 64], b[brought % 3, :, :], full[brought % 3])
                        T.barrier_arrive(full[brought % 3])
                        brought += 1
        else:
            T.inc_max_nreg(240)
            for w in T.serial(tiles):
                if rows[w] > 0:
                    for k in T.serial(8):
                        at = used % 3
                        T.barrier_wait(full[at], used // 3 % 2)
                        first = k == 0
                        T.wgmma_gemm(
                            a[at, :, :], b[at, :, :], acc, transpose_B=True, clear_accum=first
                        )
                        if k > 0:
                            T.wait_wgmma(1)
                            T.barrier_arrive(free[(used + 2) % 3])
                        used += 1
                    T.wait_wgmma(0)
                    T.barrier_arrive(free[(used + 2) % 3])
                    T.copy(acc, half)
                    if rows[w] == 64:
                        T.copy(half, c)
                        T.copy(c, C[w * 64, 0])
                    else:
                        for i, j in T.Parallel(64, 256):
                            if i < rows[w]:
                                C[w * 64 + i, j] = half[i, j]


@pytest.mark.parametrize("tiles", [0, 1, 4])
def test_sums_of_products_in_flight(tiles: int) -> None:
    rng = np.random.default_rng(3)
    a, b = ((rng.standard_normal((256, 512)) / 8).astype(np.float16) for _ in range(2))
    rows, c = np.array([64, 0, 63, 64], np.int32), np.zeros((256, 256), np.float16)
    report = tilec.simulate(in_flight, a, b, rows, c, tiles, target="cuda:sm_90a")
    assert report.ok, report
    there = np.arange(64) < (rows * (np.arange(4) < tiles))[:, None]
    want = np.where(there.reshape(256, 1), a.astype(float) @ b.astype(float).T, 0)
    np.testing.assert_allclose(c, want, rtol=2e-3, atol=2e-3)


def test_sums_of_products_in_flight_are_converted_two_by_two() -> None:
    half = [tilec.spec(s, "float16") for s in ((256, 512), (256, 512), (256, 256))]
    given = *half[:2], tilec.spec((4,), "int32"), half[2], 4
    ptx = in_flight.compile(*given, target="cuda:sm_90a").stages["ptx"]
    assert "wait_group.sync.aligned 1" in ptx
    if (ptxas := find_ptxas()) is not None:
        assert not run_ptxas(ptxas, ptx, "sm_90a").advisories
        apart = re.sub(
            r"\{ \.reg \.b32 both; .*? both, (%\w+), (%\w+); mov\.b32 \{(%\w+), (%\w+)\}, both; \}",
            r"cvt.rn.f16.f32 \t\3, \2;\n\tcvt.rn.f16.f32 \t\4, \1;",
            ptx,
        )
        assert apart.count("cvt.rn.f16.f32") == 128 and with_pairs_of_sums(apart) == ptx
        assert "C7514" in " ".join(run_ptxas(ptxas, apart, "sm_90a").advisories)
        # What stands between two of them is what neither reads.
        more = re.sub(r"(cvt\.rn\.f16\.f32 .*\n)", r"\1\tadd.s32 \t%r1, %r1, 1;\n", apart)
        assert with_pairs_of_sums(more).count("cvt.rn.f16x2.f32") == 64
        ended = re.sub(r"(cvt\.rn\.f16\.f32 .*\n)", r"\1$L__other:\n", apart)
        assert with_pairs_of_sums(ended) == ended


# --- upper halves of products ---


B, H, W, C, R, S, K, P, Q = map(T.dynamic, "BHWCRSKPQ")


@tilec.kernel
def convolution(
    X: T.Tensor((B, H, W, C), "float32"),
    F: T.Tensor((R, S, C, K), "float32"),
    Y: T.Tensor((B, P, Q, K), "float32"),
):
    for b, y, x, n in T.Parallel(B, P, Q, K):
        acc = 0.0
        for r in range(R):
            for s in range(S):
                for c in range(C):
                    if 0 <= 2 * y + r - 2 < H and 0 <= 2 * x + s - 2 < W:
                        acc += X[b, 2 * y + r - 2, 2 * x + s - 2, c] * F[r, s, c, n]
        Y[b, y, x, n] = acc


def convolved(x: np.ndarray, f: np.ndarray) -> np.ndarray:
    wide = np.pad(x.astype(np.float64), ((0, 0), (2, 2), (2, 2), (0, 0)))
    n = x.shape[1]
    taps = ((r, s) for r in range(5) for s in range(5))
    return sum(wide[:, r : r + n : 2, s : s + n : 2] @ f[r, s].astype(np.float64) for r, s in taps)


def rows_of_67(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of 64 that begin anywhere, brought element by element in a loop that divides."""
    x = rng.standard_normal((2, size, size, 67)).astype(np.float32)
    f = rng.standard_normal((5, 5, 64, 64)).astype(np.float32)
    return x, f, np.full((2, -(-size // 2), -(-size // 2), 64), np.nan, np.float32)


def test_divisions_of_a_loops_index(rng: np.random.Generator) -> None:
    x, f, y = rows_of_67(rng, 109)
    made = convolution.compile(x[..., :64], f, y, target="cuda:sm_90a")
    ptx = str(made.stages["ptx"])
    assert "cp.async.ca.shared.global" in ptx and ptx.count("mul.hi.u32") >= 2
    loops = re.findall(r"^(\$\w+):(?:(?!^\$\w+:).)*bra \t\1;", ptx, re.M | re.S)
    assert loops and not re.search(r"mov\.b64 \t\{_, ", ptx[ptx.index(loops[0]) :])


def test_upper_halves_of_products_for_ptxas() -> None:
    lines = (
        "\tcvt.u64.u32 \t%rd2, %r1;\n\tcvt.u64.u32 \t%rd3, %r2;\n"
        "\tmul.lo.s64 \t%rd2, %rd3, %rd3;\n\tmov.b64 \t{_, %r4}, %rd2;\n"
        "\tmul.lo.s64 \t%rd3, %rd1, 12;\n\tmov.b64 \t{%r5, %r6}, %rd3;\n"
        "\tadd.s64 \t%rd4, %rd1, 8;\n\tmov.b64 \t{_, %r4}, %rd4;\n"
        "\tld.global.b64 \t%rd1, [%rd3];\n\tmov.b64 \t{_, %r7}, %rd1;\n"
    )
    head = HEAD.replace("%rd<4>", "%rd<5>")
    assert without_faults(head + lines + TAIL) == head + lines + TAIL  # no loop changes them
    made = without_faults(f"{head}$L_loop:\n{lines}\t@%p1 bra \t$L_loop;\n{TAIL}")
    assert made.count("mul.hi.u32 %r4, a, b;") == made.count("shr.u64 up, %rd3, 32;") == 1
    assert made.count("shr.u64 up, %rd4, 32;") == 1
    assert "cvt.u32.u64 \t%r5, %rd3;" in made and "mov.b64 \t{_, %r7}, %rd1;" in made
    ptxas = find_ptxas()
    if ptxas is not None:
        assert run_ptxas(ptxas, made, "sm_90a").cubin


@pytest.mark.gpu
@pytest.mark.parametrize("size", [9, 109])
def test_divisions_of_a_loops_index_on_the_gpu(
    size: int, rng: np.random.Generator, torch: Any
) -> None:
    x, f, y = rows_of_67(rng, size)
    there = [torch.from_numpy(a).cuda() for a in (x, f, y)]
    convolution(there[0][..., :64], *there[1:])
    wanted = convolved(x[..., :64], f)
    np.testing.assert_allclose(there[2].cpu().numpy(), wanted, rtol=0, atol=1e-3)
