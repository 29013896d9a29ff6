"""GPU drivers: what the CUDA driver and the HIP run time do alike, call by call.

Their entry points have the same names behind a prefix and the same arguments, less those of
`GpuDriver.names`. What they do differently (contexts or a current device, tensor maps, the launch
itself) is in `cuda` and `hip`.
"""

from __future__ import annotations

import functools
import operator
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tilec.runtime.block import ArgumentBlock, BlockLayout
from tilec.runtime.driver import DriverError, Grid, Ready, check_together, sums_of
from tilec.runtime.image import Image
from tilec.runtime.workspace import ForOwner, Workspaces, owner_of, workspace_params


class GpuDriver(ABC):
    """The GPUs of one vendor. `prefix` begins the names of the functions of `api`; `names` has
    those that are called otherwise, and constants."""

    kind: str
    prefix: str
    names: Mapping[str, str]
    device_count: int

    def __init__(self, api: Any) -> None:
        self.api = api
        self.workspaces = Workspaces(self.allocate)

    @abstractmethod
    def error_text(self, code: int) -> str:
        """The name of an error code, and what the driver says of it."""

    @abstractmethod
    def on_device(self, index: int) -> AbstractContextManager[None]:
        """Make device `index` current in this thread for a while."""

    @abstractmethod
    def target_of(self, index: int) -> str:
        """The target that device `index` runs."""

    @abstractmethod
    def name_of(self, index: int) -> str:
        """What the vendor calls device `index`."""

    @abstractmethod
    def multiprocessors(self, index: int) -> int:
        """How many there are on device `index`."""

    def named(self, name: str) -> Any:
        """A function or a constant of the API."""
        return operator.attrgetter(self.names.get(name, self.prefix + name))(self.api)

    def call(self, name: str, *args: Any, doing: str) -> Any:
        """The value of a call of the API. Raises DriverError."""
        return self.check(self.named(name)(*args), doing)

    def check(self, result: Any, doing: str) -> Any:
        """The value of a driver call, which failed while `doing` if its first element is not
        success."""
        code, *values = result if isinstance(result, tuple) else (result,)
        if int(code) != 0:
            raise DriverError(f"{doing} failed: {self.error_text(int(code))}")
        return values[0] if len(values) == 1 else tuple(values)

    def current_stream(self, index: int) -> int:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return 0
        return int(torch.cuda.current_stream(index).cuda_stream)

    def order(self, index: int, first: int, then: int) -> None:
        if first == then:
            return
        call = functools.partial(self.call, doing=f"ordering streams on {self.kind}:{index}")
        with self.on_device(index):
            event = call("EventCreate", int(self.named("no timing")))
            call("EventRecord", event, first)
            call("StreamWaitEvent", then, event, 0)
            call("EventDestroy", event)

    def owner(self, stream: int) -> Hashable:
        return owner_of(stream, self._graph_of)

    @functools.cached_property
    def _capture(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        return self.named("StreamIsCapturing"), self.named("StreamGetCaptureInfo")

    def _graph_of(self, stream: int) -> int | None:
        is_capturing, info = self._capture
        asking = f"asking whether stream {stream} is captured"
        if not int(self.check(is_capturing(stream), asking)):
            return None
        return int(self.check(info(stream), asking)[1])

    def allocate(self, index: int, size: int, zero: bool) -> int:
        """Memory on device `index`, also while a stream is captured."""
        doing = f"allocating {size:,} bytes on {self.kind}:{index} for what blocks hand over"
        call = functools.partial(self.call, doing=doing)
        with self.on_device(index):
            mode = call("ThreadExchangeStreamCaptureMode", self.named("relaxed"))
            try:
                address = int(call("MemAlloc", size))
                if zero:
                    stream = call("StreamCreate", int(self.named("non blocking")))
                    call("MemsetAsync", address, 0, size, stream)
                    call("StreamSynchronize", stream)
                    call("StreamDestroy", stream)
            finally:
                call("ThreadExchangeStreamCaptureMode", mode)
        return address

    def unload(self, module: Any, index: int, name: str) -> None:
        """Unload a module when the device has done its work."""
        with self.on_device(index):
            self.call("Synchronize", doing=f"waiting for {self.kind}:{index}")
            self.call("ModuleUnload", module, doing=f"unloading {name}")


class GpuKernel(ABC):
    """A kernel on one device. `function` is the driver's handle, `code` what it loads."""

    def __init__(self, driver: GpuDriver, image: Image, index: int, code: bytes) -> None:
        self.driver, self.image, self.index = driver, image, index
        self.layout = BlockLayout(image.params, image.target)
        self._own = workspace_params(image)
        symbol = image.symbol.encode()
        with driver.on_device(index):
            self.module = driver.call("ModuleLoadData", code, doing=f"loading {image.name}")
            self.function = driver.call(
                "ModuleGetFunction", self.module, symbol, doing=f"finding {image.symbol}"
            )

    def ready(self, grid: Grid, block: ArgumentBlock, stream: int) -> Ready:
        if self.image.cooperative:
            check_together(self.image, grid, self.resident_blocks())
        if not self._own:
            return self.prepared(grid, block, stream)
        sums = sums_of(self.image, grid)

        def make(blocks: Sequence[ArgumentBlock], owner: Hashable) -> Ready:
            (own,) = blocks
            params = [p for _, p in self._own]
            found = self.driver.workspaces.addresses(self.index, owner, params, sums)
            for (number, _), address in zip(self._own, found):
                self.layout.put(own, number, address)
            return self.prepared(grid, own, stream)

        return ForOwner(self.driver, stream, [(self.layout, block)], make)

    @abstractmethod
    def prepared(self, grid: Grid, block: ArgumentBlock, stream: int) -> Ready:
        """A call that launches `grid` blocks with the arguments in `block`, as they are."""

    def unloader(self) -> Callable[[], None]:
        return functools.partial(self.driver.unload, self.module, self.index, self.image.name)

    def launch(self, ready: Ready) -> None:
        with self.driver.on_device(self.index):
            code = ready()
        if code:
            place, why = f"{self.driver.kind}:{self.index}", self.driver.error_text(code)
            raise DriverError(f"launching {self.image.name} on {place} failed: {why}")

    @functools.cached_property
    def _resident_blocks(self) -> int:
        return self.count_resident_blocks()

    def resident_blocks(self) -> int:
        return self._resident_blocks

    def count_resident_blocks(self) -> int:
        """How many blocks, each on its own, the device runs at once."""
        resources = self.image.resources
        with self.driver.on_device(self.index):
            each = self.driver.call(
                "OccupancyMaxActiveBlocksPerMultiprocessor",
                self.function,
                resources.threads,
                resources.shared_bytes,
                doing=f"asking the occupancy of {self.image.name}",
            )
        return int(each) * self.driver.multiprocessors(self.index)
