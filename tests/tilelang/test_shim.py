"""Programs in TileLang's spelling, run on the CPU: both ways of `tilelang.jit`, `out_idx`,
`tilelang.compile`, `autotune`, and files that import TileLang by its own name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.tilelang as tilelang
import tilec.tilelang.language as T

# mypy: ignore-errors


def scaled(n: int, block: int, factor: float = 2.0, dtype: str = "float32") -> Any:
    @T.prim_func
    def main(A: T.Tensor((n,), dtype), B: T.Tensor((n,), dtype)):
        with T.Kernel(T.ceildiv(n, block), threads=64) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i] * factor

    return main


@tilelang.jit(
    out_idx=[-1],
    target="cuda:sm_90a",
    pass_configs={tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True},
)
def lazy_product(M: int, N: int, K: int, block: int = 32):
    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float32"),
        B: T.Tensor((K, N), "float32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=128) as (bx, by):
            a = T.alloc_shared((block, 16), "float32")
            b = T.alloc_shared((16, block), "float32")
            c = T.alloc_fragment((block, block), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, 16), num_stages=2):
                T.copy(A[by * block, k * 16], a)
                T.copy(B[k * 16, bx * block], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * block, bx * block])

    return main


@tilelang.jit
def eager_sum(A, B, block_m: int, block_n: int = 8):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    B: T.Tensor((M, N), T.float32)
    C = T.empty((M, N), T.float32)
    with T.Kernel(T.ceildiv(M, block_m), T.ceildiv(N, block_n), threads=128) as (bx, by):
        for i, j in T.Parallel(block_m, block_n):
            x = bx * block_m + i
            y = by * block_n + j
            C[x, y] = A[x, y] + B[x, y]
    return C


def numbers(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("n", [1, 63, 64, 1000])
def test_compile_without_out_idx_writes_what_it_is_given(n: int) -> None:
    kernel = tilelang.compile(scaled(n, 64), target="auto")
    a, b = numbers(n), np.zeros(n, np.float32)
    assert kernel(a, b) is None
    assert np.array_equal(b, 2 * a)


@pytest.mark.parametrize("out_idx", [1, -1, [1], [-1]])
def test_out_idx_names_what_a_call_allocates(out_idx: Any) -> None:
    kernel = tilelang.compile(scaled(100, 32, 0.5), out_idx=out_idx)
    a = numbers(100)
    assert np.array_equal(kernel(a), a / 2)


def test_factory_values_that_only_annotations_name_are_kept() -> None:
    a = numbers(40).astype(np.float64)
    kernel = tilelang.compile(scaled(40, 16, 3.0, "float64"), out_idx=-1)
    assert kernel(a).dtype == np.float64
    assert np.array_equal(kernel(a), a * 3)


@pytest.mark.parametrize("shape", [(33, 17, 5), (64, 64, 64), (1, 1, 1)])
def test_lazy_program(shape: tuple[int, int, int]) -> None:
    M, N, K = shape
    a, b = (numbers(*s).astype(np.float16).astype(np.float32) for s in ((M, K), (K, N)))  # TF32
    kernel = lazy_product(M, N, K)
    assert kernel is lazy_product(M, N, K)
    want = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(kernel(a, b), want, rtol=1e-4, atol=1e-4)


class Shape:
    def __init__(self, factor: Any) -> None:
        self.factor = factor


def test_lazy_programs_are_told_apart_by_the_values_of_their_arguments() -> None:
    """Not by how these are written: objects that change, arrays of which only ends are shown."""

    @tilelang.jit(out_idx=[1])
    def scaled(by: Any) -> Any:
        factor = float(by.factor if isinstance(by, Shape) else by.sum())

        @T.prim_func
        def main(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
            with T.Kernel(1, threads=64):
                for i in T.Parallel(64):
                    B[i] = A[i] * factor

        return main

    ones, shape, array = np.ones(64, np.float32), Shape(2), np.zeros(3000)
    for value in (2, 3, 2.5, 2):
        shape.factor = array[1500] = value
        assert scaled(shape)(ones)[0] == scaled(array)(ones)[0] == value


def test_kernel_source_is_assembly_for_the_target() -> None:
    source = lazy_product(64, 64, 64).get_kernel_source()
    assert ".target sm_90a" in source


def test_a_tensor_may_be_called_target() -> None:
    @tilelang.jit(out_idx=-1, target="cpu")
    @T.prim_func
    def program(target: T.Tensor((64,), "float32"), args: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                args[i] = target[i]

    x = numbers(64)
    assert program.get_kernel_source() and np.array_equal(program(x), x)


@pytest.mark.parametrize("shape", [(17, 9), (1, 1), (64, 32)])
def test_eager_program(shape: tuple[int, int]) -> None:
    a, b = numbers(*shape), numbers(*shape)
    assert np.array_equal(eager_sum(a, b, 16), a + b)
    assert np.array_equal(eager_sum(a, b, block_m=4, block_n=4), a + b)


def test_eager_program_compiled_by_its_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_TARGET", "cpu")
    kernel = eager_sum.compile(M=40, N=24, block_m=8)
    a = numbers(40, 24)
    assert np.array_equal(kernel(a, a), 2 * a)
    assert kernel.compile().target == "cpu"
    again = tilelang.compile(eager_sum.get_tir(M=40, N=24, block_m=8), target="cpu")
    assert np.array_equal(again(a, a), 2 * a)
    lowered = tilelang.lower(eager_sum.get_tir(M=40, N=24, block_m=8), target="cuda:sm_80")
    assert ".target sm_80" in lowered.kernel_source


def test_open_sizes_count_as_4096_in_arithmetic_too(tmp_path: Path, capsys: Any) -> None:
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor(((n + 127) // 128,), "float32")):
        with T.Kernel((n + 127) // 128, threads=32) as b:
            B[b] = A[b * 128]

    kernel = tilelang.compile(main, target="cuda:sm_80")
    assert ".target sm_80" in kernel.get_kernel_source()
    kernel.print_source_code(file=str(tmp_path / "kernel.ptx"))
    assert ".target sm_80" in (tmp_path / "kernel.ptx").read_text()
    kernel.print_source_code()
    assert ".target sm_80" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_what_is_shifted_is_as_wide_as_the_number_of_places(target: str) -> None:
    @T.prim_func
    def main(A: T.Tensor((16,), "uint8"), B: T.Tensor((4, 16), "uint32")):
        with T.Kernel(1, threads=16):
            for i in T.Parallel(16):
                high = A[i] << 20
                B[0, i] = T.cast(high, "uint32") | T.cast(A[i] << 8, "uint32")
                B[1, i] = A[i] << T.int32(i)
                B[2, i] = A[i] >> 3
                B[3, i] = T.cast(1 << (A[i] & 15), "uint32")

    a, b = np.arange(3, 243, 15, dtype=np.uint8), np.zeros((4, 16), np.uint32)
    kernel = tilelang.compile(main)
    if target == "cpu":
        kernel(a, b)
    else:
        assert tilec.simulate(kernel.kernel, a, b, target=target).ok
    wide, n = a.astype(np.uint32), np.arange(16, dtype=np.uint32)
    want = [(wide << 20) | (wide << 8), wide << n, wide >> 3, np.uint32(1) << (wide & 15)]
    np.testing.assert_array_equal(b, want)


def test_the_parameters_of_a_kernel() -> None:
    @T.prim_func
    def main(A: T.Tensor((9, 4), T.float8_e4m3fn), x: T.float32, B: T.Tensor((9,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(9):
                B[i] = A[i, 0] * x

    given = [("float8_e4m3fn", [9, 4]), ("float32", []), ("float32", [9])]
    for out in (None, -1):
        assert [(p.dtype, p.shape) for p in tilelang.compile(main, out_idx=out).params] == given
    kernel = eager_sum.compile(M=12, N=16, block_m=4)
    assert [p.shape for p in kernel.params][:1] == [[12, 16]]
    assert len(kernel.params) == 3 and kernel.params[2].dtype == "float32"


def test_a_dtype_of_two_names_inside(torch: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), torch.float8_e4m3fn), B: T.Tensor((8,), T.float32)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                B[i] = A[i] if A.dtype == T.float8_e4m3fn and A.dtype != T.float8_e5m2 else 0

    a = torch.arange(8).to(torch.float8_e4m3fn)
    assert tilelang.compile(main, out_idx=1)(a).tolist() == [*range(8)]


@pytest.mark.parametrize("dtype", [T.float16, T.int32, T.half, T.long])
def test_dtypes_are_text_outside_and_dtypes_inside(dtype: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((9,), dtype), B: T.Tensor((9,), T.float32)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(9):
                B[i] = T.cast(A[i], T.float32) + T.float32(T.cast(2.0, dtype))

    assert getattr(np, dtype) is not None
    a = np.arange(9).astype(dtype)
    assert np.array_equal(tilelang.compile(main, out_idx=1)(a), np.arange(9) + 2.0)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float16"])
def test_dtypes_of_torch(name: str, torch: Any) -> None:
    assert T.dtype(getattr(torch, name)) == getattr(T, name) == name


def test_names_of_dtypes() -> None:
    assert T.dtype("half") == "float16" and T.dtype(np.float32).bits == 32
    assert T.float8_e8m0fnu == "float8_e8m0fnu" and T.float8_e8m0fnu.bits == 8
    assert T.float4_e2m1fn.bytes == 1 and T.float32.bytes == 4
    name = "float4_e2m1_unpacked"
    assert getattr(T, name) == name  # files name it in lists; tilec lacks it
    with pytest.raises(tilec.CompileError, match=f"unknown dtype '{name}'"):
        T.Tensor((8,), getattr(T, name))
    with pytest.raises(tilec.CompileError, match=f"unknown dtype '{name}'"):
        _ = getattr(T, name).bits


def test_scalar_parameters() -> None:
    @T.prim_func
    def main(A: T.Tensor((9,), "float32"), x: T.float32, B: T.Tensor((9,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(9):
                B[i] = A[i] * x

    assert np.array_equal(tilelang.compile(main, out_idx=2)(numbers(9), 3.0), numbers(9) * 3)


def test_products_of_float32_are_made_in_tf32() -> None:
    """As TileLang makes them; tilec's own are exact where they do not ask for it."""
    stages = lazy_product(64, 64, 64).compile().stages
    assert "tf32" in stages["select_gemm"]


