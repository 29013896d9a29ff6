"""Why some mutants survive: what each of them changes orders nothing that is not ordered anyway.

A rule explains the survivors whose family, operator and description it matches. A survivor that no
rule explains is a hole of the simulator."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """`title` names the reason, `text` gives it. `family`, `operator` and `description` are regular
    expressions for whole texts."""

    title: str
    text: str
    cases: tuple[tuple[str, str, str], ...]

    def explains(self, family: str, operator: str, description: str) -> bool:
        given = family, operator, description
        return any(
            all(re.fullmatch(pattern, x) for pattern, x in zip(case, given)) for case in self.cases
        )


ONE_TILE = "GEMM, TMA . wgmma|GEMM, staged TMA store|split-K.*"
OVERLAPPED = "overlapped products"
ONE_WARPGROUP = "GEMM, wgmma without roles|grouped, while"
RULES: tuple[Rule, ...] = (
    Rule(
        "the last slot is never asked for again",
        "After the loop of a block that has one tile the consumers free the last slot of the ring, "
        "and no producer waits for it: the arrival, the slot it names, how many threads arrive and "
        "what it comes behind make no difference. (In a persistent kernel, where the next tile "
        "uses the slot, the same mutants are found.)",
        (
            (ONE_TILE, "remove mbarrier_arrive|guard removed|slot off by one",
             "(no )?mbarrier_arrive ring0_empty"),
            (ONE_TILE, "wgmma_wait too late", "wgmma_wait acc behind mbarrier_arrive ring0_empty"),
        ),
    ),
    Rule(
        "one warpgroup waits for its products as one",
        "The barrier keeps threads from overwriting what a product of others may still read. Where "
        "the block computes with a single warpgroup, `wgmma.wait_group` has ended the product of "
        "all its four warps (the groups of wgmma are the warpgroup's: PTX ISA, wgmma.commit_group),"
        " so the barrier is implied, also for what one thread has waited for in front of the "
        "product. With two warpgroups the same mutants are found.",
        (
            ("split-K shared sums", "remove barrier|barrier too (early|late)", ".*"),
            (ONE_WARPGROUP, "barrier too late|remove barrier", ".*"),
            ("sums by TMA", "barrier too early", "barrier before if"),
        ),
    ),
    Rule(
        "another number for all",
        "All threads that meet at the barrier come to the one with the other number, which nobody "
        "else uses.",
        (("split-K.*", "barrier number", ".*"),),
    ),
    Rule(
        "syncs that order no memory",
        "They keep loads where they are: LLVM would move each into the branch of the store that "
        "uses it, the assembler would begin with the loads of all parts of a sum. What is loaded "
        "is behind every thread already.",
        (
            ("transposition.*|split-K through global memory",
             "remove warp_sync|warp_sync too late", ".*"),
        ),
    ),
    Rule(
        "a fence by those who start the engine does as well",
        "The proxy fence comes behind the barrier (or the warp's) instead of in front of it. All "
        "threads execute both, so the one that starts the TMA store or the product has the others' "
        "writes behind it when it executes the fence: it stands on the path of causality (PTX ISA, "
        "proxy-preserved base causality order). (Behind a read, where only the reader's own fence "
        "waits for what is still to be fetched, the same mutants are found.)",
        ((".*", "proxy_fence too late", "proxy_fence behind (barrier|warp_sync)"),),
    ),
    Rule(
        "two fences of one thread",
        "One thread initialises the barriers of the sums and those of the ring, with a fence "
        "behind each; the second covers both.",
        (("split-K shared sums", "remove mbarrier_init_fence", ".*"),),
    ),
    Rule(
        "the barrier of the whole block follows",
        "Moved behind the initialisation of the ring, the cluster's barrier still comes before the "
        "first use of another block's memory.",
        (("split-K shared sums", "cluster_barrier too late", ".* behind if"),),
    ),
    Rule(
        "a barrier that is used once has one phase",
        "The wait for the parts of a sum always has parity 0.",
        (("split-K shared sums", "parity stale", "mbarrier_wait parts_written: always 0"),),
    ),
    Rule(
        "the cluster has met",
        "All threads of both blocks have met before the next tile is filled; in the first "
        "iteration, for which alone the pass puts the barrier there, nothing has been read. The "
        "meeting behind the initialisation of a barrier makes that known to other blocks' threads, "
        "too: the fence is for asynchronous copies. What threads have stored in another block is "
        "there when that block waits: the blocks need not end together. And what a bulk copy has "
        "brought is seen by whoever has waited for its bytes, at whatever scope.",
        (
            ("copies to another block", "remove barrier|barrier too early|barrier too late",
             "no barrier|barrier (before if|behind copy A own)"),
            ("copies to another block", "no acquire", ".*"),
            ("stores to another block", "remove mbarrier_init_fence", ".*"),
            ("stores to another block", "remove cluster_barrier|cluster_barrier too early",
             "no cluster_barrier|cluster_barrier before for"),
        ),
    ),
    Rule(
        "a multicast by hand",
        "What engines bring, and that they may overwrite what has been read, the arrivals order at "
        "whatever scope; that of the cluster is for writes of threads. The blocks are told in any "
        "order that all have come. Who brings the next tile has waited for a phase at which all "
        "threads of the block arrived behind their reads: that is a barrier of the block, too.",
        (
            ("multicast by hand", "no acquire|no publish", ".*"),
            ("multicast by hand", "mbarrier_wait too late|mbarrier_arrive too early",
             ".* gate (behind|before) mbarrier_arrive gate"),
            ("multicast by hand", "remove barrier|barrier too late",
             "no barrier|barrier behind for"),
        ),
    ),
    Rule(
        "groups that swap their buffers",
        "Each group stages its tile in the other group's buffer, and both do.",
        (("ping-pong", "slot off by one", "ring_stage C_staging"),),
    ),
    Rule(
        "the guard never fails, or not on its own",
        "No index of these accesses is below 0; `g < G` keeps the reads of `offsets` inside; "
        "`row + i < end` keeps the rows inside of C, so that the compiler's own comparison with M "
        "does nothing.",
        (
            (".*", "bound off by one", "index ge 0"),
            ("grouped, while", "bound off by one", "index lt (offsets_size0|M)"),
            ("grouped, while", "guard removed", "mem_load offsets"),
        ),
    ),
    Rule(
        "one tile more, of zeros, that nobody uses",
        "The tile beyond the last one is read as zeros (each element's guard still holds, TMA "
        "fills them in) and never multiplied, or never stored (TMA drops what is outside).",
        (
            ("GEMM, MFMA", "bound off by one", "index (gt 0|lt bound)"),
            ("clusters with multicast", "bound off by one", "index lt bound"),
        ),
    ),
    Rule(
        "the nearest element once more",
        "Threads that have none of a tile's elements load what the nearest one is made of, so that "
        "all loads can be asked for together. Without the guard, or one element further, they "
        "store the same number in its place.",
        (("stencil.*", "guard removed|bound off by one", "mem_store tile|index lt \\d+"),),
    ),
    Rule(
        "a tile behind the last one",
        "The second block of the last cluster has no tile left. With the other bound it stores one "
        "that lies behind C's last column, of which TMA writes nothing.",
        (("2:4 sparse GEMM", "bound off by one", "index lt bound"),),
    ),
    Rule(
        "a tile without iterations",
        "These stand in the branch for tiles whose loop has none; the family's all have three.",
        (
            (OVERLAPPED, "remove mbarrier_arrive|guard removed|slot off by one",
             "(no )?mbarrier_arrive ring0_empty stage"),
            (OVERLAPPED, "position not advanced", "ring0_(stage|phase) not stored"),
        ),
    ),
    Rule(
        "a product has stopped all warps",
        "Each warp frees the tile of X, since its loop might have no iteration. The family's tiles "
        "have three, and no warp has waited for a product before all four of its group have come: "
        "one arrival less, or lanes that have not met, free it no sooner.",
        (
            (OVERLAPPED, "arrival count", "mbarrier_init ring0_empty: 7"),
            (OVERLAPPED, "(remove )?warp_sync.*", ".*warp_sync.*"),
        ),
    ),
    Rule(
        "the producer waits for the other rings, too",
        "It brings a tile of X only when it has brought all slices of the tile before, and a slice "
        "of W1 behind the one of W2 before: the stages of those are free when the products that "
        "read the earlier ones have ended.",
        (
            (OVERLAPPED, "remove mbarrier_wait|mbarrier_(arrive too early|wait too late)",
             "(no )?mbarrier_(wait|arrive) ring0_empty stage.*"),
            (OVERLAPPED, "wgmma_wait too late", "wgmma_wait h behind mbarrier_arrive ring1_.*"),
        ),
    ),
    Rule(
        "a turn orders products for speed",
        "The other warpgroup may start its products between the two of this one; what TMA brings "
        "to them the first warpgroup has waited for by then.",
        ((OVERLAPPED, "ordered_arrive too early", "ordered_arrive before gemm a w2"),),
    ),
)  # fmt: skip


def explanation(family: str, operator: str, description: str) -> Rule | None:
    """The rule that explains why this mutant survives; None if there is none."""
    return next((r for r in RULES if r.explains(family, operator, description)), None)
