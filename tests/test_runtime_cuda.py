"""The CUDA and HIP drivers against recording stand-ins: what is called, in which order, with
which bytes."""

import ctypes
import random
import struct
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import replace

import pytest

import tilec
import tilec.language as T
from tilec.ir.errors import LaunchError
from tilec.ir.types import FLOAT16, TensorMapType
from tilec.runtime import cuda, devices, hip
from tilec.runtime.block import BlockLayout
from tilec.runtime.driver import DriverError, argument_block, check_grid, launched_grid
from tilec.runtime.image import AbiParam, Argument, Image, Resources
from tilec.runtime.tensor_map import map_arguments
from tilec.runtime.tensors import Tensor
from tilec.target import find_target

SEED = random.Random(2024)


class Names:
    """An enumeration whose members are made when they are asked for: their value is their name."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def __getattr__(self, name: str) -> str:
        return f"{self._prefix}.{name}"


class FakeMap:
    """A tensor map: 128 bytes that tell which one it is."""

    def __init__(self, content: bytes) -> None:
        self.memory = ctypes.create_string_buffer(content, 128)

    def getPtr(self) -> int:
        return ctypes.addressof(self.memory)


class FakeCuda(types.ModuleType):
    """`cuda.bindings.driver`: every call is recorded; `failing` names calls that return an error
    code."""

    CUdevice_attribute = Names("device")
    CUpointer_attribute = Names("pointer")
    CUevent_flags = types.SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    CUfunction_attribute = Names("function")
    CUtensorMapDataType = Names("type")
    CUtensorMapInterleave = Names("interleave")
    CUtensorMapSwizzle = Names("swizzle")
    CUtensorMapL2promotion = Names("l2")
    CUtensorMapFloatOOBfill = Names("oob")
    cuuint64_t = cuuint32_t = int

    def __init__(self, devices: int = 1, capability: tuple[int, int] = (9, 0)) -> None:
        super().__init__("cuda.bindings.driver")
        self.devices, self.capability = devices, capability
        self.calls: list[tuple] = []
        self.failing: dict[str, int] = {}
        self.contexts: dict[int, list[int]] = {}
        self.maps = 0
        self.address_elsewhere_too = False  # in a tensor map
        self.at_launch: Callable[[int], object] = lambda params: None  # while its block is alive

    def stack(self) -> list[int]:
        return self.contexts.setdefault(threading.get_ident(), [])

    def names(self) -> list[str]:
        return [c[0] for c in self.calls]

    def record(self, name: str, *args: object) -> int:
        self.calls.append((name, *args))
        return self.failing.get(name, 0)

    def CUresult(self, code: int) -> object:
        return types.SimpleNamespace(
            name={700: "CUDA_ERROR_ILLEGAL_ADDRESS"}.get(code, "CUDA_ERROR_X")
        )

    def cuGetErrorString(self, result: object) -> tuple:
        return 0, b"an explanation"

    def cuInit(self, flags: int) -> tuple:
        return (self.record("cuInit"),)

    def cuDeviceGetCount(self) -> tuple:
        return self.record("cuDeviceGetCount"), self.devices

    def cuDeviceGet(self, index: int) -> tuple:
        return self.record("cuDeviceGet", index), 100 + index

    def cuDeviceGetAttribute(self, attribute: str, device: int) -> tuple:
        major, minor = self.capability
        value = {"MAJOR": major, "MINOR": minor, "COUNT": 132}[attribute.rsplit("_", 1)[1]]
        return self.record("cuDeviceGetAttribute", attribute), value

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple:
        return self.record("cuDevicePrimaryCtxRetain", device), 0xC000 + device

    def cuCtxPushCurrent(self, context: int) -> tuple:
        self.stack().append(context)
        return (self.record("cuCtxPushCurrent", context),)

    def cuCtxPopCurrent(self) -> tuple:
        return self.record("cuCtxPopCurrent"), self.stack().pop()

    def cuModuleLoadData(self, code: bytes) -> tuple:
        assert self.stack(), "a module was loaded without a context"
        return self.record("cuModuleLoadData", code), 0xA000

    def cuCtxSynchronize(self) -> tuple:
        return (self.record("cuCtxSynchronize"),)

    def cuModuleUnload(self, module: int) -> tuple:
        assert self.stack(), "a module was unloaded without a context"
        return (self.record("cuModuleUnload", module),)

    def cuModuleGetFunction(self, module: int, name: bytes) -> tuple:
        return self.record("cuModuleGetFunction", module, name), 0xF000

    def cuFuncSetAttribute(self, function: int, attribute: str, value: int) -> tuple:
        return (self.record("cuFuncSetAttribute", attribute, value),)

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, *args: int) -> tuple:
        return self.record("cuOccupancyMaxActiveBlocksPerMultiprocessor", *args), 2

    CUlaunchConfig = types.SimpleNamespace

    def cuOccupancyMaxActiveClusters(self, function: int, config: types.SimpleNamespace) -> tuple:
        asked = (config.gridDimX, config.gridDimY, config.blockDimX, config.sharedMemBytes)
        return self.record("cuOccupancyMaxActiveClusters", function, *asked), 33

    def cuTensorMapEncodeTiled(self, *args: object) -> tuple:
        assert self.stack(), "a tensor map was made without a context"
        self.maps += 1
        return self.record("cuTensorMapEncodeTiled", *args), FakeMap(bytes([self.maps]) * 128)

    def cuPointerGetAttribute(self, attribute: str, pointer: int) -> tuple:
        return self.record("cuPointerGetAttribute", attribute, pointer), 0

    def cuEventCreate(self, flags: int) -> tuple:
        return self.record("cuEventCreate", flags), 0xE0

    def cuEventRecord(self, event: int, stream: int) -> tuple:
        return (self.record("cuEventRecord", event, stream),)

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> tuple:
        return (self.record("cuStreamWaitEvent", stream, event),)

    def cuEventDestroy(self, event: int) -> tuple:
        return (self.record("cuEventDestroy", event),)

    def launch(self, config: int, function: int, params: int, extra: None) -> int:
        c = cuda.LaunchConfig.from_address(config)
        self.at_launch(params)
        code = self.record(
            "launch", tuple(c.grid), tuple(c.block), c.shared_bytes, c.stream, function, params
        )
        return code if self.stack() or not self.failing.get("no context") else 201

    def replace_address(self, tensor_map: int, address: int) -> int:
        ctypes.c_uint64.from_address(tensor_map).value = address
        if self.address_elsewhere_too:
            ctypes.c_uint8.from_address(tensor_map + 32).value = address >> 40
        return self.record("cuTensorMapReplaceAddress", tensor_map, address)

    def get_current(self, out: object) -> int:
        out._obj.value = self.stack()[-1] if self.stack() else None  # type: ignore[attr-defined]
        return 0


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return install(monkeypatch, FakeCuda())


def install(monkeypatch: pytest.MonkeyPatch, api: FakeCuda) -> FakeCuda:
    package, bindings = types.ModuleType("cuda"), types.ModuleType("cuda.bindings")
    package.bindings, bindings.driver = bindings, api  # type: ignore[attr-defined]
    for name, module in (("cuda", package), ("cuda.bindings", bindings), (api.__name__, api)):
        monkeypatch.setitem(sys.modules, name, module)
    entries = (api.launch, api.get_current, api.replace_address)
    monkeypatch.setattr(cuda, "_entry_points", lambda: entries)
    return api


MAP = TensorMapType("A", (1, 0), (64, 96), 128, FLOAT16)
PARAMS = (
    AbiParam("size", "A", 0, "int32", "M"),
    AbiParam("tensor_map", "A", -1, "tensor_map", "", MAP),
    AbiParam("tensor", "C", -1, "pointer"),
    AbiParam("stride", "C", 0, "int64", "C_stride0"),
    AbiParam("scalar", "x", -1, "float32", "x"),
    AbiParam("grid", "", 1, "int32", "grid1"),
)


def image(**changes: object) -> Image:
    fields = dict(
        name="k",
        symbol="k_entry",
        target="cuda:sm_90a",
        arguments=(Argument("A", "tensor", "float16", ("M", "K"), ("A_stride0", 1), 16),),
        params=PARAMS,
        grid="((M + 127) // 128, 3, 1)",
        returned=(),
        resources=Resources(168, 0, 213_000, {"A_s": 32768}, 384, 1),
        format="cubin",
        binary=b"\x7fELF cubin",
    )
    return Image(**{**fields, **changes})  # type: ignore[arg-type]


def test_clusters_that_run_at_once(fake: FakeCuda) -> None:
    """Groups of multiprocessors need not be multiples of a cluster: the driver is asked."""
    kernel = cuda.CudaDriver().load(image(cluster=(1, 4, 1), persistent=True), 0)
    assert kernel.resident_blocks() == 4 * 33
    assert fake.calls[-2] == ("cuOccupancyMaxActiveClusters", 0xF000, 1, 4, 384, 213_000)
    assert launched_grid(kernel, (100, 100, 1)) == (33, 4, 1)
    assert launched_grid(kernel, (3, 9, 1)) == (9, 4, 1)


def tensor(pointer: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    return Tensor(pointer, shape, strides, "float16", 2, "cuda", 0, None)


A = tensor(0x7F00_0000_1000, (1000, 776), (784, 1))
C = tensor(0x7F00_0002_0010, (1000, 520), (520, 1))


def test_load_sets_shared_memory_in_the_device_context(fake: FakeCuda) -> None:
    cuda.CudaDriver().load(image(), 0)
    assert ("cuModuleLoadData", b"\x7fELF cubin") in fake.calls
    assert ("cuModuleGetFunction", 0xA000, b"k_entry") in fake.calls
    attribute = "function.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
    assert ("cuFuncSetAttribute", attribute, 213_000) in fake.calls
    assert fake.names().index("cuCtxPushCurrent") < fake.names().index("cuModuleLoadData")
    assert fake.stack() == []


def test_ptx_is_terminated(fake: FakeCuda) -> None:
    cuda.CudaDriver().load(image(format="ptx", binary=b".version 8.0"), 0)
    assert ("cuModuleLoadData", b".version 8.0\0") in fake.calls


def test_argument_block_layout(fake: FakeCuda) -> None:
    kernel = cuda.CudaDriver().load(image(), 0)
    x = SEED.uniform(-9, 9)
    block = argument_block(kernel, {"A": A, "C": C}, {"x": x}, (8, 3, 1))
    pointers = (ctypes.c_uint64 * len(PARAMS)).from_address(block.address)
    read = [ctypes.string_at(p, n) for p, n in zip(pointers, (4, 128, 8, 8, 4, 4))]
    assert struct.unpack("<i", read[0]) == (1000,)
    assert pointers[1] % 64 == 0 and read[1] == b"\x01" * 128
    assert struct.unpack("<Q", read[2]) == (C.pointer,)
    assert struct.unpack("<q", read[3]) == (520,)
    assert struct.unpack("<f", read[4])[0] == pytest.approx(x, rel=1e-6)
    assert struct.unpack("<i", read[5]) == (3,)


def test_tensor_map_arguments(fake: FakeCuda) -> None:
    kernel = cuda.CudaDriver().load(image(), 0)
    kernel.tensor_map(1, A)
    (call,) = [c for c in fake.calls if c[0] == "cuTensorMapEncodeTiled"]
    assert call[1:] == (
        "type.CU_TENSOR_MAP_DATA_TYPE_FLOAT16", 2, A.pointer,
        [776, 1000], [784 * 2], [64, 96], [1, 1],
        "interleave.CU_TENSOR_MAP_INTERLEAVE_NONE", "swizzle.CU_TENSOR_MAP_SWIZZLE_128B",
        "l2.CU_TENSOR_MAP_L2_PROMOTION_NONE", "oob.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
    )  # fmt: skip


def test_tensor_map_of_five_dimensions_is_innermost_first() -> None:
    shape = tuple(SEED.randrange(2, 9) for _ in range(5))
    strides = (shape[1] * shape[2] * shape[3] * shape[4] * 8, 4096, 512, 64, 1)
    kind = TensorMapType("X", (4, 3, 2, 1, 0), (8, 1, 1, 1, 1), 0, FLOAT16)
    m = map_arguments(kind, Tensor(4096, shape, strides, "float16", 2, "cuda", 0, None))
    assert m.sizes == shape[::-1]
    assert m.strides == (128, 1024, 8192, strides[0] * 2)
    assert m.swizzle == "NONE"


def test_tensor_map_refuses_an_extent_it_cannot_hold() -> None:
    huge = tensor(4096, (3, 2**32 + 2), (2**33, 1))
    with pytest.raises(LaunchError, match=r"A: dimension 1 has 4294967298 elements"):
        map_arguments(MAP, huge)


def test_launch_passes_grid_threads_shared_and_stream(fake: FakeCuda) -> None:
    kernel = cuda.CudaDriver().load(image(), 0)
    block = argument_block(kernel, {"A": A, "C": C}, {"x": 1.5}, (8, 3, 1))
    ready = kernel.ready((8, 3, 1), block, 0x5555)
    fake.calls.clear()
    assert ready() == 0
    assert fake.calls == [
        ("launch", (8, 3, 1), (384, 1, 1), 213_000, 0x5555, 0xF000, block.address)
    ], "the ready path calls the driver once and nothing else: it can be captured in a graph"


def test_blocks_survive_other_launches(fake: FakeCuda) -> None:
    kernel = cuda.CudaDriver().load(image(), 0)
    blocks = [
        argument_block(
            kernel,
            {"A": A, "C": tensor(C.pointer + 64 * i, C.shape, C.strides)},
            {"x": i},
            (8, 3, 1),
        )
        for i in range(17)
    ]
    for i, block in enumerate(blocks):
        pointers = (ctypes.c_uint64 * 6).from_address(block.address)
        assert struct.unpack("<Q", ctypes.string_at(pointers[2], 8)) == (C.pointer + 64 * i,)
        assert struct.unpack("<f", ctypes.string_at(pointers[4], 4)) == (i,)


def test_persistent_grid(fake: FakeCuda) -> None:
    kernel = cuda.CudaDriver().load(image(persistent=True), 0)
    assert launched_grid(kernel, (100, 7, 1)) == (264, 1, 1)
    assert launched_grid(kernel, (10, 7, 1)) == (70, 1, 1)


def test_failed_launch_names_kernel_and_error(fake: FakeCuda) -> None:
    kernel = cuda.CudaDriver().load(image(), 0)
    ready = kernel.ready((1, 1, 1), BlockLayout(PARAMS[:1], "cuda:sm_90a").block([7]), 0)
    fake.failing["launch"] = 700
    assert ready() == 700
    with pytest.raises(DriverError, match="launching k on cuda:0.*ILLEGAL_ADDRESS.*an explanation"):
        kernel.launch(ready)


def test_a_thread_without_context_gets_one(fake: FakeCuda) -> None:
    kernel = cuda.CudaDriver().load(image(), 0)
    ready = kernel.ready((1, 1, 1), BlockLayout(PARAMS[:1], "cuda:sm_90a").block([7]), 0)
    fake.failing["no context"] = 1
    codes: list[int] = []

    def work() -> None:
        codes.append(ready())
        kernel.launch(ready)
        codes.append(0)

    t = threading.Thread(target=work)
    t.start()
    t.join()
    assert codes == [201, 0]


def test_several_devices_switch_context_only_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeCuda(devices=2))
    kernel = cuda.CudaDriver().load(image(), 1)
    ready = kernel.ready((1, 1, 1), BlockLayout(PARAMS[:1], "cuda:sm_90a").block([7]), 0)
    fake.calls.clear()
    ready()
    assert fake.names() == ["cuCtxPushCurrent", "launch", "cuCtxPopCurrent"]
    fake.stack().append(0xC000 + 101)
    fake.calls.clear()
    ready()
    assert fake.names() == ["launch"]


@pytest.mark.parametrize(
    ("capability", "target"),
    [
        ((9, 0), "cuda:sm_90a"),
        ((8, 0), "cuda:sm_80"),
        ((8, 9), "cuda:sm_89"),
        ((8, 7), "cuda:sm_80"),
    ],
)
def test_target_of_device(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], target: str
) -> None:
    install(monkeypatch, FakeCuda(capability=capability))
    assert cuda.CudaDriver().target_of(0) == target


def test_device_without_code(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeCuda(capability=(7, 5)))
    with pytest.raises(DriverError, match="cuda:0 is an sm_75"):
        cuda.CudaDriver().target_of(0)


def test_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeCuda(devices=0))
    with pytest.raises(DriverError, match="no NVIDIA GPU is visible"):
        cuda.CudaDriver()


def test_no_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cuda", "cuda.bindings", "cuda.bindings.driver"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DriverError, match="cuda-bindings") as e:
        cuda.CudaDriver()
    assert "pip install tilec[cuda]" in str(e.value)


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeCuda())

    def missing(flags: int) -> tuple:
        raise RuntimeError("libcuda.so.1: cannot open")

    monkeypatch.setattr(fake, "cuInit", missing)
    with pytest.raises(DriverError, match=r"CUDA driver \(libcuda.so.1\) cannot be loaded"):
        cuda.CudaDriver()


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ((-1, 1, 1), "-1 blocks in x"),
        ((1, 65536, 1), "65536 blocks in y"),
        ((1, 1, -2), "-2 blocks in z"),
    ],
)
def test_grid_limits(grid: tuple[int, int, int], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        check_grid(image(), grid, find_target("cuda:sm_90a").grid_limits)


def test_scalar_that_does_not_fit() -> None:
    with pytest.raises(LaunchError, match="x: 1e\\+300 does not fit in float32"):
        BlockLayout((AbiParam("scalar", "x", -1, "float32", "x"),), "cpu").block([1e300])


# --- whole calls: compiled for sm_90a, launched on the stand-in -----------------------------------

M, N, K = T.dynamic("M, N, K")


@tilec.kernel
def product(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float16")
):
    with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 128), threads=256) as (bx, by):
        A_s = T.alloc_shared((128, 64), "float16")
        B_s = T.alloc_shared((64, 128), "float16")
        acc = T.alloc_fragment((128, 128), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=3):
            T.copy(A[by * 128, k * 64], A_s)
            T.copy(B[k * 64, bx * 128], B_s)
            T.gemm(A_s, B_s, acc)
        T.copy(acc, C[by * 128, bx * 128])


@tilec.kernel
def scale(X: T.Tensor((N,), "float32"), factor: T.float32, BN: T.constexpr = 64):
    with T.Kernel(threads=64) as bx:
        for i in T.Parallel(BN):
            X[bx * BN + i] = X[bx * BN + i] * factor


class OnGpu:
    """An array of another library in the memory of a GPU, which nobody touches here."""

    def __init__(self, pointer: int, shape: tuple, typestr: str = "<f2", stream: int | None = None):
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": typestr, "data": (pointer, False), "strides": None,
            "version": 3, "stream": stream,
        }  # fmt: skip


@pytest.fixture
def gpu(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    monkeypatch.setattr(devices, "_drivers", {})
    devices.device_target.cache_clear()
    yield fake
    devices.device_target.cache_clear()


def launches(fake: FakeCuda) -> list[tuple]:
    return [c[1:] for c in fake.calls if c[0] == "launch"]


def test_a_product_with_tensor_maps(gpu: FakeCuda) -> None:
    a, b = OnGpu(0x7F0000000000, (1000, 776)), OnGpu(0x7F0000200000, (776, 520))
    c = OnGpu(0x7F0000400000, (1000, 520))
    kernel = tilec.kernel(product.function)
    kernel(a, b, c, stream=0x77)
    (variant,) = kernel._variants.values()
    assert variant.target == "cuda:sm_90a"
    maps = [p for p in variant.image.params if p.role == "tensor_map"]
    assert {p.arg for p in maps} >= {"A", "B"}, "operands travel by TMA"
    encoded = [c for c in gpu.calls if c[0] == "cuTensorMapEncodeTiled"]
    assert len(encoded) == len(maps)
    assert {c[3] for c in encoded} <= {0x7F0000000000, 0x7F0000200000, 0x7F0000400000}
    ((grid, block, shared, stream, _, _),) = launches(gpu)
    wide, high = (-(-n // c) * c for n, c in zip((5, 8), variant.image.cluster))
    tiles, split = min(wide * high, 264), variant.image.split
    assert grid == ((tiles, 1, 1) if variant.image.persistent else (wide * split, high, 1))
    assert block == (variant.resources.threads, 1, 1)
    assert shared == variant.resources.shared_bytes > 0
    assert stream == 0x77


def test_a_tensor_that_tma_cannot_read_gets_another_variant(gpu: FakeCuda) -> None:
    kernel = tilec.kernel(product.function)
    shapes = ((64, 64), (64, 64), (64, 64))
    for shift in (0, 2):
        pointers = (0x7F0000000000 + shift, 0x7F0000200000, 0x7F0000400000)
        kernel(*(OnGpu(p, s) for p, s in zip(pointers, shapes)))
    plain, shifted = (v.image for v in kernel._variants.values())
    assert shifted.arguments[0].align == 2 and plain.arguments[0].align == 16
    assert "A" not in {p.arg for p in shifted.params if p.role == "tensor_map"}


def test_grid_and_scalars_reach_the_driver(gpu: FakeCuda) -> None:
    kernel = tilec.kernel(scale.function)
    x = OnGpu(0x7F0000000010, (1000,), "<f4")
    scalars = []

    def read(params: int) -> None:
        (variant,) = kernel._variants.values()
        where = next(i for i, p in enumerate(variant.image.params) if p.role == "scalar")
        pointer = ctypes.c_uint64.from_address(params + 8 * where).value
        scalars.append(ctypes.c_float.from_address(pointer).value)

    gpu.at_launch = read
    kernel[lambda meta: (T.cdiv(1000, meta["BN"]),)](x, 2.5, BN=128)
    ((grid, _, _, stream, _, _),) = launches(gpu)
    assert grid == (8, 1, 1) and stream is None and scalars == [2.5]


def test_the_exporters_stream_is_waited_for(gpu: FakeCuda) -> None:
    kernel = tilec.kernel(scale.function)
    kernel[2](OnGpu(0x7F0000000000, (90,), "<f4", stream=0x51), 1.0, stream=0x52)
    names = gpu.names()
    assert ("cuEventRecord", 0xE0, 0x51) in gpu.calls
    assert ("cuStreamWaitEvent", 0x52, 0xE0) in gpu.calls
    assert names.index("cuStreamWaitEvent") < names.index("launch")
    gpu.calls.clear()
    kernel[2](OnGpu(0x7F0000000000, (90,), "<f4", stream=1), 1.0)
    assert "cuEventRecord" not in gpu.names(), "1 is the default stream, on which the launch is"


def test_clear_unloads_what_nothing_refers_to(gpu: FakeCuda) -> None:
    kernel = tilec.kernel(scale.function)
    x = OnGpu(0x7F0000000000, (90,), "<f4")
    for _ in range(2):
        kernel[2](x, 1.0)
    (kept,) = kernel._variants.values()
    kernel.clear()
    assert "cuModuleUnload" not in gpu.names(), "its owner may launch it"
    del kept
    kernel[2](x, 1.0)
    kernel.clear()
    end = gpu.names()[-4:]
    assert end == ["cuCtxPushCurrent", "cuCtxSynchronize", "cuModuleUnload", "cuCtxPopCurrent"]
    kernel[2](x, 1.0)
    assert gpu.names().count("cuModuleLoadData") == 3 and len(launches(gpu)) == 4


def test_compiling_for_the_device_found(gpu: FakeCuda) -> None:
    compiled = scale.compile(tilec.spec((90,), "float32"), target="cuda")
    assert compiled.target == "cuda:sm_90a"
    assert scale.compile(tilec.spec((90,), "float32")) is compiled


# --- HIP --------------------------------------------------------------------------------------


class FakeHip(types.ModuleType):
    """`hip.hip` of hip-python, recording."""

    class hipError_t(int):
        hipSuccess = 0
        name = "hipErrorLaunchFailure"

    class hipDeviceProp_t:
        gcnArchName = b"gfx942:sramecc+:xnack-"
        multiProcessorCount = 304

    def __init__(self) -> None:
        super().__init__("hip.hip")
        self.calls: list[tuple] = []
        self.current = 0
        self.launch_code = 0

    def hipGetDeviceCount(self) -> tuple:
        return 0, 2

    def hipGetDeviceProperties(self, properties: object, index: int) -> tuple:
        return (0,)

    def hipGetDevice(self) -> tuple:
        return 0, self.current

    def hipSetDevice(self, index: int) -> tuple:
        self.current = index
        return (0,)

    def hipModuleLoadData(self, code: bytes) -> tuple:
        self.calls.append(("load", self.current, code))
        return 0, 0xA0

    def hipModuleGetFunction(self, module: int, name: bytes) -> tuple:
        self.calls.append(("function", module, name))
        return 0, 0xF0

    def hipModuleLaunchKernel(self, *args: object) -> tuple:
        self.calls.append(("launch", self.current, *args))
        return (self.launch_code,)

    def hipModuleLaunchCooperativeKernel(self, *args: object) -> tuple:
        self.calls.append(("together", self.current, *args))
        return (self.launch_code,)

    def hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(self, *args: object) -> tuple:
        return 0, 3


@pytest.fixture
def fake_hip(monkeypatch: pytest.MonkeyPatch) -> FakeHip:
    api, package = FakeHip(), types.ModuleType("hip")
    package.hip = api  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hip", package)
    monkeypatch.setitem(sys.modules, "hip.hip", api)
    return api


HIP_IMAGE = image(target="hip:gfx942", format="hsaco", params=PARAMS[2:5], binary=b"\x7fELF hsaco")


def test_hip_launch_on_the_second_device(fake_hip: FakeHip) -> None:
    driver = hip.HipDriver()
    assert driver.target_of(1) == "hip:gfx942"
    kernel = driver.load(HIP_IMAGE, 1)
    block = argument_block(kernel, {"C": C}, {"x": 0.5}, (5, 2, 1))
    ready = kernel.ready((5, 2, 1), block, 77)
    assert ready() == 0
    assert fake_hip.calls == [
        ("load", 1, b"\x7fELF hsaco"),
        ("function", 0xA0, b"k_entry"),
        ("launch", 1, 0xF0, 5, 2, 1, 384, 1, 1, 213_000, 77, block.address, None),
    ]
    assert fake_hip.current == 0
    assert kernel.resident_blocks() == 3 * 304


def test_hip_blocks_that_wait_for_one_another(fake_hip: FakeHip) -> None:
    kernel = hip.HipDriver().load(replace(HIP_IMAGE, cooperative=True), 0)
    block = argument_block(kernel, {"C": C}, {"x": 0.5}, (5, 2, 1))
    assert kernel.ready((5, 2, 1), block, 77)() == 0
    want = ("together", 0, 0xF0, 5, 2, 1, 384, 1, 1, 213_000, 77, block.address)
    assert fake_hip.calls[-1] == want
    with pytest.raises(LaunchError, match="913 blocks wait for one another .* runs 912 of them"):
        kernel.ready((913, 1, 1), block, 77)


def test_hip_failed_launch(fake_hip: FakeHip) -> None:
    kernel = hip.HipDriver().load(HIP_IMAGE, 0)
    fake_hip.launch_code = 719
    with pytest.raises(DriverError, match="launching k on hip:0 failed: hipErrorLaunchFailure"):
        kernel.launch(
            kernel.ready((1, 1, 1), BlockLayout(PARAMS[2:3], "cuda:sm_90a").block([64]), 0)
        )


def test_hip_calls_what_cuda_calls_under_hip_names(
    fake_hip: FakeHip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams are ordered, memory is allocated and code is unloaded by what both drivers share."""
    called: list[tuple] = []

    def entry(name: str, value: int) -> Callable[..., tuple]:
        return lambda *args: called.append((name, *args)) or (0, value)

    for name, value in (
        ("EventCreateWithFlags", 0xE0), ("EventRecord", 0), ("StreamWaitEvent", 0),
        ("EventDestroy", 0), ("ThreadExchangeStreamCaptureMode", 3), ("Malloc", 0xB000),
        ("StreamCreateWithFlags", 9), ("MemsetAsync", 0), ("StreamSynchronize", 0),
        ("StreamDestroy", 0), ("DeviceSynchronize", 0), ("ModuleUnload", 0),
    ):  # fmt: skip
        monkeypatch.setattr(fake_hip, f"hip{name}", entry(name, value), raising=False)
    for name, value in (("hipEventDisableTiming", 2), ("hipStreamNonBlocking", 1)):
        monkeypatch.setattr(fake_hip, name, value, raising=False)
    modes = types.SimpleNamespace(hipStreamCaptureModeRelaxed=7)
    monkeypatch.setattr(fake_hip, "hipStreamCaptureMode", modes, raising=False)
    driver = hip.HipDriver()
    driver.order(0, 5, 5)
    assert not called
    driver.order(1, 5, 6)
    assert called == [("EventCreateWithFlags", 2), ("EventRecord", 0xE0, 5),
                      ("StreamWaitEvent", 6, 0xE0, 0), ("EventDestroy", 0xE0)]  # fmt: skip
    called.clear()
    assert driver.allocate(0, 256, True) == 0xB000
    assert called[0] == ("ThreadExchangeStreamCaptureMode", 7)
    assert called[1:4] == [("Malloc", 256), ("StreamCreateWithFlags", 1),
                           ("MemsetAsync", 0xB000, 0, 256, 9)]  # fmt: skip
    assert called[-1] == ("ThreadExchangeStreamCaptureMode", 3)
    driver.load(HIP_IMAGE, 0).unloader()()
    assert called[-2:] == [("DeviceSynchronize",), ("ModuleUnload", 0xA0)]


def test_hip_without_rocm(monkeypatch: pytest.MonkeyPatch, fake_hip: FakeHip) -> None:
    def missing() -> tuple:
        raise RuntimeError("failed to dlopen libamdhip64.so")

    monkeypatch.setattr(fake_hip, "hipGetDeviceCount", missing)
    with pytest.raises(DriverError, match=r"ROCm run time \(libamdhip64.so\) cannot be loaded"):
        hip.HipDriver()


def test_hip_without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hip", None)
    with pytest.raises(DriverError, match="hip-python"):
        hip.HipDriver()
