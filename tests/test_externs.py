"""Calls of functions by their names in other systems: tilec's decode functions against a literal
NumPy copy of what TileLang's examples import, and functions of numbers."""

import itertools
import re

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

TARGETS = ("cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942")


# --- decode functions -----------------------------------------------------------------------------


def half(bits):
    return np.uint16(bits & 0xFFFF).view(np.float16)


def fma(a, b, c):
    return np.float16(float(a) * float(b) + float(c))


def decoded(name, packed, scale, zeros, raw_zeros, offsets, count):
    """What the CUDA C++ of `name` makes of bytes, as 16-bit or 8-bit numbers."""
    bits, sign, to = re.match(r"decode_i(\d)(.)_to_(\w+?s?\d+s?)(?:_|$)", name).groups()
    bits, signed = int(bits), sign == "s"
    word = int.from_bytes(bytes(packed[:4]), "little")
    if to == "i8s":
        if bits == 1:
            word = (word & 0x0F0F) | (word & 0xF0F0) << 12
        second = int.from_bytes(bytes(packed[4:8]), "little")
        out = []
        for i in range(4):
            own = (word, word, second, second)[i] if bits == 4 else word
            step = (i % 2 if bits == 4 else i) * bits
            lane = own >> step
            for byte in range(4):
                x = lane >> 8 * byte & ((1 << bits) - 1)
                x = (2 * x - 1 if bits == 1 else x - {2: 2, 4: 7}[bits]) if signed else x
                out.append(x)
        return np.array(out[:count], np.int8)
    if to == "i4s":
        words = [word >> 2 * n & 0x33333333 for n in range(2)]
        return np.frombuffer(b"".join(w.to_bytes(4, "little") for w in words), np.int8)
    if bits == 2:
        word = (word & 0xFF) | (word & 0xFF00) << 8
    elif bits == 1:
        word = (word & 0x0F) | (word & 0xF0) << 12
    out = []
    for i in range(count // 2):
        pair = word >> bits * i & ((1 << bits) - 1) * 0x10001 | 0x64006400
        for h in (pair, pair >> 16):
            x = half(h)
            n = 1 if "offset" in name and i >= count // 4 else 0
            s = scale[offsets[0] * n]
            if "quantized" in name:
                z = raw_zeros
                if "offset" in name:
                    z = int(zeros[offsets[1] * n]) >> 4 * offsets[2] & 0xF
                x = np.float16(x + half(0xE400 | z))
            else:
                x = np.float16(x - half(0x6400 + ({4: 8, 2: 2, 1: 0}[bits] if signed else 0)))
            if bits == 1 and signed:
                x = np.float16(np.float16(x + x) - np.float16(1))
            if "original" in name:
                x = np.float16(x - zeros[offsets[0] * n])
            if "rescale" in name and bits != 2:
                x = fma(x, s, -abs(zeros[offsets[0] * n]))
            elif "scale" in name:
                x = fma(x, s, 0)
                if "rescale" in name:
                    x = np.float16(x - zeros[offsets[0] * n])
            out.append(x)
    return np.array(out, np.float16)


NAMES = [f"decode_i{b}{s}_to_f16{more}" for b in (1, 2, 4) for s in "su" for more in ("", "_scale")]
NAMES += [
    f"decode_i{b}u_to_f16_scale_zeros_{mode}"
    for b, mode in itertools.product((1, 2, 4), ("original", "rescale", "quantized"))
]
NAMES += [f"decode_i{b}{s}_to_i8s" for b in (1, 2, 4) for s in "su"]
NAMES += ["decode_i2s_to_i4s", "decode_i2u_to_i4s", "decode_i4s_to_f16_scale_offset"]
NAMES += [
    f"decode_i{b}u_to_f16_scale_zeros_{mode}_offset"
    for b, mode in ((4, "original"), (4, "rescale"), (4, "quantized"), (2, "original"))
]
ROWS = 40


def decoding(name, storage, count):
    """A kernel in which each thread decodes a row of packed bytes."""
    target = "float16" if "f16" in name else "int8"
    width = 8 if "f16" in name or "to_i4s" in name else 16
    step = {"int8": 1, "uint8": 1, "int32": 4}[storage]
    scaled, zeroed, offset = "scale" in name, "zeros" in name, "offset" in name
    quantized = offset and "quantized" in name
    zero_type = "int16" if "quantized" in name else "float16"

    @tilec.kernel
    def kernel(
        P: T.Tensor((ROWS, 8 // step), storage),
        S: T.Tensor((ROWS, 4), "float16"),
        Z: T.Tensor((ROWS, 4), zero_type),
        C: T.Tensor((ROWS, width), target),
    ):
        with T.Kernel(T.ceildiv(ROWS, 32), threads=32) as bx:
            row = bx * 32 + T.get_thread_binding()
            packed = T.alloc_local((8 // step,), storage)
            out = T.alloc_local((width,), target)
            if row < ROWS:
                for v in T.vectorized(8 // step):
                    packed[v] = P[row, v]
                args = [T.access_ptr(packed, "r"), T.access_ptr(out, "w")]
                if scaled:
                    args = [*args, T.address_of(S[row, 0])]
                if zeroed:
                    args = [*args, T.address_of(Z[row, 0])]
                if quantized:
                    args = [*args, 1, 2, 3]
                elif offset:
                    args = [*args, 3]
                if count != width:
                    args = [*args, count]
                T.call_extern("handle", name, *args)
                for v in T.vectorized(count):
                    C[row, v] = out[v]

    return kernel


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("target", "storage"),
    [*zip((*TARGETS, "cpu"), ("uint8", "int8", "int32", "uint8", "int32"))],
    ids=str,
)
@pytest.mark.parametrize("name", NAMES)
def test_decode_functions(name, target, storage, rng):
    """A function's body is the same text for every target, of which each has one usually."""
    scale = (rng.standard_normal((ROWS, 4)) * 2).astype("f2")
    packed = rng.integers(0, 256, (ROWS, 8), dtype=np.uint8)
    zeros = (rng.standard_normal((ROWS, 4)) * 4).astype("f2")
    if "quantized" in name:
        zeros = rng.integers(0, 1 << (16 if "offset" in name else 4), (ROWS, 4)).astype("i2")
    offsets = (1, 2, 3) if "quantized" in name else (3,)
    width = 8 if "f16" in name or "to_i4s" in name else 16
    for count in (width, 4) if "to_i4s" not in name and "offset" not in name else (width,):
        C = np.zeros((ROWS, width), "f2" if "f16" in name else "i1")
        given = [packed.view(storage), scale, zeros, C]
        run(decoding(name, storage, count), target, *given)
        for r in range(ROWS):
            raw = int(zeros[r, 0]) & 0xFFFF if "quantized" in name else 0
            want = decoded(name, packed[r], scale[r], zeros[r], raw, offsets, count)
            assert np.array_equal(C[r, : len(want)], want), (name, target, r)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def twiddled(packed):
    """PTX's own steps: byte-reversed, masked, times 2**126 (here: shifted into an E2M1)."""
    word = int.from_bytes(bytes(packed), "big")
    mask = 0x81C081C0
    parts = [word & mask, word << 3 & mask, word << 6 & mask]
    parts.append((word << 1 & 0x80008000) | (word >> 3 & 0x01800180) | (word >> 7 & 0x00400040))
    halves = [p >> 16 for p in parts] + [p & 0xFFFF for p in parts]
    return [E2M1[(h >> 15) << 3 | h >> 6 & 7] for h in halves]


@pytest.mark.parametrize("target", TARGETS)
def test_decode_fp4(target):
    packed = np.arange(256, dtype=np.uint8).reshape(32, 8)
    packed = np.concatenate([packed, packed[:, ::-1] ^ 0x5A])
    twice = np.zeros((2, 64, 16), "f4")

    @tilec.kernel
    def kernel(P: T.Tensor((64, 8), "uint8"), C: T.Tensor((2, 64, 16), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            own = T.alloc_local((8,), "uint8")
            out = T.alloc_local((16,), "bfloat16")
            for v in T.vectorized(8):
                own[v] = P[tx, v]
            T.call_extern("decode_fp4_to_bf16", T.access_ptr(own, "r"), T.access_ptr(out, "w"),
                          2, dtype="bfloat16")  # fmt: skip
            for v in T.serial(16):
                C[0, tx, v] = out[v]
            for g in T.serial(2):
                T.call_extern("decode_fp4_to_bf16_twiddling", T.address_of(own[4 * g]),
                              T.address_of(out[8 * g]), 1, dtype="bfloat16")  # fmt: skip
            for v in T.serial(16):
                C[1, tx, v] = out[v]

    run(kernel, target, packed, twice)
    for r in range(64):
        for g in range(2):
            own = packed[r, 4 * g : 4 * g + 4]
            want = [E2M1[b & 15] for b in own] + [E2M1[b >> 4] for b in own]
            assert twice[0, r, 8 * g : 8 * g + 8].tolist() == want
            found = twice[1, r, 8 * g : 8 * g + 8]
            assert found.tolist() == twiddled(own)
            assert np.array_equal(np.signbit(found), np.signbit(twiddled(own)))


CPP = """
template <typename T1, typename T2>
__device__ void decode_i4u_to_f16(T1 *_i4u, T2 *B_local_decode, const int N = 8)
{ asm volatile("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(h[i]) : "r"(i4s)); }

template <typename T1>
__device__ void twice(T1 *x) { x[0] *= 2; }
"""


@tilec.kernel
def gemv(
    A: T.Tensor((2, 512), "float16"),
    B: T.Tensor((12, 256), "int8"),
    C: T.Tensor((2, 12), "float16"),
):
    """The paper's own: I.2, a row of B by 32 threads, four rows a block."""
    with T.Kernel(3, 2, threads=(32, 4), prelude=CPP) as (bx, by):
        T.import_source(CPP)
        a = T.alloc_local((8,), "float16")
        packed = T.alloc_local([4], "int8")
        b = T.alloc_local([8], "float16")
        total = T.alloc_local((1,), "float32")
        reduced = T.alloc_local((1,), "float32")
        kr = T.thread_binding(0, 32, thread="threadIdx.x")
        ni = T.thread_binding(0, 4, thread="threadIdx.y")
        T.clear(total)
        for ko in T.serial(2):
            for v in T.vectorized(8):
                a[v] = A[by, ko * 256 + kr * 8 + v]
            for v in T.vectorized(4):
                packed[v] = B[bx * 4 + ni, ko * 128 + kr * 4 + v]
            T.call_extern(
                "fast_decode_int4",
                T.address_of(packed[0]),
                T.address_of(b[0]),
                dtype="float16",
            )
            for ki in T.serial(8):
                total[0] += T.cast(a[ki], "float32") * T.cast(b[ki], "float32")
        with T.attr(
            T.comm_reducer(lambda x, y: x + y, [T.Cast("float32", 0)]),
            "reduce_scope",
            T.reinterpret(T.uint64(0), dtype="handle"),
        ):
            T.evaluate(
                T.tvm_thread_allreduce(T.uint32(1), total[0], True, reduced[0], kr, dtype="handle")
            )
        if kr == 0:
            C[by, bx * 4 + ni] = reduced[0]


@pytest.mark.parametrize("target", TARGETS)
def test_the_papers_own_kernel(target, rng):
    A = rng.integers(-4, 5, (2, 512)).astype("f2")
    B = rng.integers(0, 256, (12, 256), dtype=np.uint8)
    C = np.zeros((2, 12), "f2")
    run(gemv, target, A, B.view("i1"), C)
    words = B.view("<u4")
    nibbles = np.stack([words >> 4 * n & 15 for n in (0, 4, 1, 5, 2, 6, 3, 7)], -1)
    want = A.astype("f8") @ nibbles.reshape(12, 512).T.astype("f8")
    assert np.array_equal(C, want.astype("f2"))


# --- functions of numbers -------------------------------------------------------------------------


@tilec.kernel
def numbers(A: T.Tensor((2, 64), "float32"), C: T.Tensor((12, 64), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            x = A[0, i]
            C[0, i] = T.call_extern("float32", "__expf", x)
            C[1, i] = T.call_pure_extern("float32", "__nv_fminf", x, A[1, i])
            C[2, i] = T.call_extern("fmaxf", x, 0.5, dtype="float32")
            C[3, i] = T.call_intrin("float32", "tirx.exp2", x)
            C[4, i] = T.call_llvm_pure_intrin("float32", "llvm.fma.f32", T.uint32(3), x, x, 1.0)
            C[5, i] = T.call_llvm_intrin("float32", "llvm.floor.f32", x)
            C[6, i] = T.call_pure_extern("float32", "__ocml_sqrt_f32", T.abs(x))
            C[7, i] = T.call_extern("float32", "__ldg", T.address_of(A[1, i]))
            C[8, i] = T.call_extern("float32", "__saturatef", x)
            bits = T.call_extern("uint32", "__float_as_uint", x)
            C[9, i] = T.cast(T.call_extern("int32", "__popc", bits), "float32")
            C[10, i] = T.call_extern("float32", "__int2float_rn", T.call_extern(
                "int32", "__float2int_rz", x))  # fmt: skip
            C[11, i] = T.call_extern("float32", "__frcp_rn", x)
        T.call_extern("void", "__syncthreads")
        T.call_extern("void", "__nanosleep", 100)


@pytest.mark.parametrize("target", TARGETS)
def test_functions_of_numbers(target, rng):
    A, C = rng.standard_normal((2, 64)).astype("f4") * 3, np.zeros((12, 64), "f4")
    run(numbers, target, A, C)
    x, y = A.astype("f8")
    want = [np.exp(x), np.minimum(x, y), np.maximum(x, 0.5), np.exp2(x), x * x + 1, np.floor(x)]
    want += [np.sqrt(abs(x)), y, np.clip(x, 0, 1)]
    want += [np.array([int(v).bit_count() for v in A[0].view("u4")]), np.trunc(x), 1 / x]
    assert np.allclose(C, want, rtol=3e-6)
    assert np.array_equal(C[[1, 2, 5, 7, 8, 9, 10]], np.array(want)[[1, 2, 5, 7, 8, 9, 10]])


@tilec.kernel
def of_warps(A: T.Tensor((64,), "int32"), B: T.Tensor((6, 64), "int32")):
    with T.Kernel(1, threads=64):
        i = T.get_thread_binding()
        x = A[i]
        B[0, i] = T.call_extern("uint32", "__match_any_sync", 0xFFFFFFFF, x)
        B[1, i] = T.call_extern("uint32", "__ballot_sync", 0xFFFFFFFF, x > 2)
        B[2, i] = T.call_extern("int32", "__shfl_xor_sync", 0xFFFFFFFF, x, 1)
        B[3, i] = T.call_pure_extern("int32", "__shfl_down_sync", 0xFFFFFFFF, x, 1)
        B[4, i] = T.call_extern("int32", "__any_sync", 0xFFFFFFFF, x > 3)
        B[5, i] = T.call_extern("int32", "__shfl_sync", 0xFFFFFFFF, x, 5)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "cuda:sm_80"])
def test_functions_of_warps(target):
    A, B = np.arange(64, dtype="i4") * 7 % 5, np.zeros((6, 64), "i4")
    run(of_warps, target, A, B)
    bits = np.uint32(1) << np.arange(32, dtype="u4")
    for w, x in enumerate(A.reshape(2, 32)):
        lane = np.arange(32)
        same = [(bits * (x == v)).sum(dtype="u4") for v in x]
        ballot = (bits * (x > 2)).sum(dtype="u4")
        down = x[np.minimum(lane + 1, 31)]
        want = [same, [ballot] * 32, x[lane ^ 1], down, [int((x > 3).any())] * 32, [x[5]] * 32]
        want = np.array([np.asarray(v).astype("u4") for v in want]).view("i4")
        np.testing.assert_array_equal(B[:, 32 * w : 32 * w + 32], want)


N = T.dynamic("N")


@tilec.kernel
def by_lanes(A: T.Tensor((N,), "int32"), B: T.Tensor((N,), "int32")):
    """A loop whose first index is the lane: all come, which its author says by the mask."""
    with T.Kernel(1, threads=32):
        for i in T.serial(T.get_thread_binding(), T.ceildiv(N, 32) * 32, 32):
            x = T.if_then_else(i < N, A[i], -1)
            same = T.call_extern("uint32", "__match_any_sync", 0xFFFFFFFF, x)
            if i < N:
                B[i] = T.popcount(same)
            T.sync_warp()


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "cuda:sm_80"])
def test_who_names_the_lanes_that_come_is_believed(target):
    A, B = np.arange(70, dtype="i4") * 7 % 5, np.zeros(70, "i4")
    run(by_lanes, target, A, B)
    parts = (A[n : n + 32] for n in range(0, 70, 32))
    np.testing.assert_array_equal(B, [(x == v).sum() for x in parts for v in x])


@tilec.kernel
def roundings(A: T.Tensor((64,), "float32"), H: T.Tensor((4, 64), "float16"),
              I: T.Tensor((4, 64), "int32")):  # fmt: skip
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            H[0, i] = T.call_extern("float16", "__float2half_rn", A[i])
            H[1, i] = T.call_extern("float16", "__float2half_rz", A[i])
            H[2, i] = T.call_extern("float16", "__float2half_rd", A[i])
            H[3, i] = T.call_extern("float16", "__float2half_ru", A[i])
            I[0, i] = T.call_extern("int32", "__float2int_rn", A[i])
            I[1, i] = T.call_extern("int32", "__float2int_rz", A[i])
            I[2, i] = T.call_extern("int32", "__float2int_rd", A[i])
            I[3, i] = T.call_extern("int32", "__float2int_ru", A[i])


@pytest.mark.parametrize("target", TARGETS)
def test_conversions_round_as_their_names_say(target, rng):
    A = (rng.standard_normal(64) * 10.0 ** rng.integers(-9, 5, 64)).astype("f4")
    A[:4] = 7e4, -7e4, 2.5, -1e-9
    H, I = np.zeros((4, 64), "f2"), np.zeros((4, 64), "i4")
    run(roundings, target, A, H, I)
    with np.errstate(over="ignore"):
        near = A.astype("f2")
    below, above = np.nextafter(near, np.float16(-np.inf)), np.nextafter(near, np.float16(np.inf))
    down = np.where(near.astype("f4") > A, below, near)
    up = np.where(near.astype("f4") < A, above, near)
    want = [near, np.where(A < 0, up, down), down, up]
    np.testing.assert_array_equal(H, want)
    np.testing.assert_array_equal(I, [f(A) for f in (np.rint, np.trunc, np.floor, np.ceil)])


@tilec.kernel
def vectors(A: T.Tensor((16,), "float32"), C: T.Tensor((16,), "float32")):
    with T.Kernel(1, threads=4):
        i = T.get_thread_binding() * 4
        C[T.Ramp(i, 1, 4)] = T.call_pure_extern("float32x4", "exp2f", A[T.Ramp(i, 1, 4)])


def test_a_function_of_a_vector_is_one_of_its_lanes(rng):
    A, C = rng.integers(-4, 5, 16).astype("f4"), np.zeros(16, "f4")
    run(vectors, "cpu", A, C)
    assert np.array_equal(C, 2**A)


MISTAKES = {
    "unknown": ("T.call_extern('float32', 'expg', 1.0)", "T.call_extern knows no function 'expg'"),
    "foreign": (
        "T.import_source(CPP)\n        T.call_extern('handle', 'twice', T.address_of(A[0]))",
        r"twice is CUDA C\+\+ of line 10, which",
    ),
    "only foreign": (
        "T.import_source(CPP[-90:])",
        r"source of T.import_source is CUDA C\+\+ .twice.",
    ),
    "prelude": (
        "pass\n    with T.Kernel(2, threads=32, prelude=CPP[-90:]) as bx:\n        pass",
        r"prelude of T.Kernel is CUDA C\+\+ .twice.",
    ),
    "no text": ("T.import_source(3)", "source of T.import_source is the int 3, not a string"),
    "no name": ("T.call_extern('float32', 1.0)", "the function that T.call_extern calls is the"),
    "dtype": ("A[0] = T.call_extern('float64', 'expf', A[0])", "says float64, expf gives float32"),
    "argument": ("A[0] = T.call_extern('float64', 'exp', A[0])", "exp takes float64, this is a"),
    "count": ("A[0] = T.call_extern('float32', 'fmaxf', A[0])", "fmaxf takes 2 arguments, 1 was"),
    "result": ("A[0] = T.call_extern('float32', '__syncthreads')", "__syncthreads gives nothing"),
    "places": (
        "x = T.alloc_local((8,), 'float16')\n"
        "        T.call_extern('handle', 'decode_i4u_to_f16', T.address_of(x[0]))",
        "decode_i4u_to_f16 takes 2 or 3 arguments, 1 were given",
    ),
    "target": (
        "x = T.alloc_local((8,), 'uint8')\n"
        "        T.call_extern('handle', 'decode_i4u_to_f16', T.address_of(x[0]), "
        "T.address_of(A[0]))",
        "decode_i4u_to_f16 writes float16, dst is in A",
    ),
    "too many": (
        "x = T.alloc_local((8,), 'uint8')\n        y = T.alloc_local((16,), 'float16')\n"
        "        T.call_extern('handle', 'decode_i4u_to_f16', T.address_of(x[0]), "
        "T.address_of(y[0]), 16)",
        "N of decode_i4u_to_f16 is the int 16",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_have_their_line(mistake, tmp_path, monkeypatch):
    body, message = MISTAKES[mistake]
    name = f"extern_{mistake.replace(' ', '_')}"
    text = (
        f"import tilec\nimport tilec.language as T\n\nCPP = {CPP!r}\n\n\n@tilec.kernel\n"
        f"def f(A: T.Tensor((64,), 'float32')):\n    with T.Kernel(2, threads=32) as bx:\n"
        f"        {body}\n"
    )
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(tilec.CompileError, match=message) as found:
        __import__(name).f.compile(np.zeros(64, "f4"), target="cpu")
    assert found.value.loc.line >= 10


@pytest.mark.gpu
def test_on_a_gpu(torch, rng):
    from test_words_gpu import launch

    A = rng.integers(-4, 5, (2, 512)).astype("f2")
    B = rng.integers(0, 256, (12, 256), dtype=np.uint8).view("i1")
    found, want = np.zeros((2, 12), "f2"), np.zeros((2, 12), "f2")
    launch(torch, gemv, A, B, found)
    gemv(A, B, want)
    assert np.array_equal(found, want)
    A, C = rng.standard_normal((2, 64)).astype("f4") * 3, np.zeros((12, 64), "f4")
    want = C.copy()
    launch(torch, numbers, A, C)
    numbers(A, want)
    assert np.allclose(C, want, rtol=1e-5)
