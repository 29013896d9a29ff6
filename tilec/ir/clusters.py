"""How a function is launched: numbers only, read from its attributes.

`threads`: those of a block that compute, or of a group of them; `consumer_groups`: how many groups
take turns; `min_blocks`: blocks that a multiprocessor holds at once, at least.

`cluster`: blocks of the user's grid along each dimension that form a cluster. `split`: how many
blocks of a cluster share the work of one block of the user's grid; they are neighbours along
dimension 0 of the launch. `parts`: how many such sets of `split` blocks share it; they are
neighbours along dimension 2.

`pdl`: programmatic dependent launch, a kernel whose blocks start while the launch before it on its
stream still runs."""

from __future__ import annotations

from tilec.ir.core import Func
from tilec.ir.schedule import DEFAULT_THREADS
from tilec.target import Target

Dims = tuple[int, int, int]
SINGLE: Dims = (1, 1, 1)


def threads_of(func: Func) -> int:
    """Threads that compute: the user's or the plan's number, or the default."""
    return int(func.attrs.get("threads") or DEFAULT_THREADS)


def groups_of(func: Func) -> int:
    """Groups of so many threads."""
    return int(func.attrs.get("consumer_groups", 1))


def all_threads_of(func: Func) -> int:
    """Threads that compute, of all groups."""
    return threads_of(func) * groups_of(func)


def residents_of(func: Func) -> int:
    """Blocks of a multiprocessor."""
    return int(func.attrs.get("min_blocks", 1))


def cluster_of(func: Func) -> Dims:
    """Blocks of the user's grid in a cluster, along each dimension."""
    x, y, z = func.attrs.get("cluster") or SINGLE
    return int(x), int(y), int(z)


def split_of(func: Func) -> int:
    """Blocks of a cluster for each block of the user's grid."""
    return int(func.attrs.get("split") or 1)


def parts_of(func: Func) -> int:
    """Sets of such blocks for each block of the user's grid."""
    return int(func.attrs.get("parts") or 1)


def launched_cluster(func: Func) -> Dims:
    """Blocks of a cluster along each dimension of the launch."""
    x, y, z = cluster_of(func)
    return x * split_of(func), y, z


def size(dims: Dims) -> int:
    """Blocks of a cluster."""
    return dims[0] * dims[1] * dims[2]


PDL = ("trigger", "wait")
"""What all threads do before anything else, in this order: let the next launch begin, if it is one
that waits; wait until the launches before this one are done, and their writes are seen."""


def first_of_all(func: Func, target: Target) -> tuple[str, ...]:
    """The words of PDL that the code for `target` begins with: none where launches follow one
    another anyway."""
    asked = func.attrs.get("pdl", ()) if target.has("pdl") else ()
    return tuple(word for word in PDL if word in asked)
