"""`tilelang.layout`: `tilec.layout`."""

from typing import Any

from tilec import layout


def __getattr__(name: str) -> Any:
    return getattr(layout, name)
