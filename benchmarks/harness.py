"""What every GPU benchmark shares: interleaved timing, device facts, results as JSON."""

from __future__ import annotations

import json
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def interleaved(
    candidates: dict[str, Callable[[], Any]], rounds: int, inner: int = 1
) -> dict[str, list[float]]:
    """Milliseconds per call of each candidate, `rounds` samples: in every round each candidate is
    timed once by CUDA events, in a new random order, so that clock and temperature are shared."""
    import torch

    names = list(candidates)
    samples: dict[str, list[float]] = {n: [] for n in names}
    for fn in candidates.values():
        fn()
    torch.cuda.synchronize()
    for number in range(rounds + 1):
        random.shuffle(names)
        pairs = []
        for name in names:
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record()
            for _ in range(inner):
                candidates[name]()
            end.record()
            pairs.append((name, start, end))
        torch.cuda.synchronize()
        if number:
            for name, start, end in pairs:
                samples[name].append(start.elapsed_time(end) / inner)
    return samples


def graphed(fn: Callable[[], Any], repeat: int) -> Callable[[], None]:
    """`repeat` calls captured in one CUDA graph: what short kernels are timed with."""
    import torch

    fn()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeat):
            fn()
    return graph.replay


def spread(samples: list[float]) -> dict[str, float]:
    """Median and the 10th and 90th percentile."""
    ordered = sorted(samples)
    at = lambda q: ordered[min(len(ordered) - 1, int(q * len(ordered)))]  # noqa: E731
    return {"median": statistics.median(ordered), "p10": at(0.1), "p90": at(0.9)}


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

        facts["torch"] = torch.__version__
        if torch.cuda.is_available():
            facts["device"] = torch.cuda.get_device_name()
            facts["cuda"] = str(torch.version.cuda)
            asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            facts["driver"] = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    except ImportError:
        pass
    return facts


def save(path: str | Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Write one benchmark's rows with the machine's facts."""
    text = json.dumps({"benchmark": name, "machine": machine(), "rows": rows}, indent=1)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text + "\n")
