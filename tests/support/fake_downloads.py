"""Pods that download models as the operator sees them: how far they are is set by the test."""

from __future__ import annotations

from collections.abc import Iterable

from evenkeel_contract.downloads import Progress
from evenkeel_operator.core.objects import Object


class FakeDownloads:
    """No pod answers, until the test sets what they answer."""

    def __init__(self) -> None:
        self.progress: Progress | None = None

    async def ask(self, pods: Iterable[Object]) -> Progress | None:
        return self.progress
