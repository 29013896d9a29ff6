"""A plan: what the compiler may choose for a kernel and the user left open.

The passes read a plan from the function's attributes; the driver tries plans in order and keeps
the first whose exact budget of shared memory and registers holds. What the user wrote is never
changed by a plan: `T.annotate_schedule` fixes fields of every plan that is tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tilec.ir.core import Func, Op, Value, rewrite, walk
from tilec.ir.errors import CompileError, ResourceError
from tilec.ir.loc import Loc
from tilec.ir.memory import version_bytes
from tilec.ir.ops import Alloc, AnnotateSchedule, Const, Copy, For, Gemm, ThreadIndex, yielded
from tilec.target import Target

MOST_STAGES = 8
TEAM_THREADS = 128  # a team of a ping-pong schedule is one warpgroup
DEFAULT_THREADS = 128
SPLITS = (2, 4, 8)  # blocks that share one sum


@dataclass(frozen=True)
class Plan:
    """What may be chosen.

    `threads`: threads that compute, where the user left them open (None: 128).
    `specialise`: producer warps bring tiles by TMA, the user's threads compute.
    `persistent`: each block of the launch walks over several blocks of the user's grid.
    `teams`: how many sets of the user's threads a launched block holds; with 2, each computes
    blocks of its own and they take turns at the tensor cores (ping-pong).
    `cluster`: how many neighbours along each grid dimension form a cluster, in which what several
    of them need is loaded once (multicast).
    `split`: how many blocks of a cluster share the iterations of one sum.
    `panel`: how many blocks along grid dimension 1 are visited before dimension 0 advances (L2
    reuse), where the user gave no swizzle.
    `staged_store`: a fragment goes to global memory through shared memory and TMA.
    `single_buffer`: a tile that comes through registers has one version in shared memory, not two.
    `stages`: versions of a loop's buffers where the user left `num_stages` open.
    """

    name: str
    specialise: bool = False
    persistent: bool = False
    teams: int = 1
    cluster: tuple[int, int, int] = (1, 1, 1)
    split: int = 1
    panel: int = 8
    staged_store: bool = False
    single_buffer: bool = False
    stages: int = 2
    threads: int | None = None

    def apply(self, func: Func) -> Func:
        """`func` with the plan's choices as attributes and as the stages of its open loops."""
        chosen = asdict(self)
        chosen["plan"] = chosen.pop("name")
        threads = chosen.pop("threads")
        if threads is not None:
            chosen["threads"] = threads

        def visit(o: Op) -> Op | None:
            if isinstance(o, For) and is_open(o):
                return replace(o, num_stages=self.stages)
            return None

        return func.with_attrs(**chosen).with_body(rewrite(func.body, visit))

    def describe(self) -> str:
        """As in a dump: "specialised persistent (threads=256, stages=4)"."""
        parts = [f"threads={self.threads}"] if self.threads else []
        parts += [f"stages={self.stages}"]
        parts += (
            [f"cluster={'x'.join(map(str, self.cluster))}"] if self.cluster != (1, 1, 1) else []
        )
        parts += [f"split={self.split}"] if self.split > 1 else []
        return f"{self.name} ({', '.join(parts)})"


def plan_of(fields: Mapping[str, Any]) -> Plan:
    """The plan whose fields these are (JSON has made lists of tuples)."""
    x, y, z = fields["cluster"]
    return Plan(**{**fields, "cluster": (x, y, z)})


