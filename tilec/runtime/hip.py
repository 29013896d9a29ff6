"""AMD GPUs: the HIP run time through `hip-python`.

Written against the signatures of hip-python 7 and 10 and tested with a recording stand-in; HIP
keeps one current device per thread instead of CUDA's context stack.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from tilec.runtime.block import Block, BlockLayout
from tilec.runtime.driver import DriverError, Grid, Kernel, NoTensorMaps, Ready
from tilec.runtime.image import Image
from tilec.runtime.workspace import Workspaces, owner_of, with_workspace, workspace_params


def _import_bindings() -> Any:
    try:
        from hip import hip
    except ImportError as e:
        raise DriverError(
            "the AMD target needs the package hip-python", hint="pip install tilec[hip]"
        ) from e
    return hip


class HipDriver:
    """The HIP run time of this machine. Raises DriverError where there is none, or no device."""

    kind = "hip"

    def __init__(self) -> None:
        self.api = _import_bindings()
        try:
            code, count = self.api.hipGetDeviceCount()
        except RuntimeError as e:  # hip-python opens the library at the first call
            raise DriverError(
                f"the ROCm run time (libamdhip64.so) cannot be loaded: {e}",
                hint="run on the cpu: pass NumPy arrays or CPU tensors",
            ) from e
        if code != self.api.hipError_t.hipSuccess or count == 0:
            raise DriverError("no AMD GPU is visible", hint="see HIP_VISIBLE_DEVICES")
        self.device_count: int = count
        self.workspaces = Workspaces(self.allocate)

    def check(self, result: Any, doing: str) -> Any:
        """The value of a HIP call, which failed while `doing` if its first element is not
        success."""
        code, *values = result if isinstance(result, tuple) else (result,)
        if code != self.api.hipError_t.hipSuccess:
            raise DriverError(f"{doing} failed: {getattr(code, 'name', code)}")
        return values[0] if len(values) == 1 else tuple(values)

    def target_of(self, index: int) -> str:
        name = self._properties(index).gcnArchName
        text = name.decode() if isinstance(name, bytes) else str(name)
        return f"hip:{text.split(':')[0]}"

    def current_stream(self, index: int) -> int:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return 0
        return int(torch.cuda.current_stream(index).cuda_stream)

    def order(self, index: int, first: int, then: int) -> None:
        if first == then:
            return
        doing = f"ordering streams on hip:{index}"
        with self.device(index):
            timing = self.api.hipEventDisableTiming
            event = self.check(self.api.hipEventCreateWithFlags(int(timing)), doing)
            self.check(self.api.hipEventRecord(event, first), doing)
            self.check(self.api.hipStreamWaitEvent(then, event, 0), doing)
            self.check(self.api.hipEventDestroy(event), doing)

    def owner(self, stream: int) -> Hashable:
        return owner_of(stream, self._graph_of)

    def _graph_of(self, stream: int) -> int | None:
        asking = f"asking whether stream {stream} is captured"
        if not int(self.check(self.api.hipStreamIsCapturing(stream), asking)):
            return None
        return int(self.check(self.api.hipStreamGetCaptureInfo(stream), asking)[1])

    def allocate(self, index: int, size: int, zero: bool) -> int:
        """Memory on device `index`, also while a stream is captured."""
        doing = f"allocating {size:,} bytes on hip:{index} for what blocks hand over"
        api = self.api
        with self.device(index):
            relaxed = api.hipStreamCaptureMode.hipStreamCaptureModeRelaxed
            mode = self.check(api.hipThreadExchangeStreamCaptureMode(relaxed), doing)
            try:
                address = int(self.check(api.hipMalloc(size), doing))
                if zero:
                    kind = api.hipStreamNonBlocking
                    stream = self.check(api.hipStreamCreateWithFlags(int(kind)), doing)
                    self.check(api.hipMemsetAsync(address, 0, size, stream), doing)
                    self.check(api.hipStreamSynchronize(stream), doing)
                    self.check(api.hipStreamDestroy(stream), doing)
            finally:
                self.check(api.hipThreadExchangeStreamCaptureMode(mode), doing)
        return address

    def multiprocessors(self, index: int) -> int:
        return int(self._properties(index).multiProcessorCount)

    def _properties(self, index: int) -> Any:
        properties = self.api.hipDeviceProp_t()
        self.check(self.api.hipGetDeviceProperties(properties, index), f"asking hip:{index}")
        return properties

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        """Make device `index` current in this thread for a while."""
        before = self.check(self.api.hipGetDevice(), "asking the current device")
        if before == index:
            yield
            return
        self.check(self.api.hipSetDevice(index), f"switching to hip:{index}")
        try:
            yield
        finally:
            self.check(self.api.hipSetDevice(before), f"switching back to hip:{before}")

    def load(self, image: Image, index: int) -> Kernel:
        return HipKernel(self, image, index)

    def unload(self, module: Any, index: int, name: str) -> None:
        """Unload a module when the device has done its work."""
        with self.device(index):
            self.check(self.api.hipDeviceSynchronize(), f"waiting for hip:{index}")
            self.check(self.api.hipModuleUnload(module), f"unloading {name}")


class HipKernel(NoTensorMaps):
    """A kernel on one device."""

    def __init__(self, driver: HipDriver, image: Image, index: int) -> None:
        self.driver, self.image, self.index = driver, image, index
        self.layout = BlockLayout(image.params)
        with driver.device(index):
            self.module = driver.check(
                driver.api.hipModuleLoadData(image.binary), f"loading {image.name}"
            )
            self.function = driver.check(
                driver.api.hipModuleGetFunction(self.module, image.symbol.encode()),
                f"finding {image.symbol}",
            )

    def ready(self, grid: Grid, block: Block, stream: int) -> Ready:
        if workspace_params(self.image):
            return with_workspace(self, grid, block, stream)
        return self.prepared(grid, block, stream)

    def prepared(self, grid: Grid, block: Block, stream: int) -> Ready:
        """A call that launches `grid` blocks with the arguments in `block`, as they are."""
        api, resources = self.driver.api, self.image.resources
        shape = (*grid, resources.threads, 1, 1)
        arguments = (*shape, resources.shared_bytes, stream, block.address, None)

        def call(keep: Block = block) -> int:
            with self.driver.device(self.index):
                (code,) = api.hipModuleLaunchKernel(self.function, *arguments)
            return int(code)

        return call

    def unloader(self) -> Callable[[], None]:
        return functools.partial(self.driver.unload, self.module, self.index, self.image.name)

    def launch(self, ready: Ready) -> None:
        code = ready()
        if code:
            error = self.driver.api.hipError_t(code)
            why = getattr(error, "name", error)
            raise DriverError(f"launching {self.image.name} on hip:{self.index} failed: {why}")

    @functools.cached_property
    def _resident_blocks(self) -> int:
        resources = self.image.resources
        with self.driver.device(self.index):
            per_multiprocessor = self.driver.check(
                self.driver.api.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
                    self.function, resources.threads, resources.shared_bytes
                ),
                f"asking the occupancy of {self.image.name}",
            )
        return int(per_multiprocessor) * self.driver.multiprocessors(self.index)

    def resident_blocks(self) -> int:
        return self._resident_blocks
