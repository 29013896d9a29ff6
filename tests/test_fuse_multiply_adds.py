"""fuse_multiply_adds: which sums take up a product, and that the numbers are those of one rounding
on every target."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from form_help import SM90, tile_func
from simulated import run

import tilec
import tilec.language as T
import tilec.tilelang as tilelang
import tilec.tilelang.language as TL
from tilec.ir.core import walk
from tilec.ir.ops import Binary, Fma
from tilec.passes.fuse_multiply_adds import fuse_multiply_adds
from tilec.passes.simplify import simplify
from tilec.runtime.tensors import numpy_dtype

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

TARGETS = ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu"]
N = T.dynamic("N")


def of(expression: str, dtype: str = "float32") -> Any:
    """A kernel that gives `expression` of elements x, y and z, and a number s."""
    scope: dict[str, Any] = {"T": T, "N": N, "dtype": dtype}
    source = f"""
def kernel(A: T.Tensor((3, N), dtype), C: T.Tensor((N,), dtype), s: T.float32):
    with T.Kernel(T.ceildiv(N, 256), threads=128) as b:
        for i in T.Parallel(256):
            x, y, z = A[0, b * 256 + i], A[1, b * 256 + i], A[2, b * 256 + i]
            C[b * 256 + i] = {expression}
"""
    import linecache

    name = f"<kernel {expression} {dtype}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), scope)
    return scope["kernel"]


def once(a: Any, b: Any, c: Any) -> Any:
    """a * b + c of float32, rounded once but for a rare second rounding, which these inputs
    do not have."""
    return (a.astype(np.float64) * b + c).astype(np.float32)


FORMS = {  # multiply-adds, products and sums that are left, the value
    "x * y + z": (1, 0, 0, once),
    "z + x * y": (1, 0, 0, once),
    "x * y - z": (1, 0, 0, lambda x, y, z: once(x, y, -z)),
    "z - x * y": (1, 0, 0, lambda x, y, z: once(-x, y, z)),
    "z - 0.3 * x": (1, 0, 0, lambda x, y, z: once(x, np.float32(-0.3), z)),
    "x * y + z * z * z": (1, 2, 0, lambda x, y, z: once(x, y, z * z * z)),
    "x * y - z * z": (1, 1, 0, lambda x, y, z: once(x, y, -(z * z))),
    "x * y + z * y": (0, 2, 1, lambda x, y, z: x * y + z * y),  # a factor in common
    "x * 0.3 - y * 0.3": (0, 2, 1, lambda x, y, z: x * np.float32(0.3) - y * np.float32(0.3)),
    "A[0, b * 256 + i] * y - x * z": (0, 2, 1, lambda x, y, z: x * y - x * z),
    "T.max(z + x * y, z - x * y)": (
        2, 0, 0, lambda x, y, z: np.maximum(once(x, y, z), once(-x, y, z))
    ),
    "T.max(z + x * y, x * y)": (0, 1, 1, lambda x, y, z: np.maximum(z + x * y, x * y)),
    "z + s * s": (0, 1, 1, lambda x, y, z: z + np.float32(0.7) * np.float32(0.7)),  # made once
    "z + T.ieee_mul(x, y)": (1, 0, 1, lambda x, y, z: z + x * y),  # rounded by name
    "T.ieee_add(x * y, z)": (1, 1, 0, lambda x, y, z: x * y + z),
    "T.ieee_sub(x * y, z)": (1, 1, 0, lambda x, y, z: x * y - z),
    "T.call_extern('float32', '__fadd_rn', x * y, z)": (1, 1, 0, lambda x, y, z: x * y + z),
    "T.call_extern('float32', '__fsub_rn', x * y, z)": (1, 1, 0, lambda x, y, z: x * y - z),
    "T.call_extern('float32', '__fmul_rn', x, y) + z": (1, 0, 1, lambda x, y, z: x * y + z),
}  # fmt: skip


def numbers(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((3, n)).astype(np.float32)


def left(func: Any) -> tuple[int, int, int]:
    ops = [*walk(func.body)]
    kinds = Counter(o.kind for o in ops if isinstance(o, Binary) and o.lhs.dtype.is_float)
    return sum(isinstance(o, Fma) for o in ops), kinds["mul"], kinds["add"] + kinds["sub"]


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("expression", FORMS)
def test_what_is_fused(target: str, expression: str) -> None:
    a = numbers(300)
    function = of(expression)
    *form, value = FORMS[expression]
    func = simplify(tile_func(function, {"A": a, "C": a[0]}), SM90)
    func = fuse_multiply_adds(func, SM90)
    assert left(func) == tuple(form)
    want = value(*a)
    c = np.full(300, np.nan, np.float32)
    run(tilec.kernel(function), target, a, c, 0.7)
    np.testing.assert_array_equal(c, want, err_msg=target)


def test_it_makes_a_difference() -> None:
    a = numbers(300)
    differ = [n for n, (f, *_, v) in FORMS.items() if f and (v(*a) != eval_apart(n, a)).any()]
    assert {"x * y + z", "z - x * y", "x * y - z * z"} <= set(differ)


def eval_apart(expression: str, a: np.ndarray) -> np.ndarray:
    """The value with a rounding for each operation."""
    kernel, c = tilec.kernel(enable_fp_fusion=False)(of(expression)), np.empty_like(a[0])
    kernel(a, c, 0.7)
    return c


@pytest.mark.turns("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
@pytest.mark.parametrize("target", TARGETS)
def test_asked_to_leave_them_apart(target: str) -> None:
    a, c = numbers(257), np.full(257, np.nan, np.float32)
    kernel = tilec.kernel(enable_fp_fusion=False)(of("x * y + z"))
    run(kernel, target, a, c, 0.7)
    np.testing.assert_array_equal(c, a[0] * a[1] + a[2])
    if target.startswith("cuda"):
        asm = kernel.compile(a, c, 0.7, target=target).asm
        assert "fma.rn.f32" not in asm and "mul.rn.f32" in asm


@pytest.mark.parametrize(
    "dtype,fused", [("float64", 1), ("float16", 0), ("bfloat16", 0), ("int32", 0)]
)
def test_dtypes(dtype: str, fused: int) -> None:
    a = np.zeros((3, 256), numpy_dtype(dtype))
    func = tile_func(of("x * y + z", dtype), {"A": a, "C": a[0]})
    assert left(fuse_multiply_adds(func, SM90))[0] == fused


@pytest.mark.parametrize("target", TARGETS)
def test_float64(target: str) -> None:
    a = np.random.default_rng(0).standard_normal((3, 64))
    c = np.full(64, np.nan)
    run(tilec.kernel(of("x * y + z", "float64")), target, a, c, 0.7)
    want = [float(x * y + z) for x, y, z in zip(*(map(np.longdouble, v) for v in a))]
    np.testing.assert_allclose(c, want, rtol=2**-52)


def sums(
    A: T.Tensor((64, N), "float32"), W: T.Tensor((N,), "float32"), C: T.Tensor((64,), "float32")
):
    with T.Kernel(1, threads=64):
        total = T.alloc_fragment((64,), "float32")
        T.clear(total)
        for k in range(N):
            for i in T.Parallel(64):
                total[i] += A[i, k] * W[k]
        T.copy(total, C)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [1, 37])
def test_sums_of_a_loop(target: str, n: int) -> None:
    r = np.random.default_rng(n)
    a, w = r.standard_normal((64, n)).astype("f"), r.standard_normal(n).astype("f")
    c, want = np.full(64, np.nan, np.float32), np.zeros(64, np.float32)
    run(tilec.kernel(sums), target, a, w, c)
    for k in range(n):
        want = once(a[:, k], w[k], want)
    np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("flags", [None, ["-O3", "--fmad=false"], "-fmad=false", ["-lineinfo"]])
@pytest.mark.parametrize("way", ["jit", "compile", "annotate", "tuner", "again"])
def test_flags_of_tilelang(flags: Any, way: str) -> None:
    said = (flags or []) if way == "annotate" else []

    def program(n: int):  # type: ignore[no-untyped-def]
        @TL.prim_func
        def main(A: TL.Tensor((3, n), "float32"), C: TL.Tensor((n,), "float32")):
            TL.annotate_compile_flags(said)
            with TL.Kernel(1, threads=128) as _:
                for i in TL.Parallel(n):
                    C[i] = A[0, i] * A[1, i] + A[2, i]

        return main

    a, c = numbers(128), np.full(128, np.nan, np.float32)
    flags_of_all = None if said else flags
    if way == "jit":
        made = tilelang.jit(target="cpu", compile_flags=flags)(program)(128)
    elif way == "tuner":
        pytest.importorskip("torch")  # whose arrays the tuner makes
        tuner = tilelang.AutoTuner.from_kernel(program, [{"n": 128}])
        tuner.set_compile_args(target="cpu", compile_flags=flags)
        made = tuner.run().kernel
    else:
        made = tilelang.compile(program(128), target="cpu", compile_flags=flags_of_all)
        made = tilelang.compile(made.kernel) if way == "again" else made
    made(a, c)
    apart = flags and "fmad=false" in str(flags)
    np.testing.assert_array_equal(c, a[0] * a[1] + a[2] if apart else once(*a))


def test_flags_that_are_no_text() -> None:
    @tilec.kernel
    def flagged(C: T.Tensor((4,), "float32")):  # type: ignore[no-untyped-def]
        T.annotate_compile_flags([3])
        T.annotate_pass_configs("whole")
        with T.Kernel(1) as _:
            C[0] = 1

    with pytest.raises(tilec.CompileError, match="flags of T.annotate_compile_flags is") as e:
        flagged(np.zeros(4, np.float32))
    assert "configs of T.annotate_pass_configs is the str 'whole'" in str(e.value)


@pytest.mark.parametrize("value", [0, 1.0, None, "no"])
def test_what_is_no_bool(value: Any) -> None:
    with pytest.raises(
        tilec.CompileError, match="enable_fp_fusion of tilec.kernel is .* bool"
    ) as e:
        tilec.kernel(enable_fp_fusion=value)
    assert "write enable_fp_fusion=False" in str(e.value)


def test_near_names() -> None:
    with pytest.raises(tilec.CompileError, match="no keyword 'fp_fusion'.*enable_fp_fusion"):
        tilec.kernel(fp_fusion=False)
