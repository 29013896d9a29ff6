"""A tile of elements from computed places, as a tensor of its own.

    parallel (BM, BK) body(i, j) { …; A[i, j] = inside ? X[n, y, x, c] : 0 }

    G = gather X, …
    copy G[k, 0, 0] (1, BM, BK), A

What makes such a copy different from others is where its elements come from, not when and by whom
they are brought: as a copy of a tensor that is nowhere in memory it runs ahead of its readers like
any other. `lower_copies` puts the places back."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.core import Block, Op, Value
from tilec.ir.errors import InternalError
from tilec.ir.op_classes import op
from tilec.ir.types import BufferType

__all__ = ["Gather", "Places"]


@dataclass(frozen=True, eq=False)
class Places:
    """Where the elements come from: `body`, a straight list of ops that uses nothing from outside,
    yields what an element is. Its arguments: what is `captured`, then the indices."""

    body: Block

    def __repr__(self) -> str:
        return f"{len(self.body.ops)} ops"


@op("gather", pure=True, result="type")
class Gather(Op):
    """A global tensor of which `places` says what an element is, made of elements of `source` and
    of zeros; the kernel writes none of the tensors that it reads. `captured`: what it needs to know
    beside the indices, `source` and other tensors among it."""

    source: Value
    captured: tuple[Value, ...]
    places: Places
    type: BufferType

    def verify(self) -> None:
        given = [v.type for v in self.captured]
        wanted = [v.type for v in self.places.body.args]
        if wanted[: len(given)] != given or len(wanted) != len(given) + self.type.rank:
            raise InternalError(f"places of {wanted}, which gets {given}", self.loc)