def test_autotune_takes_the_configuration_that_is_predicted_to_be_the_fastest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TILEC_DISABLE_CACHE", raising=False)
    configs = [
        {"block": 16, "stages": 0},
        {"block": 12, "stages": 2},  # no warp has a part of it
        {"block": 64, "stages": 3, "pass_configs": {}},
        {"block": 64, "stages": 0},
        {"block": 512, "stages": 3},  # no room for its tiles
    ]

    def program(n, block=None, stages=None):
        @T.prim_func
        def main(
            A: T.Tensor((n, n), "float16"),
            B: T.Tensor((n, n), "float16"),
            C: T.Tensor((n, n), "float16"),
        ):
            with T.Kernel(T.ceildiv(n, block), T.ceildiv(n, block), threads=128) as (bx, by):
                T.annotate_min_blocks_per_sm(1)  # these very blocks: none are joined
                A_s, B_s = (T.alloc_shared((block, block), "float16") for _ in range(2))
                acc = T.alloc_fragment((block, block), "float32")
                T.clear(acc)
                for k in T.Pipelined(T.ceildiv(n, block), num_stages=stages):
                    T.copy(A[by * block, k * block], A_s)
                    T.copy(B[k * block, bx * block], B_s)
                    T.gemm(A_s, B_s, acc)
                T.copy(acc, C[by * block, bx * block])

        return main

    tuned = tilelang.autotune(configs=lambda n: configs)(
        tilelang.jit(out_idx=-1, target="cuda:sm_90a")(program)
    )
    assert tuned(1024).config == configs[2]
    with monkeypatch.context() as patched:  # another program that is the same: known from the disk
        patched.setattr("tilec.tilelang.autotuner._least", lambda *_: 0)
        again = tilelang.autotune(configs=configs)(tuned.program)
        assert again(1024).config == configs[2] and again(512).config == configs[0]
    only = tilelang.autotune(configs=configs[4:])(tuned.program)
    assert only(1024).config == configs[4]  # alone, it says itself what is wrong with it
    with pytest.raises(tilec.ResourceError, match="512x512"):
        only(1024).compile()

    @tilelang.autotune(configs=[{"block": 1}, {"block": 256}])
    @tilelang.jit(target="cuda:sm_90a")
    def eager(A, block=64):
        n = T.const("n")
        A: T.Tensor((n,), "float32")
        B = T.empty((n,), "float32")
        with T.Kernel(T.ceildiv(n, block), threads=64) as b:
            for i in T.Parallel(block):
                B[b * block + i] = A[b * block + i] * 2.0
        return B

    assert "T.ceildiv" not in eager.get_kernel_source(numbers(4096))
    assert eager._config((numbers(4096),), {}) == {"block": 256}


