"""`tilelang.math`: functions of whole numbers."""


def next_power_of_2(n: int) -> int:
    """The least power of two that is at least `n`; 1 for what is below."""
    return 1 << max(n - 1, 0).bit_length()
