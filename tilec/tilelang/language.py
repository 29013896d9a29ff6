"""`tilelang.language`: `tilec.language`, and the names that only TileLang has."""

import re
from typing import Any

from tilec import language
from tilec.decorator import kernel as prim_func
from tilec.frontend import values
from tilec.tilelang.dtypes import NAMED, TextDtype, dtype
from tilec.tilelang.schedule import PersistentTileScheduler

__all__ = [
    "And", "Not", "Or", "PersistentTileScheduler", "align_up", "alloc_buffer",
    "c2d_im2col", "dtype", "handle", "index_to_coordinates", "launch_thread", "let", "match_buffer",
    "prim_func", "tvm_access_ptr", "tvm_storage_sync", "tvm_warp_shuffle", "tvm_warp_shuffle_down",
    "tvm_warp_shuffle_up", "type_annotation",
]  # fmt: skip

globals().update(NAMED)
_FAST = ("exp", "exp10", "log", "log2", "log10", "sin", "cos", "tan", "tanh", "pow")
globals().update({f"__{name}": getattr(language, f"__{name}") for name in _FAST})
globals()["__ffs"] = language.ffs


class _OfNumbers(type):
    def __instancecheck__(cls, value: object) -> bool:
        variable = isinstance(value, values.Buffer) and value.variable
        return variable or isinstance(value, values.Scalar | values.Region | language.Size)


class PrimExpr(metaclass=_OfNumbers):
    """What annotations and `isinstance` call a number that is known at run time, a size among
    them."""


Var = PrimExpr
parallel, Serial = language.Parallel, language.serial
handle = language.ptr  # of a tensor, as a parameter
match_buffer = language.make_tensor
c2d_im2col = language.im2col
alloc_buffer = language.alloc_global  # above T.Kernel, where programs have it


@language.macro
def And(a, b):  # type: ignore[no-untyped-def]
    """`a and b`."""
    return a and b


@language.macro
def Or(a, b):  # type: ignore[no-untyped-def]
    """`a or b`."""
    return a or b


@language.macro
def Not(a):  # type: ignore[no-untyped-def]
    """`not a`."""
    return not a


@language.macro
def align_up(value, step):  # type: ignore[no-untyped-def]
    """The least multiple of `step` that is no less than `value`."""
    return language.ceildiv(value, step) * step


@language.macro
def index_to_coordinates(index, shape):  # type: ignore[no-untyped-def]
    """The indices of the element of a buffer of `shape` that has this number, row by row."""
    found = ()
    for extent in shape[::-1]:
        found = (index % extent, *found)  # type: ignore[assignment]
        index = index // extent
    return found


@language.macro
def let(variable: language.Ref, value):  # type: ignore[no-untyped-def]
    """Give a variable (`x = T.int32()`) a value."""
    variable = value  # noqa: F841


@language.macro
def type_annotation(dtype):  # type: ignore[no-untyped-def]
    """The dtype, as `tvm_access_ptr` is given it."""
    return dtype


@language.macro
def tvm_access_ptr(dtype, data, offset, extent, rw_mask):  # type: ignore[no-untyped-def]
    """The place of a buffer (`A.data`), `offset` elements on; `T.access_ptr`."""
    return language.access_ptr(data, "rw", extent, offset=offset)


@language.macro
def tvm_storage_sync(scope):  # type: ignore[no-untyped-def]
    """`T.sync_threads()`; of the "warp", `T.sync_warp()`, and "global", `T.sync_grid()`."""
    if scope == "warp":
        language.sync_warp()
    elif scope == "global":
        language.sync_grid()
    else:
        language.sync_threads()


@language.macro
def tvm_warp_shuffle(mask, value, lane, width, warp_size):  # type: ignore[no-untyped-def]
    """`value` as another lane of the warp has it. All lanes take part, whatever `mask` is."""
    return language.shfl_sync(value, lane, width)


@language.macro
def tvm_warp_shuffle_up(mask, value, delta, width, warp_size):  # type: ignore[no-untyped-def]
    """`T.shfl_up`. All lanes take part, whatever `mask` is."""
    return language.shfl_up(value, delta, width)


@language.macro
def tvm_warp_shuffle_down(mask, value, delta, width, warp_size):  # type: ignore[no-untyped-def]
    """`T.shfl_down`. All lanes take part, whatever `mask` is."""
    return language.shfl_down(value, delta, width)


@language.macro
def __ldg(x, index=None):  # type: ignore[no-untyped-def]
    """An element of a tensor. tilec reads tensors that a kernel only reads by way of the read-only
    cache itself."""
    if index is None:
        return x
    return x[index]


@language.macro
def __fns(mask, base, offset):  # type: ignore[no-untyped-def]
    """The place of the `offset`-th bit that is 1, counted from bit `base` on, upwards or (negative)
    downwards; of `offset` 0 it is `base` if that bit is 1. 0xFFFFFFFF where there is none."""
    found = language.alloc_var("uint32", 0xFFFFFFFF)
    left = language.alloc_var("int32", language.max(language.abs(offset), 1))
    for n in language.serial(32):
        at = language.int32(base) + language.if_then_else(offset < 0, -n, n)
        one = (at >= 0) & (at < 32) & ((language.uint32(mask) >> language.uint32(at)) & 1 == 1)
        if one & ((offset != 0) | (n == 0)):
            left = left - 1
            if left == 0:
                found = language.uint32(at)
    return found


_AXES = {f"{what}Idx.{axis}": d for what in ("block", "thread") for d, axis in enumerate("xyz")}


@language.macro
def launch_thread(tag, extent):  # type: ignore[no-untyped-def]
    """The index that TVM names `tag` ("threadIdx.x"), in a kernel that has as many of them."""
    assert tag in _AXES, "launch_thread: threadIdx and blockIdx, each with .x, .y or .z"
    if tag[0] == "b":
        return language.get_block_binding(_AXES[tag])
    assert language.get_thread_extent(_AXES[tag]) == extent, "T.Kernel has other threads"
    return language.get_thread_binding(_AXES[tag])


def __getattr__(name: str) -> Any:
    vector = re.fullmatch(r"(bfloat|float|int|uint)([48]\w*|\d+x\d+)", name)
    if vector and name not in vars(language):
        return TextDtype(name)  # refused where it is used: files name it in defaults and lists
    # Errors about a name that is missing are those of tilec.language.
    return getattr(language, name)
