"""What the plug-in relies on in vLLM, and the check that it is there. Modes in which requests bypass the policy are refused.

`scheduler` has what follows a misfit.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

TESTED: Final = ("0.32.0", "0.33.0")
"""The versions with which the tests pass (`make test-vllm`, `python -m tests.vllm.versions --tests`). Any other version is a misfit."""
SUPPORTED: Final = ", ".join(TESTED)
SCHEDULER: Final = "vllm.v1.core.sched.scheduler.Scheduler"
QUEUE: Final = "vllm.v1.core.sched.request_queue.RequestQueue"
QUEUE_METHODS: Final = frozenset(
    {
        *("add_request", "pop_request", "peek_request", "prepend_request", "prepend_requests"),
        *("remove_request", "remove_requests", "__bool__", "__len__", "__iter__"),
    }
)
METHODS: Final = {
    f"{SCHEDULER}.schedule": ("self", "throttle_prefills"),
    f"{SCHEDULER}.update_from_output": ("self", "scheduler_output", "model_runner_output"),
    f"{SCHEDULER}.finish_requests": ("self", "request_ids", "finished_status"),
}
"""Methods that the plug-in overrides → their parameters."""
CALLED: Final = {
    "vllm.v1.core.kv_cache_manager.KVCacheManager.get_computed_blocks": ("self", "request"),
}
"""Methods that it calls. Other parameters may follow, if they have defaults (0.33 has one)."""


class SeamError(Exception):
    """The engine must not start: this vLLM does not fit the plug-in, or a mode is on that bypasses the policy."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One setting of vLLM's."""

    flag: str
    is_on: Callable[[Any], bool]
    """Whether the mode is on in a `vllm.config.VllmConfig`."""
    reason: str


REFUSED: Final = (
    Mode("--data-parallel-size", lambda config: config.parallel_config.data_parallel_size > 1, "each data-parallel rank would keep deficits of its own; use more replicas"),
    Mode("--scheduling-policy", lambda config: config.scheduler_config.policy != "fcfs", "priorities would decide over deficits"),
    Mode("--diffusion-config", lambda config: config.diffusion_config is not None, "vLLM has a scheduler of its own for diffusion models"),
    Mode("--kv-transfer-config", lambda config: config.kv_transfer_config is not None, "requests whose cache is loaded bypass the queue"),
)  # fmt: skip


def misfits() -> list[str]:
    """Each place in vLLM that is not as expected; then, if the version is not tested, that."""
    found = []
    for path, parameters in (METHODS | CALLED).items():
        try:
            function = pkgutil.resolve_name(path)
        except (ImportError, AttributeError) as error:
            found.append(f"there is no {path} ({error})")
            continue
        actual = inspect.signature(function).parameters
        relied_on = [
            name
            for name, parameter in actual.items()
            if path in METHODS or parameter.default is parameter.empty
        ]
        if tuple(relied_on) != parameters:
            found.append(f"{path} takes ({', '.join(actual)}), not ({', '.join(parameters)})")
    abstract = pkgutil.resolve_name(QUEUE).__abstractmethods__
    if abstract != QUEUE_METHODS:
        found.append(f"{QUEUE} differs by {', '.join(sorted(abstract ^ QUEUE_METHODS))}")
    if installed() not in TESTED:
        found.append(f"version {installed()} is not tested with this plug-in")
    return found


def check_modes(config: Any) -> None:
    """Raise `SeamError` if a mode is on. `config`: `vllm.config.VllmConfig`."""
    for mode in REFUSED:
        if mode.is_on(config):
            raise misfit(f"{mode.flag} is set; remove it: {mode.reason}")


def misfit(reason: str) -> SeamError:
    """The error for what does not fit."""
    return SeamError(
        f"evenkeel: this vLLM ({installed()}) does not fit the plug-in: {reason}. Supported: {SUPPORTED}. "
        "Refusing to start, since requests would be served without fairness; use a supported version, or start "
        "without --scheduler-cls."
    )


def installed() -> str:
    """The version of vLLM, without the device that it was built for (`0.32.0+cpu`)."""
    try:
        return version("vllm").partition("+")[0]
    except PackageNotFoundError:
        return "of unknown version"
