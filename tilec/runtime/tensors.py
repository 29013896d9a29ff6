"""What a launch needs to know of an array, whoever made it.

Four kinds are read: torch tensors, NumPy arrays, `__cuda_array_interface__` and `__dlpack__` (in
this order). Neither torch nor NumPy is imported here: an object of theirs can only come from a
program that has already done so.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tilec.ir.errors import LaunchError, shown
from tilec.ir.types import DTYPES
from tilec.ir.types import contiguous_strides as contiguous_strides
from tilec.support.lazy import Lazy
from tilec.target import find_target

ml_dtypes = Lazy("ml_dtypes")

# What an array's own dtype is called, where that differs from tilec's name. The FNUZ forms stay
# apart: their encodings differ, so only a target that computes with them may read them.
_FOREIGN_DTYPES = {"float8_e4m3fn": "float8_e4m3", "bool_": "bool", "float8_e8m0fnu": "float8_e8m0"}
_FNUZ = {"float8_e4m3": "float8_e4m3fnuz", "float8_e5m2": "float8_e5m2fnuz"}
_STORAGE = {"tfloat32": "float32", "int4": "int8", "uint4": "uint8", "float4_e2m1": "uint8"}
_OF_TWO = ("int8", "uint8", "float4_e2m1fn_x2")  # bytes that hold two elements of four bits
_TORCH_DTYPES = {"float8_e4m3": "float8_e4m3fn", "float8_e8m0": "float8_e8m0fnu"}

# DLPack's DLDataTypeCode and DLDeviceType (dlpack.h, version 1.1).
_DLPACK_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_DLPACK_FLOAT8 = {10: "float8_e4m3", 12: "float8_e5m2"}
_DLPACK_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 10: "hip", 11: "cpu", 13: "cuda"}
_DEFAULT_STREAMS = {"cpu": None, "cuda": 1, "hip": 0}  # as `__dlpack__` numbers them
_MOST_COUNTED = 1 << 16
_ARRAY_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array as a launch sees it.

    `pointer` is the address of the first element, `strides` count elements, `dtype` is tilec's
    name (or the foreign one if tilec has none), `itemsize` is in bytes. `device` is "cpu",
    "cuda", "hip" or "meta" (a shape without memory), `index` the device's ordinal (-1: to be
    asked of the driver). `owner` keeps the memory alive. `stream`: the array is ready once the
    work queued there is done (None: when it is passed).
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize: int
    device: str
    index: int
    owner: Any
    writable: bool = True
    stream: int | None = None

    @property
    def place(self) -> str:
        """The device in words: "cpu", "cuda:0"."""
        return self.device if self.device in ("cpu", "meta") else f"{self.device}:{self.index}"

    @property
    def is_empty(self) -> bool:
        """Whether the array has no element."""
        return 0 in self.shape

    def span(self) -> tuple[int, int]:
        """First and last-plus-one byte address that an element of the array occupies."""
        if self.is_empty:
            return self.pointer, self.pointer
        low = high = 0
        for extent, stride in zip(self.shape, self.strides):
            reach = (extent - 1) * stride
            low, high = min(low, low + reach), max(high, high + reach)
        return self.pointer + low * self.itemsize, self.pointer + (high + 1) * self.itemsize

    def overlaps_itself(self) -> bool:
        """Whether two elements are one in memory (of very many whose strides interleave: whether
        they may be)."""
        steps = sorted((abs(s), n) for s, n in zip(self.strides, self.shape) if n > 1)
        reach = 0
        for stride, extent in steps:
            if stride <= reach:
                break
            reach += stride * (extent - 1)
        else:
            return False
        count = math.prod(self.shape)
        if count > _MOST_COUNTED:
            return True
        offsets = {0}
        for stride, extent in steps if count else ():
            offsets = {o + i * stride for o in offsets for i in range(extent)}
        return count > len(offsets)

    def elements_spanned(self) -> int:
        """Elements from the lowest to the highest address, both included."""
        low, high = self.span()
        return (high - low) // self.itemsize


def accepts(wanted: str, given: str, target: str) -> bool:
    """Whether a parameter of dtype `wanted`, compiled for `target`, reads an array of dtype
    `given`."""
    halves = wanted in DTYPES and DTYPES[wanted].bits < 8
    return given in _OF_TWO if halves else given == _stored(wanted, target)


def _stored(dtype: str, target: str) -> str:
    """What an array for a parameter of `dtype` holds on `target`."""
    storage = _STORAGE.get(dtype, dtype)
    if storage in _FNUZ and find_target(target).has("float8_fnuz"):
        return _FNUZ[storage]
    return storage


def array_dtype(dtype: str, target: str) -> str:
    """What torch and ml_dtypes call the dtype of arrays that `target` reads as `dtype`."""
    stored = _stored(dtype, target)
    return _TORCH_DTYPES.get(stored, stored)


def read_tensor(value: object, name: str) -> Tensor | None:
    """`value` as a Tensor; None if it is no array.

    Raises LaunchError, which calls the parameter `name`, for an array that cannot be addressed by
    strides of whole elements (a sparse tensor, foreign byte order), and for one whose own methods
    fail.
    """
    if isinstance(value, Tensor):
        return value
    try:
        return _read(value, name)
    except LaunchError:
        raise
    except Exception as e:  # of whatever kind: the array is anybody's
        raise LaunchError(
            f"{name}: this {type(value).__name__} cannot be read as an array: "
            f"{type(e).__name__}: {shown(str(e))}",
            hint="pass a torch tensor or a NumPy array",
        ) from e


def _read(value: Any, name: str) -> Tensor | None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _read_torch(torch, value, name)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _read_numpy(value, name)
    if isinstance(getattr(value, "__cuda_array_interface__", None), dict):
        return _read_cuda_interface(value, name)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return _read_dlpack(value, name)
    return None


def _read_torch(torch: Any, value: Any, name: str) -> Tensor:
    if value.is_nested:
        hint = f"pass {name}.to_padded_tensor(0)"
        raise LaunchError(f"{name}: a nested tensor has no one shape", hint=hint)
    if value.layout is not torch.strided:
        hint = f"pass {name}.to_dense()"
        raise LaunchError(f"{name}: a {value.layout} tensor has no strides", hint=hint)
    if value.is_neg() or value.is_conj():
        hint = f"pass {name}.resolve_neg()"
        raise LaunchError(f"{name}: the tensor is a lazy negation or conjugation", hint=hint)
    device = value.device.type
    if device == "cuda" and torch.version.hip:
        device = "hip"
    shape = tuple(value.shape)
    pointer = 0 if device == "meta" or stands_for_others(value) else value.data_ptr()
    if pointer == 0 and 0 not in shape:  # a FakeTensor, a subclass that wraps others
        device = "meta"
    return Tensor(
        pointer,
        shape,
        value.stride(),
        own_dtype(value.dtype),
        value.element_size(),
        device,
        value.get_device() if device in ("cuda", "hip") else 0,
        value,
    )


def stands_for_others(value: object) -> str:
    """What a tensor is that has no memory because torch traces or transforms with it, in words; ""
    for any other value."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return ""
    if type(value).__name__ == "FakeTensor":
        return "a FakeTensor"
    if type(value).__name__ == "FunctionalTensor" or torch._is_functional_tensor(value):
        return "a functional tensor"
    functorch = getattr(torch._C, "_functorch", None)
    if functorch is None or not functorch.is_functorch_wrapped_tensor(value):
        return ""
    batched = functorch.is_batchedtensor(value)
    return "a batch of torch.vmap" if batched else "a tensor of a torch.func transform"


