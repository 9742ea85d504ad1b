"""Lists and watches of the Kubernetes API become a cache, whatever they say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from evenkeel_router.cluster.endpoints import Pod
from evenkeel_router.cluster.watched import MAX_LINE_BYTES, Cache, Expired, Lines, WatchError
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kube_api import pod


def cache(*names: str) -> Cache[Pod]:
    filled = Cache(Pod)
    filled.take_list(
        json.dumps(
            {"metadata": {"resourceVersion": "5"}, "items": [pod(name) for name in names]}
        ).encode()
    )
    return filled


def event(kind: str, /, **one: Any) -> bytes:
    return json.dumps({"type": kind, "object": one}).encode()


def test_a_list_replaces_what_was_there() -> None:
    one = cache("a", "b")
    one.take_list(b'{"metadata": {"resourceVersion": "9"}, "items": null}')
    assert one.objects == {}
    assert one.resource_version == "9"


def test_events_add_change_and_delete_and_each_moves_the_version_on() -> None:
    one = cache("a")
    added = pod("b", resourceVersion="6")
    assert one.take_event(event("ADDED", **added))
    assert one.take_event(event("MODIFIED", **pod("a", resourceVersion="7", annotations={"x": ""})))
    assert one.objects["a"].metadata.annotations == {"x": ""}
    assert one.take_event(event("DELETED", **pod("b", resourceVersion="8")))
    assert not one.take_event(event("DELETED", **pod("b", resourceVersion="9")))
    assert list(one.objects) == ["a"]
    assert one.resource_version == "9"


def test_a_bookmark_moves_the_version_on_and_changes_nothing() -> None:
    one = cache("a")
    assert not one.take_event(event("BOOKMARK", kind="Pod", metadata={"resourceVersion": "70"}))
    assert one.resource_version == "70"
    assert list(one.objects) == ["a"]


def test_an_expired_version_is_told_apart_from_other_errors() -> None:
    with pytest.raises(Expired, match="410: too old"):
        cache().take_event(event("ERROR", code=410, message="too old"))
    with pytest.raises(WatchError, match="500: no reason given") as caught:
        cache().take_event(event("ERROR", code=500))
    assert not isinstance(caught.value, Expired)


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b"\xff", b'{"type": "ADDED"}', event("ADDED", metadata=1), event("RENAMED")],
)
def test_what_is_no_event_is_an_error_and_changes_nothing(line: bytes) -> None:
    one = cache("a")
    with pytest.raises(WatchError):
        one.take_event(line)
    assert list(one.objects) == ["a"]
    assert one.resource_version == "5"


def test_a_cache_that_expired_keeps_its_objects_until_the_next_list() -> None:
    one = cache("a")
    one.expire()
    assert one.resource_version == ""
    assert list(one.objects) == ["a"]


@given(st.lists(st.binary(min_size=1).map(lambda b: b.replace(b"\n", b".")), max_size=5), st.data())
def test_lines_are_the_same_wherever_the_bytes_are_cut(
    lines: list[bytes], data: st.DataObject
) -> None:
    lines = [line for line in lines if line.strip()]
    whole = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    reader, got = Lines(), []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        got += reader.feed(whole[start:end])
    assert got == lines


def test_an_event_without_an_end_is_an_error() -> None:
    with pytest.raises(WatchError, match="longer than"):
        Lines().feed(b"x" * (MAX_LINE_BYTES + 1))
