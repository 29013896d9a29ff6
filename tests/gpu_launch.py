"""Launches a LOWERED function on an NVIDIA GPU with NumPy arrays, through tilec's own runtime."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilec.codegen import assemble, emit
from tilec.ir.core import Func, Param
from tilec.ir.types import BufferType, ScalarType, TensorMapType
from tilec.runtime.cuda import CudaDriver
from tilec.runtime.driver import argument_block
from tilec.runtime.image import AbiParam, Image, Resources
from tilec.runtime.tensors import Tensor
from tilec.target import Target


def image_of(func: Func, target: Target) -> Image:
    """Machine code (PTX where no assembler is found) and how its parameters are given."""
    made: Any = assemble(emit(func, target), target)
    threads, shared = int(func.attrs["launch_threads"]), int(func.attrs["shared_bytes"])
    return Image(
        name=func.name,
        symbol=func.name,
        target=target.name,
        arguments=(),
        params=tuple(_abi(p) for p in func.params),
        grid="",
        returned=(),
        resources=Resources(made.registers, made.spilled_bytes, shared, {}, threads, None),
        format="ptx" if made.binary is None else "cubin",
        binary=made.asm.encode() if made.binary is None else made.binary,
    )


def _abi(p: Param) -> AbiParam:
    t = p.value.type
    if isinstance(t, TensorMapType):
        return AbiParam(p.role, p.arg, p.dim, "tensor_map", "", t)
    kind = (
        "pointer"
        if isinstance(t, BufferType)
        else t.dtype.name
        if isinstance(t, ScalarType)
        else ""
    )
    return AbiParam(p.role, p.arg, p.dim, kind)


def launch(func: Func, target: Target, arrays: dict[str, np.ndarray]) -> None:
    """One block; the arrays (contiguous) hold afterwards what the kernel left in them."""
    import torch

    held, tensors = {}, {}
    for name, a in arrays.items():
        assert a.flags.c_contiguous
        held[name] = torch.from_numpy(a.reshape(-1).view(np.uint8)).cuda()
        strides = tuple(s // a.itemsize for s in a.strides)
        tensors[name] = Tensor(
            held[name].data_ptr(), a.shape, strides, str(a.dtype), a.itemsize, "cuda", 0, held[name]
        )
    driver = CudaDriver()
    kernel = driver.load(image_of(func, target), 0)
    block = argument_block(kernel, tensors, {}, (1, 1, 1))
    kernel.launch(kernel.ready((1, 1, 1), block, driver.current_stream(0)))
    torch.cuda.synchronize()
    for name, a in arrays.items():
        a.reshape(-1).view(np.uint8)[:] = held[name].cpu().numpy()
