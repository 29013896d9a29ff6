"""A plan as a value: what the compiler may choose for a kernel and the user left open.

A launch from the disk cache reads the plan that was chosen before, and none of the IR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

DEFAULT_THREADS = 128  # that compute, where nobody says how many


@dataclass(frozen=True)
class Plan:
    """What may be chosen.

    `threads`: threads that compute, where the user left them open (None: `DEFAULT_THREADS`).
    `specialise`: producer warps bring tiles by TMA, the user's threads compute. `persistent`: each
    block of the launch walks over several blocks of the user's grid. `groups`: how many sets of the
    user's threads a launched block holds; with 2, each computes blocks of its own and they take
    turns at the tensor cores (ping-pong). `cluster`: how many neighbours along each grid dimension
    form a cluster, in which what several of them need is loaded once (multicast). `split`: how many
    blocks of a cluster share the iterations of one sum. `parts`: how many such clusters (blocks,
    where `split` is 1) share it through global memory. `raster_group`: how many blocks along grid
    dimension 1 are visited before dimension 0 advances (L2 reuse), where the user gave no swizzle.
    `joined`: so many neighbours of the author's grid along each of its dimensions are one block
    with a larger tile (`passes/join_blocks.py`).
    `staged_store`: a fragment goes to global memory through shared memory and TMA. `overlap`: where
    a loop holds several asynchronous products, threads compute with the result of one while others
    run (`passes/arrange.py`). `roles`: those products are in warpgroups of their own beside the
    others (`passes/split_roles.py`). `single_buffer`:
    a tile that comes through registers has one stage in shared memory, not two. `residents`: blocks
    that a multiprocessor holds at once, at least, each of which computes while another's products
    run. `stages`: stages of
    a pipelined loop's buffers. A loop with a number of its own has at least so many, and more only
    where it holds a tile product."""

    name: str
    specialise: bool = False
    persistent: bool = False
    consumer_groups: int = 1
    cluster: tuple[int, int, int] = (1, 1, 1)
    joined: tuple[int, int, int] = (1, 1, 1)
    split: int = 1
    parts: int = 1
    raster_group: int = 8
    staged_store: bool = False
    overlap: bool = False
    roles: bool = False
    single_buffer: bool = False
    residents: int = 1
    stages: int = 2
    threads: int | None = None

    def grouped(self, raster_group: int) -> Plan:
        """The plan with rasterisation groups of this width."""
        same = raster_group == self.raster_group
        return self if same else replace(self, raster_group=raster_group)

    def describe(self) -> str:
        """As in a dump: "specialised persistent (threads=256, stages=4)"."""
        parts = [f"threads={self.threads}"] if self.threads else []
        parts += [f"stages={1 if self.single_buffer else self.stages}"]
        for name in ("cluster", "joined"):
            dims = getattr(self, name)
            parts += [f"{name}={'x'.join(map(str, dims))}"] if dims != (1, 1, 1) else []
        through = f"x{self.parts}" if self.parts > 1 else ""
        parts += [f"split={self.split}{through}"] if self.split * self.parts > 1 else []
        return f"{self.name} ({', '.join(parts)})"


def plan_in(found: Mapping[str, Any]) -> Plan | None:
    """The plan whose fields a file holds (JSON has made lists of tuples); None where they are not
    those of a plan."""
    try:
        dims = {name: tuple(found[name]) for name in ("cluster", "joined")}
        plan = Plan(**{**found, **dims})
    except (KeyError, TypeError):
        return None
    kinds = asdict(Plan("", threads=plan.threads and 1))
    same = all(type(value) is type(kinds[name]) for name, value in asdict(plan).items())
    whole = all(type(n) is int for n in (*plan.cluster, *plan.joined))
    return plan if same and whole and len(plan.cluster) == len(plan.joined) == 3 else None


def name_of(plan: Plan) -> str:
    """What a schedule is called in dumps: "ping-pong, direct stores"."""
    kinds = (
        ["ping-pong"] if plan.consumer_groups > 1 else ["specialised"] if plan.specialise else []
    )
    kinds += ["persistent"] if plan.persistent and plan.consumer_groups == 1 else []
    extras = ["direct stores"] if plan.specialise and not plan.staged_store else []
    extras += ["stores by TMA"] if plan.staged_store and not plan.specialise else []
    extras += ["overlapped products"] if plan.overlap else []
    extras += ["products in roles"] if plan.roles else []
    extras += ["one buffer"] if plan.single_buffer else []
    extras += [f"{plan.residents} blocks at once"] if plan.residents > 1 else []
    extras += ["joined blocks"] if plan.joined != (1, 1, 1) else []
    extras += ["clusters"] if plan.cluster != (1, 1, 1) else []
    extras += ["shared sums"] if plan.split * plan.parts > 1 else []
    return ", ".join([" ".join(kinds) or "plain", *extras])


@dataclass(frozen=True)
class Arrangement:
    """How the iterations of a loop with several asynchronous products overlap (software
    pipelining): what `passes/arrange.py` decides and `passes/utils/software_pipeline.py` obeys.

    `order`: the numbers of the loop's statements as one iteration of the steady state does them.
    `stage`: of each statement, how many iterations later than the first ones it is done (0 or 1).
    `waits`: (statement, n): before it at most n products are in flight. `turns`: the warpgroups of
    the scope start their products one after the other. `registers` of a thread, in fragments, at
    most. `units`: clocks that an iteration of all warpgroups keeps each unit busy; `stream`: that
    one of them takes alone, and `in_order` in the order in which the statements were written.

    What is only shown: `versions`, stages of each buffer that is filled ahead; `cycle`, the fewest
    clocks of an iteration that who waits for whom leaves, over iterations too; `ring`, that loads
    leave with so many versions; `second`, the best of the others, and `others`, how many fit and
    how many do not for their registers."""

    order: tuple[int, ...]
    stage: tuple[int, ...]
    waits: tuple[tuple[int, int], ...]
    turns: bool
    registers: int
    units: tuple[tuple[str, int], ...]
    stream: int
    in_order: int
    versions: tuple[tuple[str, int], ...] = ()
    cycle: int = 0
    ring: int = 0
    second: Arrangement | None = None
    others: tuple[int, int] = (0, 0)

    @property
    def clocks(self) -> int:
        """Clocks of an iteration, where the warpgroups have drifted apart."""
        return max(self.stream, *(n for _, n in self.units))

    @property
    def bounds(self) -> tuple[tuple[str, int], ...]:
        """Four reasons why an iteration takes no fewer clocks: the busiest unit, cycles of who
        waits for whom, one warpgroup's stream, loads."""
        unit, clocks = max(self.units, key=lambda x: x[1])
        limits = (("cycle", self.cycle), ("stream", self.stream), ("ring", self.ring))
        return ((unit, clocks), *limits)
