"""The policy about reserved fields, as the chart renders it: an editor of the namespace may not set them, an administrator may."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from e2e.installed import refused
from e2e.kubectl import Kubectl
from e2e.operators import wait_until
from tests.support.helm import rendered

pytestmark = pytest.mark.core
EDITOR: Final = ("--as=editor", "--as-group=editors")
RESERVED: Final[dict[str, dict[str, Any]]] = {
    "replicaPolicy": {"scheduling": {"replicaPolicy": "FCFS"}},
    "anonymous": {"tenancy": {"anonymous": "Share"}},
    "namespace": {"tenancy": {"namespace": "theirs"}},
    "matchLabels": {"tenancy": {"selector": {"matchLabels": {"a": "b"}}}},
    "matchExpressions": {
        "tenancy": {"selector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}
    },
    "trustedProxies": {"tenancy": {"trustedProxies": ["0.0.0.0/0"]}},
    "federation": {
        "federation": {
            "cell": "paris",
            "tokenSecretRef": {"name": "cells", "key": "token"},
            "cells": [{"name": "oslo", "url": "https://llm.oslo.example.com"}],
        }
    },
    "undeclaredTenants": {"tenancy": {"undeclaredTenants": "Accept"}},
    "jwt": {
        "tenancy": {
            "jwt": [
                {
                    "issuer": "https://login.example.com",
                    "audience": "llm",
                    "jwksURL": "https://login.example.com/keys",
                    "tenantClaim": "team",
                }
            ]
        }
    },
}


def service(name: str, **spec: Any) -> str:
    model = {"source": "hf://any/model"}
    head = {"apiVersion": "evenkeel.dev/v1alpha1", "kind": "FairInferenceService"}
    return json.dumps({**head, "metadata": {"name": name}, "spec": {"model": model, **spec}})


@pytest.fixture
def editors(kubectl: Kubectl, crds: None, namespace: str) -> Iterator[str]:
    """A namespace whose editors may write services, under the policy."""
    policy = [
        one for one in rendered(reservedFields={"enabled": True}) if "Admission" in one["kind"]
    ]
    text = "\n---\n".join(map(json.dumps, policy))
    kubectl("apply", "-f", "-", stdin=text)
    place = ("-n", namespace)
    kubectl(*place, "create", "role", "fis", "--verb=*", "--resource=fairinferenceservices.evenkeel.dev")  # fmt: skip
    kubectl(*place, "create", "rolebinding", "fis", "--role=fis", "--group=editors")
    probe = service("probe", **RESERVED["anonymous"])
    command = (*EDITOR, *place, "create", "--dry-run=server", "-f", "-")
    wait_until(lambda: refused(kubectl, *command, stdin=probe), "the policy")
    yield namespace
    kubectl("delete", "-f", "-", stdin=text)


def test_editors_may_not_change_reserved_fields(kubectl: Kubectl, editors: str) -> None:
    as_editor = (*EDITOR, "-n", editors)
    for name, spec in RESERVED.items():
        assert refused(kubectl, *as_editor, "create", "-f", "-", stdin=service("new", **spec)), name
    kubectl(*as_editor, "create", "-f", "-", stdin=service("theirs"))
    for name, spec in RESERVED.items():
        patch = ("patch", "fis", "theirs", "--type=merge", "-p", json.dumps({"spec": spec}))
        assert refused(kubectl, *as_editor, *patch), name
        kubectl("-n", editors, *patch)  # an administrator
        assert refused(kubectl, *as_editor, "replace", "-f", "-", stdin=service("theirs")), name
    other = (
        "patch",
        "fis",
        "theirs",
        "--type=merge",
        "-p",
        '{"spec": {"engine": {"replicas": 0}}}',
    )
    kubectl(*as_editor, *other)
