"""The router's state as `evenkeel top` reads it."""

from __future__ import annotations

import json

import pytest
from evenkeel_contract.adminstate import (
    STATE_VERSION,
    ActivationState,
    ReplicaState,
    RouterState,
    StateError,
    decode_activation,
    decode_state,
    encode_state,
)

STATE = RouterState(
    version=STATE_VERSION,
    time_s=1.0,
    uptime_s=2.0,
    namespace="n",
    service="s",
    model="m",
    fleet_policy="D2LPM",
    replicas=(ReplicaState(name="r", url="http://h:1", report_age_s=0.5),),
)


def test_a_state_survives_its_json() -> None:
    assert decode_state(encode_state(STATE)) == STATE


def test_so_does_what_is_said_of_a_first_replica() -> None:
    said = ActivationState(version=STATE_VERSION, wanted=True)
    assert decode_activation(encode_state(said)) == said
    with pytest.raises(StateError, match="version 2"):
        decode_activation(b'{"version": 2, "wanted": true}')


def test_fields_of_newer_routers_are_skipped_and_missing_ones_have_defaults() -> None:
    plain = json.loads(encode_state(STATE))
    plain["new"] = 1
    del plain["waiting"]
    assert decode_state(json.dumps(plain).encode()) == STATE


@pytest.mark.parametrize(
    ("data", "want"),
    [
        (b"", "not a router's state"),
        (b"<html>", "not a router's state"),
        (b"{}", "not a router's state"),
        (b'{"model": "\xff"}', "not a router's state"),
        (b'{"x":' + b"[" * 100_000, "not a router's state"),
        (encode_state(STATE).replace(b'"version":1', b'"version":2'), "version 2 .* expected 1"),
    ],
    ids=["nothing", "a page", "an empty object", "bad UTF-8", "deep", "another version"],
)
def test_what_is_no_state_is_the_named_error(data: bytes, want: str) -> None:
    with pytest.raises(StateError, match=want):
        decode_state(data)
