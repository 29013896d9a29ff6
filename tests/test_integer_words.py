"""T.brev, T.ctz, T.ffs, T.mulhi and T.byte_perm, and CUDA's and LLVM's names of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.errors import CompileError

pytestmark = pytest.mark.usefixtures("unassembled")

TARGETS = ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu"]
INTS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
N = T.dynamic("N")


def random_ints(rng: np.random.Generator, dtype: str, n: int) -> np.ndarray:
    """Of all magnitudes, the limits, 0 and single bits among them."""
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, n, dtype=dtype, endpoint=True)
    x >>= rng.integers(0, info.bits, n).astype(dtype)
    edges = [0, 1, info.max, info.min, info.max // 2 + 1, 2]
    x[: min(n, len(edges))] = edges[:n]
    return x


def bits_of(x: np.ndarray) -> list[str]:
    width = x.dtype.itemsize * 8
    return [f"{int(v) & (1 << width) - 1:0{width}b}" for v in x]


def of_bits(dtype: str) -> Any:
    @tilec.kernel
    def words(
        X: T.Tensor((N,), dtype),
        Brev: T.Tensor((N,), dtype),
        Ctz: T.Tensor((N,), dtype),
        Ffs: T.Tensor((N,), "int32"),
    ):
        with T.Kernel(T.ceildiv(N, 70), threads=64) as bx:
            for i in T.Parallel(70):
                if bx * 70 + i < N:
                    x = X[bx * 70 + i]
                    Brev[bx * 70 + i] = T.brev(x)
                    Ctz[bx * 70 + i] = T.ctz(x)
                    Ffs[bx * 70 + i] = T.ffs(x)

    return words


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", INTS)
def test_bits(dtype: str, target: str, rng: np.random.Generator) -> None:
    for n in (1, 151):
        x = random_ints(rng, dtype, n)
        brev, ctz, ffs = np.zeros_like(x), np.zeros_like(x), np.zeros(n, np.int32)
        run(of_bits(dtype), target, x, brev, ctz, ffs)
        spelled = bits_of(x)
        assert bits_of(brev) == [s[::-1] for s in spelled]
        assert ctz.tolist() == [len(s) - len(s.rstrip("0")) for s in spelled]
        assert ffs.tolist() == [len(s) - s.rindex("1") if "1" in s else 0 for s in spelled]


def products(dtype: str) -> Any:
    @tilec.kernel
    def upper(X: T.Tensor((N,), dtype), Y: T.Tensor((N,), dtype), Z: T.Tensor((2, N), dtype)):
        with T.Kernel(T.ceildiv(N, 70), threads=64) as bx:
            for i in T.Parallel(70):
                if bx * 70 + i < N:
                    Z[0, bx * 70 + i] = T.mulhi(X[bx * 70 + i], Y[bx * 70 + i])
                    Z[1, bx * 70 + i] = T.mulhi(X[bx * 70 + i], 100)

    return upper


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_upper_products(dtype: str, target: str, rng: np.random.Generator) -> None:
    x, y, z = random_ints(rng, dtype, 151), random_ints(rng, dtype, 151), np.zeros((2, 151), dtype)
    rng.shuffle(y)
    run(products(dtype), target, x, y, z)
    width = np.iinfo(dtype).bits
    assert z[0].tolist() == [int(a) * int(b) >> width for a, b in zip(x, y)]
    assert z[1].tolist() == [int(a) * 100 >> width for a in x]


@tilec.kernel
def permuted(
    X: T.Tensor((N,), "uint32"),
    Y: T.Tensor((N,), "int32"),
    S: T.Tensor((N,), "uint32"),
    Z: T.Tensor((3, N), "uint32"),
):
    with T.Kernel(T.ceildiv(N, 70), threads=64) as bx:
        for i in T.Parallel(70):
            if bx * 70 + i < N:
                x, y = X[bx * 70 + i], Y[bx * 70 + i]
                Z[0, bx * 70 + i] = T.byte_perm(x, y, S[bx * 70 + i])
                Z[1, bx * 70 + i] = T.byte_perm(x, y, 0x0123)
                Z[2, bx * 70 + i] = T.byte_perm(x, 0xFF00AA11, 0x7654)


def byte_perm(x: int, y: int, s: int) -> int:
    found = x.to_bytes(4, "little") + (y & 0xFFFF_FFFF).to_bytes(4, "little")
    return int.from_bytes([found[s >> 4 * n & 7] for n in range(4)], "little")


@pytest.mark.parametrize("target", TARGETS)
def test_permuted_bytes(target: str, rng: np.random.Generator) -> None:
    for n in (1, 151):
        x, s = random_ints(rng, "uint32", n), random_ints(rng, "uint32", n)
        y, z = random_ints(rng, "int32", n), np.zeros((3, n), np.uint32)
        rng.shuffle(s)
        run(permuted, target, x, y, s, z)
        rows = list(zip(x.tolist(), y.tolist(), s.tolist()))
        assert z[0].tolist() == [byte_perm(*row) for row in rows]
        assert z[1].tolist() == [byte_perm(a, b, 0x0123) for a, b, _ in rows]
        assert set(z[2].tolist()) == {0xFF00AA11}


@tilec.kernel
def by_other_names(
    X: T.Tensor((64,), "int32"), L: T.Tensor((64,), "int64"), Z: T.Tensor((16, 64), "int64")
):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            x, y = X[i], X[63 - i]
            a, b = L[i], L[63 - i]
            Z[0, i] = T.call_extern("uint32", "__brev", x)
            Z[1, i] = T.call_extern("int64", "__brevll", a)
            Z[2, i] = T.call_extern("int32", "__ffs", x)
            Z[3, i] = T.call_pure_extern("int32", "__nv_ffsll", a)
            Z[4, i] = T.call_extern("int32", "__mulhi", x, y)
            Z[5, i] = T.call_extern("uint32", "__umulhi", x, y)
            Z[6, i] = T.call_extern("int64", "__mul64hi", a, b)
            Z[7, i] = T.call_extern("int64", "__umul64hi", a, b)
            Z[8, i] = T.call_extern("uint32", "__byte_perm", x, y, T.uint32(0x5140))
            Z[9, i] = T.call_llvm_pure_intrin("int32", "llvm.cttz.i32", x, False)
            Z[10, i] = T.call_llvm_intrin("int64", "llvm.bitreverse.i64", a)
            Z[11, i] = T.call_intrin("int32", "tl.__ffs", x)


@pytest.mark.parametrize("target", TARGETS)
def test_other_names(target: str, rng: np.random.Generator) -> None:
    X, L = random_ints(rng, "int32", 64), random_ints(rng, "int64", 64)
    rng.shuffle(X), rng.shuffle(L)
    Z = np.zeros((16, 64), np.int64)
    run(by_other_names, target, X, L, Z)
    x, u = X.tolist(), X.view(np.uint32).tolist()
    a, w = L.tolist(), L.view(np.uint64).tolist()
    bits, long = bits_of(X), bits_of(L)
    want = [
        [int(s[::-1], 2) for s in bits],
        [int(s[::-1], 2) for s in long],
        [len(s) - s.rindex("1") if "1" in s else 0 for s in bits],
        [len(s) - s.rindex("1") if "1" in s else 0 for s in long],
        [m * n >> 32 for m, n in zip(x, x[::-1])],
        [m * n >> 32 for m, n in zip(u, u[::-1])],
        [m * n >> 64 for m, n in zip(a, a[::-1])],
        [m * n >> 64 for m, n in zip(w, w[::-1])],
        [byte_perm(m, n, 0x5140) for m, n in zip(u, u[::-1])],
        [len(s) - len(s.rstrip("0")) for s in bits],
        [int(s[::-1], 2) for s in long],
        [len(s) - s.rindex("1") if "1" in s else 0 for s in bits],
    ]
    for n, row in enumerate(want):
        assert Z[n].view(np.uint64).tolist() == [v % 2**64 for v in row], n


@tilec.kernel
def known_now(Z: T.Tensor((8,), "int32")):
    with T.Kernel(1, threads=32):
        Z[0] = T.brev(1)
        Z[1] = T.ctz(40)
        Z[2] = T.ffs(40)
        Z[3] = T.mulhi(1 << 30, 12)
        Z[4] = T.reinterpret(T.byte_perm(0x03020100, 0x07060504, 0x6420), "int32")
        Z[5] = T.ctz(0) + T.ffs(0)
        Z[6] = T.mulhi(-5, 7)
        Z[7] = T.int32(T.mulhi(T.uint64(Z[4]) << 32, 0x9E3779B97F4A7C15) >> 32)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80"])
def test_of_constants(target: str) -> None:
    Z = np.zeros(8, np.int32)
    run(known_now, target, Z)
    assert Z.tolist() == [
        -(1 << 31),
        3,
        4,
        3,
        0x06040200,
        32,
        -1,
        (0x06040200 << 32) * 0x9E3779B97F4A7C15 >> 96,
    ]


def test_of_pythons_numbers() -> None:
    """Of 32 bits, or 64 where a number has more; negative ones as two's complement."""
    found = [f(x) for f in (T.popcount, T.clz, T.ctz) for x in (-1, 0, 1 << 31, 1 << 40)]
    assert found == [32, 0, 1, 1, 0, 32, 0, 23, 0, 32, 31, 40]
    assert [T.brev(x) for x in (-1, 2, 1 << 40)] == [-1, 1 << 30, 1 << 23]


