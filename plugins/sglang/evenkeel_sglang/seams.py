"""The functions of SGLang that the plug-in hooks into, and the check that they are as it expects.

SGLang only logs a hook that does not fit and runs on with a policy of its own. An engine must not silently serve without
fairness, so the check comes first. `plugin` has what follows a misfit.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

TESTED: Final = ("0.5.20", "0.5.21", "0.5.22", "0.5.23")
"""The versions with which the tests pass (`python -m tests.sglang.versions`). Any other version is a misfit."""
SUPPORTED: Final = ", ".join(TESTED)


class SeamError(SystemExit):
    """This SGLang does not fit the plug-in. Not an `Exception`, so that no handler of SGLang's swallows it."""

    def __init__(self, reason: str) -> None:
        """`reason`: without the remedy."""
        super().__init__(
            f"evenkeel: this SGLang ({installed()}) does not fit the plug-in: {reason}. "
            f"Supported: {SUPPORTED}. Refusing to start, since requests would be served without "
            "fairness; use a supported version, or start without the plug-in (SGLANG_PLUGINS=none)."
        )
        self.reason = reason


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
RUN_BATCH: Final = Seam(
    "sglang.srt.managers.scheduler.Scheduler.run_batch", ("self", "batch"), may_have_more=True
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
BUDGET_STATE: Final = Seam(
    "sglang.srt.managers.schedule_policy.PrefillAdder.budget_state", ("self",)
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
IN_FLIGHT: Final = Seam("sglang.srt.managers.scheduler.Scheduler.collect_inflight_reqs", ("self",))
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
    RUN_BATCH,
    PROCESS_RESULT,
    CALC_PRIORITY,
    ADD_REQUEST,
    ADD_CHUNK,
    BUDGET_STATE,
    NEW_ADDER,
    RETRACTED_RATIO,
    RECEIVE,
    PROCESS_INPUT,
    IN_FLIGHT,
)

KV_PUBLISH: Final = Seam(
    "sglang.srt.disaggregation.kv_events.ZmqEventPublisher.publish", ("self", "events")
)
"""The publisher of KV events. Routers that come late cannot learn what the cache holds without this seam."""
PENDING_TOKENS: Final = Seam(
    "sglang.srt.managers.scheduler_components.load_inquirer.SchedulerLoadInquirer._get_num_pending_tokens",
    ("self", "chunk_deduct"),
)
"""The count of waiting tokens for the log. SGLang adds up its whole queue in each pass without this seam."""
DECODE_MEMORY: Final = Seam(
    "sglang.srt.managers.schedule_batch.ScheduleBatch.check_decode_mem",
    ("self", "selected_indices"),
)
RETRACTION_ORDER: Final = Seam(
    "sglang.srt.managers.schedule_batch.ScheduleBatch._get_decode_retraction_order", ("reqs",)
)
MEMORY: Final = (DECODE_MEMORY, RETRACTION_ORDER)
"""Where SGLang retracts running requests. Memory is not shared (R16) without both seams."""
OPTIONAL: Final[Sequence[Seam]] = (KV_PUBLISH, PENDING_TOKENS, *MEMORY)
"""Seams that fairness does not need: the engine starts with the policy where one of them does not fit."""

SCHEDULER_MODULE: Final = "sglang.srt.managers.scheduler"
LOOP: Final = "the loop over Scheduler.waiting_queue"

# Either of them matches a request against the cache: the first until 0.5.21, the second from 0.5.22 on.
MATCHERS: Final = (
    "sglang.srt.managers.schedule_policy.match_prefix_for_req",
    "sglang.srt.mem_cache.common.match_kv_cache",
)


def check() -> None:
    """Raises `SeamError` with the version, the seam and what is supported, if one does not fit."""
    for _, reason in places():
        if reason:
            raise SeamError(reason)
    if installed() not in TESTED:
        raise SeamError(f"version {installed()} is not tested with this plug-in")


def places() -> Iterator[tuple[str, str]]:
    """(place in SGLang, why it does not fit or an empty text), of each place that fairness needs."""
    for seam in SEAMS:
        yield seam.path, misfits(seam)
    yield LOOP, loop_misfit(source_of(SCHEDULER_MODULE))
    try:
        matcher()
    except SeamError as error:
        yield " or ".join(MATCHERS), error.reason
    else:
        yield " or ".join(MATCHERS), ""


def misfits(seam: Seam) -> str:
    """Why a seam does not fit the plug-in; empty if it does."""
    try:
        found = pkgutil.resolve_name(seam.path)
    except (ImportError, AttributeError) as error:
        return f"there is no {seam.path} ({error})"
    parameters = tuple(inspect.signature(found).parameters)
    return differs(seam, parameters)


def differs(seam: Seam, found: Sequence[str] | None) -> str:
    """Why a function with these parameters does not fit; empty if it does. None: the function is not there."""
    if found is None:
        return f"there is no {seam.path}"
    relied_on = found[: len(seam.parameters)] if seam.may_have_more else found
    if tuple(relied_on) == seam.parameters:
        return ""
    return f"{seam.path} takes ({', '.join(found)}), not ({', '.join(seam.parameters)})"


def source_of(module: str) -> str:
    """The source of a module of SGLang's; empty if there is none."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return ""
    return Path(spec.origin).read_text() if spec is not None and spec.origin else ""


def loop_misfit(source: str) -> str:
    """Why the loop over the waiting queue cannot be the policy's pass, by the scheduler's source; empty if it can.

    The function that calls `calc_priority` must itself walk `self.waiting_queue` and call `add_one_req`: `hooks.calc_priority` gives
    the pass to the function that called it, and to no other.
    """
    openers = [
        function
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef) and _calls(function, "calc_priority")
    ]
    if not openers:
        return f"no function of {SCHEDULER_MODULE} calls calc_priority"
    for function in openers:
        loops = [node for node in ast.walk(function) if isinstance(node, ast.For)]
        walks = [loop for loop in loops if ast.unparse(loop.iter) == "self.waiting_queue"]
        if not any(_calls(loop, "add_one_req") for loop in walks):
            return (
                f"{function.name} of {SCHEDULER_MODULE} calls calc_priority, and its own loop over "
                "self.waiting_queue with add_one_req is not there"
            )
    return ""


def _calls(tree: ast.AST, method: str) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
        for node in ast.walk(tree)
    )


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
        raise SeamError(f"{path} begins with ({', '.join(order)})")
    raise SeamError(f"there is neither {' nor '.join(MATCHERS)}")


def installed() -> str:
    """The version of SGLang."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return "of unknown version"
