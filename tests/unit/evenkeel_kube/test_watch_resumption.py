"""Where a watch resumes after each way of ending: at its version, or with a new list."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from evenkeel_kube.cache import Cache, Named, WatchError
from evenkeel_kube.client import ApiError, Refused, Unreachable
from evenkeel_kube.watch import Selection, Watcher

from tests.support.virtual_time import Longest, run_virtually


def event(kind: str, name: str, version: int) -> dict[str, Any]:
    metadata = {"name": name, "resourceVersion": str(version)}
    return {"type": kind, "object": {"metadata": metadata}, "raw_object": {"metadata": metadata}}


class Answer:
    """The answer to a watch: its events, and the end."""

    connection = None

    def __init__(self, *events: dict[str, Any] | bytes) -> None:
        self.lines = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in events]
        self.content = self

    async def readline(self) -> bytes:
        return self.lines.pop(0) if self.lines else b""

    def release(self) -> None: ...
    def close(self) -> None: ...


class Api:
    """Lists at version 10, 20, …; each watch is answered as it was told, the last one never."""

    def __init__(self, *watches: Answer | Exception) -> None:
        self.asked: list[str] = []
        self.lists = 0
        self.changes = 0
        self.done = asyncio.Event()
        self._watches = iter(watches)

    async def read(self, path: str, parameters: Any) -> Any:
        self.lists += 1
        items = [{"metadata": {"name": f"listed{self.lists}"}}]
        return {"metadata": {"resourceVersion": str(10 * self.lists)}, "items": items}

    async def stream(self, path: str, query: Any, *others: Any, **_: Any) -> Answer:
        self.asked.append(query["resourceVersion"])
        told = next(self._watches, None)
        if told is None:
            self.done.set()
            await asyncio.sleep(3600.0)
        if isinstance(told, Exception):
            raise told
        assert told is not None
        return told


def followed(*watches: Answer | Exception) -> tuple[Api, Watcher[Named]]:
    api = Api(*watches)
    client: Any = api
    found: list[Watcher[Named]] = []

    def changed() -> None:
        api.changes += 1

    async def scene() -> None:
        watcher = Watcher(client, Selection(Named, "/api/v1/pods", {}), changed, rng=Longest())
        found.append(watcher)
        assert not watcher.synced
        running = asyncio.create_task(watcher.run())
        await api.done.wait()
        running.cancel()
        await asyncio.wait([running])

    run_virtually(scene())
    return api, found[0]


@pytest.mark.parametrize(
    ("end", "resumes", "lists"),
    [
        (Unreachable("away"), "13", 1),
        (OSError("reset"), "13", 1),
        (ApiError(410, "too old"), "20", 2),
        (Refused(403, "no"), "20", 2),
        (ValueError("nonsense"), "20", 2),
        (Answer(b"nonsense\n"), "20", 2),
        (Answer({"type": "ODD", "object": {"metadata": {}}}), "20", 2),
        (Answer(), "13", 1),
    ],
)
def test_a_watch_resumes_at_its_version_unless_that_is_of_no_use(
    end: Answer | Exception, resumes: str, lists: int
) -> None:
    api, watcher = followed(Answer(event("ADDED", "a", 13)), end)
    assert api.asked == ["10", "13", resumes]
    assert (api.lists, watcher.synced) == (lists, True)
    assert ("a" in watcher.cache.objects) == (lists == 1)
    assert api.changes == 1 + lists


def test_a_bookmark_moves_the_version_and_changes_nothing() -> None:
    api, watcher = followed(Answer(event("BOOKMARK", "", 17)))
    assert api.asked == ["10", "17"]
    assert (api.changes, list(watcher.cache.objects)) == (1, ["listed1"])


def test_events_change_the_objects_and_say_whether_they_did() -> None:
    cache = Cache(Named)
    cache.replace({"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "a"}}]})
    steps = (
        ("ADDED", "b", True),
        ("MODIFIED", "a", True),
        ("DELETED", "a", True),
        ("DELETED", "a", False),
    )
    for number, (kind, name, changes) in enumerate(steps, start=2):
        assert cache.take(event(kind, name, number)) is changes
        assert cache.resource_version == str(number)
    assert list(cache.objects) == ["b"]
    for odd in ("text", {"type": "ADDED", "raw_object": {"metadata": {"name": 3}}}):
        with pytest.raises(WatchError):
            cache.take(odd)
    cache.replace({"metadata": {"resourceVersion": "9"}})
    assert (cache.objects, cache.resource_version) == ({}, "9")
    cache.expire()
    assert cache.resource_version == ""
