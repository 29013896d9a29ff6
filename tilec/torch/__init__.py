"""tilec's kernels as operators of PyTorch.

`register(kernel, …)` makes a `torch.library` operator of a kernel: one that `torch.compile`,
`torch.export` and FakeTensors take for what it is, and that autograd differentiates where it is
given a backward. This is the only package of tilec that imports torch.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as e:
    raise ImportError("tilec.torch makes operators of PyTorch: pip install 'tilec[torch]'") from e

from tilec.torch.operator import Operator, register

__all__ = ["Operator", "register"]
