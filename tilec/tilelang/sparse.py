"""`tilelang.utils.sparse` and `tilelang.cuda.intrinsics.sparse_layout`: 2:4 sparse matrices, which
are `tilec.sparse`'s, and random ones."""

from __future__ import annotations

from typing import Any

from tilec import sparse
from tilec.ir.sparse import SPARSE_DTYPES, covered, group_size
from tilec.tilelang.dtypes import NAMED, TextDtype, dtype

# (how many are kept, of how many) by dtype.
GROUP_CONFIG: dict[TextDtype, tuple[int, int]] = {
    NAMED[d.name]: (group_size(d.bits) // 2, group_size(d.bits)) for d in SPARSE_DTYPES
}


def get_e_factor(a_dtype: object, meta_dtype: object) -> int:
    """Elements of a dense row that one element of the metadata describes."""
    return covered(dtype(a_dtype).bits, dtype(meta_dtype).bits)


def get_e_replicate_factor(a_dtype: object) -> int:
    """How many lanes are given the same metadata by TileLang."""
    return 1 if dtype(a_dtype).bits <= 8 else 2


def compress(
    A: Any,  # noqa: N803 (TileLang's names)
    meta_dtype: object = None,
    block_m: int | None = None,
    block_k: int | None = None,
    transposed: bool = False,
    **_: object,
) -> tuple[Any, Any]:
    """`tilec.sparse.compress`, which has no blocks: of a torch tensor, or where it is `transposed`
    of one whose columns are compressed."""
    values, metadata = sparse.compress(A.t() if transposed else A, meta_dtype)
    if transposed:
        values, metadata = values.t().contiguous(), metadata.t().contiguous()
    return values, metadata


torch_compress = compress


def randn_semi_sparse(
    M: int,  # noqa: N803
    K: int,  # noqa: N803
    dtype: Any = None,
    device: Any = "cuda",
    transposed: bool = False,
) -> Any:
    """A random 2:4 sparse tensor of torch's `dtype` (float16), (M, K), or (K, M) if `transposed`,
    along whose K it is sparse."""
    import torch

    made = torch.randn((M, K), dtype=torch.float32, device=device)
    return _sparse(made.to(dtype or torch.float16), transposed)


def randint_semi_sparse(
    M: int,  # noqa: N803
    K: int,  # noqa: N803
    low: int,
    high: int,
    dtype: Any = None,
    device: Any = "cuda",
    transposed: bool = False,
) -> Any:
    """`randn_semi_sparse` of integers from `low` to below `high`."""
    import torch

    made = torch.randint(low, high, (M, K), dtype=dtype or torch.int8, device=device)
    return _sparse(made, transposed)


def arange_semi_sparse(
    M: int,  # noqa: N803
    K: int,  # noqa: N803
    dtype: Any = None,
    device: Any = "cuda",
    transposed: bool = False,
) -> Any:
    """`randn_semi_sparse` of the numbers of the elements."""
    import torch

    made = torch.arange(M * K, dtype=dtype or torch.float16, device=device).reshape(M, K)
    return _sparse(made, transposed)


def _sparse(made: Any, transposed: bool) -> Any:
    made = sparse.prune(made)
    return made.t().contiguous() if transposed else made
