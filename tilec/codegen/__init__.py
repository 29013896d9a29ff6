"""From IR to machine code: `emit` writes LLVM text for any target, `assemble` does everything after
it.

    gpu, nvptx, amdgpu, gpu_maths   LOWERED functions for GPUs
    cpu_*                           TILE functions for the CPU
    assemble, ptxas, amd_link       LLVM text to cubin, hsaco or host object
"""

from __future__ import annotations

from tilec.codegen.amdgpu import AmdgpuEmitter
from tilec.codegen.assemble import Assembled, assemble
from tilec.codegen.cpu import emit_cpu
from tilec.codegen.gpu import Emitter
from tilec.codegen.nvptx import NvptxEmitter
from tilec.ir.core import Func
from tilec.ir.errors import CompileError, InternalError
from tilec.target import Target

_GPU = {"cuda": NvptxEmitter, "hip": AmdgpuEmitter}


def emit(func: Func, target: Target) -> str:
    """LLVM text of `func`: TILE for the CPU, LOWERED for GPUs. Raises CompileError where the target
    cannot do something the function asks for."""
    if target.kind == "cpu":
        return emit_cpu(func, target)
    return emit_records(func, target)[1]


def emit_records(func: Func, target: Target) -> tuple[Emitter, str]:
    """The emitter of a LOWERED function for a GPU, which keeps its records, and their LLVM text.
    Raises CompileError where the target cannot do something the function asks for."""
    if target.kind not in _GPU:
        raise InternalError(f"no code generator for {target}")
    emitter = _GPU[target.kind](func, target)
    try:
        return emitter, emitter.print_module()
    except CompileError as e:
        e.loc = e.loc or emitter.f.loc
        raise


__all__ = ["Assembled", "Emitter", "assemble", "emit", "emit_records"]