@dataclass(frozen=True)
class Wanted:
    """Fields of the plan that the user fixed, and where."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    loc: Loc | None = None


def take_wanted(func: Func) -> tuple[Func, Wanted]:
    """`func` without its `annotate_schedule`, and what that says."""
    found = [o for o in walk(func.body) if isinstance(o, AnnotateSchedule)]
    if not found:
        return func, Wanted()

    def visit(o: Op) -> None | list[Op]:
        return [] if isinstance(o, AnnotateSchedule) else None

    return func.with_body(rewrite(func.body, visit)), Wanted(dict(found[0].choices), found[0].loc)


def plans(func: Func, target: Target, wanted: Wanted | None = None) -> tuple[Plan, ...]:
    """The plans worth trying for `func` on `target`, the safest first; every one of them has the
    `wanted` fields. Raises ResourceError if the target can run none such."""
    wanted = wanted or Wanted()
    made: dict[Plan, None] = {}
    first: ResourceError | None = None
    for plan in _schedules(func, target):
        if wanted.fields:
            plan = replace(plan, **wanted.fields)
            if plan.teams > 1 and func.attrs.get("threads") is None:
                plan = replace(plan, threads=TEAM_THREADS)
            if plan.split > 1 and "persistent" not in wanted.fields:
                plan = replace(plan, persistent=False)
            plan = replace(plan, name=name_of(plan))
        error = problem(plan, func, target, wanted)
        if error is None:
            if "stages" not in wanted.fields:
                plan = replace(plan, stages=stages_that_fit(func, target, plan))
            made.setdefault(plan)
        first = first or error
    if not made:
        assert first is not None
        raise first
    return tuple(made)


def problem(plan: Plan, func: Func, target: Target, wanted: Wanted) -> ResourceError | None:
    """Why `target` cannot run `plan` at all, in the words of the schedule that the user wrote;
    None if it may."""
    threads = plan.threads or func.attrs.get("threads") or DEFAULT_THREADS

    def refuse(message: str, hint: str) -> ResourceError:
        return ResourceError(message, wanted.loc, hint)

    for wish, word in ((plan.specialise, "specialise=True"), (plan.staged_store, 'store="tma"')):
        if wish and not target.has("tma"):
            return refuse(f"{word}: {target} has no TMA", "leave it out for this target")
    if plan.teams > 1:
        if not target.has("setmaxnreg"):
            return refuse(f'consumers="pingpong": {target} has no warpgroups', "leave it out")
        if threads != TEAM_THREADS:
            return refuse(
                f'consumers="pingpong": each team is one warpgroup of {TEAM_THREADS} threads, and '
                f"threads={threads}",
                f"write threads={TEAM_THREADS}, or leave it out; the block has two such teams",
            )
        if not plan.specialise or not plan.persistent:
            return refuse(
                'consumers="pingpong" takes turns over tiles that producer warps bring: it needs '
                "specialise=True and persistent=True",
                "leave those two out",
            )
        if not has_pipelined_product(func):
            return refuse(
                'consumers="pingpong": no T.Pipelined of this kernel holds a T.gemm',
                "leave it out, or pipeline the loop around the product",
            )
    for word, many in (("cluster", plan.cluster != (1, 1, 1)), ("split", plan.split > 1)):
        if many and not target.has("cluster"):
            return refuse(f"{word}={getattr(plan, word)}: {target} has no clusters", "leave it out")
    if plan.split > 1:
        clash = "persistent=True" if plan.persistent else 'consumers="pingpong"'
        if plan.persistent or plan.teams > 1:
            return refuse(
                f"split={plan.split} shares one tile, {clash} walks over many", "drop one"
            )
        if plan.cluster != (1, 1, 1):
            return refuse(f"split={plan.split} makes a cluster of its own", "leave cluster out")
    return None


def check_kept(func: Func, wanted: Wanted) -> None:
    """Raise CompileError where a pass could not give the user the schedule he asked for."""
    reasons = {
        "persistent": "it has no T.Pipelined loop, or walks over the grid by itself",
        "specialise": "no copy of a T.Pipelined loop can be brought by TMA",
    }
    for name, reason in reasons.items():
        if wanted.fields.get(name) and not func.attrs.get(name):
            raise CompileError(
                f"T.annotate_schedule({name}=True) cannot hold for {func.name}: {reason}",
                wanted.loc,
                f"leave {name} out",
            )


def is_open(o: Op) -> bool:
    """Whether the plan says how many stages this loop has."""
    return isinstance(o, For) and o.kind == "pipelined" and o.num_stages < 0


def has_pipelined_product(func: Func) -> bool:
    """Whether some tile product stands in a pipelined loop."""
    loops = (o for o in walk(func.body) if isinstance(o, For) and o.kind == "pipelined")
    return any(isinstance(o, Gemm) for loop in loops for o in walk(loop.body))


@dataclass(frozen=True)
class _Shared:
    """Bytes of shared memory before layouts are known: `ring`, one version of all buffers of the
    loops whose stages are open; `explicit`, all versions of those of other pipelined loops; `rest`,
    everything else. `trips`: iterations of the longest open loop, 0 where one is not known."""

    ring: int
    explicit: int
    rest: int
    trips: int


def _shared(func: Func, target: Target, plan: Plan) -> _Shared:
    loops = [o for o in walk(func.body) if isinstance(o, For) and o.kind == "pipelined"]
    consts = {o.result: o.value for o in walk(func.body) if isinstance(o, Const)}
    versions: dict[Value, int] = {}
    trips: list[int] = []
    for loop in loops:
        for o in loop.body.ops:
            if isinstance(o, Copy) and o.source.buffer.space == "global":
                versions[o.dest] = loop.num_stages
        bounds = [consts.get(v) for v in (loop.lo, loop.hi, loop.step)]
        known = [b for b in bounds if isinstance(b, int)]
        if is_open(loop):
            trips.append(-(-(known[1] - known[0]) // max(known[2], 1)) if len(known) == 3 else 0)
    threads = (plan.threads or func.attrs.get("threads") or DEFAULT_THREADS) * plan.teams
    ring, explicit = 0, 0
    rest = threads // target.warp_size * 2048 if plan.staged_store else 0  # a chunk of each warp
    if plan.split > 1:  # what a block hands over
        sums = {o.c for o in walk(func.body) if isinstance(o, Gemm)}
        rest += sum(4 * c.buffer.size for c in sums)
    for o in walk(func.body):
        if isinstance(o, Alloc) and o.type.space == "shared":
            size, count = version_bytes(o.type), versions.get(o.result, 1)
            if count < 0:
                ring += size
            elif count > 1:
                explicit += size * count
            else:
                rest += size
    return _Shared(ring, explicit, rest, 0 if 0 in trips else max(trips, default=0))


def stages_that_fit(func: Func, target: Target, plan: Plan) -> int:
    """Versions that the buffers of the open loops may have: as many as shared memory holds beside
    all other buffers, and no more than a loop of known length has iterations. At least 2; the exact
    check is `plan_shared`'s."""
    found = _shared(func, target, plan)
    if not found.ring:
        return 2
    limit, most = target.shared_bytes, MOST_STAGES
    if not target.has("tma"):
        limit, most = limit // 2, 4  # two blocks hide each other's latency
    if found.trips:
        most = min(most, found.trips)
    return max(2, min(most, (limit - found.rest - found.explicit - 1024) // found.ring))


def shared_bytes(func: Func, target: Target, plan: Plan) -> tuple[int, int, int]:
    """Bytes of shared memory that a block will need, about; those of the pipelined loops' buffers
    among them; and the versions these have (the least over the loops)."""
    found = _shared(func, target, plan)
    ring = found.explicit + found.ring * plan.stages
    loops = (o for o in walk(func.body) if isinstance(o, For) and o.kind == "pipelined")
    stages = [plan.stages if is_open(o) else max(o.num_stages, 1) for o in loops]
    return ring + found.rest, ring, min(stages, default=1)


def thread_choices(func: Func) -> tuple[int | None, ...]:
    """Numbers of threads worth trying: None is what the user wrote, or the default where the
    kernel counts its threads by itself."""
    if func.attrs.get("threads") is not None:
        return (None,)
    if any(isinstance(o, ThreadIndex) for o in walk(func.body)):
        return (None,)
    products = [o.shape for o in walk(func.body) if isinstance(o, Gemm)]
    if not products:
        return (None,)
    return (256, 128) if max(m * n for m, n, _ in products) > 128 * 128 else (128, 256)


def name_of(plan: Plan) -> str:
    """What a schedule is called in dumps: "ping-pong, direct stores"."""
    kinds = ["ping-pong"] if plan.teams > 1 else ["specialised"] if plan.specialise else []
    kinds += ["persistent"] if plan.persistent and plan.teams == 1 else []
    extras = ["direct stores"] if plan.specialise and not plan.staged_store else []
    extras += ["stores by TMA"] if plan.staged_store and not plan.specialise else []
    extras += ["one buffer"] if plan.single_buffer else []
    return ", ".join([" ".join(kinds) or "plain", *extras])


def _schedules(func: Func, target: Target) -> list[Plan]:
    choices = thread_choices(func)
    if not target.has("cp_async"):
        kinds = (Plan("plain"), Plan("plain, one buffer", single_buffer=True))
        return [replace(plan, threads=t) for t in choices for plan in kinds]
    if not target.has("tma"):
        return [_plan(threads=t) for t in choices]
    kinds = (
        _plan(specialise=True, persistent=True, staged_store=True),
        _plan(specialise=True, persistent=True),
    )
    made = [replace(plan, threads=t) for t in choices for plan in kinds]
    if has_pipelined_product(func):
        if func.attrs.get("threads") in (None, TEAM_THREADS):
            t = TEAM_THREADS if func.attrs.get("threads") is None else None
            made += [
                _plan(specialise=True, persistent=True, staged_store=s, teams=2, threads=t)
                for s in (True, False)
            ]
        made += [
            _plan(specialise=True, staged_store=s, threads=t)
            for t in choices
            for s in (True, False)
        ]
    made += [_plan(threads=t) for t in choices]
    return made + _clustered(func, target, choices)


def _clustered(func: Func, target: Target, choices: tuple[int | None, ...]) -> list[Plan]:
    """Plans that only the score asks for: neighbours that load for one another, blocks that share
    a sum."""
    if not target.has("cluster") or not has_pipelined_product(func):
        return []
    if func.attrs.get("cluster_dims") is not None:
        return []
    made = [_plan(specialise=True, split=n, threads=t) for t in choices for n in SPLITS]
    if len(yielded(func.grid)) > 1:
        made += [
            _plan(specialise=True, persistent=True, staged_store=True, cluster=c, threads=t)
            for t in choices
            for c in ((1, 2, 1), (2, 1, 1))
        ]
    return made


def _plan(**fields: Any) -> Plan:
    made = Plan("", **fields)
    return replace(made, name=name_of(made))
