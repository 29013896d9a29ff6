"""Functions given as LLVM IR and PTX: on every target, in the simulator, and what is refused."""

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.extern_source import language_of, signatures

GPUS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")

LLVM = """
; poly calls a function beside it
declare float @llvm.fma.f32(float, float, float)
define dso_local float @poly(float noundef %x, float %y) local_unnamed_addr #0 {
  %s = call float @helper(float %x)
  %r = call float @llvm.fma.f32(float %s, float %y, float 1.0)
  ret float %r
}
define float @helper(float %x) {
  %r = fmul float %x, %x
  ret float %r
}
define i32 @mix(i32 %a, i64 %b) {
  %t = trunc i64 %b to i32
  %r = xor i32 %a, %t
  ret i32 %r
}
define half @double(half %a) {
  %r = fadd half %a, %a
  ret half %r
}
define double @larger(double %a, double %b, i1 %swap) {
  %c = fcmp ogt double %a, %b
  %d = xor i1 %c, %swap
  %r = select i1 %d, double %a, double %b
  ret double %r
}
define i32 @sum(ptr %p) {
  %r = load i32, ptr %p
  ret i32 %r
}
define void @nothing(i32 %x) noinline {
  ret void
}
attributes #0 = { nounwind }
!0 = !{i32 1}
"""

PTX = """
// as nvcc writes it, and by hand
.version 7.0
.target sm_80
.address_size 64
.func (.param .f32 out) scaled(.param .f32 x, .param .b32 n)
{
    .reg .f32 a, b;
    .reg .b32 m;
    ld.param.f32 a, [x];
    ld.param.b32 m, [n];
    cvt.rn.f32.s32 b, m;
    mul.f32 a, a, b;
    st.param.f32 [out], a;
    ret;
}
.func (.reg .b32 r) rotated(.reg .b32 x)
{
    shf.l.wrap.b32 r, x, x, 8;
    ret;
}
.func (.reg .b64 r) wide(.reg .b64 x, .reg .f64 y)
{
    .reg .b64 t;
    cvt.rzi.s64.f64 t, y;
    add.s64 r, x, t;
    ret;
}
"""


def poly(x, y):
    return x * x * y + np.float32(1)


def mix(a, b):
    return a ^ b.astype("i4")


def double(a):
    return a + a


def larger(a, b, swap):
    return np.where((a > b) ^ swap, a, b)


def scaled(x, n):
    return x * n.astype("f4")


def rotated(x):
    return (x << np.uint32(8)) | (x >> np.uint32(24))


def wide(x, y):
    return x + np.trunc(y).astype("i8")


@T.macro
def squared(x):
    T.import_source(LLVM)
    return T.call_extern("float32", "poly", x, 2.0, evaluate=poly)


def of_llvm(threads):
    @tilec.kernel
    def kernel(
        F: T.Tensor((2, 100), "float32"),
        N: T.Tensor((2, 100), "int32"),
        H: T.Tensor((2, 100), "float16"),
        D: T.Tensor((2, 100), "float64"),
    ):
        with T.Kernel(2, threads=threads) as b:
            F_own = T.alloc_fragment((100,), "float32")
            T.copy(F[b, 0:100], F_own)
            for i in T.Parallel(100):
                F[b, i] = squared(F_own[i])
                high = T.cast(i, "int64") * 3
                N[b, i] = T.call_extern("mix", N[b, i], high, dtype="int32", evaluate=mix)
                H[b, i] = T.call_pure_extern("float16", "double", H[b, i], evaluate=double)
                if i > 7:
                    D[b, i] = T.call_extern(
                        "float64", "larger", D[b, i], 0.25, i % 2 == 0, evaluate=larger
                    )

    return kernel


def of_ptx(threads):
    @tilec.kernel
    def kernel(
        F: T.Tensor((2, 100), "float32"),
        N: T.Tensor((2, 100), "uint32"),
        L: T.Tensor((2, 100), "int64"),
    ):
        with T.Kernel(2, threads=threads, prelude=PTX) as b:
            for i in T.Parallel(100):
                F[b, i] = T.call_extern("float32", "scaled", F[b, i], 3, evaluate=scaled)
                N[b, i] = T.call_extern("uint32", "rotated", N[b, i], evaluate=rotated)
                x = T.cast(F[b, i], "float64")
                L[b, i] = T.call_extern("int64", "wide", L[b, i], x, evaluate=wide)

    return kernel


def operands(rng):
    F, N = rng.standard_normal((2, 100)).astype("f4") * 9, rng.integers(0, 1 << 30, (2, 100))
    return F, N.astype("i4"), rng.standard_normal((2, 100)).astype("f2"), rng.random((2, 100))


