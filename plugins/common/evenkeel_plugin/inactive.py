"""Answers on the reports port of an engine that does not fit the plug-in: the policy is inactive, and why (R12)."""

from __future__ import annotations

import uuid

from evenkeel_contract.enginesettings import EngineSettings
from evenkeel_contract.heldpages import HeldPages
from evenkeel_contract.promptfacts import PromptFacts, facts_of
from evenkeel_contract.reportbook import News, ReportBook

from evenkeel_plugin.reports import ReportServer


def serve(reason: str, settings: EngineSettings, *, host: str) -> ReportServer:
    """Answer every question of routers with the reason."""
    book = ReportBook(
        incarnation=settings.incarnation or uuid.uuid4().hex, policy="", inactive=reason
    )
    pages = HeldPages()
    pages.trouble = reason

    def prompts() -> PromptFacts:
        return facts_of({}, page_tokens=1, trouble=reason)

    return ReportServer(
        book,
        lambda _: News({}, {}, 0.0, complete=True),
        prompts=prompts,
        pages=pages,
        host=host,
        port=settings.reports_port or 0,
    )
