"""NVIDIA GPUs: the CUDA driver through `cuda.bindings`, launches through the driver's own entry
point.

Everything that is done once (contexts, modules, attributes, descriptors) goes through
`cuda.bindings`; the launch itself calls `cuLaunchKernelEx` by ctypes with four prepared pointers,
which is the fastest way from Python that was measured (0.2 us on top of the driver's own time,
against 0.8 us for `cuLaunchKernel`'s eleven arguments). ctypes gives up the interpreter lock for
the call, as it must: the driver blocks when a stream's queue is full.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tilec.runtime.block import TENSOR_MAP_ALIGN, TENSOR_MAP_BYTES, ArgumentBlock
from tilec.runtime.driver import DriverError, Grid, Kernel, MapMover, Ready
from tilec.runtime.gpu import GpuDriver, GpuKernel
from tilec.runtime.image import Image
from tilec.runtime.tensor_map import map_arguments
from tilec.runtime.tensors import Tensor
from tilec.target import cuda_target

# Every bit of an address that a processor maps by itself, and every other one.
_PROBES = tuple(
    pattern & (1 << 47) - 16 for pattern in (-1, 0x5555555555555555, 0x3333333333333333)
)


class LaunchConfig(ctypes.Structure):
    """`CUlaunchConfig` of cuda.h."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    ]  # fmt: skip


class LaunchAttribute(ctypes.Structure):
    """`CUlaunchAttribute` of cuda.h: its number, and a union of 64 bytes."""

    _fields_ = [
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    ]


# CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: the launch may begin before the one in
# front of it has ended; the code waits for that (`Image.pdl`).
_BESIDE = LaunchAttribute(id=6, value=1)
# CU_LAUNCH_ATTRIBUTE_COOPERATIVE: all blocks run at once, or the launch fails.
_TOGETHER = LaunchAttribute(id=2, value=1)


def _import_bindings() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as e:
        hint = "pip install tilec[cuda]"
        raise DriverError("the CUDA target needs the package cuda-bindings", hint=hint) from e
    return driver


def _entry_points() -> tuple[Callable[..., int], Callable[..., int], Callable[..., int]]:
    """`cuLaunchKernelEx(config, function, params, extra)`, `cuCtxGetCurrent(*context)` and
    `cuTensorMapReplaceAddress(map, address)` of the driver."""
    library = ctypes.CDLL("libcuda.so.1")
    launch, get_current = library.cuLaunchKernelEx, library.cuCtxGetCurrent
    # Too short to give up the interpreter lock for.
    replace = ctypes.PyDLL("libcuda.so.1").cuTensorMapReplaceAddress
    launch.restype = get_current.restype = replace.restype = ctypes.c_int
    launch.argtypes, get_current.argtypes = [ctypes.c_void_p] * 4, [ctypes.c_void_p]
    replace.argtypes = [ctypes.c_void_p] * 2
    return launch, get_current, replace


