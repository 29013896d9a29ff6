"""What the three drivers have in common: a device, a loaded kernel, a launch made ready."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

from tilec.ir.errors import LaunchError, TilecError, shown
from tilec.runtime.block import ArgumentBlock, BlockLayout, Value
from tilec.runtime.image import Image
from tilec.runtime.tensors import Tensor

Grid = tuple[int, int, int]
# A launch made ready: no arguments, no allocation, no synchronisation; 0 or the driver's error
# code.
Ready = Callable[[], int]
# Lets the descriptor at an address describe an array at another, else like the one before; 0 or the
# driver's error code.
MapMover = Callable[[int, int], int]


class DriverError(TilecError):
    """No driver, no device, or a call of the driver that failed."""


class Launchable(Protocol):
    """What the arguments and the grid of a launch are made with."""

    image: Image

    def tensor_map(self, param: int, tensor: Tensor) -> bytes:
        """The descriptor for parameter number `param`."""

    def resident_blocks(self) -> int:
        """How many blocks, in whole clusters, the device runs at once (what a persistent kernel is
        launched with)."""


class Kernel(Launchable, Protocol):
    """A kernel loaded on one device."""

    layout: BlockLayout

    def ready(self, grid: Grid, block: ArgumentBlock, stream: int) -> Ready:
        """A launch of `grid` blocks on `stream` with the arguments that are in `block` at each
        call; the block is the launch's own from now on."""

    def map_mover(self, tensor_map: bytes) -> MapMover | None:
        """What makes this descriptor one of an array elsewhere; None where its first eight bytes
        are the address, and nothing else of it tells where the array is."""

    def unloader(self) -> Callable[[], None]:
        """A function that waits for the device and unloads the code; it does not refer to this
        object."""

    def launch(self, ready: Ready) -> None:
        """Run `ready` with the device's context current; raise DriverError if it fails."""


class NoTensorMaps:
    """A kernel on a kind of device that has no tensor maps."""

    image: Image

    def tensor_map(self, param: int, tensor: Tensor) -> bytes:
        raise DriverError(
            f"{self.image.name}: parameter {param} is a tensor map, "
            f"which {self.image.target} does not have"
        )

    def map_mover(self, tensor_map: bytes) -> MapMover | None:
        raise DriverError(f"{self.image.name}: {self.image.target} has no tensor maps")


class Driver(Protocol):
    """One kind of device."""

    kind: str

    def target_of(self, index: int) -> str:
        """The target that device `index` runs, e.g. "cuda:sm_90a"."""

    def current_stream(self, index: int) -> int:
        """torch's current stream on device `index`; the default stream if torch is not loaded."""

    def order(self, index: int, first: int, then: int) -> None:
        """Make what is queued on stream `then` from now on wait for what is on stream `first`."""

    def load(self, image: Image, index: int) -> Kernel:
        """Put the kernel on device `index`."""


def check_grid(image: Image, grid: Grid, limits: Grid, total: int = 2**63 - 1) -> None:
    """Raise LaunchError for a grid that has less than no block or that the device cannot count:
    more than `limits` in a dimension, more than `total` in all."""
    for axis, blocks, limit in zip("xyz", grid, limits):
        if blocks < 0:
            raise LaunchError(
                f"{image.name}: the grid {shown(grid)} has {shown(blocks)} blocks in {axis}",
                hint="a grid of 0 launches nothing, one of less is a mistake",
            )
        if blocks > limit:
            raise LaunchError(
                f"{image.name}: the grid {shown(grid)} has {shown(blocks)} blocks in {axis}, "
                f"{image.target} counts to {limit}",
                hint="put the longest dimension in x, or let each block do more",
            )
    if grid[2] * image.parts > limits[2]:
        raise LaunchError(
            f"{image.name}: the grid {grid} has {grid[2]} blocks in z, and {image.parts} launched "
            f"blocks share the work of each; {image.target} counts to {limits[2]}",
            hint="put the longest dimension in x, or compile it with a smaller split",
        )
    if grid[0] * grid[1] * grid[2] > total:
        raise LaunchError(
            f"{image.name}: the grid {grid} has {grid[0] * grid[1] * grid[2]} blocks, "
            f"{image.target} counts to {total}",
            hint="let each block do more",
        )
    for axis, blocks, size in zip("xyz", grid, image.cluster):
        if image.exact_cluster and blocks % size:
            raise LaunchError(
                f"{image.name}: the grid {grid} has {blocks} blocks in {axis}, which clusters of "
                f"{'x'.join(map(str, image.cluster))} do not divide",
                hint=f"cluster_dims with {math.gcd(blocks, size)} in {axis} fits",
            )


def argument_values(
    kernel: Launchable, tensors: Mapping[str, Tensor], scalars: Mapping[str, Value], grid: Grid
) -> list[Value]:
    """The values of the kernel's parameters for one launch of `grid` (as the author wrote it)."""
    values: list[Value] = []
    for number, p in enumerate(kernel.image.params):
        match p.role:
            case "tensor":
                values.append(tensors[p.arg].pointer)
            case "scalar":
                values.append(scalars[p.arg])
            case "size":
                values.append(tensors[p.arg].shape[p.dim])
            case "elements":
                values.append(math.prod(tensors[p.arg].shape))
            case "stride":
                values.append(tensors[p.arg].strides[p.dim])
            case "tensor_map":
                values.append(kernel.tensor_map(number, tensors[p.arg]))
            case "grid":
                values.append(grid[p.dim])
            case "memory":
                values.append(0)
            case "workspace" | "counters":
                values.append(0)  # `Kernel.ready` knows the stream, and puts an address here
            case _:
                raise LaunchError(f"{kernel.image.name}: unknown parameter role {p.role!r}")
    return values


def argument_block(
    kernel: Kernel, tensors: Mapping[str, Tensor], scalars: Mapping[str, Value], grid: Grid
) -> ArgumentBlock:
    """The block for one launch of `grid` with these arguments."""
    return kernel.layout.block(argument_values(kernel, tensors, scalars, grid))


def launched_grid(kernel: Launchable, grid: Grid) -> Grid:
    """The grid to launch: the author's, rounded up to whole clusters, or, for a persistent kernel,
    as many clusters as run at once."""
    x, y, z = kernel.image.cluster
    cx, cy, cz = (-(-blocks // size) for blocks, size in zip(grid, kernel.image.cluster))
    if kernel.image.persistent:
        cx, cy, cz = min(cx * cy * cz, max(1, kernel.resident_blocks() // (x * y * z))), 1, 1
    return cx * x * kernel.image.split, cy * y, cz * z * kernel.image.parts


def check_together(image: Image, grid: Grid, most: int) -> None:
    """Raise LaunchError for more blocks than wait for one another at once."""
    blocks = math.prod(grid)
    if blocks > most:
        raise LaunchError(
            f"{image.name}: its {blocks} blocks wait for one another while they run, and "
            f"{image.target} runs {most} of them at once",
            hint="let each block do more, or take less shared memory or fewer threads",
        )


def sums_of(image: Image, launched: Grid) -> int:
    """How many sums the launched blocks share: so often a launch takes the bytes of a workspace."""
    return math.prod(launched) // (image.split * image.parts)