def test_autotune_leaves_a_call_its_own_values() -> None:
    seen = []

    configs = [{"block": 16, "twice": True, "more": 1}, {"block": 16, "twice": True, "more": 2}]

    @tilelang.autotune(configs=configs, warmup=3)
    @tilelang.jit(out_idx=-1)
    def program(n, block=None, twice=False, more=None):
        seen.append((block, twice, more))
        return scaled(n, block)

    a = numbers(50)
    assert np.array_equal(program(50)(a), 2 * a)
    assert program(50).config == configs[0]
    assert np.array_equal(program(50, block=64)(a), 2 * a)
    assert set(seen[:-2]) == {(16, True, 1), (16, True, 2)}  # predicted: of equals it is the first
    assert seen[-2:] == [(16, True, 1), (64, False, 1)]  # who tunes himself has the defaults


def test_wrong_out_idx_lists_the_parameters() -> None:
    with pytest.raises(tilec.CompileError, match="out_idx 2 names no tensor of main") as caught:
        tilelang.compile(scaled(8, 8), out_idx=2)
    assert "0 A: Tensor((8,), float32), 1 B" in str(caught.value)
    with pytest.raises(tilec.CompileError, match="out_idx 'B' names no tensor of main"):
        tilelang.compile(scaled(8, 8), out_idx="B")


