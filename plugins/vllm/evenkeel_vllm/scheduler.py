"""vLLM's scheduler with a replica policy in charge of its waiting queue: `--scheduler-cls evenkeel_vllm.scheduler.FairScheduler`.

If vLLM does not fit the plug-in (`seams`), the engine either ends at its start or, where routers are there to order its queue,
gets vLLM's own scheduler (R12). Otherwise a setting or a mode that is refused ends the start.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping
from typing import Any

from evenkeel_contract.enginesettings import POLICY_VARIABLE, EngineSettings
from evenkeel_contract.heldpages import HeldPages
from evenkeel_contract.queueorder import OnMismatch
from evenkeel_contract.reportbook import ReportBook
from evenkeel_plugin.inactive import serve
from evenkeel_plugin.policy import policy_of
from evenkeel_plugin.reports import ReportServer
from evenkeel_plugin.scheduling import Scheduling
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from evenkeel_vllm import seams
from evenkeel_vllm.metrics import of_scheduler
from evenkeel_vllm.prompts import prompt_facts
from evenkeel_vllm.waiting_queue import FairQueue

metrics = of_scheduler()

logger = logging.getLogger("vllm.evenkeel")
"""A logger below vLLM's, whose level and handlers it uses."""


class FairScheduler(AsyncScheduler):
    """vLLM's scheduler with a policy. The environment has the policy and its settings (contract `enginesettings`)."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        for reason in seams.misfits():
            settings = EngineSettings.from_environment(os.environ)
            if settings.on_mismatch is OnMismatch.REFUSE or settings.reports_port is None:
                raise seams.misfit(reason)
            return _stock(reason, settings, *args, **kwargs)
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        seams.check_modes(self.vllm_config)
        settings = EngineSettings.from_environment(os.environ)
        self.pages = HeldPages()
        publisher: Any = self.kv_event_publisher
        self.kv_event_publisher: Any = RecordedEvents(publisher, self.pages)
        policy = os.environ.get(POLICY_VARIABLE) or "DLPM"
        self.scheduling = self._scheduling(policy, settings)
        self.waiting: FairQueue = FairQueue(self.scheduling)
        self._announce(policy, settings)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        scheduled: Mapping[str, int] = {}
        self.waiting.begin()
        try:
            output = super().schedule(*args, **kwargs)
            scheduled = output.num_scheduled_tokens
        finally:
            self.waiting.end(scheduled)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self.waiting.processed(scheduler_output.num_scheduled_tokens)
        return outputs

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        finished = super().finish_requests(request_ids, finished_status)
        self.waiting.processed([request.request_id for request in finished])
        return finished

    def _scheduling(self, policy: str, settings: EngineSettings) -> Scheduling:
        ordering, accounts = policy_of(policy, settings)
        found = Scheduling(ordering, accounts, match=self._cached_tokens, refused=_refused)
        found.bypassed = _bypassed
        found.received = metrics.received
        found.stalled = metrics.stalled
        return found

    def _cached_tokens(self, one: Any) -> int:
        """Tokens of a waiting request (`VllmRequest`) that the cache has."""
        return int(self.kv_cache_manager.get_computed_blocks(one.request)[1])

    def _announce(self, policy: str, settings: EngineSettings) -> None:
        reports = "no reports"
        if settings.reports_port is not None:
            book = ReportBook(incarnation=settings.incarnation or uuid.uuid4().hex, policy=policy)
            server = ReportServer(
                book,
                self.scheduling.news,
                prompts=lambda: prompt_facts(self.vllm_config),
                pages=self.pages,
                host=settings.reports_host,
                port=settings.reports_port,
            )
            reports = f"reports on port {server.port} as incarnation {book.incarnation}"
        metrics.active(policy)
        logger.info("evenkeel: policy %s orders the waiting queue; %s", policy, reports)


def _stock(reason: str, settings: EngineSettings, *args: Any, **kwargs: Any) -> AsyncScheduler:
    """vLLM's own scheduler; reports and metrics have the reason."""
    scheduler = AsyncScheduler(*args, **kwargs)
    server = serve(reason, settings, host=settings.reports_host)
    metrics.inactive(reason)
    logger.error(
        "evenkeel: this vLLM (%s) does not fit the plug-in: %s. The engine schedules in vLLM's own order; "
        "routers order its queue, by the answers on port %d. EVENKEEL_ON_MISMATCH=Refuse stops it instead.",
        seams.installed(),
        reason,
        server.port,
    )
    return scheduler


class RecordedEvents:
    """vLLM's publisher of KV events; every batch is recorded too."""

    def __init__(self, publisher: Any, pages: HeldPages) -> None:
        self._publisher = publisher
        self._pages = pages

    def publish(self, events: Any) -> None:
        self._publisher.publish(events)
        self._pages.published(events.ts, events.events)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._publisher, name)


_refusals: set[str] = set()


def _refused(reason: str) -> None:
    """Requests of the unknown client are frequent or none: one line for each reason."""
    metrics.refused(reason)
    if reason not in _refusals:
        _refusals.add(reason)
        logger.warning(
            "evenkeel: a request without a readable client key (%s) belongs to the unknown client (logged once)",
            reason,
        )


def _bypassed() -> None:
    metrics.bypassed()
    logger.error(
        "evenkeel: a request entered the batch that the policy had not proposed; it is not charged"
    )
