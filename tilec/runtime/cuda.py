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
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from tilec.runtime.block import TENSOR_MAP_ALIGN, TENSOR_MAP_BYTES, Block, BlockLayout
from tilec.runtime.driver import DriverError, Grid, Kernel, MapMover, Ready
from tilec.runtime.image import Image, Resources
from tilec.runtime.tensor_map import map_arguments
from tilec.runtime.tensors import Tensor
from tilec.runtime.workspace import Workspaces, owner_of, with_workspace, workspace_params
from tilec.target import cuda_target

# Every bit of an address that a processor maps by itself, and every other one.
_PROBES = tuple(
    pattern & (1 << 47) - 16 for pattern in (-1, 0x5555555555555555, 0x3333333333333333)
)


class LaunchConfig(ctypes.Structure):
    """`CUlaunchConfig` of cuda.h."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    ]


def _import_bindings() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as e:
        raise DriverError(
            "the CUDA target needs the package cuda-bindings", hint="pip install tilec[cuda]"
        ) from e
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


class CudaDriver:
    """The CUDA driver of this machine. Raises DriverError where there is none, or no device."""

    kind = "cuda"

    def __init__(self) -> None:
        self.api = _import_bindings()
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
        self.device_count: int = self.check(self.api.cuDeviceGetCount(), "counting CUDA devices")
        if self.device_count == 0:
            raise DriverError("no NVIDIA GPU is visible", hint="see CUDA_VISIBLE_DEVICES")
        self._contexts: dict[int, Any] = {}
        self.workspaces = Workspaces(self.allocate)
        self._lock = threading.Lock()

    def check(self, result: tuple[Any, ...], doing: str) -> Any:
        """The value of a driver call, which failed while `doing` if its first element is not
        success."""
        code, *values = result
        if int(code) != 0:
            raise DriverError(f"{doing} failed: {self.error_text(int(code))}")
        return values[0] if len(values) == 1 else tuple(values)

    def error_text(self, code: int) -> str:
        """The name of an error code and the driver's own explanation."""
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
            raise DriverError(
                f"cuda:{index} is an sm_{major}{minor}; tilec compiles for sm_80 to sm_90"
            )
        return found.name

    def current_stream(self, index: int) -> int:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return 0
        return int(torch.cuda.current_stream(index).cuda_stream)

    def device_of(self, pointer: int) -> int:
        """The ordinal of the device whose memory holds `pointer`."""
        ordinal = self.api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        found = self.api.cuPointerGetAttribute(ordinal, pointer)
        return int(self.check(found, f"asking which device holds {pointer:#x}"))

    def order(self, index: int, first: int, then: int) -> None:
        if first == then or {first, then} == {0, 1}:  # 0 and 1 are the legacy default stream
            return
        doing = f"ordering streams on cuda:{index}"
        with self.context(index):
            timing = self.api.CUevent_flags.CU_EVENT_DISABLE_TIMING
            event = self.check(self.api.cuEventCreate(int(timing)), doing)
            self.check(self.api.cuEventRecord(event, first), doing)
            self.check(self.api.cuStreamWaitEvent(then, event, 0), doing)
            self.check(self.api.cuEventDestroy(event), doing)

    def multiprocessors(self, index: int) -> int:
        return self._attribute(
            self.api.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, index
        )

    def _attribute(self, attribute: Any, index: int) -> int:
        device = self.check(self.api.cuDeviceGet(index), f"opening cuda:{index}")
        return int(
            self.check(self.api.cuDeviceGetAttribute(attribute, device), f"asking cuda:{index}")
        )

    def owner(self, stream: int) -> Hashable:
        return owner_of(stream, self._graph_of)

    def _graph_of(self, stream: int) -> int | None:
        asking = f"asking whether stream {stream} is captured"
        if not int(self.check(self.api.cuStreamIsCapturing(stream), asking)):
            return None
        return int(self.check(self.api.cuStreamGetCaptureInfo(stream), asking)[1])

    def allocate(self, index: int, size: int, zero: bool) -> int:
        """Memory on device `index`, also while a stream is captured."""
        doing = f"allocating {size:,} bytes on cuda:{index} for what blocks hand over"
        api = self.api
        with self.context(index):
            relaxed = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            mode = self.check(api.cuThreadExchangeStreamCaptureMode(relaxed), doing)
            try:
                address = int(self.check(api.cuMemAlloc(size), doing))
                if zero:
                    kind = api.CUstream_flags.CU_STREAM_NON_BLOCKING
                    stream = self.check(api.cuStreamCreate(int(kind)), doing)
                    self.check(api.cuMemsetD8Async(address, 0, size, stream), doing)
                    self.check(api.cuStreamSynchronize(stream), doing)
                    self.check(api.cuStreamDestroy(stream), doing)
            finally:
                self.check(api.cuThreadExchangeStreamCaptureMode(mode), doing)
        return address

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
    def context(self, index: int) -> Iterator[None]:
        """Make the primary context of device `index` current in this thread for a while."""
        wanted = self.primary_context(index)
        self.check(self.api.cuCtxPushCurrent(wanted), f"switching to cuda:{index}")
        try:
            yield
        finally:
            self.check(self.api.cuCtxPopCurrent(), f"switching back from cuda:{index}")

    def load(self, image: Image, index: int) -> Kernel:
        return CudaKernel(self, image, index)

    def unload(self, module: Any, index: int, name: str) -> None:
        """Unload a module when the device has done its work."""
        with self.context(index):
            self.check(self.api.cuCtxSynchronize(), f"waiting for cuda:{index}")
            self.check(self.api.cuModuleUnload(module), f"unloading {name}")


