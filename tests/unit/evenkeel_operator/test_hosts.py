"""Which of several services has a host: the oldest one, by class, host and path."""

from __future__ import annotations

from typing import Any

import pytest
from evenkeel_operator.core.neighbours import claims_of, host_taken


def service(name: str, created: str = "2026-01-01T00:00:00Z", **ingress: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "n", "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"exposure": {"ingress": {"host": "a.test"} | ingress}}}


def test_a_service_asks_for_every_host_with_every_path() -> None:
    found = service("s", additionalHosts=["b.test"], paths=["/v1", "/v2"], className="nginx")
    assert claims_of(found) == {
        ("nginx", host, path) for host in ("a.test", "b.test") for path in ("/v1", "/v2")
    }


@pytest.mark.parametrize(
    "spec",
    [None, [], {"exposure": None}, {"exposure": {"ingress": "x"}}, {"exposure": {"ingress": {"host": 1}}}],
)  # fmt: skip
def test_what_cannot_be_read_asks_for_nothing(spec: Any) -> None:
    odd = {"metadata": {"name": "odd", "namespace": "n"}, "spec": spec}
    assert claims_of(odd) == frozenset()
    assert host_taken(odd, [service("s"), odd]) is None
    assert host_taken(service("s"), [odd]) is None


@pytest.mark.parametrize(
    ("other", "taken"),
    [
        (service("a"), True),  # as old, and first by name
        (service("z"), False),
        (service("z", "2025-01-01T00:00:00Z"), True),
        (service("a", "2027-01-01T00:00:00Z"), False),
        (service("a", className="internal"), False),
        (service("a", paths=["/other"]), False),
        (service("a", host="b.test"), False),
        (service("a", host="b.test", additionalHosts=["a.test"]), True),
    ],
)
def test_the_older_service_has_the_host(other: dict[str, Any], taken: bool) -> None:
    mine = service("m")
    assert (host_taken(mine, [mine, other]) is not None) is taken