class CudaDriver(GpuDriver):
    """The CUDA driver of this machine. Raises DriverError where there is none, or no device."""

    kind, prefix = "cuda", "cu"
    names = {
        "MemsetAsync": "cuMemsetD8Async",
        "Synchronize": "cuCtxSynchronize",
        "no timing": "CUevent_flags.CU_EVENT_DISABLE_TIMING",
        "non blocking": "CUstream_flags.CU_STREAM_NON_BLOCKING",
        "relaxed": "CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED",
    }

    def __init__(self) -> None:
        super().__init__(_import_bindings())
        try:
            self.check(self.api.cuInit(0), "starting the CUDA driver")
            self.entry, self.get_current, self.replace_address = _entry_points()
        except DriverError:
            raise
        except (
            Exception
        ) as e:  # cuda.bindings raises a type of its own where the library is missing
            raise DriverError(
                f"the CUDA driver (libcuda.so.1) cannot be loaded: {e}",
                hint="run on the cpu: pass NumPy arrays or CPU tensors",
            ) from e
        self.device_count = self.check(self.api.cuDeviceGetCount(), "counting CUDA devices")
        if self.device_count == 0:
            raise DriverError("no NVIDIA GPU is visible", hint="see CUDA_VISIBLE_DEVICES")
        self._contexts: dict[int, Any] = {}
        self._lock = threading.Lock()

    def error_text(self, code: int) -> str:
        result = self.api.CUresult(code)
        _, text = self.api.cuGetErrorString(result)
        explained = f" ({text.decode()})" if isinstance(text, bytes) else ""
        return f"{getattr(result, 'name', result)}{explained}"

    def target_of(self, index: int) -> str:
        names = self.api.CUdevice_attribute
        major = self._attribute(names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, index)
        minor = self._attribute(names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, index)
        found = cuda_target(major, minor)
        if found is None:
            message = f"cuda:{index} is an sm_{major}{minor}; tilec compiles for sm_80 to sm_90"
            raise DriverError(message)
        return found.name

    def device_of(self, pointer: int) -> int:
        """The ordinal of the device whose memory holds `pointer`."""
        ordinal = self.api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        found = self.api.cuPointerGetAttribute(ordinal, pointer)
        return int(self.check(found, f"asking which device holds {pointer:#x}"))

    def order(self, index: int, first: int, then: int) -> None:
        if {first, then} != {0, 1}:  # both are the legacy default stream
            super().order(index, first, then)

    def name_of(self, index: int) -> str:
        device = self.check(self.api.cuDeviceGet(index), f"opening cuda:{index}")
        name = self.check(self.api.cuDeviceGetName(128, device), f"asking cuda:{index}")
        return str(bytes(name).rstrip(b"\0").decode(errors="replace"))

    def multiprocessors(self, index: int) -> int:
        return self._attribute(
            self.api.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, index
        )

    def _attribute(self, attribute: Any, index: int) -> int:
        device = self.check(self.api.cuDeviceGet(index), f"opening cuda:{index}")
        return int(
            self.check(self.api.cuDeviceGetAttribute(attribute, device), f"asking cuda:{index}")
        )

    def primary_context(self, index: int) -> Any:
        """The context of device `index` that torch and the CUDA run-time library use too."""
        with self._lock:
            if index not in self._contexts:
                device = self.check(self.api.cuDeviceGet(index), f"opening cuda:{index}")
                self._contexts[index] = self.check(
                    self.api.cuDevicePrimaryCtxRetain(device), f"making a context on cuda:{index}"
                )
            return self._contexts[index]

    @contextmanager
    def on_device(self, index: int) -> Iterator[None]:
        """Make the primary context of device `index` current in this thread for a while."""
        wanted = self.primary_context(index)
        self.check(self.api.cuCtxPushCurrent(wanted), f"switching to cuda:{index}")
        try:
            yield
        finally:
            self.check(self.api.cuCtxPopCurrent(), f"switching back from cuda:{index}")

    def load(self, image: Image, index: int) -> Kernel:
        # PTX is text and must end in a zero byte; the driver finds the end of a cubin in its
        # header.
        code = image.binary + b"\0" if image.format == "ptx" else image.binary
        return CudaKernel(self, image, index, code)


