"""A plug-in of SGLang's for tests and benchmarks: writes down what the scheduler does, one JSON line per event.

It runs in SGLang's scheduler process, with Evenkeel's plug-in or without it, and changes nothing. EVENKEEL_PROBE names the
file, which `tests.sglang.ways` reads. SGLang finds the entry point by PYTHONPATH.

Times are CPU times of the scheduler's thread, so they do not depend on other load.
"""

from __future__ import annotations

import json
import os
from functools import partial
from time import thread_time_ns
from typing import Any, TextIO

_pass: dict[str, Any] | None = None
_matching = False
_out: TextIO | None = None


def register() -> None:
    """Hook in where the plug-in does, and where upstream matches requests against the cache."""
    global _out
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    _out = open(os.environ["EVENKEEL_PROBE"], "a", buffering=1)  # noqa: SIM115 (as long as the process)
    scheduler = "sglang.srt.managers.scheduler.Scheduler"
    policy = "sglang.srt.managers.schedule_policy"
    HookRegistry.register(f"{scheduler}.init_schedule_policy", watch, HookType.AFTER)
    for target, hook in (
        (f"{scheduler}._add_request_to_queue", add_to_queue),
        (f"{policy}.PrefillAdder.add_one_req", add_request),
        # Upstream's sorting looks it up here, Evenkeel's matching there.
        (f"{policy}.match_kv_cache", match),
        ("sglang.srt.mem_cache.common.match_kv_cache", match),
    ):
        HookRegistry.register(target, hook, HookType.AROUND)


def watch(result: None, scheduler: Any) -> None:
    """Wrap what Evenkeel's hooks do not pass on, from outside of them."""
    for owner, name, hook in (
        (scheduler, "get_new_batch_prefill", new_prefill),
        (scheduler, "process_batch_result", process_result),
        (scheduler.policy, "calc_priority", calc_priority),
    ):
        setattr(owner, name, partial(hook, getattr(owner, name)))


def new_prefill(original: Any, *args: Any, **kwargs: Any) -> Any:
    global _pass
    _pass = {"calc_ns": 0, "match_ns": 0, "matches": 0, "add_ns": 0, "admitted": []}
    began_ns = thread_time_ns()
    plan = original(*args, **kwargs)
    _pass["pass_ns"] = thread_time_ns() - began_ns
    if "waiting" in _pass:
        _write("pass", _pass)
    _pass = None
    return plan


def calc_priority(original: Any, waiting_queue: Any, *args: Any, **kwargs: Any) -> None:
    began_ns = thread_time_ns()
    original(waiting_queue, *args, **kwargs)
    if _pass is not None:
        _pass["calc_ns"] += thread_time_ns() - began_ns
        _pass["waiting"] = len(waiting_queue)


def match(original: Any, *args: Any, **kwargs: Any) -> Any:
    global _matching
    # Beyond calc_priority it is admission's own; and a name imported from a hooked module is hooked twice.
    if _pass is None or "waiting" in _pass or _matching:
        return original(*args, **kwargs)
    _matching = True
    began_ns = thread_time_ns()
    result = original(*args, **kwargs)
    _pass["match_ns"] += thread_time_ns() - began_ns
    _pass["matches"] += 1
    _matching = False
    return result


def add_request(original: Any, adder: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    began_ns = thread_time_ns()
    result = original(adder, req, *args, **kwargs)
    if _pass is not None:
        _pass["add_ns"] += thread_time_ns() - began_ns
        if adder.can_run_list and adder.can_run_list[-1] is req:
            context = len(req.origin_input_ids) + len(req.output_ids)
            _pass["admitted"].append((req.rid, req.prefix_len, context - req.prefix_len))
    return result


def process_result(original: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    ran = list(batch.reqs)
    before = [len(req.output_ids) for req in ran]
    mode = "extend" if batch.forward_mode.is_extend() else "decode"
    extend_tokens = batch.extend_num_tokens if mode == "extend" else 0
    began_ns = thread_time_ns()
    original(batch, *args, **kwargs)
    result_ns = thread_time_ns() - began_ns
    made = {req.rid: len(req.output_ids) - count for req, count in zip(ran, before, strict=True)}
    _write(
        "step",
        {
            "mode": mode,
            "result_ns": result_ns,
            "extend_tokens": extend_tokens,
            "made": {rid: tokens for rid, tokens in made.items() if tokens},
            "finished": [req.rid for req in ran if req.finished()],
        },
    )


def add_to_queue(original: Any, scheduler: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    _write("arrival", {"rid": req.rid, "retracted": bool(req.output_ids)})
    return original(scheduler, req, *args, **kwargs)


def _write(kind: str, event: dict[str, Any]) -> None:
    assert _out is not None
    _out.write(json.dumps({"kind": kind, "cpu_ns": thread_time_ns(), **event}) + "\n")
