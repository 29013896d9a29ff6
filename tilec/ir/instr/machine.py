"""What the semantics of rows act through: the primitives of a block, as its threads reach them.

Where a primitive may not be called, its docstring says "must"; whoever implements it reports what
must not be.

Words and sections are those of the PTX ISA and, where AMD is named, of the CDNA3 ISA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tilec.ir.instr.semantics import Waits, Where, Word

if TYPE_CHECKING:
    from tilec.ir.instr.instruction import MatrixInstruction
    from tilec.ir.layout import Layout
    from tilec.ir.types import DType


class Machine(Protocol):
    """A block as a set of its threads sees it."""

    # --- threads ---

    @property
    def lanes(self) -> NDArray[np.intp]:
        """The threads, by number in the block, rising."""

    def full(self, word: Word) -> NDArray[Any]:
        """A register as an array with one entry per thread."""

    def warp_sync(self) -> None:
        """`bar.warp.sync` of a whole warp: its threads wait for each other, and what each did
        before is behind all of them. Every thread of the warp must be in it."""

    # --- mbarriers: section "mbarrier" ---

    def mbarrier_init(self, address: Word, count: int) -> None:
        """`mbarrier.init`: phase 0 begins; it completes after `count` arrivals."""

    def mbarrier_init_fence(self) -> None:
        """`fence.mbarrier_init.release.cluster`: makes initialisations visible to asynchronous
        copies and to the blocks of the cluster."""

    def mbarrier_arrive(
        self,
        address: Word,
        *,
        expect: int = 0,
        block: Word | None = None,
        cluster_scope: bool = False,
        where: Where = None,
        copies: bool = False,
    ) -> None:
        """`mbarrier.arrive`, of every thread, with release semantics: at the scope of the block, or
        of the cluster. `copies`: when its cp.async copies are done, which are behind it, too
        (`cp.async.mbarrier.arrive.noinc`). `expect`: bytes that the phase waits for before it
        completes (`expect_tx`). `block`: rank in the cluster of the block whose barrier it is,
        None for one's own."""

    def mbarrier_expect_tx(self, address: Word, bytes: int) -> None:
        """`mbarrier.expect_tx`, of every thread: the running phase also waits for so many bytes."""

    def mbarrier_wait(self, address: Word, parity: Word, *, cluster_scope: bool = False) -> Waits:
        """`mbarrier.try_wait.parity` until it is true: the phase of this parity has completed.
        Acquire semantics at the scope of the block, or of the cluster."""

    # --- barriers of threads: sections "bar", "barrier.cluster" ---

    def barrier_sync(self, number: Word, threads: Word) -> Waits:
        """`bar.sync`: arrive at barrier `number` (0 to 15) and wait until `threads` threads have
        come to it; all threads of a warp must come together."""

    def barrier_arrive(self, number: Word, threads: Word) -> None:
        """`bar.arrive`: as `barrier_sync`, without waiting."""

    def pause(self) -> Waits:
        """Wait until an atomic has changed memory: this thread has seen what there was before."""

    def cluster_sync(self) -> Waits:
        """`barrier.cluster.arrive.release`, then `.wait.acquire`: all threads of all blocks of the
        cluster meet."""

    def cluster_arrive(self) -> None:
        """The first half of `cluster_sync`."""

    def cluster_wait(self) -> Waits:
        """The second half of it: for all to have arrived since these threads did."""

    def block_barrier(self) -> Waits:
        """AMD's `s_barrier`: all waves of the block meet. It orders only what a fence has released
        before it, and only for those who acquire after it."""

    def proxy_fence(self) -> None:
        """`fence.proxy.async.shared::cta`: what is behind these threads, their own reads included,
        is also before the asynchronous copies and products that they start, or others start after
        them."""

    # --- the device: sections "membar/fence", "atom" ---

    def device_fence(self) -> None:
        """`fence.acq_rel.gpu`: what is behind these threads is behind whoever, after a fence of his
        own, has read what one of their later atomics has left; and the other way round."""

    def count_up(self, address: Word, last: Word) -> Word:
        """`atom.relaxed.gpu.global.inc.u32`: add one to the word at `address`, or set it to 0 where
        it is `last`; gives what it was."""

    def load_if(self, address: Word, cond: Word, bytes: int) -> tuple[Word, ...]:
        """`ld.global` of `bytes` of the threads whose `cond` is not 0, in words of 32 bits, or one
        of 16; the others get zeros, and touch no memory."""

    def red_add(self, address: Word, values: Sequence[Word], dtype: DType) -> None:
        """`red.relaxed.gpu.global.add` of float32 or halves, pairs of which are in words: each of
        `values` is added, atomically, to the next element from `address` on, a multiple of their
        bytes."""

    # --- registers: section "setmaxnreg" ---

    def setmaxnreg(self, registers: int, increase: bool) -> Waits | None:
        """Each thread of the warpgroup has `registers` from here on. An increase waits until the
        pool of the block has them. All warps of the warpgroup must execute it."""

    # --- cp.async: section "Data Movement and Conversion Instructions: Asynchronous copy" ---

    def cp_async(self, dest: Word, source: Word, bytes: int, valid: Word | None = None) -> None:
        """`cp.async`: `bytes` from global memory to shared memory, each address a multiple of
        `bytes`; of them `valid` are read and zeros take the place of the rest."""

    def cp_async_commit(self) -> None:
        """`cp.async.commit_group`: the thread's copies since the last one are one group."""

    def cp_async_wait(self, pending: int) -> None:
        """`cp.async.wait_group`: at most `pending` of the thread's youngest groups are unfinished;
        what the others wrote is visible to this thread."""

    # --- TMA: section "… Tensor copy" ---

    def tma_load(
        self,
        dest: Word,
        map: Word,
        corner: Sequence[Word],
        barrier: Word,
        blocks: Word | None = None,
    ) -> None:
        """`cp.async.bulk.tensor`, global to shared: the map's box at `corner` (elements, innermost
        first), zeros for what lies outside of the tensor, swizzled as the map says. The box's bytes
        complete transactions on the mbarrier at `barrier`. `blocks`: a mask of ranks of the
        cluster: the box and the completion go to the same addresses in each (`.multicast`)."""

    def tma_store(
        self,
        map: Word,
        corner: Sequence[Word],
        source: Word,
        where: Where = None,
        reduction: str = "",
    ) -> None:
        """`cp.async.bulk.tensor`, shared to global, as part of the thread's bulk group; what lies
        outside of the tensor is dropped. With a `reduction` `cp.reduce.async.bulk.tensor`: each
        element is combined with the tensor's by a relaxed atomic of the device."""

    def tma_store_commit(self) -> None:
        """`cp.async.bulk.commit_group`."""

    def tma_store_wait(self, pending: int, read: bool) -> None:
        """`cp.async.bulk.wait_group`: at most `pending` of the thread's youngest bulk groups have
        not finished (`read`: have not read their sources)."""

    # --- matrices ---

    def ldmatrix(self, fragment: Layout, address: Word) -> tuple[Word, ...]:
        """`ldmatrix` of 8x8 matrices of 16 bits: registers of two elements each. `fragment` says
        who holds which element of the matrices, one below the other. Lane l gives the address of
        row l, a multiple of 16 bytes; all lanes of a warp must be there."""

    def stmatrix(self, fragment: Layout, address: Word, values: Sequence[Word]) -> None:
        """`stmatrix`: writes what `ldmatrix` would read as `values`."""

    def mma(
        self, instr: MatrixInstruction, a: Sequence[Word], b: Sequence[Word], c: Sequence[Word]
    ) -> tuple[Word, ...]:
        """`instr.semantics` in each warp; operands and result in registers of `instr.packs`
        elements, as the row's layouts say. All lanes of a warp must be there."""

    def mma_sp(
        self,
        instr: MatrixInstruction,
        a: Sequence[Word],
        b: Sequence[Word],
        c: Sequence[Word],
        metadata: Word,
        selector: int,
    ) -> tuple[Word, ...]:
        """`mma` of a compressed A that the `metadata` describe: of each lane a register, of which
        `selector` says what belongs to this instruction. The patterns must be ordered."""

    def wgmma(
        self,
        instr: MatrixInstruction,
        a: Sequence[Sequence[Word]],
        b: Sequence[Word],
        c: Sequence[Word] | None,
        *,
        a_transposed: bool = False,
        b_transposed: bool = False,
        keep: Word = 1,
        metadata: Sequence[Word] = (),
    ) -> tuple[Word, ...]:
        """A warpgroup's `wgmma.fence`, a `wgmma.mma_async` for each m block and k step, and
        `wgmma.commit_group`: the accumulators, one m block after the other, m blocks being as many
        as `a` has steps for each of `b`. `a`: for each m block and k step, m major, one matrix
        descriptor, or the registers of a's fragment; `b`: a descriptor for each k step; `c`: the
        accumulators to add to where `keep` is not 0 (None: it is 0). `*_transposed`: the operand
        is MN-major. `metadata`: of a compressed A, words for each m block and as many k steps as
        one serves, m major. Shared memory is read until the group has been waited for. The four
        warps must come together, with the same descriptors."""

    def wgmma_wait(self, pending: int, registers: Sequence[Word]) -> tuple[Word, ...]:
        """`wgmma.wait_group`: at most `pending` of the warpgroup's youngest groups are in flight.
        Gives `registers`, of which those of the other groups may now be touched."""

    # --- other blocks: section "mapa", "ld.shared::cluster" ---

    def cluster_load(self, address: Word, block: Word, words: int) -> tuple[Word, ...]:
        """`words` adjacent words of 32 bits at `address` in the shared memory of the cluster's
        block of rank `block`; the address is a multiple of their bytes."""

    def cluster_store(self, address: Word, block: Word, words: Sequence[Word], bytes: int) -> None:
        """`st.shared::cluster`: `bytes`, the lowest of `words`, likewise. Threads of that block may
        read them when it has been published to them at the scope of the cluster."""

    def cluster_send(
        self, source: Word, dest: Word, barrier: Word, block: Word, bytes: int
    ) -> None:
        """`cp.async.bulk` from this block's shared memory at `source` to `dest` in the block of
        rank `block`: read and written through the asynchronous proxy, complete on that block's
        mbarrier at `barrier`. Places and `bytes` are multiples of 16. Both blocks' shared memory
        must be there until then."""


def nothing(m: Machine, *arguments: Word) -> None:
    """The semantics of what changes nothing that a program can see."""


def acting(guard: Word) -> Where:
    """The threads whose predicate, an integer, is not 0."""
    mask: NDArray[np.bool_] = np.not_equal(guard, 0)
    return mask