def own_dtype(dtype: object) -> str:
    """tilec's name of a dtype of torch's."""
    name = str(dtype).removeprefix("torch.")
    return _FOREIGN_DTYPES.get(name, name)


def _read_numpy(value: Any, name: str) -> Tensor:
    dtype = value.dtype.name
    if not value.dtype.isnative:
        hint = f"pass {name}.astype({name}.dtype.newbyteorder('='))"
        raise LaunchError(f"{name}: the array's bytes are in foreign order", hint=hint)
    if hasattr(value, "filled"):  # numpy.ma
        hint = f"pass {name}.filled(0), or {name}.data to do without the mask"
        raise LaunchError(f"{name}: a masked array's mask is not seen by a kernel", hint=hint)
    if dtype in DTYPES and DTYPES[dtype].bits < 8:
        dtype += " (one per byte)"
    strides = _element_strides(value.strides, value.itemsize, name)
    return Tensor(
        value.__array_interface__["data"][0] if value.dtype.kind in "biuf" else value.ctypes.data,
        value.shape,
        strides,
        _FOREIGN_DTYPES.get(dtype, dtype),
        value.itemsize,
        "cpu",
        0,
        value,
        value.flags.writeable,
    )


def _read_cuda_interface(value: Any, name: str) -> Tensor:
    facts = value.__cuda_array_interface__
    order, kind, itemsize = facts["typestr"][0], facts["typestr"][1], int(facts["typestr"][2:])
    if order == ">":
        hint = f"pass {name}.astype({name}.dtype.newbyteorder('='))"
        raise LaunchError(f"{name}: the array's bytes are in foreign order", hint=hint)
    dtype = getattr(getattr(value, "dtype", None), "name", None)
    if kind in _ARRAY_KINDS:
        dtype = "bool" if kind == "b" else f"{_ARRAY_KINDS[kind]}{itemsize * 8}"
    shape = tuple(facts["shape"])
    strides = facts.get("strides")
    pointer, readonly = facts["data"]
    return Tensor(
        pointer or 0,
        shape,
        contiguous_strides(shape) if strides is None else _element_strides(strides, itemsize, name),
        _FOREIGN_DTYPES.get(dtype, dtype) if dtype else facts["typestr"],
        itemsize,
        "cuda",
        int(getattr(getattr(value, "device", None), "id", -1)),
        value,
        not readonly,
        facts.get("stream"),
    )


