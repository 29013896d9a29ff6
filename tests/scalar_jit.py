"""Runs the GPU code generators' scalar arithmetic on this machine: the same records, compiled for
the host by LLVM, in a loop over arrays. The three fast forms of a GPU are replaced by exact
ones."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from tilec.codegen.casts import memory_type
from tilec.codegen.cpu_elementary import Elementary
from tilec.codegen.gpu_maths import GpuScalars
from tilec.codegen.ranges import Ranges
from tilec.ir import semantics as num
from tilec.ir.llvm import Function, Val, float_val, int_val
from tilec.ir.llvm_printer import print_function
from tilec.ir.types import BOOL, DType

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()


class HostScalars(GpuScalars):
    """The GPU's scalars with a host's 2**x, 1/x and 1/sqrt(x)."""

    def fast(self, kind: str, x: Val) -> Val:
        if kind == "exp2":
            return Elementary(self.f, True).exp2(x)
        assert kind in ("rcp", "rsqrt")
        root = self.call("sqrt", x) if kind == "rsqrt" else x
        return self.f.binary("fdiv", float_val(1.0), root)


Build = Callable[..., Val]


def run(build: Build, arrays: Sequence[np.ndarray], dtypes: Sequence[DType], out: DType) -> Any:
    """`build(scalars, *values)` for each element of `arrays` (of `dtypes`), as an array of
    `out`."""
    count = len(arrays)
    f = Function(
        "k", [*(("ptr", "", f"%p{i}") for i in range(count + 1)), ("i64", "", "%n")],
        linkage="", attrs="",
    )  # fmt: skip
    f.known = {}
    f.br("head")
    f.start("head")
    index = f.phi("i64")
    index.incoming.append((int_val(0, "i64"), "entry"))
    f.cbr(f.icmp("slt", index.result, Val("i64", "%n")), "body", "end", "end")
    f.start("body")
    scalars = HostScalars(f, Ranges())

    def place(i: int, dtype: DType) -> Val:
        return f.gep(memory_type(dtype), Val("ptr", f"%p{i}"), index.result)

    values = []
    for i, dtype in enumerate(dtypes):
        got = f.load(memory_type(dtype), place(i, dtype), 1)
        values.append(f.icmp("ne", got, int_val(0, "i8")) if dtype == BOOL else got)
    made = build(scalars, *values)
    f.store(f.cast("zext", made, "i8") if out == BOOL else made, place(count, out), 1)
    index.incoming.append((f.add(index.result, int_val(1, "i64")), f.block.label))
    f.br("head", loop="keep")
    f.start("end")
    f.ret()
    metadata = '!0 = distinct !{!0, !1}\n!1 = !{!"llvm.loop.unroll.disable"}'
    text = "\n".join([*f.declarations.values(), print_function(f), metadata])
    module = llvm.parse_assembly(text)
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    kinds = [ctypes.c_void_p] * (count + 1) + [ctypes.c_int64]
    call = ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address("k"))
    result = np.empty(len(arrays[0]), num.numpy_dtype(out))
    given = [np.ascontiguousarray(a, num.numpy_dtype(d)) for a, d in zip(arrays, dtypes)]
    call(*(a.ctypes.data for a in given), result.ctypes.data, len(result))
    return result
