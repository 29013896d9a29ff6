"""What a kernel says about itself: conditions that hold, bounds of its launch, hints for caches;
and small words that stand for several others.

These names are used as `T.assume`, … : `tilec.language` has them all.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "Else", "If", "Then", "annotate_compile_flags", "annotate_l2_hit_ratio",
    "annotate_min_blocks_per_sm", "annotate_pass_configs", "annotate_restrict_buffers", "assume",
    "clamp", "device_assert", "evaluate", "grid", "pdl_sync", "pdl_trigger",
]  # fmt: skip


def If(cond: Any) -> Any:
    """`with T.If(cond):`, in it `with T.Then():` and perhaps `with T.Else():`; the same as `if`."""


def Then() -> Any:
    """What runs where the condition of the `T.If` around holds."""


def Else() -> Any:
    """What runs where the condition of the `T.If` around does not hold."""


def assume(cond: Any) -> None:
    """Say that `cond` holds: guards that it makes unnecessary are left out, ranges and divisors
    follow from it, accesses get wider.

    Used are comparisons of integers, alone, in chains (`0 <= i < N`) and joined by `and`, and
    `n % 8 == 0`, as far as they say something of sizes, scalars, indices and what was loaded into
    a name before. Under a condition, or in a loop, it says nothing of what was defined outside.

    What does not hold is an access out of bounds where it is used. Of sizes and scalars, at the
    top of a kernel, a launch looks itself, and raises LaunchError. The simulator reports the rest
    ("assertion failed"); with TILEC_DEBUG=1 nothing relies on it, and it is checked like
    `T.device_assert`. Raises CompileError for one that is known to be false.
    """


def device_assert(condition: Any, msg: str = "") -> None:
    """Check `condition` when the kernel runs, in every thread, or iteration, that comes here.

    With the environment variable TILEC_DEBUG=1 when the kernel is compiled. Where it is false, a
    thread of a GPU prints the line, the condition, `msg`, its block and its number, and the launch
    fails; on the CPU the kernel goes on, and the launch raises DriverError at its end. Without
    TILEC_DEBUG nothing is computed: let `condition` change nothing. The simulator always looks,
    reports "assertion failed", and goes on. `msg` is a string, or an f-string of what is known at
    compile time.
    """


def evaluate(value: Any) -> None:
    """Evaluate `value` and forget it, e.g. `T.evaluate(0)` where a statement must stand."""


def clamp(dst: Any, min_val: Any, max_val: Any) -> Any:
    """`dst`, but at least `min_val` and at most `max_val`: `T.min(T.max(dst, min_val), max_val)`.

    Of a nan `min_val`. The result has the dtype of the three operands together, as `T.max`.
    """


def grid(*extents: Any) -> Any:
    """`for i, j in T.grid(m, n):` nested loops that run in order, the last index fastest.

    Extents are ints, known at run time or before. A `continue` goes on with the next index; a
    `break` is an error.
    """


def annotate_compile_flags(flags: str | list[str]) -> None:
    """Flags of a C++ compiler, as TileLang's programs give them. There is none here: of the flags
    `--fmad=false` (or `-ffp-contract=off`) means something: what
    `@tilec.kernel(enable_fp_fusion=False)` does; and so does `--use_fast_math` (`-ffast-math`):
    `T.log`, `T.log2`, `T.log10`, `T.sin`, `T.cos`, `T.tan` and `T.tanh` of float32 below it are
    `T.__log` and its like, with errors as there. Raises CompileError for what is no text."""


def annotate_l2_hit_ratio(ratios: dict[Any, Any]) -> None:
    """Say how much of each tensor should stay in the L2 cache: `{A: 0.9}`. It is checked and
    accepted; no target takes it (`eviction_policy=` of `T.copy` is what reaches the cache).

    Raises CompileError for a key that is not a tensor parameter, and a ratio outside of 0 to 1.
    """


def annotate_min_blocks_per_sm(n: int) -> None:
    """How many blocks of this kernel a multiprocessor should hold at least, at the top level of a
    kernel: each thread gets as few registers as that takes (`.minnctapersm` in PTX, waves per
    execution unit on AMD; nothing on the CPU).

    Raises CompileError for anything but an int from 1 to 32, and where it is said twice.
    """


def annotate_pass_configs(configs: dict[str, Any]) -> None:
    """Options of TileLang's passes, by name. `TL_ENABLE_FAST_MATH` means what
    `--use_fast_math` does (see `annotate_compile_flags`). Below `TL_DISABLE_THREAD_STORAGE_SYNC`
    each `T.sync_threads()` is of the whole block, also in a branch that some of its threads take;
    others mean nothing here. Raises CompileError for what is no dict."""


def annotate_restrict_buffers(*buffers: Any) -> None:
    """Say that these tensors overlap no others. That is what tilec takes of tensors anyway: a call
    that passes the same memory twice, one of them written, runs a variant of its own."""


def pdl_sync() -> None:
    """Launch the kernel beside the one before it on its stream (programmatic dependent launch), and
    wait here until that has ended and what it wrote is seen.

    All threads wait at the kernel's beginning, wherever the word stands: nothing that the launch
    before writes is read too early, in other words of the kernel either. What is gained is the
    time in which blocks start. Only cuda:sm_90a launches so; elsewhere launches follow one another
    as ever, and the word does nothing. `@tilec.kernel(pdl=True)` says this and `T.pdl_trigger()`.
    """


def pdl_trigger() -> None:
    """Let the next launch of the stream begin, if it is one that waits (`T.pdl_sync`), once all
    blocks of this one have started.

    It is done at the kernel's beginning, wherever the word stands, and orders nothing: the next
    launch waits for the end of this one whatever it says. Only on cuda:sm_90a; elsewhere the word
    does nothing.
    """