class _DLTensor(ctypes.Structure):
    """`DLTensor` of dlpack.h, flattened; the DLManagedTensor of a capsule before version 1.0 begins
    with it."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class _DLVersioned(ctypes.Structure):
    """`DLManagedTensorVersioned` of dlpack.h."""

    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor),
    ]  # fmt: skip


_DLPACK_READ_ONLY = 1  # of the flags

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_capsule_pointer.argtypes = _is_capsule.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _read_dlpack(value: Any, name: str) -> Tensor:
    kind = _DLPACK_DEVICES.get(int(value.__dlpack_device__()[0]))
    if kind is None:
        message = f"{name}: the array lives on a device that tilec does not know"
        raise LaunchError(message, hint=f"copy {name} to a CPU, CUDA or HIP device first")
    # The producer orders its work before this stream, the launch is ordered behind it.
    stream = _DEFAULT_STREAMS[kind]
    options = {} if stream is None else {"stream": stream}
    try:
        capsule = value.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # of a producer from before these versions
        capsule = value.__dlpack__(**options)
    read_only = False
    if _is_capsule(capsule, b"dltensor_versioned"):
        versioned = _DLVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        d, read_only = versioned.tensor, bool(versioned.flags & _DLPACK_READ_ONLY)
    else:
        d = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    shape = tuple(d.shape[i] for i in range(d.ndim))
    strides = tuple(d.strides[i] for i in range(d.ndim)) if d.strides else contiguous_strides(shape)
    family = _DLPACK_KINDS.get(d.code)
    dtype = _DLPACK_FLOAT8.get(d.code) or ("bool" if family == "bool" else f"{family}{d.bits}")
    if d.lanes != 1:
        dtype += f" (vectors of {d.lanes})"
    return Tensor(
        (d.data or 0) + d.byte_offset,
        shape,
        strides,
        dtype,
        d.bits // 8,
        kind,
        d.device_id,
        capsule,
        not read_only,
        stream,
    )


def _element_strides(strides: Sequence[int], itemsize: int, name: str) -> tuple[int, ...]:
    if any(s % itemsize for s in strides):
        raise LaunchError(
            f"{name}: strides of {tuple(strides)} bytes are not whole elements of {itemsize} bytes",
            hint="pass a contiguous copy",
        )
    return tuple(s // itemsize for s in strides)


def common_kind(values: Iterable[object]) -> str:
    """ "torch" or "numpy" if all values are arrays of that library, "" otherwise, and for none."""
    values = tuple(values)
    if not values:
        return ""
    for library, array in (("torch", "Tensor"), ("numpy", "ndarray")):
        module = sys.modules.get(library)
        if module is not None and all(isinstance(v, getattr(module, array)) for v in values):
            return library
    return ""


def usual_array(device: str, index: int, name: str) -> Any:
    """An array of the kind that a call gives out which is given none: NumPy's on the CPU, torch's
    on a GPU. Raises LaunchError where torch is not loaded."""
    if device == "cpu":
        return importlib.import_module("numpy").empty(0)
    torch = sys.modules.get("torch")
    if torch is None:
        message = f"output {name}: on a GPU it would be a torch tensor, and torch is not loaded"
        raise LaunchError(message, hint='import torch, or launch with device="cpu"')
    return torch.empty(0, device=f"cuda:{index}")  # also what torch calls AMD's


def allocator(
    like: object, shape: tuple[int, ...], dtype: str, name: str, target: str
) -> Callable[[], Any]:
    """A function that makes uninitialised arrays of the kind `like` is, on its device: torch
    tensors or NumPy arrays, of what `target` takes for `dtype`.

    Raises LaunchError for other kinds, of which no constructor is known.
    """
    storage = array_dtype(dtype, target)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        found = getattr(torch, storage, None)
        if found is None:
            message = f"output {name}: torch has no dtype {dtype}"
            raise LaunchError(message, hint=f"pass {name} yourself, as an array that holds {dtype}")
        return functools.partial(torch.empty, shape, dtype=found, device=like.device)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(like, numpy.ndarray):
        return functools.partial(numpy.empty, shape, numpy_dtype(storage))
    message = f"output {name}: tilec cannot allocate an array of type {type(like).__name__}"
    raise LaunchError(message, hint=f"allocate {name} yourself and pass it")


def numpy_dtype(name: str) -> Any:
    """NumPy's dtype of that name, from `ml_dtypes` where NumPy has none."""
    numpy = sys.modules["numpy"]
    if hasattr(numpy, name):
        return numpy.dtype(getattr(numpy, name))
    return numpy.dtype(getattr(ml_dtypes, _TORCH_DTYPES.get(name, name)))
