"""Packed operands: which tensors are worth a copy whose rows begin at cache lines, and what the
copies cost.

A product reads each operand as many times as it has tiles along the other side. Where rows begin
anywhere, each of these reads costs threads their loads, shifts and stores (`utils/realign.py` of
the passes), about as much time as the memory bus takes for the bytes; a copy costs two times that
once, and TMA or cp.async bring the tiles from it at twice the rate or more. So what is read three
times or less had better be read as it is; but where the elements of a row are no neighbours,
threads bring them one by one, which takes longer than all that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilec.ir.copy_engines import tensor_map_fits
from tilec.ir.core import Func
from tilec.ir.ops import Copy, Gemm
from tilec.passes.utils.plans import pipelined
from tilec.target import Speeds
from tilec.tune.cost import Estimate

COPIED = 0.85  # of the memory bus, each byte read and written (H200: 3.2 to 3.5 TB/s)
LAUNCHES = 2  # of an empty kernel: until its blocks run, and until the last one has written
GAIN = 0.8  # of the time without copies, at most: the predictions are no better
LOADING = 0.02  # of the time that loads take alone is added: of two tiles that are predicted to
# take as long, the one that loads less took 12 to 28 % less (1232x10260x10526, 7777x1234x2346)
READS = 4  # of each byte, on average
TURNED = 0.08  # of the memory bus, elements of rows that lie apart (H200: 117 MB in 351 us)


def operands(func: Func) -> frozenset[str]:
    """The arguments whose tiles pipelined loops bring to products, but for those that are taken as
    they lie, since the dimension along which they have neighbours is another one, and instructions
    read elements of two bytes either way."""
    turned = dict(func.attrs.get("turned", ()))
    tensors = {
        p.value: p.arg
        for p in func.params
        if p.role == "tensor"
        and not (p.arg in turned and p.value.dtype.bits == 16 and tensor_map_fits(p.value.buffer))
    }
    loops = (o for o in pipelined(func.body) if o.body.has(Gemm))
    sources = {o.source.buffer for loop in loops for o in loop.body.every(Copy)}
    return frozenset(tensors[v] for v in sources if v in tensors)


def pays(
    sizes: Sequence[int], turned: Sequence[int], plain: Estimate, packed: Estimate, speeds: Speeds
) -> bool:
    """Whether operands of so many bytes had better be copied first: a launch takes as long as
    `plain` without copies, and as `packed` behind them. `turned`: of those of which the elements of
    a row lie apart."""
    read_often = packed.l2_bytes >= READS * sum(sizes)
    return (read_often or any(turned)) and packed.seconds <= left(sizes, turned, plain, speeds)


def left(sizes: Sequence[int], turned: Sequence[int], plain: Estimate, speeds: Speeds) -> float:
    """Seconds that a launch may take behind copies of so many bytes, if they are to pay."""
    seconds = max(plain.seconds, sum(turned) / (TURNED * speeds.dram))
    return GAIN * seconds - copying(sizes, speeds)


def copying(sizes: Iterable[int], speeds: Speeds) -> float:
    """Seconds that it takes to copy tensors of so many bytes, one after the other."""
    return sum(LAUNCHES * speeds.launch + 2 * n / (COPIED * speeds.dram) for n in sizes)
