"""`UNDEF`: the value of what was never written.

It absorbs arithmetic, so that code which computes with it and throws the result away runs on. Where
it reaches memory, a branch or a hardware row, that is a finding."""

from __future__ import annotations

from typing import Any


class Undefined:
    """The type of `UNDEF`; arithmetic with it, NumPy's too, gives `UNDEF`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "undefined"

    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Undefined:
        return self

    def __array_function__(self, *args: Any, **kwargs: Any) -> Undefined:
        return self

    def __getitem__(self, index: Any) -> Undefined:
        return self

    def _absorb(self, *others: Any, **kwargs: Any) -> Undefined:
        return self

    astype = view = reshape = _absorb
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _absorb
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _absorb
    __truediv__ = __rtruediv__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _absorb
    __lt__ = __le__ = __gt__ = __ge__ = _absorb
    __neg__ = __invert__ = _absorb
    __eq__ = __ne__ = _absorb  # type: ignore[assignment]
    __hash__ = object.__hash__


UNDEF = Undefined()


def is_undefined(x: Any) -> bool:
    """Whether any part of a value was never written."""
    if type(x) is tuple:
        return any(is_undefined(e) for e in x)
    return x is UNDEF
