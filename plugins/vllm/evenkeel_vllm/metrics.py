"""The plug-in's metrics on vLLM's `/metrics`: those of both plug-ins (`evenkeel_plugin.metrics`).

vLLM's scheduler runs in a process of its own, and its HTTP server shows only the metrics of the server's process. So the first
process makes a folder, in which the scheduler's process writes its values. With several HTTP servers vLLM makes such a folder
itself (PROMETHEUS_MULTIPROC_DIR), and it is used.
"""

from __future__ import annotations

import multiprocessing
import os
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Final

from prometheus_client import REGISTRY, values
from prometheus_client.multiprocess import MultiProcessCollector

FOLDER_VARIABLE: Final = "EVENKEEL_METRICS_FOLDER"
_OF_VLLM: Final = "PROMETHEUS_MULTIPROC_DIR"

_folder: TemporaryDirectory[str] | None = None
"""The folder of metrics that the first process made; removed at its end."""


def register() -> None:
    """vLLM's entry point `vllm.general_plugins`, called in each process of an engine before it starts others. Safe to call again."""
    global _folder
    if _folder is None and multiprocessing.parent_process() is None:
        _folder = TemporaryDirectory(prefix="evenkeel-metrics-")
        os.environ[FOLDER_VARIABLE] = _folder.name
        REGISTRY.register(MultiProcessCollector(None, _folder.name))  # type: ignore[no-untyped-call]


def of_scheduler() -> ModuleType:
    """The metrics, for the scheduler's process. Call it before anything else there imports them."""
    folder = os.environ.get(FOLDER_VARIABLE)
    is_other = multiprocessing.parent_process() is not None
    if folder is not None and is_other and _OF_VLLM not in os.environ:
        os.environ[_OF_VLLM] = folder
        # prometheus_client looks at the variable at its import only, which came earlier.
        values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]
    from evenkeel_plugin import metrics

    return metrics
