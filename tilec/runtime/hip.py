"""AMD GPUs: the HIP run time through `hip-python`.

Written against the signatures of hip-python 7 and 10 and tested with a recording stand-in; HIP
keeps one current device per thread instead of CUDA's context stack.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tilec.runtime.block import ArgumentBlock
from tilec.runtime.driver import DriverError, Grid, Kernel, NoTensorMaps, Ready
from tilec.runtime.gpu import GpuDriver, GpuKernel
from tilec.runtime.image import Image


def _import_bindings() -> Any:
    try:
        from hip import hip
    except ImportError as e:
        hint = "pip install tilec[hip]"
        raise DriverError("the AMD target needs the package hip-python", hint=hint) from e
    return hip


class HipDriver(GpuDriver):
    """The HIP run time of this machine. Raises DriverError where there is none, or no device."""

    kind, prefix = "hip", "hip"
    names = {
        "EventCreate": "hipEventCreateWithFlags",
        "MemAlloc": "hipMalloc",
        "MemFree": "hipFree",
        "StreamCreate": "hipStreamCreateWithFlags",
        "Synchronize": "hipDeviceSynchronize",
        "OccupancyMaxActiveBlocksPerMultiprocessor": (
            "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor"
        ),
        "no timing": "hipEventDisableTiming",
        "non blocking": "hipStreamNonBlocking",
        "relaxed": "hipStreamCaptureMode.hipStreamCaptureModeRelaxed",
    }

    def __init__(self) -> None:
        super().__init__(_import_bindings())
        try:
            code, count = self.api.hipGetDeviceCount()
        except RuntimeError as e:  # hip-python opens the library at the first call
            raise DriverError(
                f"the ROCm run time (libamdhip64.so) cannot be loaded: {e}",
                hint="run on the cpu: pass NumPy arrays or CPU tensors",
            ) from e
        if code != self.api.hipError_t.hipSuccess or count == 0:
            raise DriverError("no AMD GPU is visible", hint="see HIP_VISIBLE_DEVICES")
        self.device_count = count

    def error_text(self, code: int) -> str:
        error = self.api.hipError_t(code)
        return str(getattr(error, "name", error))

    def target_of(self, index: int) -> str:
        name = self._properties(index).gcnArchName
        text = name.decode() if isinstance(name, bytes) else str(name)
        return f"hip:{text.split(':')[0]}"

    def name_of(self, index: int) -> str:
        name = self._properties(index).name
        return name.decode(errors="replace") if isinstance(name, bytes) else str(name)

    def multiprocessors(self, index: int) -> int:
        return int(self._properties(index).multiProcessorCount)

    def _properties(self, index: int) -> Any:
        properties = self.api.hipDeviceProp_t()
        self.check(self.api.hipGetDeviceProperties(properties, index), f"asking hip:{index}")
        return properties

    @contextmanager
    def on_device(self, index: int) -> Iterator[None]:
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
        return HipKernel(self, image, index, image.binary)


class HipKernel(NoTensorMaps, GpuKernel):
    """A kernel on one device."""

    def prepared(self, grid: Grid, block: ArgumentBlock, stream: int) -> Ready:
        api, resources = self.driver.api, self.image.resources
        shape = (*grid, resources.threads, 1, 1)
        arguments = (*shape, resources.shared_bytes, stream, block.address)
        launch = functools.partial(api.hipModuleLaunchKernel, self.function, *arguments, None)
        if self.image.cooperative:
            launch = functools.partial(
                api.hipModuleLaunchCooperativeKernel, self.function, *arguments
            )

        def call(keep: ArgumentBlock = block) -> int:
            with self.driver.on_device(self.index):
                (code,) = launch()
            return int(code)

        return call
