"""Running values of tiles (see `tilec.ir.ops.tile`)."""

from __future__ import annotations

from tilec.ir import semantics
from tilec.ir.core import Effect, Effects, Op, Region
from tilec.ir.errors import InternalError
from tilec.ir.op_classes import op
from tilec.ir.ops.tile import COMBINED, Reduce
from tilec.ir.semantics import Array
from tilec.ir.types import DType

__all__ = ["SCANS", "Scan"]

SCANS = ("sum", "prod", "max", "min")


@op("scan")
class Scan(Op):
    """Each element of `dest` is what the elements of `source` along dimension `dim`, up to its own
    place and with it, make together; with `reverse`, from its own place on. Both have the same
    extents, and may be the same region. Where `begins` says so, those before it do not count: rows
    are cut into segments.

    `kind`: one of `SCANS`. It is computed in `accumulator` and rounded once."""

    source: Region
    dest: Region
    dim: int
    kind: str
    reverse: bool = False
    begins: Region | None = None

    @property
    def combine(self) -> str:
        """The kind of `Binary` that combines two results."""
        return COMBINED.get(self.kind, self.kind)

    @property
    def accumulator(self) -> DType:
        """What a sum of one row is computed in (see `Reduce`)."""
        return Reduce(self.source, self.dest, self.dim, self.kind, loc=self.loc).accumulator

    def effects(self) -> Effects:
        cut = () if self.begins is None else (Effect("read", self.begins),)
        return (Effect("read", self.source), *cut, Effect("write", self.dest))

    def verify(self) -> None:
        extents = {r.extents for r in (self.source, self.dest, self.begins) if r is not None}
        if len(extents) > 1 or self.kind not in SCANS:
            boxes = f"{self.source.extents} into {self.dest.extents}"
            raise InternalError(f"scan by {self.kind!r} of {boxes}", self.loc)

    def evaluate(
        self, source: Array, dest: Array | None = None, begins: Array | None = None
    ) -> Array:
        """`dest`, its old values (where it is in the source's buffer), does not count."""
        acc, np = self.accumulator, semantics.np
        x = semantics.cast(source.reshape(self.source.extents), self.source.dtype, acc)
        cut = np.zeros(x.shape, bool) if begins is None else begins.reshape(x.shape) != 0
        rows, cut = np.moveaxis(x, self.dim, 0), np.moveaxis(cut, self.dim, 0)
        order = -1 if self.reverse else 1
        found, begun = list(rows[::order]), list(cut[::order])
        for i in range(1, len(found)):
            both = semantics.binary(self.combine, found[i - 1], found[i], acc)
            found[i] = np.where(begun[i], found[i], both)
        done = np.stack(found[::order])
        return semantics.cast(np.moveaxis(done, 0, self.dim), acc, self.dest.dtype)
