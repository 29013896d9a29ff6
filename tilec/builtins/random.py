"""Random numbers of threads: Philox4x32-10, counted as cuRAND's device functions count.

A generator is a seed, a sequence, and how many 32-bit words of that sequence are drawn already. Its
words are the same on every target. It lasts for the block of code (the kernel's body, a loop's, a
condition's) that `rng_init` stands in; a second `rng_init` there begins anew.
"""

from typing import Any

__all__ = ["rng_init", "rng_rand", "rng_rand_float"]

PHILOX = "curandStatePhilox4_32_10_t"


def rng_init(seed: Any, seq: Any = None, off: Any = 0, generator: str = PHILOX) -> None:
    """Give each thread a generator: `seed`, `seq` and `off` are ints of up to 64 bits, the latter
    counting words. Without `seq` it is the thread's number,
    `T.get_thread_binding(0) + T.get_block_binding(0) * T.get_thread_extent(0)`.

    In `T.Parallel` each iteration gets one, and `seq` must be given. Of the generators of TileLang
    "curandStatePhilox4_32_10_t" is there; "curandStateMRG32k3a_t" and "curandStateXORWOW_t"
    are not, and no other draws their numbers in their place. Raises CompileError for these, and for
    floats.
    """


def rng_rand() -> Any:
    """The next word: a uint32.

    In `T.Parallel` the iterations draw for the threads in turn: number e of them, row by row, draws
    what thread e % threads would draw in its iteration e // threads, whoever runs it; where
    iterations draw nothing under a condition, their words are left out. Raises CompileError where
    no `rng_init` reaches, and in a loop inside of `T.Parallel`.
    """


def rng_rand_float(bit: int = 32, dist: str = "uniform") -> Any:
    """A float of `bit` bits, 32 or 64. "uniform": above 0 and at most 1, of one word x:
    (x + 1/2) / 2**32 rounded to float32, or (x + 1) / 2**32 as a float64. "normal": mean 0 and
    deviation 1, two of a pair by Box and Muller's transform, of two words (float32) or four; the
    last bits of a float32 are those of the target's logarithm and sine. The second of a pair is
    kept for the next call; a loop over `T.Parallel` begins a new pair.

    Raises CompileError as `rng_rand`, and for other bits and distributions.
    """
