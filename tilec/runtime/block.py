"""The argument block: the values of a kernel's parameters in memory, and an array of pointers to
them.

CUDA (`kernelParams`), HIP and tilec's CPU entry all take `void **`: pointer i leads to the value
of parameter i. All of them have read the block when the launch returns. A block that is kept is
not changed, so that threads may launch from it at the same time; another takes the values of the
next launch (`jit/recipe.py`).
"""

from __future__ import annotations

import ctypes
import math
import operator
import struct
from collections.abc import Sequence

from tilec.ir.errors import LaunchError
from tilec.ir.types import DTYPES
from tilec.runtime.image import AbiParam
from tilec.runtime.tensors import array_dtype
from tilec.support.lazy import Lazy

ml_dtypes = Lazy("ml_dtypes")

TENSOR_MAP_BYTES = 128
TENSOR_MAP_ALIGN = 64
# struct's letter for each dtype that it knows, and bytes of the ones it does not.
_CODES = {
    "bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i",
    "uint32": "I", "int64": "q", "uint64": "Q", "float16": "e", "float32": "f",
    "tfloat32": "f", "float64": "d", "pointer": "Q",
}  # fmt: skip
_ML_DTYPES = ("bfloat16", "float8_e4m3", "float8_e5m2")

_addressof, _byte_of = ctypes.addressof, ctypes.c_char.from_buffer

Value = int | float | bool | bytes


def pack_value(value: Value, dtype: str, target: str) -> bytes:
    """`value` as the bytes of one parameter for `target`: `dtype` is "pointer", "tensor_map" (bytes
    as they are) or a dtype's name. Raises OverflowError or struct.error where the value does not
    fit."""
    if isinstance(value, bytes):
        return value
    if dtype in _CODES:
        return struct.pack("<" + _CODES[dtype], value)
    made = getattr(ml_dtypes, array_dtype(dtype, target))(value)
    if math.isnan(made) != math.isnan(value) or math.isinf(made) != math.isinf(value):
        raise OverflowError
    packed: bytes = made.tobytes()
    return packed


def _size_and_align(kind: str) -> tuple[int, int]:
    if kind == "tensor_map":
        return TENSOR_MAP_BYTES, TENSOR_MAP_ALIGN
    if kind == "pointer":
        return 8, 8
    return DTYPES[kind].bytes, DTYPES[kind].bytes


class BlockLayout:
    """Where each parameter's value stands in a block: at its natural alignment, in order."""

    def __init__(self, params: Sequence[AbiParam], target: str) -> None:
        self.params, self.target = tuple(params), target
        self.offsets: list[int] = []
        self.size = 0
        codes = ["<"]
        for p in params:
            width, align = _size_and_align(p.type)
            pad = -self.size % align
            codes.append("x" * pad + _CODES.get(p.type, f"{width}s"))
            self.offsets.append(self.size + pad)
            self.size += pad + width
        # The array of pointers behind them is one number, whose digits are the pointers.
        digits = [1 << 64 * i for i in range(len(self.params))]
        self._ones = sum(digits)
        self._apart = sum(map(operator.mul, digits, self.offsets))
        self._pointers_bytes = 8 * len(self.params)
        codes += ["x" * (-self.size % 8), f"{self._pointers_bytes}s"]
        self._struct = struct.Struct("".join(codes))
        self._pointers_at = self._struct.size - self._pointers_bytes
        self._room = TENSOR_MAP_ALIGN + self._struct.size
        self._each = [struct.Struct("<" + code.lstrip("x")) for code in codes[1 : len(params) + 1]]
        # Those that `struct` cannot convert are given to it as bytes.
        self._foreign = [i for i, p in enumerate(params) if p.type in _ML_DTYPES]

    def block(self, values: Sequence[Value]) -> ArgumentBlock:
        """A block with these values, one for each parameter. Raises LaunchError, which names the
        parameter, if one does not fit."""
        memory = bytearray(self._room)
        start = _addressof(_byte_of(memory))
        pad = -start % TENSOR_MAP_ALIGN
        start += pad
        pointers = (self._apart + self._ones * start).to_bytes(self._pointers_bytes, "little")
        try:
            ready = values
            if self._foreign:
                ready = [*values]
                for i in self._foreign:
                    ready[i] = pack_value(values[i], self.params[i].type, self.target)
            self._struct.pack_into(memory, pad, *ready, pointers)
        except (OverflowError, struct.error):
            raise self._misfit(values) from None
        return ArgumentBlock(memory, pad, start, start + self._pointers_at)

    def copy(self, block: ArgumentBlock) -> ArgumentBlock:
        """Another block with the same values."""
        return self.block(self._struct.unpack_from(block.memory, block.begin)[: len(self.params)])

    def put(self, block: ArgumentBlock, number: int, value: Value) -> None:
        """Let parameter `number` be `value` in a block that no launch is under way from. Raises
        OverflowError or struct.error where it does not fit."""
        if number in self._foreign:
            value = pack_value(value, self.params[number].type, self.target)
        self._each[number].pack_into(block.memory, block.begin + self.offsets[number], value)

    def _misfit(self, values: Sequence[Value]) -> LaunchError:
        for p, value in zip(self.params, values):
            try:
                pack_value(value, p.type, self.target)
            except (OverflowError, struct.error):
                wider = "float64" if p.type.startswith(("float", "bfloat")) else "int64"
                hint = f"annotate {p.arg}: T.{wider}"
                return LaunchError(f"{p.arg}: {value!r} does not fit in {p.type}", hint=hint)
        return LaunchError(f"{len(values)} values for {len(self.params)} parameters")


class ArgumentBlock:
    """The block of one launch. The first value is `memory[begin]`, at the address `values`; the
    array of pointers is at `address`. There are thousands: Python's garbage collector does not walk
    over a bytearray."""

    __slots__ = ("address", "begin", "memory", "values")

    def __init__(self, memory: bytearray, begin: int, values: int, address: int) -> None:
        self.memory, self.begin, self.values, self.address = memory, begin, values, address

    def words(self) -> memoryview:
        """The values, in numbers of eight bytes."""
        return memoryview(self.memory)[self.begin :][: self.address - self.values].cast("Q")
