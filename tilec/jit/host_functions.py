"""What functions given as LLVM IR compute in the simulator: they run on this machine.

Where LLVM has no code for them here, as for those that name a GPU's intrinsics, the user says what
they compute."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tilec.codegen.assemble import assemble
from tilec.codegen.foreign import host_loop
from tilec.ir.core import Func, Op
from tilec.ir.errors import CompileError, InternalError
from tilec.ir.ops import Extern, Meaning
from tilec.ir.semantics import numpy_dtype
from tilec.runtime.cpu import load_object
from tilec.target import find_target

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)
_SYMBOL = "tilec_each"


def with_host_meanings(func: Func) -> Func:
    """`func` with a meaning for each function of LLVM IR that the user gives none for."""

    def meant(o: Op) -> Op | None:
        if not isinstance(o, Extern) or o.language != "llvm" or o.meaning is not None:
            return None
        return replace(o, meaning=Meaning(_HostFunction(o)))

    return func.rewrite(Op, meant)


class _HostFunction:
    """The function of an Extern, of NumPy arrays, compiled at its first call."""

    def __init__(self, o: Extern) -> None:
        self.op = o
        self.__name__ = o.name
        self.engine: Any = None
        self.entry: Callable[[int, Any], None] | None = None

    def __call__(self, *given: Any) -> Any:
        o = self.op
        if self.entry is None:
            self._load()
        assert self.entry is not None
        rows = [
            row for x, n in zip(given, o.counts) for row in ([*x] if n else [x])
        ]  # of a place, an array for each element
        shape = np.broadcast_shapes(*(np.shape(r) for r in rows))
        kinds = [numpy_dtype(v.dtype) for v in o.args]
        columns = [np.array(np.broadcast_to(r, shape), k, order="C") for r, k in zip(rows, kinds)]
        columns += [np.empty(shape, numpy_dtype(t)) for t in o.types]
        table = (ctypes.c_void_p * len(columns))(*(c.ctypes.data for c in columns))
        self.entry(int(np.prod(shape)), ctypes.cast(table, ctypes.c_void_p))
        results = columns[len(rows) :]
        back = [(k, e) for k in o.written for e in range(o.counts[k])]
        for (k, e), found in zip(reversed(back), reversed(results)):
            given[k][e] = found
        return results[0] if len(results) > len(back) else None

    def _load(self) -> None:
        try:
            made = assemble(host_loop(self.op, _SYMBOL), find_target("cpu"))
        except InternalError as error:
            raise CompileError(
                f"{self.op.name} does not run on this machine: {error.message}",
                self.op.loc,
                "say what it computes: evaluate=f, a function of NumPy arrays, one for each "
                "argument",
            ) from None
        assert made.binary is not None
        self.engine, address = load_object(made.binary, _SYMBOL)
        self.entry = _ENTRY(address)
