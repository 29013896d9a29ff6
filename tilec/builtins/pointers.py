"""Builtins of `tilec.language` about places in memory: addresses of elements, and what threads do
at them by hand.

A place is an element (`A[i]`), a region (`A[i:i + 4]`) or `T.access_ptr(A[i], "r")`. What is said
of bytes there concerns the elements from that one on, along its row; row by row, where these are
more than a row has.
"""

from __future__ import annotations

from typing import Any

from tilec.ir.types import INT64

__all__ = [
    "access_ptr", "address_of", "ldg128", "ldg256", "ldg32", "ldg64", "lds128", "lds32", "lds64",
    "make_tensor", "make_tensor_from_addr", "ptr", "ptx_cp_async", "stg128", "stg256", "stg32",
    "stg64", "sts128", "sts32", "sts64",
]  # fmt: skip


class Pointer:
    """The annotation of a parameter whose dtype and shape the body says, and the dtype of a table
    of addresses."""

    dtype = INT64  # of an address

    def __call__(self) -> Pointer:
        return self

    def __repr__(self) -> str:
        return "T.ptr"


ptr = Pointer()


def make_tensor(
    ptr: Any, shape: Any, dtype: object = "float32", strides: Any = None, align: int = 16
) -> Any:
    """`A = T.make_tensor(a, (M, K), "float16")`, above T.Kernel: what a parameter `a: T.ptr` points
    to. The call is given a tensor (no address) of that dtype and rank. Extents that are ints,
    T.constexpr parameters or sizes are checked; others, such as scalar parameters, are those of the
    tensor that is given.

    `A = T.make_tensor(table[g], (M, K), "float16")`, anywhere: the tensor in global memory at an
    address, an int64: an element of a parameter `table: T.Tensor((n,), T.ptr)`, for which the call
    is given int64 (of torch, `x.data_ptr()`), or a parameter `a: T.int64`. Extents and `strides`
    (in elements; default: row-major) are ints, sizes and integer parameters. The address must be a
    multiple of `align` bytes, which nothing checks: 16, or a smaller power of two, for which
    accesses are as narrow. What is read and written there may overlap other tensors; what lies out
    of bounds reads as 0 and is not written, as in any tensor. There are no TMA copies of it.

    Raises CompileError for anything else, for a second shape of a parameter, for elements of less
    than a byte, and in T.Parallel.
    """


def make_tensor_from_addr(
    ptr: Any, shape: Any, dtype: object = "float32", strides: Any = None, align: int = 16
) -> Any:
    """`make_tensor` of an address."""


def access_ptr(
    base: Any,
    access_type: Any = "r",
    *extents: Any,
    offset: Any = 0,
    extent: Any = None,
    ignore_last_ndim: int = 0,
) -> Any:
    """The place of a buffer, an element or a region's first element, `offset` elements on. For
    builtins that take places; `access_type`, the extents and `ignore_last_ndim` say what those know
    themselves. `A.access_ptr("r", offset=0)` is the same."""


def address_of(element: Any) -> Any:
    """The place of an element, as `access_ptr`."""


def ptx_cp_async(dst: Any, src: Any, num_elems: Any, predicate: Any = None) -> None:
    """Copy `num_elems` elements (a compile-time int) from a place in global memory to one in shared
    memory, by each thread; zeros where `predicate` is False, and for what is out of bounds.
    Elements of four bits are counted one by one, too, and unpacked on the way.

    Where 4, 8 or 16 bytes divide the places, as far as is known, the copy goes past the thread's
    registers (cp.async), and is done when the thread has waited: `T.ptx_commit_group()` and
    `T.ptx_wait_group(n)`, or `T.cp_async_barrier_noinc(bar)`. Elsewhere, in T.Parallel, and on
    targets without cp.async it is made by loads and stores, and done when the statement is. Raises
    CompileError for places of different dtypes, or anywhere else.
    """


def ldg32(src: Any, pred: Any = None) -> Any:
    """The 32 bits from a place in global memory on, as a uint32; 0 where `pred` is False, and for
    what is out of bounds.

    Elements may have any dtype of 8 bits or more. Raises CompileError for others, and for places
    elsewhere.
    """


def ldg64(src: Any, pred: Any = None) -> Any:
    """As `ldg32`, two uint32, a short vector: `T.reinterpret(T.ldg64(x[i]), T.float32x2)`."""


def ldg128(src: Any, pred: Any = None) -> Any:
    """As `ldg32`, four uint32."""


def ldg256(src: Any, pred: Any = None) -> Any:
    """As `ldg32`, eight uint32."""


def stg32(dst: Any, value: Any, pred: Any = None) -> None:
    """Write 32 bits, a number of as many, from a place in global memory on; nothing where `pred` is
    False, and out of bounds.

    Raises CompileError as `ldg32`, and for values of other widths.
    """


def stg64(dst: Any, value: Any, pred: Any = None) -> None:
    """As `stg32`, what `ldg64` gives, or another vector of 64 bits in all."""


def stg128(dst: Any, value: Any, pred: Any = None) -> None:
    """As `stg32`, what `ldg128` gives, or another vector of 128 bits in all."""


def stg256(dst: Any, value: Any, pred: Any = None) -> None:
    """As `stg32`, what `ldg256` gives, or another vector of 256 bits in all."""


def lds32(src: Any) -> Any:
    """As `ldg32`, from shared memory; all of it must be in bounds."""


def lds64(src: Any) -> Any:
    """As `ldg64`, from shared memory."""


def lds128(src: Any) -> Any:
    """As `ldg128`, from shared memory."""


def sts32(dst: Any, value: Any) -> None:
    """As `stg32`, to shared memory; all of it must be in bounds."""


def sts64(dst: Any, value: Any) -> None:
    """As `stg64`, to shared memory."""


def sts128(dst: Any, value: Any) -> None:
    """As `stg128`, to shared memory."""