INSTRUCTIONS = {
    "cuda:sm_80": {"brev": "brev.b32", "mulhi": "mul.hi"},
    "hip:gfx942": {"brev": "v_bfrev_b32", "mulhi": "mul_hi"},
}


@pytest.mark.parametrize("target", INSTRUCTIONS)
def test_the_machines_own(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # assembled
    one, more = tilec.spec((150,), "int32"), tilec.spec((2, 150), "int32")
    assert INSTRUCTIONS[target]["brev"] in of_bits("int32").compile(*[one] * 4, target=target).asm
    made = products("int32").compile(one, one, more, target=target).asm
    assert INSTRUCTIONS[target]["mulhi"] in made or "mul.wide" in made


ERRORS = {
    "brev": ("T.brev(F[0])", "brev of .*: it is defined for integers"),
    "ffs": ("T.ffs(F[0])", "x of T.ffs is .*, not an int"),
    "mulhi": ("T.mulhi(I[0], 0.5)", "y of T.mulhi is .*0.5, not an int"),
    "narrow": ("T.mulhi(B[0], 5)", "x of T.mulhi is .*, not an int of 32 or 64 bits"),
    "width": ("T.byte_perm(I[0], L[0], 0)", "y of T.byte_perm is .*, not an int of 32 bits"),
    "text": ("T.byte_perm(I[0], I[1], 'x')", "s of T.byte_perm"),
    "few": ("T.mulhi(I[0])", "T.mulhi"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str, tmp_path: Any) -> None:
    line, message = ERRORS[name]
    path, scope = tmp_path / "kernel.py", dict[str, Any]()
    path.write_text(
        "import tilec, tilec.language as T\n"
        "@tilec.kernel\n"
        "def kernel(F: T.Tensor((8,), 'float32'), I: T.Tensor((8,), 'int32'),\n"
        "           L: T.Tensor((8,), 'int64'), B: T.Tensor((8,), 'int8')):\n"
        "    with T.Kernel(1, threads=32):\n"
        f"        x = {line}\n"
    )
    exec(compile(path.read_text(), str(path), "exec"), scope)
    specs = [tilec.spec((8,), d) for d in ("float32", "int32", "int64", "int8")]
    with pytest.raises(CompileError, match=message) as caught:
        scope["kernel"].compile(*specs, target="cuda:sm_90a")
    assert caught.value.loc is not None and caught.value.loc.line == 6
