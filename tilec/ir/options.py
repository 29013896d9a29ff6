"""What a kernel's decorator says of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """What a kernel's decorator says besides outputs and threads. `pdl`: programmatic dependent
    launch. `enable_fp_fusion`: `a * b + c` is rounded once. `tilelang`: the kernel is in TileLang's
    spelling, so that a call may give None for any tensor, what is shifted to the left is as wide as
    the number of places, and products of float32 are made in TF32. `whole_syncs`: a T.sync_threads
    is of the whole block where only a part of it comes there, too: CUDA's `__syncthreads()` in each
    of several branches."""

    pdl: bool = False
    enable_fp_fusion: bool = True
    tilelang: bool = False
    whole_syncs: bool = False


PLAIN = Options()
TILELANG = Options(tilelang=True)