def test_unknown_options_are_refused() -> None:
    with pytest.raises(tilec.CompileError, match="tilelang.jit has no keyword 'out_index'"):
        tilelang.jit(out_index=1)
    with pytest.raises(tilec.CompileError, match="takes a T.prim_func, not 3"):
        tilelang.compile(3)
    with pytest.raises(tilec.CompileError, match="tilelang.jit takes a function, not 3"):
        tilelang.jit(3)
    with pytest.raises(tilec.TargetError, match="unknown target 'metal'"):
        tilelang.compile(scaled(8, 8), target="metal")


def test_a_program_that_returns_no_kernel() -> None:
    @tilelang.jit
    def program():
        return 3

    with pytest.raises(tilec.CompileError, match="program returned 3, not a T.prim_func"):
        program()


def test_profiler_times_and_compares(torch: Any) -> None:
    profiler = tilelang.compile(scaled(100, 32), out_idx=-1).get_profiler()
    try:
        inputs = profiler.inputs()
        assert profiler.do_bench(warmup=1, rep=1) > 0
    except tilec.DriverError:
        pytest.skip("the GPU of this machine cannot be used")
    assert profiler.do_bench(warmup=1, rep=1, input_tensors=inputs) > 0
    profiler.assert_allclose(lambda a: a * 2)
    with pytest.raises(AssertionError, match="of 100 elements differ"):
        profiler.assert_allclose(lambda a: a * 2 + 1)


