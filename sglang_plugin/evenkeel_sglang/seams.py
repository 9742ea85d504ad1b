"""The functions of SGLang that the plug-in hooks into, and the check that they are as it expects.

SGLang only logs a hook that does not fit and runs on with a policy of its own. An engine must not silently serve without
fairness, so the check comes first and ends the process.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

TESTED: Final = ("0.5.21", "0.5.23")
SUPPORTED: Final = f"0.5.21 and newer ({' and '.join(TESTED)} are tested)"


class SeamError(SystemExit):
    """This SGLang does not fit the plug-in. Not an `Exception`, so that no handler of SGLang's swallows it."""


@dataclass(frozen=True, slots=True)
class Seam:
    """One function of SGLang's and the parameters that the plug-in relies on, in their order."""

    path: str
    parameters: tuple[str, ...]
    may_have_more: bool = False
    """Whether other parameters may follow."""


ADD_FLAGS: Final = Seam("sglang.srt.server_args.ServerArgs.add_cli_args", ("parser",))
READ_FLAGS: Final = Seam("sglang.srt.server_args.ServerArgs.from_cli_args", ("args",))
INIT_POLICY: Final = Seam("sglang.srt.managers.scheduler.Scheduler.init_schedule_policy", ("self",))
NEW_PREFILL: Final = Seam(
    "sglang.srt.managers.scheduler.Scheduler.get_new_batch_prefill", ("self", "running_batch")
)
PROCESS_RESULT: Final = Seam(
    "sglang.srt.managers.scheduler.Scheduler.process_batch_result", ("self", "batch", "result")
)
CALC_PRIORITY: Final = Seam(
    "sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority",
    ("self", "waiting_queue", "running_batch", "processed_tokens"),
)
ADD_REQUEST: Final = Seam(
    "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req",
    ("self", "req", "has_chunked_req", "truncation_align_size"),
)
ADD_CHUNK: Final = Seam(
    "sglang.srt.managers.schedule_policy.PrefillAdder.add_chunked_req", ("self", "req")
)
NEW_ADDER: Final = Seam(
    "sglang.srt.managers.schedule_policy.PrefillAdder.__init__",
    ("self", "page_size", "tree_cache", "token_to_kv_pool_allocator", "running_batch"),
    may_have_more=True,
)
RETRACTED_RATIO: Final = Seam(
    "sglang.srt.managers.scheduler_components.new_token_ratio_tracker"
    ".NewTokenRatioTracker.estimate_new_token_ratio_after_retract",
    ("reqs",),
)
RECEIVE: Final = Seam(
    "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver._pull_raw_reqs",
    ("self",),
)
PROCESS_INPUT: Final = Seam(
    "sglang.srt.managers.scheduler.Scheduler.process_input_requests", ("self", "recv_reqs")
)
BATCH_ITEM: Final = Seam(
    "sglang.srt.managers.io_struct.GenerateReqInput.__getitem__", ("self", "i")
)
GENERATE_REQUEST: Final = Seam(
    "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request",
    ("self", "obj", "request"),
)
SEAMS: Final[Sequence[Seam]] = (
    BATCH_ITEM,
    GENERATE_REQUEST,
    ADD_FLAGS,
    READ_FLAGS,
    INIT_POLICY,
    NEW_PREFILL,
    PROCESS_RESULT,
    CALC_PRIORITY,
    ADD_REQUEST,
    ADD_CHUNK,
    NEW_ADDER,
    RETRACTED_RATIO,
    RECEIVE,
    PROCESS_INPUT,
)

KV_PUBLISH: Final = Seam(
    "sglang.srt.disaggregation.kv_events.ZmqEventPublisher.publish", ("self", "events")
)
"""Not needed for fairness: without it routers that come late cannot learn what the cache holds."""

# Either of them matches a request against the cache: the first until 0.5.21, the second from 0.5.22 on.
MATCHERS: Final = (
    "sglang.srt.managers.schedule_policy.match_prefix_for_req",
    "sglang.srt.mem_cache.common.match_kv_cache",
)


def check() -> None:
    """Raises `SeamError` with the version, the seam and what is supported, if one does not fit."""
    for seam in SEAMS:
        if reason := misfits(seam):
            raise misfit(reason)
    matcher()


def misfits(seam: Seam) -> str:
    """Why a seam does not fit the plug-in; empty if it does."""
    try:
        found = pkgutil.resolve_name(seam.path)
    except (ImportError, AttributeError) as error:
        return f"there is no {seam.path} ({error})"
    parameters = tuple(inspect.signature(found).parameters)
    relied_on = parameters[: len(seam.parameters)] if seam.may_have_more else parameters
    if relied_on != seam.parameters:
        return f"{seam.path} takes ({', '.join(parameters)}), not ({', '.join(seam.parameters)})"
    return ""


def matcher() -> Any:
    """SGLang's function that matches a request: (request, cache) → sets `num_matched_prefix_tokens`."""
    for path in MATCHERS:
        try:
            function = pkgutil.resolve_name(path)
        except (ImportError, AttributeError):
            continue
        order = tuple(inspect.signature(function).parameters)[:2]
        if order == ("req", "tree_cache"):
            return function
        if order == ("tree_cache", "req"):
            return lambda req, tree_cache: function(tree_cache, req, include_req=True)
        raise misfit(f"{path} begins with ({', '.join(order)})")
    raise misfit(f"there is neither {' nor '.join(MATCHERS)}")


def misfit(reason: str) -> SeamError:
    """The error for a seam that does not fit."""
    return SeamError(
        f"evenkeel: this SGLang ({installed()}) does not fit the plug-in: {reason}. "
        f"Supported: {SUPPORTED}. Refusing to start, since requests would be served without "
        "fairness; use a supported version, or start without the plug-in (SGLANG_PLUGINS=none)."
    )


def installed() -> str:
    """The version of SGLang."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return "of unknown version"
