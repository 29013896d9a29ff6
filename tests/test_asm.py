"""Inline assembly: what the simulator takes it for, what the assemblers are given, and mistakes."""

import platform

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.inline_asm import Wrong, llvm_template, read_constraints
from tilec.ir.ops import Asm, AsmEffect

GPUS = ("cuda:sm_80", "cuda:sm_90a")
X86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="assembly of x86")


def chosen(a, b, c):
    return (a & b) | c


def sum_and_difference(a, b):
    return a + b, a - b


def twice(x):
    return x + x


def widened(x):
    return x.astype("i8") * 3


def tiles(threads):
    @tilec.kernel
    def kernel(
        A: T.Tensor((3, 100), "uint32"),
        F: T.Tensor((3, 100), "float32"),
        H: T.Tensor((3, 100), "float16"),
        L: T.Tensor((3, 100), "int64"),
    ):
        with T.Kernel(3, threads=threads) as b:
            for k in T.serial(2):
                for i in T.Parallel(100):
                    if k == 0:
                        A[b, i] = T.asm("lop3.b32 %0, %1, %2, %3, 0xea;", "=r,r,r,n", A[b, i],
                                        0xFF00, 5, dtype="uint32", evaluate=chosen)  # fmt: skip
                        s, d = T.asm(
                            """{
                                .reg .f32 kept;
                                add.f32 kept, $2, $3;
                                sub.f32 $1, $2, $3;
                                mov.f32 $0, kept;
                            }""",
                            "=&f,=&f,f,f",
                            F[b, i],
                            2.0,
                            dtype=("float32", "float32"),
                            evaluate=sum_and_difference,
                        )
                        F[b, i] = s * d
                    else:
                        H[b, i] = T.asm("add.f16 %0, %1, %1;", "=h,h", H[b, i], dtype="float16",
                                        evaluate=twice)  # fmt: skip
                        small = T.cast(A[b, i] & 7, "int32")
                        L[b, i] = T.asm("mul.wide.s32 %0, %1, 3;", "=l,r", small, dtype="int64",
                                        evaluate=widened)  # fmt: skip

    return kernel


def operands(rng):
    A = rng.integers(0, 1 << 32, (3, 100), dtype=np.uint32)
    F, H = rng.standard_normal((3, 100)).astype("f4"), rng.standard_normal((3, 100)).astype("f2")
    return [A, F, H, np.zeros((3, 100), "i8")]


def check(given, found):
    A, F, H, _ = given
    first = (A & 0xFF00) | 5
    assert np.array_equal(found[0], first)
    assert np.allclose(found[1], (F + 2) * (F - 2), rtol=1e-6)
    assert np.array_equal(found[2], H + H)
    assert np.array_equal(found[3], (first & 7).astype("i8") * 3)


@pytest.mark.covering(1)
@pytest.mark.parametrize("optimised", (False, True))
@pytest.mark.parametrize("threads", (32, 100, 128))
def test_the_simulator_takes_it_for_what_the_user_says(threads, optimised, rng):
    given = operands(rng)
    for target in GPUS:
        found = [x.copy() for x in given]
        report = tilec.simulate(tiles(threads), *found, target=target, optimised=optimised)
        assert report.ok, report
        check(given, found)


@pytest.mark.parametrize("target", GPUS)
def test_the_assembler_is_given_it_as_it_is(target, rng):
    made = tiles(128).compile(*operands(rng), target=target)
    text = made.stages["ptx"]
    assert "0xea;" in text and "mul.wide.s32" in text and ".reg .f32 kept;" in text
    assert "asm" in made.stages["tile"] and "lop3.b32 ${0}" in made.stages["tile"]


@pytest.mark.gpu
@pytest.mark.parametrize("threads", (32, 100, 128))
def test_on_a_gpu(torch, threads, rng):
    from test_words_gpu import launch

    given = operands(rng)
    found = [x.copy() for x in given]
    found[0] = found[0].view("i4")  # of which torch has more
    kernel = tiles(threads)
    there = [torch.from_numpy(x).cuda() for x in found]
    there[0] = there[0].view(torch.uint32)
    kernel(*there)
    check(given, [there[0].view(torch.int32).cpu().numpy().view("u4"),
                  *(x.cpu().numpy() for x in there[1:])])  # fmt: skip
    assert launch


