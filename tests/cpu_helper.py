"""Runs a TILE function as host code: compile with LLVM, call through ctypes."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from interp import run_tile

from tilec.codegen.assemble import _optimised as optimised
from tilec.codegen.cpu import emit_cpu
from tilec.ir import semantics as num
from tilec.ir import types as t
from tilec.ir.core import Func
from tilec.ir.intervals import dtype_range
from tilec.passes import HOST
from tilec.target import TARGETS, Target

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int32] * 5)


def machine_for(arch: str) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    if arch == "host":
        cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    else:
        cpu, features = arch, ""
    return target.create_target_machine(cpu=cpu, features=features, opt=3)


class Compiled:
    """A kernel's host code. `arch`: "host" or LLVM's name of the CPU to keep to."""

    def __init__(self, func: Func, arch: str = "host") -> None:
        self.func = func
        target = TARGETS["cpu"] if arch == "host" else Target("cpu", "cpu", arch, 1)
        self.seconds: dict[str, float] = {}
        start = time.process_time()
        for apply, _ in HOST:
            func = apply(func, target)
        self.lowered = func
        self.text = emit_cpu(func, target)
        self.seconds["emit"] = time.process_time() - start
        start = time.process_time()
        self.machine = machine_for(arch)
        module = optimised(self.text, target, {})
        self.optimised = str(module)
        self.seconds["optimise"] = time.process_time() - start
        start = time.process_time()
        binary = self.machine.emit_object(module)
        self.seconds["object"] = time.process_time() - start
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine_for(arch))
        self.engine.add_object_file(llvm.ObjectFileRef.from_data(binary))
        self.engine.finalize_object()
        self.entry = _ENTRY(self.engine.get_function_address(func.name))

    def __call__(self, args: Mapping[str, Any], grid: Sequence[int]) -> None:
        """Run all blocks; arrays in `args` are changed in place."""
        full = (*grid, 1, 1)[:3]
        total = full[0] * full[1] * full[2]
        block = pack(self.func, args)
        self.entry(block.pointer, 0, total, *full)


class pack:
    """The array of pointers that a kernel takes; keeps what they point at."""

    def __init__(self, func: Func, args: Mapping[str, Any]) -> None:
        self.values: list[Any] = []
        for p in func.params:
            got = args[p.arg]
            if p.role == "tensor":
                self.values.append(np.array([got.ctypes.data], np.uint64))
            elif p.role == "scalar":
                self.values.append(np.array([got]).astype(num.numpy_dtype(p.value.dtype)))
            else:
                n = got.shape[p.dim] if p.role == "size" else got.strides[p.dim] // got.itemsize
                self.values.append(np.array([n]).astype(num.numpy_dtype(p.value.dtype)))
        pointers = [v.ctypes.data for v in self.values]
        self.table = (ctypes.c_void_p * len(pointers))(*pointers)
        self.pointer = ctypes.addressof(self.table)


def check(func: Func, args: dict[str, Any], grid: tuple[int, ...], arch: str, **close: Any) -> None:
    """Compile, run, and compare every array with what the interpreter makes of it."""
    want = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}
    Compiled(func, arch)(args, grid)
    run_tile(func, want, grid)
    for name, array in want.items():
        if isinstance(array, np.ndarray):
            same(args[name], array, name, **close)


def same(got: np.ndarray, want: np.ndarray, name: str = "", **close: Any) -> None:
    if got.dtype.kind in "biu" and got.dtype.names is None:
        np.testing.assert_array_equal(got, want, name)
    else:
        close = close or {"rtol": 0, "atol": 0}
        with np.errstate(invalid="ignore"):
            wide, expected = got.astype(np.float64), want.astype(np.float64)
        np.testing.assert_allclose(wide, expected, err_msg=name, **close)


def sample(rng: np.random.Generator, dtype: t.DType, n: int, mild: bool = False) -> np.ndarray:
    """Random elements with the special ones among them (`mild`: small numbers only)."""
    if dtype == t.BOOL:
        return rng.integers(0, 2, n).astype(bool)
    if dtype.is_int:
        low, high = dtype_range(dtype)
        if mild:
            return rng.integers(max(low, -9), 10, n).astype(num.numpy_dtype(dtype))
        made = rng.integers(low, high, n, dtype=num.numpy_dtype(dtype), endpoint=True)
        made[: n // 4] = (made[: n // 4] % 7).astype(made.dtype)
        made[:4] = [low, high, 0, 1]
        return made
    if mild:
        return rng.standard_normal(n).astype(num.numpy_dtype(dtype))
    scale = np.exp2(rng.uniform(-30, 30, n))
    made = (rng.standard_normal(n) * scale).astype(np.float64)
    made[:12] = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5, -3.5, 1e-30, 448.0, 65520.0]
    with np.errstate(all="ignore"):
        return made.astype(num.numpy_dtype(dtype))
