"""Tuning by measurement: `tilec.autotune`.

candidates   what is tried: configurations listed by the user, plans and tiles that are predicted
compiling    one candidate compiled in another process: only values that can be pickled travel
workers      the processes that do so where the user brings no executor
options      what `autotune` is told, and what it tells
trials       a candidate is run, checked and timed
search       all of them, within a budget
tuned        the kernel that is tuned at its first call for a problem, and the results on disk
"""

from tilec.autotuning.options import Tuning
from tilec.autotuning.trials import Trial
from tilec.autotuning.tuned import Tuned, autotune
from tilec.autotuning.workers import Processes

__all__ = ["Processes", "Trial", "Tuned", "Tuning", "autotune"]
