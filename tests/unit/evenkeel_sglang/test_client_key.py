"""The client key of a request on every endpoint of SGLang."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from evenkeel_contract.names import CACHE_SALT_HEADER, CLIENT_KEY_HEADER
from evenkeel_sglang.hooks import generate_request


@dataclass
class Generated:
    routing_key: str | None = None
    cache_salt: str | None = None


@dataclass
class Http:
    headers: dict[str, str] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("given", "request_", "want"),
    [
        (None, Http({CLIENT_KEY_HEADER: "ek1:a"}), "ek1:a"),  # responses, scores, rankings
        ("ek1:b", Http({CLIENT_KEY_HEADER: "ek1:a"}), "ek1:b"),  # SGLang has set it
        ("ek1:b", Http(), "ek1:b"),  # `/generate`
        (None, Http(), None),
        (None, None, None),  # a warm-up, or a call inside the process
    ],
)
def test_a_request_without_a_key_gets_that_of_its_header(
    given: str | None, request_: Http | None, want: str | None
) -> None:
    obj = Generated(given)
    generate_request(None, obj, request_)
    assert obj.routing_key == want


@pytest.mark.parametrize(
    ("headers", "want"), [({CACHE_SALT_HEADER: "5a17"}, "5a17"), ({}, "of the body")]
)
def test_the_salt_of_the_header_goes_first(headers: dict[str, str], want: str) -> None:
    obj = Generated(cache_salt="of the body")
    generate_request(None, obj, Http(headers))
    assert obj.cache_salt == want
