"""Types of the tile IR: scalars, short vectors, tensors and buffers, tokens and barriers."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from tilec.ir.caller import caller_loc
from tilec.ir.errors import CompileError, InternalError

if TYPE_CHECKING:
    from tilec.ir.layout import Layout


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type, of which there is one object each; it equals its name. `kind` is "bool",
    "int", "uint" or "float"; `bits` its width in memory."""

    name: str
    kind: str
    bits: int
    short: str
    is_float: bool = field(init=False, repr=False)
    is_int: bool = field(init=False, repr=False)
    """Signed, unsigned or bool: everything that is not a floating-point type."""
    limits: tuple[int, int] = field(init=False, repr=False)
    """Smallest and largest value of an integer type (bool: 0 and 1)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_float", self.kind == "float")
        object.__setattr__(self, "is_int", self.kind != "float")
        bits = {"bool": 1, "uint": self.bits}.get(self.kind, self.bits - 1)
        least = 0 if self.kind in ("bool", "uint") else -(1 << bits)
        object.__setattr__(self, "limits", (least, (1 << bits) - 1))

    @property
    def bytes(self) -> int:
        """Width in bytes; a packed 4-bit type has none."""
        if self.bits % 8:
            raise ValueError(f"{self.name} is narrower than a byte")
        return self.bits // 8

    def __str__(self) -> str:
        """Its name, which is a dtype wherever one is asked for; the IR writes `short`."""
        return self.name

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, str) and self.name == _TORCHS.get(other, other))

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        return _named, (self.name,)  # also of copies

    def __call__(self, value: object = None) -> Any:
        """Outside of kernels, a number that is of this dtype where a kernel uses it (in kernels the
        front end sees this object, not the call). Raises CompileError for what is no number."""
        made: TypedInt | TypedFloat
        try:
            if not isinstance(value, numbers.Real):
                raise ValueError(value)
            made = TypedFloat(value) if self.is_float else TypedInt(math.trunc(value))
        except (ValueError, OverflowError):  # what is infinite is no int
            raise CompileError(
                f"T.{self.name}(…) converts numbers; outside of a kernel they are Python's",
                caller_loc(),
                f'write T.{self.name}(0), or "{self.name}" where a dtype is asked for',
            ) from None
        made.dtype = self
        return made


def _named(name: str) -> DType:
    return DTYPES[name]


class TypedInt(int):
    """A number of Python's with the dtype that it has in a kernel, where others take that of what
    they are computed with. What Python computes of it has none."""

    dtype: DType

    def __reduce__(self) -> tuple[object, ...]:
        return self.dtype, (int(self),)


class TypedFloat(float):
    """See `TypedInt`."""

    dtype: DType

    def __reduce__(self) -> tuple[object, ...]:
        return self.dtype, (float(self),)


BOOL = DType("bool", "bool", 8, "i1")
INT8, INT16 = DType("int8", "int", 8, "i8"), DType("int16", "int", 16, "i16")
INT32, INT64 = DType("int32", "int", 32, "i32"), DType("int64", "int", 64, "i64")
UINT8, UINT16 = DType("uint8", "uint", 8, "u8"), DType("uint16", "uint", 16, "u16")
UINT32, UINT64 = DType("uint32", "uint", 32, "u32"), DType("uint64", "uint", 64, "u64")
INT4, UINT4 = DType("int4", "int", 4, "i4"), DType("uint4", "uint", 4, "u4")
FLOAT16, BFLOAT16 = DType("float16", "float", 16, "f16"), DType("bfloat16", "float", 16, "bf16")
FLOAT32, FLOAT64 = DType("float32", "float", 32, "f32"), DType("float64", "float", 64, "f64")
TFLOAT32 = DType("tfloat32", "float", 32, "tf32")
FLOAT8_E4M3 = DType("float8_e4m3", "float", 8, "e4m3")
FLOAT8_E5M2 = DType("float8_e5m2", "float", 8, "e5m2")
FLOAT4_E2M1 = DType("float4_e2m1", "float", 4, "e2m1")
FLOAT8_E8M0 = DType("float8_e8m0", "float", 8, "e8m0")
ON_CHIP = {INT4: INT8, UINT4: UINT8, FLOAT4_E2M1: FLOAT16, FLOAT8_E8M0: FLOAT32}
"""Dtypes of tensors' elements only: what these are while they are computed with, of which each is
the number that it stands for."""
MOST_NARROW = (1 << 31) - (1 << 16)
"""The largest extent, stride or span for which indices have 32 bits: so a size can be rounded up to
whole tiles."""
MAGNITUDES = (*(1 << n for n in range(5, 14)), 65536)
"""About how large an extent is: the first of these that it does not exceed."""


WIDEST_UNIT = 128


def magnitude_of(extent: int) -> int:
    """One of `MAGNITUDES`; 0 for what exceeds all of them."""
    return next((n for n in MAGNITUDES if extent <= n), 0)


def next_power_of_2(extent: int) -> int:
    """The least power of two that is at least `extent`; 1 for what is below."""
    return 1 << max(0, extent - 1).bit_length()


MOST_NARROW_ROW = 512


def narrow_of(extent: int) -> int:
    """The next power of two, of rows that may be shorter than what a block takes of them."""
    return min(next_power_of_2(extent), MOST_NARROW_ROW)


def few_of(extent: int) -> int:
    """At most how many iterations there are, if they may not fill a machine; else many."""
    return next((n for n in (1, 4, 8, 16, 32) if extent <= n), MAGNITUDES[-2])


WIDE_TILE, NARROW_TILE = 256, 64  # columns


def whole_tiles_of(extent: int) -> int:
    """1 where wide tiles take over a fourth more columns than rows have, else `NARROW_TILE`."""
    taken = -(-extent // WIDE_TILE) * WIDE_TILE
    return 1 if 4 * taken > 5 * extent else NARROW_TILE


def unit_of(extent: int) -> int:
    """The largest power of two up to `WIDEST_UNIT` that divides an extent."""
    return math.gcd(extent, WIDEST_UNIT)


RUN = 8
"""Elements that a thread has together, at most: 16 bytes of half precision."""


def tile_of(extent: int) -> tuple[int, int]:
    """Of a loop that is cut into tiles: the next power of two up to 8192, and what divides it of
    `RUN`."""
    return next_power_of_2(min(extent, 8192)), math.gcd(extent, RUN)


# All of them, in the order in which they stand above.
DTYPES = {d.name: d for d in tuple(globals().values()) if isinstance(d, DType)}
SHORT_NAMES: dict[str, DType] = {d.short: d for d in DTYPES.values()}
ALIASES: dict[str, str] = {
    "float": "float32", "double": "float64", "half": "float16", "int": "int32", "uint": "uint32",
    "float8_e4m3fn": "float8_e4m3", "float8_e4m3fnuz": "float8_e4m3",
    "float8_e5m2fnuz": "float8_e5m2", "float4_e2m1fn": "float4_e2m1",
    "float8_e8m0fnu": "float8_e8m0",
}  # fmt: skip
_TORCHS = {name: own for name, own in ALIASES.items() if "fn" in name}
"""Names of torch's and TileLang's: `t.dtype == T.float8_e4m3fn`."""


@dataclass(frozen=True, slots=True)
class ScalarType:
    """One value of `dtype` per thread."""

    dtype: DType

    def __str__(self) -> str:
        return self.dtype.short


scalar_type = functools.cache(ScalarType)  # the types of most values: one object each


@dataclass(frozen=True, slots=True)
class VectorType:
    """`lanes` consecutive values of `dtype` in one thread's registers."""

    dtype: DType
    lanes: int

    def __str__(self) -> str:
        return f"<{self.lanes} x {self.dtype.short}>"


