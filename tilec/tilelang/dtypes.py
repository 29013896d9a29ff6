"""TileLang's dtypes: text that is a dtype of tilec's wherever tilec asks for one."""

from __future__ import annotations

from typing import Any

from tilec.builtins.annotations import dtype_of
from tilec.ir.types import ALIASES, DTYPES, DType


class TextDtype(str):
    """A dtype as TileLang's programs hold it: "float16" == T.float16, getattr(torch, T.float16).

    One that tilec lacks is its name, which every use of it refuses as an unknown dtype.
    """

    __slots__ = ()

    @property
    def dtype(self) -> DType | None:
        """tilec's dtype, None where it has none of this name."""
        return DTYPES.get(ALIASES.get(self, self))

    def _known(self) -> DType:
        return dtype_of(str(self))

    @property
    def bits(self) -> int:
        return self._known().bits

    @property
    def bytes(self) -> int:
        """Of an element by itself."""
        return -(-self.bits // 8)

    def as_torch(self) -> Any:
        """torch's dtype of the tensors that hold elements of this one."""
        import torch

        return getattr(torch, _IN_TORCH.get(self, self))

    def __call__(self, *args: object, **kwargs: object) -> Any:
        self._known()(*args, **kwargs)  # raises: numbers are cast inside of kernels


_IN_TORCH = {"tfloat32": "float32", "int4": "int8", "uint4": "uint8"}
_IN_TORCH |= {"float8_e4m3": "float8_e4m3fn", "float8_e8m0": "float8_e8m0fnu"}
_IN_TORCH |= dict.fromkeys(("float4_e2m1", "float4_e2m1fn"), "float4_e2m1fn_x2")
_THEIRS = {"float8_e4m3": "float8_e4m3fn", "float8_e8m0": "float8_e8m0fnu"}
_THEIRS |= {"float4_e2m1": "float4_e2m1fn"}  # as TileLang calls what torch has
_SHORT = {"half": "float16", "float": "float32", "double": "float64", "int": "int32"}
_SHORT |= {"uint": "uint32", "long": "int64", "short": "int16", "char": "int8"}
NAMED = {name: TextDtype(name) for name in (*DTYPES, *ALIASES)}
NAMED |= {short: TextDtype(name) for short, name in _SHORT.items()}


def dtype(named: object) -> TextDtype:
    """The dtype that a text or a dtype of torch, NumPy or tilec means. Raises CompileError."""
    if isinstance(named, TextDtype):
        return named
    name = dtype_of(named).name
    written = isinstance(named, str) and str(named) == name
    return TextDtype(name if written else _THEIRS.get(name, name))


def determine_torch_fp8_type(kind: str = "e4m3") -> Any:
    """torch's dtype of `determine_fp8_type`."""
    return determine_fp8_type(kind).as_torch()


def determine_fp8_type(kind: str = "e4m3") -> TextDtype:
    """The float8 of this `kind`, "e4m3" or "e5m2", as NVIDIA's GPUs have it. Raises ValueError."""
    if kind not in ("e4m3", "e5m2"):
        raise ValueError(f"no float8 of the kind {kind!r}: there are e4m3 and e5m2")
    return TextDtype("float8_e4m3fn" if kind == "e4m3" else "float8_e5m2")


_all_dtypes = [name for name in NAMED if name not in _SHORT]


def __getattr__(name: str) -> Any:
    if name != "_TORCH_DTYPE_TO_STR":
        raise AttributeError(f"tilec.tilelang.dtypes has no {name!r}", name=name)
    import torch

    return {getattr(torch, n): n for n in _all_dtypes if hasattr(torch, n)}
