"""What every benchmark records: the machine, and results as JSON."""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path
from typing import Any

from benchmarks import figures


def machine() -> dict[str, str]:
    """Device, driver and versions, as far as they can be asked for."""
    import llvmlite
    import numpy

    import tilec

    facts = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "llvmlite": llvmlite.__version__,
        "numpy": numpy.__version__,
        "tilec": tilec.__version__,
    }
    try:
        import torch

        from benchmarks.gpu import device_facts
    except ImportError:
        return facts
    return {**facts, "torch": torch.__version__, **device_facts()}


def save(path: str | Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Write one benchmark's rows with the machine's facts, and their figure beside them."""
    text = json.dumps({"benchmark": name, "machine": machine(), "rows": rows}, indent=1)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text + "\n")
    figures.draw(Path(path).stem, Path(path).parent)
