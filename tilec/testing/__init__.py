"""For tests of kernels: `assert_close`, whose report says where a result is wrong, and how."""

from tilec.testing.compare import Comparison, assert_close, compare

__all__ = ["Comparison", "assert_close", "compare"]
