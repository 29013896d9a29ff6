"""The ops, one frozen dataclass each, by the contract they first appear in (see
`tilec.ir.verify`)."""

# ruff: noqa: F403 (a module says by `__all__` what it has for others)
from tilec.ir.ops.atomic import *
from tilec.ir.ops.by_hand import *
from tilec.ir.ops.control import *
from tilec.ir.ops.foreign import *
from tilec.ir.ops.gather import *
from tilec.ir.ops.peers import *
from tilec.ir.ops.scalar import *
from tilec.ir.ops.scan import *
from tilec.ir.ops.schedule import *
from tilec.ir.ops.thread import *
from tilec.ir.ops.tile import *