def test_inputs_are_of_the_kind_that_is_asked_for(torch: Any) -> None:
    kinds = tilelang.TensorSupplyType
    kernel = tilelang.compile(scaled(4000, 32), out_idx=-1)

    def drawn(kind: object) -> Any:
        return kernel.get_profiler(kind).inputs()[0].double()

    assert set(drawn(kinds.Integer).tolist()) == {-2.0, -1.0, 0.0, 1.0, 2.0}
    for kind in (kinds.Auto, kinds.Uniform):
        assert drawn(kind).abs().max() <= 1 and drawn(kind).std() > 0.5
    assert -1.1 < drawn(kinds.Normal).mean() < -0.9
    assert -0.1 < drawn(kinds.Randn).mean() < 0.1 and drawn(kinds.Randn).abs().max() > 2
    assert not drawn(kinds.Zero).any() and (drawn(kinds.One) == 1).all()
    assert torch.equal(drawn(kinds.One), kernel.get_profiler(kinds.One).inputs()[0].double())


def test_missing_words_have_the_message_of_the_language() -> None:
    with pytest.raises(AttributeError, match=r"tilec.language has no builtin 'gemn'"):
        _ = T.gemn


@pytest.mark.parametrize(("n", "power"), [(0, 1), (1, 1), (2, 2), (3, 4), (1025, 2048)])
def test_next_power_of_2(n: int, power: int) -> None:
    assert tilelang.next_power_of_2(n) == tilelang.math.next_power_of_2(n) == power


AROUND = """
import numpy as np
import tilelang
import tilelang.language as T
from tilelang import tvm
from tilelang.contrib import nvcc
from tilelang.cuda.target import check_cuda_availability

m = tvm.te.var("m")

@T.prim_func
def add(A: T.Tensor((m,), "float32"), B: T.Tensor((m,), "float32")):
    with T.ClusterKernel(2, threads=32, cluster_dims=2) as bx:
        T.pdl_sync()
        tx = T.get_thread_binding()
        B[bx * 32 + tx] = T.__ldg(A[bx * 32 + tx]) + T.__ldg(A, bx * 32 + tx)
        x = T.tvm_warp_shuffle(0xFFFFFFFF, A[bx * 32 + tx], 3, 32, 32)
        B[bx * 32 + tx] += x
        T.pdl_trigger()

assert issubclass(tvm.TVMError, Exception) and issubclass(tvm.error.InternalError, Exception)
assert nvcc.parse_compute_version(nvcc.get_target_compute_version("cuda:sm_90a")) == (9, 0)
assert nvcc.have_tma("cuda:sm_90a") and not nvcc.have_tma("cuda:sm_80")
from tilelang.jit import JITImpl, JITKernel
from tilelang.jit.kernel import JITKernel as the_same
from tilelang.utils.target import determine_target
assert the_same is JITKernel and not hasattr(tilelang.jit, "JITImpl")
@tilelang.jit
def lazy(n):
    return add
assert isinstance(lazy, JITImpl) and lazy.func.__name__ == "lazy"
assert isinstance(lazy(1), JITKernel)
assert nvcc.get_target_compute_version(determine_target("cuda:sm_90a")) == "9.0"
assert isinstance(determine_target(return_object=True), str)
assert check_cuda_availability() in (False, True)
with tvm.transform.PassContext(), tvm.target.Target("cuda"):
    (kernel,) = tilelang.par_compile([add], target="cpu", num_workers=4)
a = np.arange(64, dtype=np.float32)
b = np.zeros(64, np.float32)
kernel(a, b)
assert (b == 2 * a + np.repeat([3, 35], 32)).all(), b
print("right")
"""


