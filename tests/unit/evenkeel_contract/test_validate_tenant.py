"""InferenceTenant: every rule finds its fault, names the path and the fix, and leaves good ones alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import pytest
from evenkeel_contract.decode import to_plain
from evenkeel_contract.validate import parse_tenant

TENANT: dict[str, Any] = {
    "apiVersion": "evenkeel.dev/v1alpha1",
    "kind": "InferenceTenant",
    "metadata": {"name": "ads", "namespace": "team-ml"},
    "spec": {
        "weight": 4,
        "clients": [{"name": "chat", "weight": 3}, {"name": "batch"}],
        "apiKeys": [
            {"name": "chat-1", "client": "chat", "secretRef": {"name": "keys", "key": "c"}}
        ],
        "limits": {"requestsPerMinute": 60},
    },
}

Edit = Callable[[dict[str, Any]], object]


def test_the_sample_of_the_design_is_good() -> None:
    tenant, faults = parse_tenant(TENANT)
    assert faults == ()
    assert tenant is not None
    assert parse_tenant(to_plain(tenant)) == (tenant, ())


TENANT_CASES: Mapping[str, tuple[Edit, list[str]]] = {
    "a key of an unknown client": (
        lambda s: s["apiKeys"][0].update(client="chta"),
        ["spec.apiKeys[0].client: 'chta' is not in spec.clients; did you mean chat?"],
    ),
    "a client twice": (
        lambda s: s["clients"].append({"name": "chat"}),
        ["spec.clients[2].name: 'chat' is given twice, first in spec.clients[0]"],
    ),
    "a client twice, and a key of one that is not there": (
        lambda s: (s["clients"].append({"name": "chat"}), s["apiKeys"][0].update(client="nobody")),
        [
            "spec.clients[2].name: 'chat' is given twice, first in spec.clients[0]",
            "spec.apiKeys[0].client: 'nobody' is not in spec.clients; add it there",
        ],
    ),
    "a key twice": (
        lambda s: s["apiKeys"].append(deepcopy(s["apiKeys"][0])),
        [
            "spec.apiKeys[1].name: 'chat-1' is given twice, first in spec.apiKeys[0]",
            (
                "spec.apiKeys[1].secretRef: is the same as in spec.apiKeys[0]; a key can identify "
                "only one client"
            ),
        ],
    ),
    "weights out of range": (
        lambda s: (s.update(weight=0), s["clients"][0].update(weight=1_000_001)),
        [
            "spec.weight: must be from 1 to 1000000, not 0",
            "spec.clients[0].weight: must be from 1 to 1000000, not 1000001",
        ],
    ),
    "a name that would break a header": (
        lambda s: s["clients"][1].update(name="a\r\nx: y"),
        ["spec.clients[1].name: must be text without control characters, not 'a\\r\\nx: y'"],
    ),
    "a name too long for the client key": (
        lambda s: s["clients"][1].update(name="ü" * 127),
        ["spec.clients[1].name: must have at most 253 bytes, not 254"],
    ),
}


@pytest.mark.parametrize(("edit", "want"), TENANT_CASES.values(), ids=TENANT_CASES.keys())
def test_faults_of_a_tenant(edit: Edit, want: list[str]) -> None:
    data = deepcopy(TENANT)
    edit(data["spec"])
    tenant, faults = parse_tenant(data)
    assert tenant is None
    assert [str(fault) for fault in faults] == want
