"""Reductions over the threads of a block, as TVM spells them."""

from typing import Any

__all__ = ["attr", "comm_reducer", "tvm_thread_allreduce"]


def comm_reducer(combine: Any, identity: Any) -> Any:
    """How `tvm_thread_allreduce` combines two values, `lambda x, y: x + y`, which must be
    associative and commutative; `identity`: a list of the one number that changes nothing."""


def attr(node: Any, key: str, value: Any = None) -> Any:
    """`with T.attr(T.comm_reducer(…), "reduce_scope", …):` the reducer of what stands inside. In
    `with T.attr(…, "async_scope", 1):` a thread's own copies `S[i] = A[j]` of a tensor's elements
    to shared memory are started as by `T.ptx_cp_async`. Other keys have no effect."""


def tvm_thread_allreduce(
    size: Any, value: Any, cond: Any, result: Any, thread: Any, dtype: Any = "handle"
) -> None:
    """`value` of all threads that differ in their index `thread` alone (`T.get_thread_binding(0)`,
    or what `T.thread_binding` gave), combined, to the element `result` of each. Threads for which
    `cond` does not hold add nothing. All threads of the block come here.

    By shuffles, where the threads are neighbours and a power of two within a warp, or whole warps,
    which then meet in shared memory; else all through shared memory. Raises CompileError outside of
    a `T.attr` with a reducer, in `T.Parallel`, and for an index that is none of a thread's.
    """