def check_llvm(given, found):
    F, N, H, D = given
    i = np.arange(100)
    assert np.allclose(found[0], F * F * 2 + 1, rtol=1e-6)
    assert np.array_equal(found[1], N ^ (i * 3))
    assert np.array_equal(found[2], H + H)
    want = np.where((D > 0.25) ^ (i % 2 == 0), D, 0.25)
    assert np.array_equal(found[3], np.where(i > 7, want, D))


def check_ptx(given, found):
    F, N, L = given
    assert np.array_equal(found[0], F * np.float32(3))
    assert np.array_equal(found[1], rotated(N))
    assert np.array_equal(found[2], L + np.trunc(F * np.float32(3)).astype("i8"))


def test_llvm_on_the_cpu(rng):
    for threads in (32, 100):
        given = operands(rng)
        found = [x.copy() for x in given]
        of_llvm(threads)(*found)
        check_llvm(given, found)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("optimised", (False, True))
def test_llvm_in_the_simulator(target, optimised, rng):
    given = operands(rng)
    found = [x.copy() for x in given]
    report = tilec.simulate(of_llvm(100), *found, target=target, optimised=optimised)
    assert report.ok, report
    check_llvm(given, found)


@pytest.mark.parametrize("target", GPUS)
def test_llvm_becomes_part_of_the_kernel(target, rng):
    made = of_llvm(64).compile(*operands(rng), target=target)
    assert made.binary and "@poly" not in made.stages["llvm-opt"]
    assert "extern" in made.stages["tile"]


@pytest.mark.parametrize("target", GPUS[:2])
@pytest.mark.parametrize("optimised", (False, True))
def test_ptx(target, optimised, rng):
    F, N, _, _ = operands(rng)
    given = [F, N.view("u4"), N.astype("i8") << 20]
    found = [x.copy() for x in given]
    kernel = of_ptx(64)
    report = tilec.simulate(kernel, *found, target=target, optimised=optimised)
    assert report.ok, report
    check_ptx(given, found)
    made = kernel.compile(*given, target=target)
    assert made.asm.count(".address_size") == 1 and "call.uni (got), scaled" in made.asm


@pytest.mark.gpu
@pytest.mark.parametrize("threads", (32, 100, 128))
def test_on_a_gpu(torch, threads, rng):
    from test_words_gpu import launch

    given = operands(rng)
    found = [x.copy() for x in given]
    launch(torch, of_llvm(threads), *found)
    check_llvm(given, found)
    F, N, _, _ = operands(rng)
    given = [F, N, N.astype("i8") << 20]
    there = [torch.from_numpy(x).cuda() for x in given]
    of_ptx(threads)(there[0], there[1].view(torch.uint32), there[2])
    found = [x.cpu().numpy() for x in there]
    given[1], found[1] = given[1].view("u4"), found[1].view("u4")
    check_ptx(given, found)


@tilec.kernel
def unsaid(
    F: T.Tensor((64,), "float32"),
    N: T.Tensor((64,), "int32"),
    H: T.Tensor((64,), "float16"),
    D: T.Tensor((64,), "float64"),
):
    with T.Kernel(1, threads=32):
        T.import_source(LLVM)
        for i in T.Parallel(64):
            F[i] = T.call_extern("float32", "poly", F[i], 2.0)
            N[i] = T.call_extern("int32", "mix", N[i], T.cast(i, "int64") * 3)
            H[i] = T.call_extern("float16", "double", H[i])
            D[i] = T.call_extern("float64", "larger", D[i], 0.25, i % 2 == 0)


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("optimised", (False, True))
def test_llvm_runs_without_its_meaning(target, optimised, rng):
    F, N, H, D = (x[0, :64].copy() for x in operands(rng))
    found = [x.copy() for x in (F, N, H, D)]
    report = tilec.simulate(unsaid, *found, target=target, optimised=optimised)
    assert report.ok, report
    i = np.arange(64)
    assert np.allclose(found[0], F * F * 2 + 1, rtol=1e-6)
    assert np.array_equal(found[1], N ^ (i * 3)) and np.array_equal(found[2], H + H)
    assert np.array_equal(found[3], np.where((D > 0.25) ^ (i % 2 == 0), D, 0.25))


