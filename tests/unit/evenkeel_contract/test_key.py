"""The client key: its test vectors, and its limits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evenkeel_contract.key import MAX_KEY_BYTES, ClientKey, ClientKeyError, decode

VECTORS = json.loads(Path(__file__).with_name("client_key_vectors.json").read_text("utf-8"))


@pytest.mark.parametrize("vector", VECTORS["good"], ids=lambda vector: vector["name"])
def test_a_good_key_reads_and_writes_as_its_vector(vector: dict[str, Any]) -> None:
    key = ClientKey(**vector["fields"])
    assert key.encode() == vector["text"]
    assert decode(vector["text"]) == key


@pytest.mark.parametrize("vector", VECTORS["bad"], ids=lambda vector: vector["name"])
def test_a_bad_key_is_refused_with_its_reason(vector: dict[str, str]) -> None:
    with pytest.raises(ClientKeyError) as caught:
        decode(vector["text"])
    assert vector["error"] in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"client": ""}, "client has 0 bytes, not 1 to 253"),
        ({"client": "c" * 254}, "client has 254 bytes, not 1 to 253"),
        ({"tenant": "\ud800"}, "tenant is not encodable as UTF-8"),
        ({"tenant_weight": 0}, "tenant weight must be from 0.001 to 1000000, not 0"),
        ({"client_weight": 1_000_001}, "client weight must be from 1 to 1000000, not 1000001"),
        (
            {"seed": 2**53 + 1},
            "seed must be from -9007199254740992 to 9007199254740992, not 9007199254740993",
        ),
        (
            {"namespace": "ü" * 100, "tenant": "ü" * 100, "client": "c"},
            f"key of 1213 bytes is longer than {MAX_KEY_BYTES}",
        ),
    ],
)
def test_what_no_key_can_hold_is_refused_when_it_is_written(
    fields: dict[str, Any], want: str
) -> None:
    key = ClientKey(**{"namespace": "n", "tenant": "t", "client": "c", **fields})
    with pytest.raises(ClientKeyError) as caught:
        key.encode()
    assert str(caught.value) == want


def test_a_key_may_be_as_long_as_its_limit_and_no_longer() -> None:
    longest = ClientKey(namespace="n" * 253, tenant="t" * 253, client="c")
    room = MAX_KEY_BYTES - len(longest.encode())
    longest = replace(longest, client="%" * (room // 3) + "c" * (room % 3 + 1))
    assert len(longest.encode()) == MAX_KEY_BYTES
    assert decode(longest.encode()) == longest
    with pytest.raises(ClientKeyError, match="longer than"):
        replace(longest, client=longest.client + "c").encode()


def test_a_key_longer_than_its_limit_is_not_even_read() -> None:
    with pytest.raises(ClientKeyError, match="key of 100000 bytes is longer than 1024"):
        decode("x" * 100_000)


def test_identities_of_different_tenants_never_meet() -> None:
    first = ClientKey(namespace="a", tenant="b/c", client="d")
    second = ClientKey(namespace="a/b", tenant="c", client="d")
    assert first.identity != second.identity
    assert first.tenant_identity != second.tenant_identity
