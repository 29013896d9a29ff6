"""What a kernel's decorator says of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Options:
    """What a kernel's decorator says. `out`: the parameters that a call allocates and returns.
    `threads`: of a block, where the body's T.Kernel does not say. `part`: the kernel is that one
    T.Kernel of the function. `pdl`: programmatic dependent launch. `enable_fp_fusion`:
    `a * b + c` is rounded once. `fast_math`: logarithms, sines, cosines, tangents and tanh of
    float32 are the hardware's (`tilec.builtins.fast`), as by nvcc's flag `--use_fast_math`.
    `tilelang`: the kernel is in TileLang's spelling, so that a call may give None for any tensor,
    what is shifted to the left is as wide as the number of places, a slice up to a tensor's end
    fills the larger tile that it is copied to, and products of float32 are made in TF32.
    `whole_syncs`: a T.sync_threads is of the whole block where only a part of it comes there, too:
    CUDA's `__syncthreads()` in each of several branches."""

    out: tuple[str, ...] = ()
    threads: int | None = None
    part: int | None = None
    pdl: bool = False
    enable_fp_fusion: bool = True
    fast_math: bool = False
    tilelang: bool = False
    whole_syncs: bool = False

    def joined(self, other: Options) -> Options:
        """These, and the flags of both."""
        return replace(
            self,
            pdl=self.pdl or other.pdl,
            enable_fp_fusion=self.enable_fp_fusion and other.enable_fp_fusion,
            fast_math=self.fast_math or other.fast_math,
            tilelang=self.tilelang or other.tilelang,
            whole_syncs=self.whole_syncs or other.whole_syncs,
        )

    def with_flags(
        self, flags: Iterable[str] = (), configs: Mapping[str, Any] | None = None
    ) -> Options:
        """These, and what flags of a C++ compiler and options of TileLang's passes say. Of them
        three things mean something here: products kept apart from sums, fast functions, and
        T.sync_threads that are of the whole block everywhere, as where TileLang leaves out the pass
        that makes them one of a branch's threads (which also looks for missing ones)."""
        words = [word.lstrip("-") for flag in flags for word in str(flag).split()]
        apart = not {"fmad=false", "ffp-contract=off"}.isdisjoint(words)
        fast = not {"use_fast_math", "ffast-math"}.isdisjoint(words)
        chosen = {str(name).lower() for name, on in (configs or {}).items() if on}
        whole = any("disable_thread_storage_sync" in name for name in chosen)
        fast = fast or any("enable_fast_math" in name for name in chosen)
        return self.joined(Options(enable_fp_fusion=not apart, fast_math=fast, whole_syncs=whole))


PLAIN = Options()
TILELANG = Options(tilelang=True)