class CudaKernel(GpuKernel):
    """A kernel on one device. `address` is the value of the driver's handle."""

    driver: CudaDriver

    def __init__(self, driver: CudaDriver, image: Image, index: int, code: bytes) -> None:
        super().__init__(driver, image, index, code)
        shared, names = image.resources.shared_bytes, driver.api.CUfunction_attribute
        with driver.on_device(index):
            driver.call(
                "FuncSetAttribute",
                self.function,
                names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                shared,
                doing=f"giving {image.name} {shared} bytes of shared memory",
            )
        self.address = int(self.function)
        self._config = functools.lru_cache(maxsize=64)(functools.partial(_launch_config, image))

    def ready(self, grid: Grid, block: ArgumentBlock, stream: int) -> Ready:
        call = super().ready(grid, block, stream)
        return _OnDevice(self.driver, self.index, call) if self.driver.device_count > 1 else call

    def prepared(self, grid: Grid, block: ArgumentBlock, stream: int) -> Ready:
        config = self._config(grid, stream)
        call = _PreparedCall(
            self.driver.entry, ctypes.addressof(config), self.address, block.address, None
        )
        call.kernel, call.config, call.memory = self, config, block.memory
        return call

    def tensor_map(self, param: int, tensor: Tensor) -> bytes:
        kind = self.image.params[param].tensor_map
        assert kind is not None
        m, api = map_arguments(kind, tensor), self.driver.api
        with self.driver.on_device(self.index):  # a thread may have none yet
            encoded = self.driver.check(
                api.cuTensorMapEncodeTiled(
                    getattr(api.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{m.data_type}"),
                    len(m.sizes),
                    m.pointer,
                    [api.cuuint64_t(s) for s in m.sizes],
                    # (Of one dimension there is none, but the driver wants to be given a place.)
                    [api.cuuint64_t(s) for s in m.strides or (16,)],
                    [api.cuuint32_t(b) for b in m.box],
                    [api.cuuint32_t(1)] * len(m.box),
                    api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                    getattr(api.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{m.swizzle}"),
                    # Fetching more than asked for gains nothing where rows are aligned, and costs
                    # 3 % of a stream of weights and 15 % of a product whose rows straddle lines.
                    api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
                    api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
                ),
                f"making a tensor map of {kind.tensor} (shape {tensor.shape}, "
                f"strides {tensor.strides}, {kind})",
            )
        return ctypes.string_at(encoded.getPtr(), TENSOR_MAP_BYTES)

    def map_mover(self, tensor_map: bytes) -> MapMover | None:
        """The driver's own function, unless a store, which takes a fifth of its time, is seen to
        do the same to this descriptor: no document tells where the address is in it."""
        move = self.driver.replace_address
        memory = ctypes.create_string_buffer(2 * TENSOR_MAP_BYTES)
        at = ctypes.addressof(memory)
        at += -at % TENSOR_MAP_ALIGN
        for address in _PROBES:
            ctypes.memmove(at, tensor_map, TENSOR_MAP_BYTES)
            stored = address.to_bytes(8, "little") + tensor_map[8:]
            if move(at, address) or ctypes.string_at(at, TENSOR_MAP_BYTES) != stored:
                return move
        return None

    def count_resident_blocks(self) -> int:
        blocks = math.prod(self.image.cluster)
        return self._resident_clusters() * blocks if blocks > 1 else super().count_resident_blocks()

    def _resident_clusters(self) -> int:
        """Clusters that run at once: each stays within one group of multiprocessors, so that some
        may be left over. The kernel itself says how large they are."""
        resources = self.image.resources
        config = self.driver.api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self.image.cluster
        config.blockDimX, config.blockDimY, config.blockDimZ = resources.threads, 1, 1
        config.sharedMemBytes = resources.shared_bytes
        with self.driver.on_device(self.index):
            found = self.driver.api.cuOccupancyMaxActiveClusters(self.function, config)
            doing = f"asking how many clusters of {self.image.name} run at once"
            return int(self.driver.check(found, doing))


def _launch_config(image: Image, grid: Grid, stream: int) -> LaunchConfig:
    threads, shared = image.resources.threads, image.resources.shared_bytes
    attribute = _TOGETHER if image.cooperative else _BESIDE if image.pdl else None
    at = None if attribute is None else ctypes.addressof(attribute)
    return LaunchConfig(grid, (threads, 1, 1), shared, stream or None, at, int(at is not None))


class _PreparedCall(functools.partial[int]):
    """The driver's entry point with its arguments, and what must live as long as they do."""

    __slots__ = ("config", "kernel", "memory")
    kernel: CudaKernel
    config: LaunchConfig
    memory: bytearray


class _OnDevice:
    """A prepared call on a machine with several devices: made in the right context."""

    __slots__ = ("_call", "_context", "_driver", "_index")

    def __init__(self, driver: CudaDriver, index: int, call: Ready) -> None:
        self._driver, self._index, self._call = driver, index, call
        self._context = int(driver.primary_context(index))

    def __call__(self) -> int:
        current = ctypes.c_void_p()
        self._driver.get_current(ctypes.byref(current))
        if current.value == self._context:
            return self._call()
        with self._driver.on_device(self._index):
            return self._call()
