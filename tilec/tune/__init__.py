"""What a kernel is predicted to take, and the choice among tiles and plans by it
(docs/schedules.md).

work    what the kernel does, read from its TILE form; `transfers`: the tiles that move
cost    seconds of one plan, from the work and the target's speeds
bound   seconds that no plan takes less than
rank    all plans of a kernel, best first
choose  the compile-time arguments and the plan for one launch

plans      those worth trying for a kernel
footprint  what they keep in shared memory
fit        the first that the passes find to fit
packing    operands that are copied first
table      configurations, for people
"""

from tilec.tune.choose import Choice, Chooser
from tilec.tune.cost import Estimate
from tilec.tune.rank import Candidate, Ranked
from tilec.tune.table import Recommendations

__all__ = ["Candidate", "Choice", "Chooser", "Estimate", "Ranked", "Recommendations"]
