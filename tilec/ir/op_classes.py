"""How a class becomes one of the IR's ops: what its fields are, operands, regions or attributes, is
read off their types, what else it does and gives is said to the `op` decorator."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

from tilec.ir.core import Op
from tilec.ir.errors import InternalError
from tilec.ir.types import DType, Type, scalar_type
from tilec.ir.values import Effect, Effects, Region

OPS: dict[str, type[Op]] = {}
_OPERANDS_OF = {  # a field of each kind, as the items of a tuple
    "Value": "{0}",
    "Value | None": "*(() if {0} is None else ({0},))",
    "tuple[Value, ...]": "*{0}",
    "Region": "{0}.buffer, *{0}.offsets",
    "Region | None": "*(() if {0} is None else ({0}.buffer, *{0}.offsets))",
    "Block": "{0}",
}
_O = TypeVar("_O", bound=type[Op])


@dataclass_transform(frozen_default=True, eq_default=False)
def op(
    name: str,
    *,
    pure: bool = False,
    reads: str = "",
    writes: str = "",
    updates: str = "",
    describes: str = "",
    engine: str = "threads",
    effects: Effects | None = None,
    result: DType | str | None = None,
) -> Callable[[_O], _O]:
    """Make a class an op called `name`. `pure`: no effect but its results, may be removed or
    repeated. `reads`, `writes`, `updates`, `describes`: the operands, by the names of their fields,
    to which `engine` does that; `effects`: what every op of the class does besides, whatever its
    fields. Where that does not say it, the class has a method. `result`: the dtype of its one
    result, a scalar, the operand whose type it has ("value"), an element of which it is
    ("source[]"), or the field that is its type ("type"). Raises InternalError for a class that does
    not say what it does."""
    touched = [
        (kind, field)
        for kind, fields in zip(
            ("read", "write", "update", "describe"), (reads, writes, updates, describes)
        )
        for field in fields.split()
    ]

    def stated(o: Op) -> Effects:
        regions = [(kind, r) for kind, field in touched for r in _boxes(o, getattr(o, field))]
        return (*(Effect(kind, r, engine) for kind, r in regions), *(effects or ()))

    def make(cls: _O) -> _O:
        cls = dataclass(eq=False)(cls)  # type: ignore[assignment]
        operands, regions, attributes = dict[str, str](), dict[str, str](), []
        for f in dataclasses.fields(cls):
            if f.name in ("results", "loc"):
                continue
            kind = str(f.type)
            if kind == "Block":
                regions[f.name] = kind
            elif kind in _OPERANDS_OF:
                operands[f.name] = kind
            else:
                attributes.append(f.name)
        if touched:
            setattr(cls, "effects", _once(stated))  # noqa: B010
        elif effects is not None:
            setattr(cls, "effects", lambda o: effects)  # noqa: B010
        elif not pure and not regions:
            if cls.effects is Op.effects:
                raise InternalError(f"{name} is not pure and does not state its effects")
            setattr(cls, "effects", _once(cls.effects))  # noqa: B010
        if isinstance(result, str):
            setattr(cls, "infer", _infer(result))  # noqa: B010
        elif result is not None:
            types = (scalar_type(result),)
            setattr(cls, "infer", lambda o: types)  # noqa: B010
        cls.opname, cls.pure = name, pure
        cls.operand_fields = tuple(operands)
        cls.region_fields = tuple(regions)
        cls.attribute_fields = tuple(attributes)
        setattr(cls, "copied", _copied(cls))  # noqa: B010
        setattr(cls, "operands", _all_of(operands))  # noqa: B010
        setattr(cls, "regions", _all_of(regions))  # noqa: B010
        OPS[name] = cls
        return cls

    return make


def _infer(result: str) -> Callable[[Op], Sequence[Type]]:
    """`Op.infer` of a class whose one result is said so."""
    name = result.removesuffix("[]")
    if name != result:
        return lambda o: (scalar_type(getattr(o, name).dtype),)
    like = operator.attrgetter(name if name == "type" else f"{name}.type")
    return lambda o: (like(o),)


def _boxes(o: Op, operand: Any) -> tuple[Region, ...]:
    """The regions that an operand names; of a buffer, its element at the op's indices, or somewhere
    in it."""
    if isinstance(operand, tuple):
        return tuple(r for v in operand for r in _boxes(o, v))
    if isinstance(operand, Region):
        return (operand,)
    indices = getattr(o, "indices", ())
    return (Region(operand, indices, (1,) * len(indices)),)


def _once(effects: Callable[[Op], Effects]) -> Callable[[Op], Effects]:
    """`Op.effects` of a class, kept by each op: passes ask all of them."""

    @functools.wraps(effects)
    def kept(o: Op) -> Effects:
        found = o.kept_effects
        if found is None:
            found = o.kept_effects = effects(o)  # type: ignore[misc]
        return found

    return kept


def _copied(cls: type[Op]) -> Callable[[Op], Op]:
    """`Op.copied` of a class."""
    given = ", ".join(f"{f.name}=o.{f.name}" for f in dataclasses.fields(cls))
    made: Callable[[Op], Op] = eval(f"lambda o: cls({given})", {"cls": cls})
    return made


def _all_of(kinds: Mapping[str, str]) -> Any:
    """`Op.operands` or `Op.regions` for a class whose fields of that sort have these kinds."""
    if not kinds:
        return ()
    if len(kinds) > 1 and {*kinds.values()} <= {"Value", "Block"}:
        return property(operator.attrgetter(*kinds))
    parts = (_OPERANDS_OF[kind].format(f"o.{name}") + ", " for name, kind in kinds.items())
    return property(eval(f"lambda o: ({''.join(parts)})"))