def test_what_programs_put_around_kernels(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(AROUND)
    command = [sys.executable, "-m", "tilec.tilelang", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "right\n", done.stderr


PROGRAM = """
import sys
import numpy as np
import tilelang
import tilelang.language as T
from tilelang import tvm as tvm
from tilelang.autotuner import autotune
from tilelang.tileop.base import GemmWarpPolicy
from tilelang.carver.arch import driver
from tilelang.profiler import do_bench

@tilelang.jit(out_idx=[1])
def program(n):
    @T.prim_func
    def main(A: T.Tensor((n,), "int32"), B: T.Tensor((n,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(n):
                B[i] = A[i] + 1
    return main

print(program(5)(np.arange(5, dtype=np.int32)).tolist(), sys.argv[1:], "torch" in sys.modules)
assert GemmWarpPolicy is T.GemmWarpPolicy
assert driver.get_num_sms() >= 1
try:
    tvm.ir.make_node("x")
except Exception as e:
    print(e)
import tilelang.nothing
"""


def test_files_that_import_tilelang_run_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    command = [sys.executable, "-m", "tilec.tilelang", str(file), "--x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    first, *rest = done.stdout.splitlines()
    assert first == "[1, 2, 3, 4, 5] ['--x'] False", done.stderr
    assert "tvm.ir.make_node is a part of TileLang's compiler" in "".join(rest)
    assert "tilelang.nothing is not part of tilec's spelling of TileLang" in done.stderr


def test_programs_that_there_are_not(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "tilec.tilelang"]
    for words, status, says in (
        ([], 1, "usage: python -m tilec.tilelang program.py"),
        (["--help"], 0, "usage: python -m tilec.tilelang program.py"),
        (["no_such.py", "--size", "3"], 1, "there is no file 'no_such.py'"),
    ):
        done = subprocess.run([*run, *words], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == status and "Traceback" not in done.stderr
        assert says in done.stdout + done.stderr


def test_a_macro_may_hold_the_kernel() -> None:
    @T.macro
    def doubled_into(A, B):
        n = A.shape[0]
        with T.Kernel(T.ceildiv(n, 32), threads=32) as b:
            for i in T.Parallel(32):
                B[b * 32 + i] = A[b * 32 + i] * 2

    @tilelang.jit
    def in_the_body(A, B):
        n = T.const("n")
        A: T.Tensor((n,), "float32")
        B: T.Tensor((n,), "float32")
        doubled_into(A, B)

    @tilelang.jit
    def in_the_head(A: T.Tensor((9,), "float32"), B: T.Tensor((9,), "float32")):
        doubled_into(A, B)

    a = numbers(9)
    for kernel in (in_the_body, in_the_head):
        b = np.zeros_like(a)
        kernel(a, b)
        assert np.array_equal(b, 2 * a)


def test_a_macro_may_hold_the_kernel_and_its_outputs() -> None:
    @T.macro
    def halves(A):
        (n,) = A.shape
        B = T.empty(n, dtype=A.dtype)
        C = T.empty((n, 2), dtype="int32")
        with T.Kernel(T.ceildiv(n, 32), threads=32) as b:
            for i in T.Parallel(32):
                B[b * 32 + i] = A[b * 32 + i] / 2
            for i, j in T.Parallel(32, 2):
                C[b * 32 + i, j] = j
        return B, C

    @tilelang.jit
    def kernel(A):
        n = T.const("n")
        A: T.Tensor((n,), "float32")
        return halves(A)

    for size in (1, 45):
        a = numbers(size)
        half, columns = kernel(a)
        assert np.array_equal(half, a / 2)
        assert np.array_equal(columns, np.tile([0, 1], (size, 1)))


def test_a_variable_of_a_dtype() -> None:
    @tilelang.jit
    def kernel(A):
        n = T.const("n")
        A: T.Tensor((n,), "int32")
        with T.Kernel(n, threads=32) as b:
            at = T.int32()
            for k in T.serial(3):
                T.let(at, b * k)
                A[b] += at

    a = np.arange(7, dtype=np.int32)
    kernel(a)
    assert np.array_equal(a, 4 * np.arange(7))


def test_pointers_by_the_names_of_tvm() -> None:
    @T.prim_func
    def main(a: T.handle, B: T.Tensor((16,), "float32")):
        A = T.match_buffer(a, (16,), "float32")
        W = T.alloc_buffer((16,), "float32")
        with T.Kernel(1, threads=16):
            tx = T.get_thread_binding()
            W[tx] = A[tx] * 3
            B[tx] = W[tx]

    a, b = numbers(16), np.zeros(16, np.float32)
    tilelang.compile(main)(a, b)
    assert np.array_equal(b, 3 * a)


def test_instances_of_numbers() -> None:
    @T.prim_func
    def main(A: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=4):
            x = A[T.get_thread_binding()] + 1
            assert isinstance(x, T.PrimExpr)
            assert not isinstance(2.0, T.PrimExpr)
            A[T.get_thread_binding()] = x

    a = np.zeros(4, np.float32)
    tilelang.compile(main)(a)
    assert np.array_equal(a, np.ones(4))


def test_names_of_options() -> None:
    assert tilelang.PassConfigKey.TL_ENABLE_FAST_MATH.value == "TL_ENABLE_FAST_MATH"
    assert tilelang.layout.SwizzleMode.SWIZZLE_128B.name == "SWIZZLE_128B"


def walk(m: int, n: int, swizzle: int, by_column: bool) -> list[tuple[int, int]]:
    """Tiles in the order of a walk: panels of `swizzle` along the slow direction."""
    fast, slow = (m, n) if by_column else (n, m)
    order = [
        (f, s)
        for first in range(0, slow, swizzle)
        for f in range(fast)
        for s in range(first, min(first + swizzle, slow))
    ]
    return order if by_column else [(s, f) for f, s in order]


@pytest.mark.parametrize("by_column", [True, False])
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize(("m", "n", "swizzle"), [(4, 3, 1), (5, 7, 3), (1, 1, 8), (3, 4, 2)])
def test_persistent_tiles(m: int, n: int, swizzle: int, cluster: int, by_column: bool) -> None:
    @T.prim_func
    def main(A: T.Tensor((3, 64, 4), "int32"), B: T.Tensor((64, 2), "int32"), rows: T.int32):
        with T.Kernel(3, threads=1) as block:
            sched = T.PersistentTileScheduler(
                rows, n, 3, swizzle_size=swizzle, column_major=by_column, cluster_size=cluster
            )
            sched.init(block)
            while sched.valid():
                at = sched.current_iter
                A[block, at, 0] = sched.m_idx
                A[block, at, 1] = sched.n_idx
                A[block, at, 2] = sched.linear_idx
                A[block, at, 3] = 1
                sched.next_tile()
            plain = T.PersistentTileScheduler(rows, n, 3, swizzle, by_column, cluster, False)
            if block == 0:
                for tile in range(64):
                    row, column = plain.coord(tile)
                    B[tile, 0] = row
                    B[tile, 1] = column

    a, b = np.zeros((3, 64, 4), np.int32), np.zeros((64, 2), np.int32)
    tilelang.compile(main)(a, b, m)
    order = walk(-(-m // cluster), n, swizzle, by_column)
    for block in range(3):
        mine = [(*order[t], t, 1) for t in range(block, len(order), 3)]
        assert a[block, : len(mine)].tolist() == [list(x) for x in mine]
        assert not a[block, len(mine) :].any()
    assert b[: len(order)].tolist() == [list(x) for x in order]


def test_a_scheduler_without_state_has_no_tile_at_hand() -> None:
    @T.prim_func
    def main(A: T.Tensor((4,), "int32")):
        with T.Kernel(1, threads=1):
            sched = T.PersistentTileScheduler(4, 2, num_workers=1, stateful=False)
            A[0] = sched.m_idx

    with pytest.raises(tilec.CompileError, match="has no attribute 'm_idx'"):
        tilelang.compile(main)(np.zeros(4, np.int32))


def nth_bit(mask: int, base: int, offset: int) -> int:
    bits = range(base, 32) if offset >= 0 else range(base, -1, -1)
    if offset == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    ones = [b for b in bits if mask >> b & 1]
    return ones[abs(offset) - 1] if len(ones) >= abs(offset) else 0xFFFFFFFF


@pytest.mark.parametrize("offset", [0, 1, 3, 20, -1, -4])
def test_the_nth_bit(offset: int) -> None:
    masks = np.random.default_rng(3).integers(0, 1 << 32, 32, dtype=np.uint32)
    masks[:2] = 0, 0xFFFFFFFF

    @T.prim_func
    def main(A: T.Tensor((32,), "uint32"), B: T.Tensor((32,), "uint32")):
        with T.Kernel(1, threads=32):
            tx = T.launch_thread("threadIdx.x", 32)
            B[tx] = T.__fns(A[tx], tx, offset)

    found = np.zeros(32, np.uint32)
    tilelang.compile(main)(masks, found)
    assert found.tolist() == [nth_bit(int(m), n, offset) for n, m in enumerate(masks)]


def test_other_threads_than_the_kernel_has() -> None:
    @T.prim_func
    def main(A: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=32):
            A[T.launch_thread("threadIdx.x", 64)] = 1

    with pytest.raises(tilec.CompileError, match="T.Kernel has other threads"):
        tilelang.compile(main)(np.zeros(32, np.int32))


def test_annotations_of_other_tools() -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            x = T.alloc_shared((8,), "float32")
            T.copy(A, x, annotations={"own.note": "first"})
            T.copy(x, B, annotations={"own.note": 2, "coalesced_width": 1})

    a, b = numbers(8), np.zeros(8, np.float32)
    tilelang.compile(main)(a, b)
    assert np.array_equal(a, b)


def test_inputs_of_parameters(torch: Any) -> None:
    supply = tilelang.profiler.get_tensor_supply(tilelang.TensorSupplyType.Auto)
    made = [supply(p) for p in scaled(9, 16, dtype="float16").parameters]
    assert [(tuple(x.shape), str(x.dtype)) for x in made] == [((9,), "torch.float16")] * 2


def test_several_results_are_a_list_and_extents_may_stand_alone() -> None:
    @tilelang.jit
    def kernel(A):
        n = T.const("n")
        A: T.Tensor((n,), "float32")
        B = T.empty(n, 2, dtype="float32")
        C = T.empty(n, "int32")
        with T.Kernel(T.ceildiv(n, 32), threads=32) as b:
            for i in T.Parallel(32):
                B[b * 32 + i, 1] = A[b * 32 + i]
                B[b * 32 + i, 0] = -A[b * 32 + i]
                C[b * 32 + i] = i
        return B, C

    a = numbers(20)
    found = kernel(a)
    assert isinstance(found, list)
    assert np.array_equal(found[0], np.stack([-a, a], axis=1))
    assert np.array_equal(found[1], np.arange(20))


def test_a_kernel_without_a_grid_is_one_block() -> None:
    @tilelang.jit
    def kernel(A):
        A: T.Tensor((4,), "float32")
        with T.Kernel(threads=32):
            A[2] = 5.0

    a = np.zeros(4, np.float32)
    kernel(a)
    assert a.tolist() == [0.0, 0.0, 5.0, 0.0]


def test_a_size_is_a_variable() -> None:
    assert isinstance(T.dynamic("n"), T.Var)
    assert not isinstance(4, T.Var)


def test_names_of_float8_in_torch(torch: Any) -> None:
    assert T.float8_e4m3.as_torch() is T.float8_e4m3fn.as_torch() is torch.float8_e4m3fn
    assert T.float8_e5m2.as_torch() is torch.float8_e5m2


def test_infinity_of_a_float8_that_has_one(torch: Any) -> None:
    """It stays infinity where it is written; a number that is cast to it saturates."""

    @tilelang.jit
    def kernel(A, B):
        A: T.Tensor((4,), "float8_e5m2")
        B: T.Tensor((2,), "float32")
        with T.Kernel(1, threads=32):
            A[0] = T.infinity("float8_e5m2")
            A[1] = -T.infinity("float8_e5m2")
            A[2] = B[0]
            A[3] = B[1] * 2

    a, b = torch.zeros(4).to(torch.float8_e5m2), torch.tensor([float("inf"), 1e6])
    kernel(a, b)
    assert a.float().tolist() == [np.inf, -np.inf, 57344.0, 57344.0]
