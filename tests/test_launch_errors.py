"""Every way a call can be wrong: the message names the parameter, what was expected and what
came."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from array_kinds import KINDS
from conftest import cuda_devices

import tilec
import tilec.language as T
from tilec.runtime.tensors import read_tensor

M, N, K = T.dynamic("M, N, K")


@tilec.kernel
def scale(
    A: T.Tensor((M, N), "float32"),
    B: T.Tensor((M, N), "float32"),
    n: T.int32,
    x: T.float32,
    BN: T.constexpr = 32,
):
    with T.Kernel(T.ceildiv(N, BN), M, threads=32) as (bx, by):
        for j in T.Parallel(BN):
            B[by, bx * BN + j] = A[by, bx * BN + j] * x


@tilec.kernel
def product(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 16), threads=32) as (bx, by):
        acc = T.alloc_fragment((16, 16), "float32")
        A_s = T.alloc_shared((16, 16), "float16")
        B_s = T.alloc_shared((16, 16), "float16")
        T.clear(acc)
        for k in T.serial(T.ceildiv(K, 16)):
            T.copy(A[by * 16, k * 16], A_s)
            T.copy(B[k * 16, bx * 16], B_s)
            T.gemm(A_s, B_s, acc)
        T.copy(acc, C[by * 16, bx * 16])


@tilec.kernel
def fixed(A: T.Tensor((4, 48), "bfloat16"), B: T.StridedTensor((4, 48), (64, 1), "bfloat16")):
    with T.Kernel(4, threads=32) as bx:
        for j in T.Parallel(48):
            B[bx, j] = A[bx, j]


@tilec.kernel(out=["B"])
def squared(A: T.Tensor((M, M), "float32"), B: T.Tensor((K,), "float32")):
    with T.Kernel(1, threads=32) as bx:
        B[bx] = A[bx, bx]


@tilec.kernel
def launched(A: T.Tensor((N,), "uint8"), flag: T.bool, u: T.uint8):
    with T.Kernel(threads=32) as bx:
        A[bx] = u


def f32(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def f16(*shape: int) -> np.ndarray:
    return f32(*shape).astype(np.float16)


def bf16(*shape: int) -> np.ndarray:
    return f32(*shape).astype(ml_dtypes.bfloat16)


def misaligned() -> np.ndarray:
    raw = np.zeros(3 * 7 * 4 + 1, np.uint8)
    return np.ndarray((3, 7), np.float32, raw, offset=1)


def odd_strides() -> np.ndarray:
    pairs = np.zeros((3, 7), [("a", "<f4"), ("b", "u1")])
    return pairs["a"]


def padded() -> np.ndarray:
    return bf16(4, 64)[:, :48]


a, b = f32(3, 7), f32(3, 7)

CASES: list[tuple[str, Callable[[], Any], str]] = [
    # count and keywords
    (
        "too many",
        lambda: scale(a, b, 1, 2.0, 32, 5),
        r"scale takes 5 arguments \(A, B, n, x, BN\), 6 were given",
    ),
    (
        "too few",
        lambda: scale(a, b),
        r"scale: missing n: int32, x: float32; 2 arguments were given",
    ),
    (
        "none at all",
        lambda: product(),
        r"product: missing A: Tensor\(\(M, K\), float16\), B: .*; 0 arg",
    ),
    (
        "keyword",
        lambda: scale(a, b, 1, 2.0, BNN=3),
        r"scale has no parameter 'BNN'; did you mean 'BN'\?",
    ),
    (
        "launch keyword",
        lambda: scale(a, b, 1, 2.0, steam=3),
        r"no parameter 'steam'; did you mean 'stream'",
    ),
    ("twice", lambda: scale(a, b, 1, 2.0, A=a), r"A was given twice"),
    # not an array, not a number
    (
        "None tensor",
        lambda: scale(None, b, 1, 2.0),
        r"A is None; expected A: Tensor\(\(M, N\), float32\)",
    ),
    ("None scalar", lambda: scale(a, b, None, 2.0), r"n is None; expected n: int32"),
    (
        "list",
        lambda: scale([[1.0]], b, 1, 2.0),
        r"A is a list; expected an array for A: (.*\n)+.*numpy.asarray",
    ),
    ("number", lambda: scale(a, 3.0, 1, 2.0), r"B is a float; expected an array"),
    ("array for scalar", lambda: scale(a, b, a, 2.0), r"n: expected a number \(n: int32\), got a"),
    (
        "0-d for scalar",
        lambda: scale(a, b, np.array(3), 2.0),
        r"n: expected a number (.*\n)+.*n\.item\(\)",
    ),
    (
        "string for scalar",
        lambda: scale(a, b, 1, "2"),
        r"x: expected a number \(x: float32\), got a str",
    ),
    ("float for int", lambda: scale(a, b, 1.5, 2.0), r"n: expected int32, got the float 1.5"),
    ("NumPy's", lambda: scale(a, b, np.float32(1.5), 2.0), r"n: expected int32, got the float 1.5"),
    ("a fraction", lambda: scale(a, b, Fraction(3, 2), 2.0), r"expected n: int32, got Fraction"),
    ("complex", lambda: scale(a, b, 1, 1 + 0j), r"expected x: float32, got \(1\+0j\)"),
    ("int too large", lambda: scale(a, b, 2**31, 2.0), r"n: 2147483648 does not fit in int32"),
    ("float too large", lambda: scale(a, b, 1, 1e300), r"x: 1e\+300 does not fit in float32"),
    (
        "negative unsigned",
        lambda: launched[3](np.zeros(3, np.uint8), True, -1),
        r"u: -1 does not fit in uint8",
    ),
    ("bool", lambda: launched[3](np.zeros(3, np.uint8), 2, 1), r"flag: expected a bool, got 2"),
    # dtype
    ("dtype", lambda: scale(a.astype(np.float64), b, 1, 2.0), r"A: expected float32, got float64"),
    (
        "bf16 for f16",
        lambda: product(bf16(3, 5), f16(5, 7), f32(3, 7)),
        r"A: expected float16, got bfloat16",
    ),
    (
        "complex",
        lambda: scale(a, b.astype(complex), 1, 2.0),
        r"B: expected float32, got complex128",
    ),
    (
        "byte order",
        lambda: scale(a.astype(">f4"), b, 1, 2.0),
        r"A: the array's bytes are in foreign order",
    ),
    (
        "mask",
        lambda: scale(np.ma.masked_less(a, 3), b, 1, 2.0),
        r"A: a masked array's mask is not seen by a kernel",
    ),
    # rank, shape
    ("rank", lambda: scale(a[0], b, 1, 2.0), r"A: expected 2 dimensions, got 1 \(shape \(7,\)"),
    ("static extent", lambda: fixed(bf16(5, 48), padded()), r"A: dimension 0: expected 4, got 5"),
    (
        "one tensor's equation",
        lambda: scale(a, f32(3, 8), 1, 2.0),
        r"B: dimension 1: expected N = 7 \(from A.shape\[1\]\), got 8",
    ),
    (
        "two tensors' equation",
        lambda: product(f16(3, 5), f16(6, 7), f32(3, 7)),
        r"B: dimension 0: expected K = 5 \(from A.shape\[1\]\), got 6",
    ),
    # strides, alignment
    ("stride", lambda: fixed(bf16(4, 48), bf16(4, 48)), r"B: stride 0: expected 64, got 48"),
    (
        "alignment",
        lambda: scale(misaligned(), b, 1, 2.0),
        r"A: the address 0x\w+ is not a multiple of 4, the size",
    ),
    (
        "broken strides",
        lambda: scale(odd_strides(), b, 1, 2.0),
        r"A: strides of \(35, 5\) bytes are not whole",
    ),
    ("square", lambda: squared(np.ones((3, 4), np.float32)), r"(?s)M = 3 .*shape \(M, M\)"),
    ("open", lambda: squared(np.ones((3, 3), np.float32)), r"B.shape = K: nothing gives K a value"),
    (
        "number of NumPy",
        lambda: scale(np.float32(1), b, 1, 2.0),
        r"(?s)A is a float32; .*annotate A: T.float32",
    ),
    # where it lives
    (
        "spec",
        lambda: scale(tilec.spec((3, 7), "float32"), b, 1, 2.0),
        r"A has a shape but no memory",
    ),
    ("read-only", lambda: scale(a, frozen(b), 1, 2.0), r"scale: B is read-only, and"),
    # the grid
    ("no grid", lambda: launched[None](np.zeros(3, np.uint8), True, 1), r"ints, got None"),
    (
        "grid of less than nothing",
        lambda: launched[-1](np.zeros(3, np.uint8), True, 1),
        r"-1 blocks in x.*(?s:.)*a grid of 0 launches nothing",
    ),
    ("negative grid", lambda: launched[2, -1](np.zeros(3, np.uint8), True, 1), r"-1 blocks in y"),
    (
        "huge grid",
        lambda: launched[2**31](np.zeros(3, np.uint8), True, 1),
        r"2147483648 blocks in x",
    ),
    (
        "grid of floats",
        lambda: launched[1.5](np.zeros(3, np.uint8), True, 1),
        r"one to three ints, got 1.5",
    ),
    (
        "grid of four",
        lambda: launched[1, 1, 1, 1](np.zeros(3, np.uint8), True, 1),
        r"one to three ints",
    ),
    (
        "stream",
        lambda: scale(a, b, 1, 2.0, stream="s"),
        r"stream: expected a stream or its handle, got 's'",
    ),
]


def frozen(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


@pytest.mark.parametrize(("call", "message"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_message(call: Callable[[], Any], message: str) -> None:
    check_message(call, message)


def check_message(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(tilec.LaunchError, match=message) as error:
        call()
    lines = str(error.value).split("\n")
    assert len(lines) <= 12 and "  help: " in str(error.value)
    assert lines[0].startswith(f"{__file__}:"), "the message shows the call"
    assert "^^^" in lines[2]


def good_launches(kind: Any) -> None:
    scale(kind(a), kind(f32(3, 7)), 1, 2.0)
    product(kind(f16(3, 5)), kind(f16(5, 7)), kind(f32(3, 7)))
    launched[3](kind(np.zeros(3, np.uint8)), True, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("call", "message"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_message_after_a_good_launch(call: Callable[[], Any], message: str, kind: Any) -> None:
    """The generated launch path must refuse what the first launch refuses."""
    good_launches(kind)
    with pytest.raises((tilec.LaunchError, TypeError)) as error:
        call()
    if error.type is tilec.LaunchError:
        error.match(message)
    else:
        error.match(r"scale\(\) got multiple values for argument 'A'")


def test_a_mask_is_seen_where_its_array_was_launched() -> None:
    plain, other = np.ones((6, 9), np.float32), np.ones((6, 9), np.float32)
    for _ in range(3):
        scale(plain, other, 1, 2.0)
        with pytest.raises(tilec.LaunchError, match="a masked array's mask"):
            scale(np.ma.masked_less(plain, 3), other, 1, 2.0)


TORCH_CASES: list[tuple[str, Callable[[Any], Any], str]] = [
    (
        "0-d for scalar",
        lambda torch: scale(a, b, torch.tensor(3), 2.0),
        r"n: expected a number (.*\n)+.*n\.item\(\)",
    ),
    (
        "dtype",
        lambda torch: scale(torch.zeros(3, 7).half(), b, 1, 2.0),
        r"A: expected float32, got float16",
    ),
    (
        "meta",
        lambda torch: scale(torch.empty(3, 7, device="meta"), b, 1, 2.0),
        r"A has a shape but no memory",
    ),
    (
        "sparse",
        lambda torch: scale(torch.zeros(3, 7).to_sparse(), b, 1, 2.0),
        r"A: a torch.sparse_coo tensor has no str",
    ),
]


@pytest.mark.parametrize(
    ("call", "message"), [c[1:] for c in TORCH_CASES], ids=[c[0] for c in TORCH_CASES]
)
def test_message_of_a_torch_tensor(torch: Any, call: Callable[[Any], Any], message: str) -> None:
    """Before and after a launch of that kind."""
    for _ in range(2):
        check_message(lambda: call(torch), message)
        good_launches(torch.from_numpy)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: launched(np.zeros(3, np.uint8), True, 1), r"the grid is not given"),
        (lambda: scale[3](a, b, 1, 2.0), r"the grid is given twice: in T.Kernel and by the launch"),
    ],
    ids=["no grid", "two grids"],
)
def test_grid_and_kernel_disagree(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(tilec.CompileError, match=message) as error:
        call()
    assert "with T.Kernel(" in str(error.value), "the message shows the line"


def test_a_saved_kernel_has_one_grid() -> None:
    data = np.zeros(5, np.uint8)
    with_grid = scale.compile(a, b, target="cpu")
    without = launched.compile(data, target="cpu")
    with pytest.raises(tilec.LaunchError, match="scale gives its grid in T.Kernel and was called"):
        with_grid[3](a, b, 1, 2.0)
    with pytest.raises(tilec.LaunchError, match="launched leaves its grid to the launch"):
        without(data, True, 1)
    without[5](data, True, 9)
    assert (data == 9).all()


@pytest.mark.skipif(cuda_devices() > 0, reason="a made-up address, which a driver would know")
def test_tensors_on_two_devices() -> None:
    class OnGpu:
        __cuda_array_interface__ = {
            "shape": (3, 7), "typestr": "<f4", "data": (4096, False), "strides": None, "version": 3,
        }  # fmt: skip

    with pytest.raises(tilec.LaunchError, match="B is on cuda:0, A is on cpu"):
        scale(a, OnGpu(), 1, 2.0)


def test_a_gpu_tensor_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilec.runtime import cuda, devices

    class OnGpu:
        __cuda_array_interface__ = {
            "shape": (3, 7), "typestr": "<f4", "data": (4096, False), "strides": None, "version": 3,
        }  # fmt: skip

    monkeypatch.setattr(devices, "_drivers", {})

    def no_bindings() -> None:
        raise tilec.DriverError("the CUDA target needs the package cuda-bindings")

    monkeypatch.setattr(cuda, "_import_bindings", no_bindings)
    with pytest.raises(tilec.DriverError, match="cuda-bindings"):
        scale(OnGpu(), OnGpu(), 1, 2.0)


def test_dlpack_capsule_facts(torch: Any) -> None:
    class Exporter:
        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

        def __dlpack__(self, **options: Any) -> Any:
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.tensor.__dlpack_device__()

    source = torch.randn(5, 9)[:, 1:8].to(torch.bfloat16)
    view = source[::2]
    t = read_tensor(Exporter(view), "A")
    assert t is not None
    assert (t.pointer, t.shape, t.strides) == (view.data_ptr(), (3, 7), view.stride())
    assert (t.dtype, t.itemsize, t.device) == ("bfloat16", 2, "cpu")
    first = ctypes.c_uint16.from_address(t.pointer).value
    assert first == int(view.view(torch.int16)[0, 0]) & 0xFFFF


@pytest.mark.parametrize("versions", [True, False])
def test_arrays_by_dlpack(versions: bool) -> None:
    """By version 1.0, which tells read-only arrays, and by what was before, which cannot."""

    class Exporter:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        if versions:

            def __dlpack__(self, **options: Any) -> Any:
                return self.array.__dlpack__(**options)

        else:

            def __dlpack__(self, stream: Any = None) -> Any:
                return self.array.__dlpack__(stream=stream)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    given, c = np.arange(12, dtype=np.float32).reshape(3, 4), np.zeros((3, 4), np.float32)
    scale(Exporter(given), Exporter(c), 1, 2.0)
    scale(Exporter(given), Exporter(c), 1, 2.0)
    want, _ = c.copy(), c.fill(0)
    scale(given, c, 1, 2.0)
    assert c.any() and (c == want).all()
    given.flags.writeable = False
    if not versions:
        with pytest.raises(tilec.LaunchError, match="cannot be read as an array: BufferError"):
            scale(Exporter(given), Exporter(c), 1, 2.0)
        return
    c.fill(0)
    scale(Exporter(given), Exporter(c), 1, 2.0)
    assert (c == want).all()
    with pytest.raises(tilec.LaunchError, match="B is read-only, and the kernel writes it"):
        scale(Exporter(c), Exporter(given), 1, 2.0)
    with pytest.raises(tilec.LaunchError, match="expected float32, got complex64"):
        scale(Exporter(given.astype(np.complex64)), Exporter(c), 1, 2.0)


@tilec.kernel
def copy_float8(A: T.Tensor((M,), "float8_e4m3"), B: T.Tensor((M,), "float8_e4m3")):
    with T.Kernel(T.ceildiv(M, 64), threads=64) as b:
        for i in T.Parallel(64):
            B[b * 64 + i] = A[b * 64 + i]


def test_float8_of_another_kind_is_named():
    """gfx942 computes with the FNUZ kind; a spec says the dtype and means the target's."""
    good = tilec.spec((64,), "float8_e4m3")
    assert copy_float8.compile(good, good, target="hip:gfx942").binary
    other = np.zeros(64, ml_dtypes.float8_e4m3fn)
    with pytest.raises(
        tilec.LaunchError, match="A: expected float8_e4m3fnuz, got float8_e4m3"
    ) as e:
        copy_float8.compile(other, other, target="hip:gfx942")
    assert "A.to(torch.float8_e4m3fnuz)" in str(e.value)
    with pytest.raises(tilec.LaunchError, match="A: expected float8_e4m3, got float32") as e:
        copy_float8.compile(np.zeros(64, np.float32), other, target="cuda:sm_80")
    assert "A.to(torch.float8_e4m3fn)" in str(e.value)


def test_numbers_of_numpy_are_numbers():
    @tilec.kernel
    def told(Y: T.Tensor((3,), "float64"), n: T.int32, x: T.float32, flag: T.bool):
        with T.Kernel(1, threads=32):
            Y[0] = n
            Y[1] = x
            Y[2] = T.if_then_else(flag, 1.0, 0.0)

    y = np.zeros(3)
    for n, x, flag in (
        (np.int8(-3), np.float16(0.5), np.True_),
        (np.True_, np.int64(7), np.uint8(0)),
    ):
        told(y, n, x, flag)
        assert y.tolist() == [int(n), float(x), bool(flag)]
