"""`from tilelang import tvm`, which many programs import and few use: tilec has no TVM."""

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"tilec has no TVM: tvm.{name} has no meaning here", name=name)
