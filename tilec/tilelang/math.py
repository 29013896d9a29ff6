"""`tilelang.math`: functions of whole numbers."""

from tilec.ir.types import next_power_of_2

__all__ = ["next_power_of_2"]
