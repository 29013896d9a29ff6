"""What the CPU that code is made for can do, in the numbers the emitter asks for."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import llvmlite.binding as llvm

from tilec.target import Target


@dataclass(frozen=True, slots=True)
class CpuFeatures:
    """`vector_bytes`: width of a vector register; `registers`: how many there are; `fma`:
    multiplies and adds in one rounding; `half`: converts float16 by an instruction; `masked_bytes`:
    the narrowest element of which it loads and stores some lanes of a vector (0: none).
    """

    vector_bytes: int
    registers: int
    fma: bool
    half: bool
    masked_bytes: int


BASELINE = CpuFeatures(16, 16, fma=False, half=False, masked_bytes=0)
_AVX2 = CpuFeatures(32, 16, fma=True, half=True, masked_bytes=4)
_AVX512 = CpuFeatures(64, 32, fma=True, half=True, masked_bytes=1)
_NEON = CpuFeatures(16, 32, fma=True, half=True, masked_bytes=0)

# LLVM's names of the x86-64 psABI levels.
_NAMED = {"x86-64": BASELINE, "x86-64-v2": BASELINE, "x86-64-v3": _AVX2, "x86-64-v4": _AVX512}


@functools.cache
def _host() -> CpuFeatures:
    if llvm.get_process_triple().startswith(("aarch64", "arm64")):
        return _NEON
    found = llvm.get_host_cpu_features()
    if all(found.get(name) for name in ("avx512f", "avx512bw", "avx512vl", "avx512dq", "f16c")):
        return _AVX512
    if all(found.get(name) for name in ("avx2", "fma", "f16c")):
        return _AVX2
    return BASELINE


def machine_of(target: Target) -> CpuFeatures:
    """The machine of a target of kind "cpu": `arch` is "host" or LLVM's name of a CPU, of which
    those that are not known here count as the oldest.
    """
    return _host() if target.arch == "host" else _NAMED.get(target.arch, BASELINE)
