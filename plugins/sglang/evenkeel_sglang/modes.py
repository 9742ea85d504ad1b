"""Modes of SGLang in which requests would not be scheduled by the policy: an engine with one of them does not start.

The parent process checks its flags and environment, seconds after its start and before it loads the model.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from evenkeel_sglang.seams import SeamError


@dataclass(frozen=True, slots=True)
class Mode:
    """One setting of SGLang's."""

    setting: str
    flag: str
    is_on: Callable[[Any], bool]
    reason: str


REFUSED: Final = (
    Mode("dp_size", "--dp-size", lambda ranks: ranks > 1, "each data-parallel rank would keep deficits of its own; use more replicas"),
    Mode("disaggregation_mode", "--disaggregation-mode", lambda mode: mode != "null", "its queues are not the one that the policy orders"),
    Mode("dllm_algorithm", "--dllm-algorithm", bool, "its scheduler takes requests in order of arrival"),
    Mode("enable_pdmux", "--enable-pdmux", bool, "its loop computes prompts and decode steps at once, so engine time cannot be divided"),
    Mode("enable_priority_scheduling", "--enable-priority-scheduling", bool, "priorities would decide over deficits"),
    Mode("lora_drain_wait_threshold", "--lora-drain-wait-threshold", lambda seconds: seconds > 0, "the policy itself makes room for adapters that wait"),
)  # fmt: skip


TRUE: Final = frozenset({"1", "true", "y", "yes"})
"""How SGLang reads a variable that is set."""
REFUSED_VARIABLES: Final = {
    "SGLANG_RUST_SERVER": "its requests have no client key, so all of them are the unknown client's",
}


def check(server_args: Any) -> None:
    """Raise `SeamError` if a mode is on. Settings that this version of SGLang lacks are off. Reads the environment too."""
    for mode in REFUSED:
        value = getattr(server_args, mode.setting, None)
        if value is not None and mode.is_on(value):
            raise SeamError(f"{mode.flag} is set; remove it: {mode.reason}")
    for name, reason in REFUSED_VARIABLES.items():
        if os.environ.get(name, "").lower() in TRUE:
            raise SeamError(f"{name} is set; remove it: {reason}")
