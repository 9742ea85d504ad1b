"""Watching ends with a signal or a fault, and not because somebody removed an optional API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from evenkeel_operator import app
from evenkeel_operator.settings import Settings, parse_arguments


class Gone(Exception):
    """As kopf tells what the API server answered to a watch."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Nothing:
    def resume(self) -> None: ...

    async def pause(self) -> None: ...


class Deaf:
    activations = Nothing()

    def on_event(self, event: str | None, kind: str, item: Any) -> None: ...

    def on_recovery(self, namespace: str) -> None: ...


def settings() -> Settings:
    images = [f"--{name}-image=x" for name in ("router", "sglang", "vllm", "simulator", "download")]
    return parse_arguments(images, {"POD_NAME": "pod", "POD_NAMESPACE": "evenkeel-system"})


async def watched(monkeypatch: pytest.MonkeyPatch, *ends: Exception | None) -> int:
    """How often watching began, where each time it ended like this."""
    left: Iterator[Exception | None] = iter(ends)
    began = 0

    async def operator(**_: Any) -> None:
        nonlocal began
        began += 1
        end = next(left)
        if end is not None:
            raise end

    monkeypatch.setattr(app.kopf, "operator", operator)
    monkeypatch.setattr(app, "WATCH_AGAIN_S", 0.0)
    await app._watch(cast(app.Leader, Deaf()), settings())
    return began


async def test_it_begins_anew_where_an_api_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await watched(monkeypatch, Gone(404), Gone(404), None) == 3


@pytest.mark.parametrize("fault", [Gone(403), ValueError("a fault of ours")])
async def test_any_other_fault_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    with pytest.raises(type(fault)):
        await watched(monkeypatch, fault, None)