def test_what_has_no_meaning_here_says_so(rng):
    @tilec.kernel
    def of_a_gpu(A: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            T.import_source(LANE)
            for i in T.Parallel(64):
                A[i] = T.call_extern("int32", "lane", i)

    @tilec.kernel
    def of_ptx(A: T.Tensor((64,), "uint32")):
        with T.Kernel(1, threads=64):
            T.import_source(PTX)
            for i in T.Parallel(64):
                A[i] = T.call_extern("uint32", "rotated", A[i])

    A = np.zeros(64, "i4")
    for kernel, array, message in (
        (of_a_gpu, A, "lane does not run on this machine: "),
        (of_ptx, A.view("u4"), "what this computes is not known outside of its target"),
    ):
        kernel.compile(array, target="cuda:sm_80")
        with pytest.raises(tilec.CompileError, match=message) as found:
            tilec.simulate(kernel, array, target="cuda:sm_80")
        assert "evaluate=f" in str(found.value)


def test_signatures():
    found = signatures(LLVM)
    assert (
        str(found["mix"]) == "i32 mix(i32, i64)"
        and str(found["poly"]) == "float poly(float, float)"
    )
    assert found["nothing"].result is None and not found["sum"].parameters[0].dtypes
    assert [p.space for p in signatures(PTX)["scaled"].parameters] == ["param", "param"]
    assert set(signatures(PTX)) == {"scaled", "rotated", "wide"}
    assert language_of("__device__ int f() {}") == ""


LANE = """
declare i32 @llvm.nvvm.read.ptx.sreg.laneid()
define i32 @lane(i32 %x) {
  %y = call i32 @llvm.nvvm.read.ptx.sreg.laneid()
  %r = add i32 %x, %y
  ret i32 %r
}
"""
BROKEN = "define float @broken(float %x) {\n  %r = fadd float %x, %y\n  ret float %r\n}\n"
SELECT = """
declare i32 @llvm.amdgcn.workitem.id.y()
define i32 @foreign(i32 %x) {
  %y = call i32 @llvm.amdgcn.workitem.id.y()
  %r = add i32 %x, %y
  ret i32 %r
}
"""
MISTAKES = {
    "broken": (BROKEN, "T.call_extern('float32', 'broken', 1.0)", "this code is refused: LLVM"),
    "unselectable": (
        SELECT,
        "T.cast(T.call_extern('int32', 'foreign', 1), 'float32')",
        "this code is refused: ",
    ),
    "pointers": (
        LLVM,
        "T.call_extern('int32', 'sum', 1)",
        "argument 0 of sum is the int 1, no place",
    ),
    "count": (
        LLVM,
        "T.call_extern('float32', 'poly', 1.0)",
        "poly takes 2 arguments, 1 were given",
    ),
    "argument": (
        LLVM,
        "T.call_extern('float32', 'poly', 1.0, T.get_thread_binding())",
        "poly takes float, this is a run-time int32: float poly",
    ),
    "result": (
        LLVM,
        "T.call_extern('float64', 'poly', 1.0, 2.0)",
        "says float64, poly gives float32: float poly",
    ),
    "nothing": (
        LLVM,
        "T.call_extern('float32', 'nothing', 1)",
        "says float32, nothing gives nothing: void nothing",
    ),
    "near": (LLVM, "T.call_extern('float32', 'polly', 1.0)", "did you mean 'poly'"),
    "evaluate": (LLVM, "T.call_extern('float32', 'expf', 1.0, evaluate=max)", "expf is none"),
    "ptx": (PTX, "T.call_extern('float32', 'scaled', 1.0, 3)", "scaled is PTX, the kernel is"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_have_their_line(mistake, tmp_path, monkeypatch):
    source, call, message = MISTAKES[mistake]
    name = f"source_{mistake}"
    text = (
        f"import tilec\nimport tilec.language as T\n\nS = {source!r}\n\n\n@tilec.kernel\n"
        f"def f(A: T.Tensor((64,), 'float32')):\n    with T.Kernel(2, threads=32) as bx:\n"
        f"        T.import_source(S)\n        A[0] = {call}\n"
    )
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for target in ("cpu", "hip:gfx942") if mistake == "ptx" else ("cpu", "cuda:sm_80"):
        with pytest.raises(tilec.CompileError, match=message) as found:
            __import__(name).f.compile(np.zeros(64, "f4"), target=target)
        assert found.value.loc.line == 11


# --- places ---------------------------------------------------------------------------------------

PLACES = """
define void @unpack(ptr %src, ptr %dst, i32 %less) {
entry:
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %next, %loop ]
  %byte = lshr i32 %i, 1
  %at = getelementptr i8, ptr %src, i32 %byte
  %b = load i8, ptr %at
  %odd = and i32 %i, 1
  %bits = mul i32 %odd, 4
  %shift = trunc i32 %bits to i8
  %moved = lshr i8 %b, %shift
  %nibble = and i8 %moved, 15
  %wide = zext i8 %nibble to i32
  %x = sub i32 %wide, %less
  %f = sitofp i32 %x to half
  %to = getelementptr half, ptr %dst, i32 %i
  store half %f, ptr %to
  %next = add i32 %i, 1
  %more = icmp slt i32 %next, 8
  br i1 %more, label %loop, label %end
end:
  ret void
}
define float @accumulate(ptr %x, ptr %total) {
  %a = load float, ptr %x
  %q = getelementptr float, ptr %x, i32 1
  %b = load float, ptr %q
  %old = load float, ptr %total
  %s = fadd float %a, %b
  %new = fadd float %old, %s
  store float %new, ptr %total
  ret float %s
}
"""


def unpack(src, dst, less):
    for n in range(8):
        dst[n] = (src[n // 2].view("u1") >> np.uint8(4 * (n % 2)) & 15).astype("i4") - less


def accumulate(x, total):
    total[0] += x[0] + x[1]
    return x[0] + x[1]


def with_places(evaluated):
    first = unpack if evaluated else None
    second = accumulate if evaluated else None

    @tilec.kernel
    def kernel(
        P: T.Tensor((70, 4), "int8"),
        H: T.Tensor((70, 8), "float16"),
        X: T.Tensor((70, 8), "float32"),
        S: T.Tensor((70, 2), "float32"),
    ):
        with T.Kernel(T.ceildiv(70, 32), threads=32) as bx:
            T.import_source(PLACES)
            row = bx * 32 + T.get_thread_binding()
            packed = T.alloc_local((4,), "int8")
            out = T.alloc_local((8,), "float16")
            total = T.alloc_local((1,), "float32")
            if row < 70:
                for v in T.vectorized(4):
                    packed[v] = P[row, v]
                T.call_extern(
                    "handle", "unpack", T.access_ptr(packed, "r"), T.access_ptr(out, "w"), 8,
                    evaluate=first,
                )  # fmt: skip
                for v in T.vectorized(8):
                    H[row, v] = out[v]
                total[0] = 1.0
                for k in T.serial(4):
                    found = T.call_extern(
                        "float32", "accumulate", T.access_ptr(X[row, 2 * k], "r", 2), total,
                        evaluate=second,
                    )  # fmt: skip
                    S[row, 0] = found
                S[row, 1] = total[0]

    return kernel


@pytest.mark.parametrize("target", ("cpu", *GPUS))
def test_places(target, rng):
    P = rng.integers(-128, 128, (70, 4), dtype=np.int8)
    X = rng.integers(-9, 10, (70, 8)).astype("f4")
    nibbles = np.stack([P.view("u1") & 15, P.view("u1") >> 4], -1).reshape(70, 8)
    for optimised in (False, True):
        H, S = np.zeros((70, 8), "f2"), np.zeros((70, 2), "f4")
        if target == "cpu":
            with_places(False)(P, H, X, S)
        else:
            kernel = with_places(not optimised and target != GPUS[0])
            report = tilec.simulate(kernel, P, H, X, S, target=target, optimised=optimised)
            assert report.ok, report
            made = kernel.compile(P, H, X, S, target=target)
            assert "@accumulate" not in made.stages["llvm-opt"]
        assert np.array_equal(H, nibbles.astype("f2") - 8)
        assert np.array_equal(S[:, 0], X[:, 6] + X[:, 7])
        assert np.array_equal(S[:, 1], X.sum(1) + 1)


@pytest.mark.gpu
def test_places_on_a_gpu(torch, rng):
    from test_words_gpu import launch

    P = rng.integers(-128, 128, (70, 4), dtype=np.int8)
    X = rng.integers(-9, 10, (70, 8)).astype("f4")
    H, S = np.zeros((70, 8), "f2"), np.zeros((70, 2), "f4")
    want = H.copy(), S.copy()
    launch(torch, with_places(False), P, H, X, S)
    with_places(False)(P, want[0], X, want[1])
    assert np.array_equal(H, want[0]) and np.array_equal(S, want[1])


def test_a_place_has_so_many_elements():
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            T.import_source(PLACES)
            total = T.alloc_local((1,), "float32")
            T.clear(total)
            A[0] = T.call_extern("float32", "accumulate", T.address_of(A[0]), total)

    with pytest.raises(tilec.CompileError, match="argument 0 of accumulate is a place of … elem"):
        kernel.compile(np.zeros(64, "f4"), target="cpu")
