"""Launches that pack operands: what can be packed, and the copies before the kernel.

A packed operand is a copy whose rows begin at multiples of 16 bytes, in the workspace of the
stream (`runtime.workspace`). What is launched on a stream comes one after the other; the launches
of one call go to it without those of another between them."""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Sequence
from dataclasses import replace

from tilec.ir.types import DTYPES
from tilec.jit.specialise import Facts
from tilec.lazy import Lazy
from tilec.runtime.arguments import FACT_LIMIT, Call, read_arguments
from tilec.runtime.driver import Grid, Ready, argument_block, launched_grid
from tilec.runtime.image import AbiParam, Argument
from tilec.runtime.tensors import Tensor, contiguous_strides
from tilec.runtime.workspace import ForOwner, Kernel

packer = Lazy("tilec.packer")

MOST_BYTES = 256 << 20  # of the copies of a launch: what they lie in stays allocated
MOST_ROWS, MOST_BATCH = 8 * 65535, 65535  # that the grid of the kernel which copies can count
_WORDS = {1: "uint8", 2: "uint16", 4: "uint32"}  # bits are copied, whatever they mean


def packable(facts: Facts, call: Call) -> tuple[str, ...]:
    """The tensors that can be packed: the elements of a row are neighbours, the rows begin
    anywhere. None where there are too many bytes."""
    found = []
    for a in facts.arguments:
        if a.kind == "tensor" and not a.output and _begins_anywhere(a):
            t = call.tensors[a.name]
            *batch, rows, _ = t.shape
            if 0 not in t.shape and rows <= MOST_ROWS and math.prod(batch) <= MOST_BATCH:
                found.append(a.name)
    return tuple(found) if sum(copied(found, call)) <= MOST_BYTES else ()


def copied(names: Sequence[str], call: Call) -> list[int]:
    """The bytes of each of these tensors, packed."""
    tensors = (packed(call.tensors[n], 0) for n in names)
    return [t.shape[0] * t.strides[0] * t.itemsize for t in tensors]


def _begins_anywhere(a: Argument) -> bool:
    if len(a.strides) not in (2, 3) or a.strides[-1] != 1:
        return False
    size = DTYPES[a.dtype].bits // 8
    known = [s * size for s in a.strides[:-1] if isinstance(s, int)]
    return size in _WORDS and (a.align < FACT_LIMIT or any(s % FACT_LIMIT for s in known))


def packed(t: Tensor, pointer: int) -> Tensor:
    """A copy of `t` at `pointer`: its rows begin at multiples of 16 bytes."""
    each = FACT_LIMIT // t.itemsize
    *outer, columns = t.shape
    strides = contiguous_strides((*outer, -(-columns // each) * each))
    return replace(t, pointer=pointer, strides=strides, owner=None)


def packed_launch(kernel: Kernel, call: Call, grid: Grid, stream: int) -> Ready:
    """A launch of `grid` blocks on `stream` with copies of what `kernel` has packed, made ready.
    It does not keep the memory of the arguments alive."""
    names, tensors = (
        kernel.image.packed,
        {n: replace(t, owner=None) for n, t in call.tensors.items()},
    )
    room = [AbiParam("workspace", n, b, "pointer") for n, b in zip(names, copied(names, call))]
    scalars, lock = dict(call.scalars), kernel.driver.workspaces.in_order

    def make(owner: Hashable) -> Ready:
        at = kernel.driver.workspaces.addresses(kernel.index, ("packed", owner), room, 1)
        copies = {n: packed(tensors[n], address) for n, address in zip(names, at)}
        launches = [_copy(kernel.image.target, tensors[n], copies[n], stream) for n in names]
        block = argument_block(kernel, {**tensors, **copies}, scalars, grid)
        return _InOrder(lock, [*launches, kernel.ready(launched_grid(kernel, grid), block, stream)])

    return ForOwner(kernel.driver, stream, make)


class _InOrder:
    """Launches of which none goes between."""

    __slots__ = ("_launches", "_lock")

    def __init__(self, lock: threading.Lock, launches: Sequence[Ready]) -> None:
        self._lock, self._launches = lock, tuple(launches)

    def __call__(self) -> int:
        with self._lock:
            for launch in self._launches:
                code = launch()
                if code:
                    return code
        return 0


def _copy(target: str, source: Tensor, to: Tensor, stream: int) -> Ready:
    """The launch that copies `source`."""
    pack = packer.packer(_WORDS[source.itemsize])
    arrays = {"A": _batch(source), "P": _batch(to)}
    variant = pack.compile(*arrays.values(), target=target)
    call = read_arguments(pack.name, pack.parameters, arrays, target)
    ready: Ready = variant.ready(call, variant.grid(call, None), stream)[1]
    return ready


def _batch(t: Tensor) -> Tensor:
    """`t` as a batch of matrices of words."""
    if len(t.shape) == 2:
        t = replace(t, shape=(1, *t.shape), strides=(t.shape[0] * t.strides[0], *t.strides))
    return replace(t, dtype=_WORDS[t.itemsize], writable=True)