@tilec.kernel
def effects(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        T.asm("nanosleep.u32 %0;", "r", 20, evaluate=nothing)
        x = T.asm("mov.u32 %0, %%tid.x;", "=r", dtype="int32", effects=True, evaluate=lanes)
        y = T.asm("mov.u32 %0, %%tid.x;", "=r", dtype="int32", effects=True, evaluate=lanes)
        T.asm("membar.cta;", "~{memory}", evaluate=nothing)
        if tx < 32:
            B[tx] = A[tx] + x - y


def nothing(*_):
    return ()


def lanes():
    return np.int32(7)


def test_effects_happen_once_each_and_in_order(rng):
    A, B = np.arange(64, dtype="i4"), np.zeros(64, "i4")
    assert tilec.simulate(effects, A, B, target="cuda:sm_80").ok
    assert B.tolist() == [*range(32), *(0,) * 32]
    made = effects.compile(A, B, target="cuda:sm_80")
    text = made.stages["ptx"]
    assert text.count("%tid.x;") >= 2 and text.index("nanosleep") < text.index("membar.cta")


@X86
def test_on_the_cpu(rng):
    @tilec.kernel
    def kernel(A: T.Tensor((100,), "int32"), B: T.Tensor((100,), "int32"),
               F: T.Tensor((100,), "float32"), D: T.Tensor((100,), "float64")):  # fmt: skip
        with T.Kernel(1, threads=32):
            for i in T.Parallel(100):
                B[i] = T.asm("leal 7(%1), %0", "=r,r", A[i], dtype="int32", target="cpu")
                x = T.cast(A[i], "float32")
                F[i] = T.asm("sqrtss %1, %0", "=x,x", x, dtype="float32", target="cpu")
                if i % 3:
                    D[i] = T.asm("addsd $2, $0", "=x,0,x", T.cast(x, "float64"), 0.5,
                                 dtype="float64", target="cpu")  # fmt: skip

    A = np.arange(100, dtype="i4")
    B, F, D = np.zeros_like(A), np.zeros(100, "f4"), np.zeros(100)
    kernel(A, B, F, D)
    assert np.array_equal(B, A + 7)
    assert np.array_equal(F, np.sqrt(A.astype("f4")))
    assert np.array_equal(D, np.where(A % 3, A + 0.5, 0))


def test_gcn_runs_in_the_simulator_only():
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                A[i] = T.asm("v_add_f32 $0, $1, $1", "=v,v", A[i], dtype="float32", target="hip",
                             evaluate=twice)  # fmt: skip

    A = np.arange(64, dtype="f4")
    assert tilec.simulate(kernel, A, target="hip:gfx942").ok
    assert np.array_equal(A, 2 * np.arange(64))
    with pytest.raises(tilec.CompileError, match="no assembler for hip:gfx942, so T.asm works in"):
        kernel.compile(A, target="hip:gfx942")


def one(template, constraints, *more, **options):
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32"), N: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            given = [A[tx] if x == "A" else N[tx] if x == "N" else x for x in more]
            N[tx] = T.asm(template, constraints, *given, dtype="int32", **options)

    return kernel


def compiled(kernel, target="cuda:sm_80"):
    return kernel.compile(np.zeros(64, "f4"), np.zeros(64, "i4"), target=target)


MISTAKES = {
    "no such register": ("=z", (), {}, "'=z' names no register"),
    "of another target": ("=x", (), {}, "'=x' names no register"),
    "read and written": ("+r", (), {}, r"'\+r' is no constraint"),
    "order": ("r,=r", ("N",), {}, "output '=r' stands behind an input"),
    "tie": ("=r,1", ("N",), {}, "'1' names no output"),
    "clobber": ("=r,~{cc}", (), {}, "'~{cc}' is not known of cuda"),
    "too few": ("=r,r,r", ("N",), {}, "T.asm has 2 inputs, 1 argument was given"),
    "too many": ("=r,r", ("N", "N"), {}, "T.asm has 1 input, 2 arguments were given"),
    "dtype": ("=r,r", ("A",), {}, 'a run-time float32 in a register "r", which takes int32'),
    "literal": ("=r,n", ("N",), {}, 'an element of N .* for "n", a literal'),
    "no result": ("r,r", ("N", "N"), {}, "T.asm has 0 outputs, dtype names 1"),
    "result": ("=f,f", ("A",), {}, 'a result of int32 in a register "f"'),
    "operand": ("=r", (), {}, "the template names operand %1, constraints name 1"),
    "target": ("=r,r", ("N",), {"target": "metal"}, "target of T.asm is the str 'metal'"),
    "evaluate": ("=r,r", ("N",), {"evaluate": 3}, "evaluate of T.asm is the int 3"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake):
    constraints, more, given, message = MISTAKES[mistake]
    with pytest.raises(tilec.CompileError, match=message) as found:
        compiled(one("add.s32 %0, %1, 1;", constraints, *more, **given))
    assert "N[tx] = T.asm(" in str(found.value)


def test_refusals_of_the_assembler_have_the_users_line():
    kernel = one("add.what %0, %1, 1;", "=r,r", "N")
    if compiled(one("add.s32 %0, %1, 1;", "=r,r", "N")).image.format == "ptx":
        pytest.skip("no ptxas here")
    with pytest.raises(tilec.CompileError, match="this code is refused: ptxas refuses") as found:
        compiled(kernel)
    assert "N[tx] = T.asm(" in str(found.value)


@X86
def test_so_have_those_of_llvm():
    kernel = one("nonsense %1, %0", "=r,r", "N", target="cpu")
    with pytest.raises(tilec.CompileError, match="this code is refused: ") as found:
        compiled(kernel, "cpu")
    assert "N[tx] = T.asm(" in str(found.value)


@pytest.mark.parametrize("target", ("cuda", "cpu"))
def test_the_process_survives_what_llvm_does_not(target):
    """An operand's modifier that there is not ends LLVM's process."""
    kernel = one("mov.b32 ${0:z}, $1;", "=r,r", "N", target=target)
    with pytest.raises(tilec.CompileError, match="this code is refused: .* error: ") as found:
        compiled(kernel, {"cuda": "cuda:sm_80"}.get(target, target))
    assert "N[tx] = T.asm(" in str(found.value)


def test_other_targets_and_unknown_meanings():
    kernel = one("add.s32 %0, %1, 1;", "=r,r", "N")
    for target in ("cpu", "hip:gfx942"):
        with pytest.raises(tilec.CompileError, match="this is PTX, the kernel is compiled for"):
            compiled(kernel, target)
    with pytest.raises(tilec.CompileError, match="what this computes is not known outside") as e:
        tilec.simulate(kernel, np.zeros(64, "f4"), np.zeros(64, "i4"), target="cuda:sm_80")
    assert "evaluate=f" in str(e.value)


def test_places_are_refused():
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            A[0] = T.asm("ld.global.f32 %0, [%1];", "=f,l", T.address_of(A[1]), dtype="float32")

    with pytest.raises(tilec.CompileError, match="T.asm takes numbers, this is the address of an"):
        kernel.compile(np.zeros(64, "f4"), target="cuda:sm_80")


def test_effects_in_a_parallel_loop_are_refused():
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for _ in T.Parallel(64):
                T.asm("membar.cta;", "~{memory}")

    with pytest.raises(tilec.CompileError, match="T.asm cannot stand in T.Parallel"):
        kernel.compile(np.zeros(64, "f4"), target="cuda:sm_80")


def test_templates():
    assert llvm_template("a %0, %%r1, $x", 1) == "a ${0}, %r1, $$x"
    assert llvm_template("a $0, ${1:x}, $$5, %r1", 2) == "a $0, ${1:x}, $$5, %r1"
    with pytest.raises(Wrong, match="names operand"):
        llvm_template("a $0, $2", 2)
    assert read_constraints(" =&r, f,0,~{memory}", "cuda").inputs == ("f", 0)
    assert Asm.pure and not AsmEffect.pure
