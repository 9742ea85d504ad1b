"""Lists and events of the Kubernetes API become a cache; invalid ones change nothing."""

from __future__ import annotations

from typing import Any

import pytest
from evenkeel_kube.cache import Cache, WatchError
from evenkeel_router.cluster.endpoints import Pod

from tests.support.kube_api import pod


def cache(*names: str) -> Cache[Pod]:
    filled = Cache(Pod)
    filled.replace({"metadata": {"resourceVersion": "5"}, "items": [pod(name) for name in names]})
    return filled


def event(kind: str, /, **one: Any) -> dict[str, Any]:
    return {"type": kind, "object": one, "raw_object": one}


def test_a_list_replaces_what_was_there() -> None:
    one = cache("a", "b")
    one.replace({"metadata": {"resourceVersion": "9"}, "items": None})
    assert one.objects == {}
    assert one.resource_version == "9"


def test_events_add_change_and_delete_and_each_moves_the_version_on() -> None:
    one = cache("a")
    added = pod("b", resourceVersion="6")
    assert one.take(event("ADDED", **added))
    assert one.take(event("MODIFIED", **pod("a", resourceVersion="7", annotations={"x": ""})))
    assert one.objects["a"].metadata.annotations == {"x": ""}
    assert one.take(event("DELETED", **pod("b", resourceVersion="8")))
    assert not one.take(event("DELETED", **pod("b", resourceVersion="9")))
    assert list(one.objects) == ["a"]
    assert one.resource_version == "9"


def test_a_bookmark_moves_the_version_on_and_changes_nothing() -> None:
    one = cache("a")
    assert not one.take(event("BOOKMARK", kind="Pod", metadata={"resourceVersion": "70"}))
    assert one.resource_version == "70"
    assert list(one.objects) == ["a"]


@pytest.mark.parametrize(
    "line",
    ["{", [], {"type": "ADDED"}, event("ADDED", metadata=1), event("RENAMED")],
)
def test_what_is_no_event_is_an_error_and_changes_nothing(line: Any) -> None:
    one = cache("a")
    with pytest.raises(WatchError):
        one.take(line)
    assert list(one.objects) == ["a"]
    assert one.resource_version == "5"


def test_a_cache_that_expired_keeps_its_objects_until_the_next_list() -> None:
    one = cache("a")
    one.expire()
    assert one.resource_version == ""
    assert list(one.objects) == ["a"]
