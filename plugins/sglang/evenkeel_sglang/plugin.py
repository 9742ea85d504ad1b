"""SGLang's entry point into the plug-in: `evenkeel` of the group `sglang.srt.plugins`.

Called in every process of an engine before anything is served. If SGLang does not fit (`seams`), the engine either stops or, where
routers are there to order its queue, starts without the policy (`stock`).
"""

from __future__ import annotations

import os

from evenkeel_contract.enginesettings import EngineSettings
from evenkeel_contract.queueorder import OnMismatch

from evenkeel_sglang import seams, stock


def register() -> None:
    """Check the seams and register a hook at each. Raises `SeamError`, which ends the process."""
    try:
        seams.check()
    except seams.SeamError as error:
        settings = EngineSettings.from_environment(os.environ)
        if settings.on_mismatch is OnMismatch.REFUSE or settings.reports_port is None:
            raise
        stock.start(error.reason, settings)
        return
    # After the check: on a version without them both would fail with a less useful message.
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from evenkeel_sglang import hooks

    for seam, hook, kind in (
        (seams.ADD_FLAGS, hooks.add_flags, HookType.AFTER),
        (seams.READ_FLAGS, hooks.read_flags, HookType.AFTER),
        (seams.BATCH_ITEM, hooks.batch_item, HookType.AFTER),
        (seams.GENERATE_REQUEST, hooks.generate_request, HookType.BEFORE),
        (seams.INIT_POLICY, hooks.init_policy, HookType.AROUND),
        (seams.NEW_PREFILL, hooks.new_prefill, HookType.AROUND),
        (seams.RUN_BATCH, hooks.run_batch, HookType.AROUND),
        (seams.PROCESS_RESULT, hooks.process_result, HookType.AROUND),
        (seams.CALC_PRIORITY, hooks.calc_priority, HookType.AROUND),
        (seams.ADD_REQUEST, hooks.add_request, HookType.AROUND),
        (seams.ADD_CHUNK, hooks.reserve_one, HookType.AROUND),
        (seams.NEW_ADDER, hooks.reserve_running, HookType.AROUND),
        (seams.RETRACTED_RATIO, hooks.reserve_all, HookType.AROUND),
        (seams.RECEIVE, hooks.received, HookType.AFTER),
        (seams.PROCESS_INPUT, hooks.process_input, HookType.BEFORE),
    ):
        HookRegistry.register(seam.path, hook, kind)
    # Fairness does not depend on these, so a misfit does not stop the engine; routers that come late get the reason of the first.
    if not seams.misfits(seams.PENDING_TOKENS):
        HookRegistry.register(seams.PENDING_TOKENS.path, hooks.pending_tokens, HookType.AROUND)
    if not any(map(seams.misfits, seams.MEMORY)):
        HookRegistry.register(seams.DECODE_MEMORY.path, hooks.decode_memory, HookType.AROUND)
        HookRegistry.register(seams.RETRACTION_ORDER.path, hooks.retraction_order, HookType.AROUND)
    hooks.pages.trouble = seams.misfits(seams.KV_PUBLISH)
    if not hooks.pages.trouble:
        HookRegistry.register(seams.KV_PUBLISH.path, hooks.kv_published, HookType.AFTER)
