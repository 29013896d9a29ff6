"""Builtins of clusters by hand."""

from __future__ import annotations

from tilec import language as T
from tilec.frontend.builtins import Call, builtin
from tilec.frontend.builtins_scalar import block_index
from tilec.frontend.builtins_threads import of_threads
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import Number
from tilec.ir.ops import ClusterBarrier


@builtin(T.block_rank_in_cluster)
def block_rank_in_cluster(t: Expressions, c: Call) -> Number:
    rank: Number = 0
    for dim, blocks in reversed([*enumerate(t.cluster or ())]):
        if blocks > 1:
            own = t.binary("mod", block_index(t, dim), blocks)
            rank = t.binary("add", t.binary("mul", rank, blocks), own)
    return rank


def in_cluster(t: Expressions, c: Call) -> None:
    """Raise CompileError in a kernel that is not launched in clusters."""
    if t.cluster is None:
        raise t.error(
            f"T.{c.builtin} in a kernel that is not launched in clusters",
            "write with T.Kernel(…, cluster_dims=2)",
        )


def _meet(part: str) -> None:
    name = f"cluster_{part or 'sync'}"

    def meet(t: Expressions, c: Call) -> None:
        of_threads(t, c)
        in_cluster(t, c)
        t.emit(ClusterBarrier, part)

    builtin(getattr(T, name))(meet)


for _part in ("", "arrive", "wait"):
    _meet(_part)
