"""How evenly the tiles of a kernel fall to what runs them where some tiles are longer than others
(a causal mask).

Where blocks take tiles as they come (`claim_blocks`), or the machine gives out a block for each
tile as others end, only the end is uneven. Otherwise block j does the tiles j, j + blocks,
j + 2 blocks, … in the order that `block_order` gives them, so it is the width of a rasterisation
group that decides who gets what.

Two things cost time. The block with the most work ends last. And blocks that got several long tiles
one behind the other fall behind the others, which are then at other tiles: what neighbours share is
no longer in the L2 cache. On an H100, causal attention of 8 x 32 heads (TFLOP/s):

| keys | group | most work / mean | spread, tiles | |
|---|---|---|---|---|
| 1024 | 4, 8, 16, 32 | 1.03, 1.03, 1.33, 1.18 | 0.5, 1.0, 1.8, 0.9 | 431, 400, 316, 357 |
| 2048 | 4, 8, 16, 32 | 1.03, 1.03, 1.03, 1.03 | 1.2, 2.4, 1.2, 0.7 | 494, 408, 478, 492 |
"""

from __future__ import annotations

import functools
import heapq

import numpy as np

TILE = 2.5  # iterations that a tile's beginning and end take
SPREAD = 0.04  # how much longer it takes for each tile that blocks are apart
LARGEST = 1 << 17  # tiles that are looked at
AT_END = 6  # tiles of a block, the last ones, by which blocks end apart that take them as they come


@functools.lru_cache(maxsize=256)
def unevenness(
    grid: tuple[int, ...], first: float, last: float, blocks: int, group: int, claimed: bool
) -> float:
    """How much longer so many blocks take for the tiles of `grid` than if all had the same work:
    those at index 0 of its first dimension have `first` iterations, those at the end `last`, and
    longer ones come first. `claimed`: blocks take them as they come."""
    x, y, *rest = (*grid, 1)
    steps = np.linspace(last, first, x) + TILE
    full = np.repeat(steps, group)
    left = np.tile(steps, y % group) if len(grid) > 2 else np.repeat(steps, y % group)
    row = np.concatenate([*[full] * (y // group), left])  # as `block_order` has it
    tiles = np.tile(row, min(int(np.prod(rest)), max(1, LARGEST // max(1, row.size))))
    if claimed:
        ends = [0.0] * blocks
        for tile in tiles[-AT_END * blocks :].tolist():
            heapq.heapreplace(ends, ends[0] + tile)
        return 1 + (max(ends) - sum(ends) / blocks) * blocks / float(tiles.sum())
    rounds = -(-tiles.size // blocks)
    work = np.zeros(rounds * blocks)
    work[: tiles.size] = tiles
    done = work.reshape(rounds, blocks).cumsum(0)
    apart = float(done[:-1].std(1).mean()) / float(tiles.mean()) if rounds > 1 else 0.0
    return float(done[-1].max() / done[-1].mean()) * (1 + SPREAD * apart)
