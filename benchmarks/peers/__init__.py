"""The peers: torch (cuBLAS), Triton and TileLang; the last two are optional."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from types import ModuleType

import torch

CUBLAS, TRITON, TILELANG = "cuBLAS", "Triton", "TileLang"
CUDNN, FLASH = "cuDNN", "FlashAttention-2"  # behind torch's scaled_dot_product_attention
PACKAGES = {TRITON: "triton", TILELANG: "tilelang"}


@functools.cache
def module_of(peer: str, subject: str = "gemm") -> ModuleType | None:
    """The module with an optional peer's kernels; None where its package cannot be imported."""
    try:
        return importlib.import_module(f"benchmarks.peers.{PACKAGES[peer]}_{subject}")
    except Exception:  # a broken installation is as good as none: `why_missing` tells
        return None


def why_missing(peer: str) -> str:
    """Why `module_of(peer)` is None; empty if it is not."""
    if module_of(peer) is not None:
        return ""
    try:
        importlib.import_module(PACKAGES[peer])
    except Exception as failure:
        return f"{type(failure).__name__}: {failure}".split("\n")[0][:200]
    return f"the kernels for {peer} cannot be imported"


@functools.cache
def version(peer: str) -> str:
    """What a peer's speed depends on besides its configuration; "absent" where it is not there."""
    if peer in (CUBLAS, CUDNN, FLASH):
        cudnn = f", cuDNN {torch.backends.cudnn.version()}" if peer == CUDNN else ""
        return f"torch {torch.__version__}, CUDA {torch.version.cuda}{cudnn}"
    try:
        return f"{PACKAGES[peer]} {importlib.metadata.version(PACKAGES[peer])}"
    except importlib.metadata.PackageNotFoundError:
        module = importlib.import_module(PACKAGES[peer])
        return f"{PACKAGES[peer]} {getattr(module, '__version__', 'of unknown version')}"
