"""Marks that read a text as the API server's CEL does: networks, addresses, moments."""

from __future__ import annotations

import pytest
from evenkeel_contract.values import Cidr, Timestamp, Url


@pytest.mark.parametrize("text", ["10.0.0.0/8", "192.168.0.1", "::/0", "FD00::/8", "::1.2.3.4"])
def test_networks_and_addresses_are_taken(text: str) -> None:
    assert list(Cidr().faults(text, "net")) == []


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("10.0.0.1/8", "is not a network like 10.0.0.0/8; the network is 10.0.0.0/8"),
        ("::ffff:10.0.0.0/104", "is not a network like 10.0.0.0/8; write it as IPv4, 10.0.0.0"),
        ("10.0.0.0/255.0.0.0", "is not a network like 10.0.0.0/8"),
        ("10.0.0.0/08", "is not a network like 10.0.0.0/8"),
        ("fe80::1%eth0", "is not a network like 10.0.0.0/8"),
        ("", "is not a network like 10.0.0.0/8"),
    ],
)
def test_what_is_no_network_is_named(text: str, want: str) -> None:
    assert [str(fault) for fault in Cidr().faults(text, "net")] == [f"net: {text!r} {want}"]


@pytest.mark.parametrize(
    "text", ["http://a", "HTTPS://u:p@a.b:1/c?d=%zz", "http://[::1]:65535/", "http://a:/%20"]
)
def test_addresses_are_taken(text: str) -> None:
    assert list(Url().faults(text, "url")) == []


@pytest.mark.parametrize(
    "text",
    ["http://a#c", "http://a/b#c", "http://a%41", "http://a/%zz", "http://a\\b", "http://ü",
     "http://a:0", "http://a:65536", "http://a b", "http://", "ftp://a", "a"],
)  # fmt: skip
def test_what_is_no_address_is_named(text: str) -> None:
    assert [fault.path for fault in Url().faults(text, "url")] == ["url"]


@pytest.mark.parametrize("text", ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123456+01:00"])
def test_moments_are_taken(text: str) -> None:
    assert list(Timestamp().faults(text, "at")) == []


@pytest.mark.parametrize("text", ["yesterday", "2026-01-31", "2026-02-31T12:00:00Z", ""])
def test_what_is_no_moment_is_named(text: str) -> None:
    assert [str(fault) for fault in Timestamp().faults(text, "at")] == [
        f"at: {text!r} is not a time like 2026-01-31T12:00:00Z"
    ]