class CudaKernel:
    """A kernel on one device. `function` is the driver's handle, `address` its value."""

    def __init__(self, driver: CudaDriver, image: Image, index: int) -> None:
        self.driver, self.image, self.index = driver, image, index
        self.layout = BlockLayout(image.params)
        self._own = workspace_params(image)
        api = driver.api
        # PTX is text and must end in a zero byte; the driver finds the end of a cubin in its
        # header.
        code = image.binary + b"\0" if image.format == "ptx" else image.binary
        with driver.context(index):
            self.module = driver.check(api.cuModuleLoadData(code), f"loading {image.name}")
            self.function = driver.check(
                api.cuModuleGetFunction(self.module, image.symbol.encode()),
                f"finding {image.symbol}",
            )
            driver.check(
                api.cuFuncSetAttribute(
                    self.function,
                    api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    image.resources.shared_bytes,
                ),
                f"giving {image.name} {image.resources.shared_bytes} bytes of shared memory",
            )
        self.address = int(self.function)
        self._config = functools.lru_cache(maxsize=64)(
            functools.partial(_launch_config, image.resources)
        )

    def ready(self, grid: Grid, block: Block, stream: int) -> Ready:
        call: Ready
        if self._own:
            call = with_workspace(self, grid, block, stream)
        else:
            call = self.prepared(grid, block, stream)
        return _OnDevice(self.driver, self.index, call) if self.driver.device_count > 1 else call

    def prepared(self, grid: Grid, block: Block, stream: int) -> Ready:
        """A call that launches `grid` blocks with the arguments in `block`, as they are."""
        config = self._config(grid, stream)
        call = _PreparedCall(
            self.driver.entry, ctypes.addressof(config), self.address, block.address, None
        )
        call.kernel, call.config, call.memory = self, config, block.memory
        return call

    def unloader(self) -> Callable[[], None]:
        return functools.partial(self.driver.unload, self.module, self.index, self.image.name)

    def launch(self, ready: Ready) -> None:
        with self.driver.context(self.index):
            code = ready()
        if code:
            why = self.driver.error_text(code)
            raise DriverError(f"launching {self.image.name} on cuda:{self.index} failed: {why}")

    def tensor_map(self, param: int, tensor: Tensor) -> bytes:
        kind = self.image.params[param].tensor_map
        assert kind is not None
        m, api = map_arguments(kind, tensor), self.driver.api
        with self.driver.context(self.index):  # a thread may have none yet
            encoded = self.driver.check(
                api.cuTensorMapEncodeTiled(
                    getattr(api.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{m.data_type}"),
                    len(m.sizes),
                    m.pointer,
                    [api.cuuint64_t(s) for s in m.sizes],
                    [api.cuuint64_t(s) for s in m.strides],
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

    @functools.cached_property
    def _resident_blocks(self) -> int:
        resources = self.image.resources
        x, y, z = self.image.cluster
        if x * y * z > 1:
            return self._resident_clusters() * x * y * z
        with self.driver.context(self.index):
            per_multiprocessor = self.driver.check(
                self.driver.api.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    self.function, resources.threads, resources.shared_bytes
                ),
                f"asking the occupancy of {self.image.name}",
            )
        return int(per_multiprocessor) * self.driver.multiprocessors(self.index)

    def _resident_clusters(self) -> int:
        """Clusters that run at once: each stays within one group of multiprocessors, so that some
        may be left over. The kernel itself says how large they are."""
        resources = self.image.resources
        config = self.driver.api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self.image.cluster
        config.blockDimX, config.blockDimY, config.blockDimZ = resources.threads, 1, 1
        config.sharedMemBytes = resources.shared_bytes
        with self.driver.context(self.index):
            found = self.driver.api.cuOccupancyMaxActiveClusters(self.function, config)
            doing = f"asking how many clusters of {self.image.name} run at once"
            return int(self.driver.check(found, doing))

    def resident_blocks(self) -> int:
        return self._resident_blocks


def _launch_config(resources: Resources, grid: Grid, stream: int) -> LaunchConfig:
    threads, shared = resources.threads, resources.shared_bytes
    return LaunchConfig(grid, (threads, 1, 1), shared, stream or None, None, 0)


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
        with self._driver.context(self._index):
            return self._call()
