"""`@tilec.kernel`: a Python function that is compiled for the arguments it is called with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from tilec.builtins.annotations import check_function
from tilec.ir.caller import caller_loc, end_at_caller, for_users
from tilec.ir.errors import CompileError, did_you_mean, shown
from tilec.ir.options import Options
from tilec.jit.fingerprint import remember_surroundings
from tilec.jit.revision import check_threads
from tilec.kernel import Kernel, kernel_in, make_kernel

if TYPE_CHECKING:
    from tilec.tune import Recommendations


@overload
def kernel(function: Callable[..., Any], /) -> Kernel: ...
@overload
def kernel(
    *,
    out: Sequence[str] = ...,
    threads: int | None = ...,
    pdl: bool = ...,
    enable_fp_fusion: bool = ...,
) -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(
    function: Callable[..., Any] | None = None,
    /,
    *more: object,
    out: Sequence[str] = (),
    threads: int | None = None,
    pdl: bool = False,
    enable_fp_fusion: bool = True,
    **unknown: object,
) -> Kernel | Callable[[Callable[..., Any]], Kernel]:
    """Make a function a kernel.

    `out` names tensor parameters that a call allocates (same kind and device as its first tensor
    argument) and returns. `threads` is how many threads of a block compute, where the body's
    T.Kernel does not say. `pdl` (programmatic dependent launch): blocks start while the launch
    before this one on its stream still runs, and wait for its end before they do anything, as if
    the body said `T.pdl_trigger()` and `T.pdl_sync()`; it hides the start of short kernels, and
    changes nothing but on cuda:sm_90a. `enable_fp_fusion=False`: `a * b + c` of float32 or float64
    is rounded twice, as by two operations of PyTorch's; else once, as by `T.fma`. Raises
    CompileError for other arguments.
    """
    flags = {"pdl": pdl, "enable_fp_fusion": enable_fp_fusion}
    try:
        _check_decorator(more, out, threads, flags, unknown)
        if function is not None:
            check_function(function, "kernel")
    except CompileError as e:
        end_at_caller(e)
        raise
    if function is not None:
        remember_surroundings(function, sys._getframe(1))
        return make_kernel(function)

    def decorate(function: Callable[..., Any]) -> Kernel:
        try:
            check_function(function, "kernel")
        except CompileError as e:
            end_at_caller(e)
            raise
        remember_surroundings(function, sys._getframe(1))
        return make_kernel(function, Options(tuple(out), threads, **flags))

    return decorate


_FLAGS = {
    "pdl": "write pdl=True: the launch may begin while the one before it ends",
    "enable_fp_fusion": "write enable_fp_fusion=False: a * b + c is rounded twice",
}


def _check_decorator(
    more: Any, out: object, threads: object, flags: Mapping[str, object], unknown: Any
) -> None:
    """Raise CompileError, placed at the decorator, for what `kernel` does not take."""
    if more:
        message = f"tilec.kernel takes one function; there are {len(more)} arguments behind it"
        raise CompileError(message, caller_loc(), 'the rest has names: out=["C"], threads=128')
    for name in unknown:
        near = did_you_mean(name, ("out", "threads", *flags))
        instead = {"outs": "", "num_warps": "write threads=32 * num_warps"}.get(name, "")
        hint = instead or 'it has: out=["C"], threads=128'
        raise CompileError(f"tilec.kernel has no keyword {name!r}{near}", caller_loc(), hint)
    names = isinstance(out, Sequence) and all(isinstance(name, str) for name in out)
    if not names or isinstance(out, str):
        named = [out] if isinstance(out, str) and out.isidentifier() else ["C"]
        hint = f"write the parameters' names: out={named!r}"
        raise CompileError(f"out of tilec.kernel is {shown(out)}", caller_loc(), hint)
    check_threads(threads, "threads of tilec.kernel", CompileError)
    for name, value in flags.items():
        if not isinstance(value, bool):
            message = f"{name} of tilec.kernel is {shown(value)}, not a bool"
            raise CompileError(message, caller_loc(), _FLAGS[name])


@for_users
def recommend(
    kernel: Kernel, *args: Any, target: str | None = None, topk: int = 10, **kwargs: Any
) -> Recommendations:
    """Configurations of `kernel` for these arguments of `compile`, by predicted time: see
    `Kernel.recommend`. `print` of all, or of an entry, is for people; notebooks show a table."""
    kernel = kernel_in(kernel)
    if not isinstance(kernel, Kernel):
        hint = "put @tilec.kernel above it"
        message = f"tilec.recommend takes a kernel, not {shown(kernel)}"
        raise CompileError(message, caller_loc(), hint)
    return kernel.recommend(*args, target=target, topk=topk, **kwargs)
