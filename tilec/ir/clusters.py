"""The cluster a function is launched in: numbers only, read from its attributes.

`cluster`: blocks of the user's grid along each dimension that form a cluster. `split`: how many
blocks of a cluster share the work of one block of the user's grid; they are neighbours along
dimension 0 of the launch. `parts`: how many such sets of `split` blocks share it; they are
neighbours along dimension 2."""

from __future__ import annotations

from tilec.ir.core import Func

Dims = tuple[int, int, int]
SINGLE: Dims = (1, 1, 1)


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