Extent = int | str  # a compile-time extent, or the name of the size parameter that holds it
MBARRIER_BYTES = 8
PLAIN_ALIGN = 128  # of a shared buffer: what a TMA box without a swizzle asks for
PAD_BYTES = 16  # skipped after each row of an unswizzled tile: rows start in other banks


@dataclass(frozen=True, slots=True)
class BufferType:
    """A multi-dimensional array in one memory space.

    `space`: "global" (a tensor parameter), "shared", "fragment" (registers of a scope's threads),
    "local" (one thread's own registers or stack), "barrier". `shape` entries, and for global
    tensors `strides` (in elements), are ints or names of size/stride parameters. `align` is the
    fact known of a global tensor: the largest power of two up to 16 that divides its base address
    and, in bytes, each of its dynamic strides. `layout` is None until `infer_layouts`. `stages`
    > 1: a ring of that many copies."""

    shape: tuple[Extent, ...]
    dtype: DType
    space: str
    strides: tuple[Extent, ...] | None = None
    align: int = 16
    layout: Layout | None = None
    stages: int = 1

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape, all of whose extents must be compile-time ints (true of every on-chip
        buffer)."""
        for e in self.shape:
            if not isinstance(e, int):
                raise ValueError(f"{self} has run-time extents")
        return cast("tuple[int, ...]", self.shape)  # asked thousands of times: not copied

    @property
    def laid_out(self) -> Layout:
        """The layout, which it must have."""
        if self.layout is None:
            raise InternalError(f"{self} has no layout")
        return self.layout

    @property
    def size(self) -> int:
        """Number of elements of one stage."""
        n = 1
        for e in self.static_shape:
            n *= e
        return n

    @property
    def bytes(self) -> int:
        """Of these elements, one behind the other."""
        return self.size * self.dtype.bits // 8

    @property
    def alignment_bytes(self) -> int:
        """Of the first byte of a shared or barrier buffer, and of each of its stages."""
        if self.space == "barrier":
            return MBARRIER_BYTES
        return PLAIN_ALIGN if self.layout is None else max(PLAIN_ALIGN, self.layout.align)

    @property
    def stage_bytes(self) -> int:
        """From one stage of a shared buffer to the next; of a barrier buffer, all its slots."""
        if self.space == "barrier":
            return MBARRIER_BYTES * self.size
        elements = self.size if self.layout is None else self.layout.span()
        align = self.alignment_bytes
        return (elements * self.dtype.bits // 8 + align - 1) // align * align

    @property
    def registers(self) -> int:
        """Of a thread, for its part of a fragment that is laid out."""
        return self.laid_out.words(self.dtype.bits)

    def shared_out(self, threads: int) -> int:
        """Registers of each of so many threads, where all hold as much of it."""
        return -(-self.size * self.dtype.bits // 32 // threads)

    def with_layout(self, layout: Layout | None) -> BufferType:
        return replace(self, layout=layout)

    def __str__(self) -> str:
        times = "x" if all(isinstance(e, int) for e in self.shape) else " x "
        text = f"{self.space}<{times.join(map(str, (*self.shape, self.dtype.short)))}"
        if self.strides is not None:
            text += f", strides=[{', '.join(map(str, self.strides))}]"
        if self.align != 16:
            text += f", align={self.align}"
        if self.stages != 1:
            text += f", stages={self.stages}"
        if self.layout is not None:
            text += f", layout={self.layout}"
        return text + ">"


@dataclass(frozen=True, slots=True)
class TensorMapType:
    """A TMA descriptor of a tensor parameter, passed by value (CUDA driver API,
    cuTensorMapEncodeTiled).

    `tensor` is the parameter's name, `dims` its dimensions innermost first, `box` the elements one
    instruction moves in each of them, `swizzle` the bytes of the shared-memory pattern (0: none),
    `dtype` what the elements are in shared memory (of a float32 tensor perhaps tfloat32). `view`:
    the shape that the kernel takes it to have, where that is not its own (`resolve_views`).
    """

    tensor: str
    dims: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    dtype: DType
    view: tuple[int, ...] = ()

    def __str__(self) -> str:
        box = "x".join(map(str, self.box))
        dims = ",".join(map(str, self.dims))
        head = f"tensor_map<{self.tensor}[{dims}], box={box}, swizzle={self.swizzle}"
        view = f", view={'x'.join(map(str, self.view))}" if self.view else ""
        return f"{head}, {self.dtype.short}{view}>"


Type = ScalarType | VectorType | BufferType | TensorMapType


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a row-major array without gaps."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def named_strides(name: str, shape: Sequence[Extent]) -> tuple[Extent, ...]:
    """The same of a tensor: ints as far as they are known, then names of run-time strides."""
    strides: list[Extent] = []
    for dim in range(len(shape)):
        inner = [e for e in shape[dim + 1 :] if isinstance(e, int)]
        known = len(inner) == len(shape) - 1 - dim
        strides.append(math.prod(inner) if known else f"{name}_stride{dim}")
    return tuple(strides)


def rows_along(strides: Sequence[Extent]) -> int:
    """The dimension along which elements are neighbours in memory: the last, unless another one is
    known to be, as of a transposed view, and the last is not."""
    last = len(strides) - 1
    found = [d for d, s in enumerate(strides) if s == 1]
    return found[-1] if found else last


def find_dtype(name: object) -> DType | None:
    """The dtype meant by `name`: a DType, "float16", a NumPy, torch or ml_dtypes dtype; None if
    unknown."""
    if isinstance(name, DType):
        return name
    found = getattr(name, "dtype", None)
    if isinstance(found, DType):
        return found
    text = name if isinstance(name, str) else getattr(name, "__name__", None)
    if text is None and type(name).__name__.lower().endswith("dtype"):
        text = str(name)
    text = text.rsplit(".", 1)[-1] if isinstance(text, str) else ""
    return DTYPES.get(ALIASES.get(text, text))
