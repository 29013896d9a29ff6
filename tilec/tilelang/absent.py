"""The insides of TileLang's compiler, and TVM, which tilec has not. Many files import them and few
of their kernels need them, so that imports succeed and every use raises."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, NoReturn

from tilec.intrinsics import (
    INT4TensorCoreIntrinEmitter,
    MatrixCoreIntrinEmitter,
    TensorCoreIntrinEmitter,
    TensorCoreIntrinEmitterWithLadderTransform,
    TransformKind,
    get_swizzle_layout,
    make_mma_swizzle_layout,
)
from tilec.ir.caller import caller_loc
from tilec.ir.errors import CompileError, TilecError
from tilec.language import GemmWarpPolicy, dynamic
from tilec.tilelang import machine

PACKAGES = frozenset(
    """
    backend carver contrib cuda engine env ir metal rocm tileop tools transform tvm utils webgpu
    """.split()
)


class AbsentName:
    """A name of an absent module. Raises CompileError when it is called or asked for anything."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def _refuse(self) -> NoReturn:
        message = f"{self.__name__} is a part of TileLang's compiler, which tilec has not"
        raise CompileError(message, caller_loc(), "leave it out, or write what it makes by hand")

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        self._refuse()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python itself asks for these
            raise AttributeError(name)
        self._refuse()


class Absent(ModuleType):
    """A module, or a function, of which every public name is absent, too, but for what tilec has
    elsewhere."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        kind = Absent if name.islower() else AbsentName
        return HERE.get(name) or kind(f"{self.__name__}.{name}")

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        AbsentName(self.__name__)()


class Around:
    """What programs put around TileLang's compiler, `with tvm.target.Target(…):`. It has no meaning
    here: the target is that of `compile`, or of the machine."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Around:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def unchanged(program: Any, *_: object, **__: object) -> Any:
    """What a pass of TileLang's does to a program here: nothing."""
    return program


def requires_package(*names: str) -> Any:
    """`tvm.testing.requires_package`: `tilelang.testing`'s, which needs pytest."""
    return importlib.import_module("tilec.tilelang.testing").requires_package(*names)


def torch_assert_close(*args: Any, **kwargs: Any) -> Any:
    """`tilelang.utils.tensor`'s, which `tilelang.testing` has, too."""
    testing = importlib.import_module("tilec.tilelang.testing")
    return testing.torch_assert_close(*args, **kwargs)


# What tilec has elsewhere, or does anyway, by the name that modules without a counterpart give it.
HERE: dict[str, Any] = {
    "GemmWarpPolicy": GemmWarpPolicy,
    "InternalError": TilecError,
    "PassContext": Around,
    "Target": Around,
    "TVMError": TilecError,
    "MatrixCoreIntrinEmitter": MatrixCoreIntrinEmitter,
    "INT4TensorCoreIntrinEmitter": INT4TensorCoreIntrinEmitter,
    "TensorCoreIntrinEmitter": TensorCoreIntrinEmitter,
    "TensorCoreIntrinEmitterWithLadderTransform": TensorCoreIntrinEmitterWithLadderTransform,
    "TransformKind": TransformKind,
    "get_swizzle_layout": get_swizzle_layout,
    "make_mfma_swizzle_layout": make_mma_swizzle_layout,
    "make_mma_swizzle_layout": make_mma_swizzle_layout,
    "nvcc": machine,
    "requires_package": requires_package,
    "torch_assert_close": torch_assert_close,
    "var": dynamic,  # tvm.te.var("m"), an open size
    "simplify_prim_func": unchanged,
    "apply_simplify": unchanged,
    "check_cuda_availability": machine.check_cuda_availability,
    "determine_target": machine.determine_target,
    "check_hip_availability": machine.check_hip_availability,
}
