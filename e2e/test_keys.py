"""Keys, weights and tenants change within five seconds, no stream is dropped, and no key is anywhere it should not be."""

from __future__ import annotations

import base64
import json
import re
import shlex
from contextlib import ExitStack

import httpx
import pytest
from evenkeel_contract.adminstate import STATE_PATH, decode_state
from evenkeel_contract.names import ADMIN_PORT, USE_LABEL

from e2e.installed import ROOT, SYSTEM, Namespace, Stream, namespace
from e2e.kubectl import Kubectl
from e2e.operators import wait_until

pytestmark = pytest.mark.core
SOON_S = 5.0
"""What is promised, from the change to the last router."""
OLD, NEW, OTHER = "sk-first-0f3c1e", "sk-second-77ab02", "sk-other-51d9aa"
NEWCOMER, UNLABELLED, ELSEWHERE = "sk-newcomer-9b01", "sk-unlabelled-3c7e", "sk-elsewhere-40b2"


@pytest.fixture(scope="module")
def keyed(team: Namespace) -> Namespace:
    """A service with two routers and two tenants."""
    team.tenant("ads", OLD)
    team.tenant("search", OTHER)
    team.serve("one", replicas=1, tenancy={"anonymous": "Reject"})
    for key in (OLD, OTHER):
        team.answers("one", key, 200)
    return team


def test_a_rotated_key_counts_at_once_and_drops_no_stream(keyed: Namespace) -> None:
    with keyed.client("one", OLD) as client:
        stream = Stream(client, tokens=1500).started()
        patch = json.dumps({"stringData": {"chat": NEW}})
        keyed("patch", "secret", "ads-keys", "-p", patch)
        keyed.answers("one", NEW, 200, within_s=SOON_S)
        keyed.answers("one", OLD, 401, within_s=SOON_S)
        assert stream.is_alive()  # begun with the old key; else this would prove nothing
        stream.finish()


def test_a_changed_weight_reaches_every_router_and_drops_no_stream(keyed: Namespace) -> None:
    with ExitStack() as stack:
        routers = [
            stack.enter_context(keyed.forwarded(pod, ADMIN_PORT))
            for pod in keyed.pods("one", "router")
        ]
        token = keyed.admin_token("one")
        assert [_weight(router, token) for router in routers] == [1, 1]
        stream = Stream(stack.enter_context(keyed.client("one", OTHER)), tokens=1500).started()
        keyed("patch", "itn", "search", "--type=merge", "-p", '{"spec": {"weight": 7}}')
        wait_until(
            lambda: [_weight(router, token) for router in routers] == [7, 7],
            "the weight at both routers",
            timeout_s=SOON_S,
        )
        assert stream.is_alive()
        stream.finish()


def test_a_second_tenant_with_the_same_key_does_not_lock_out_the_first(keyed: Namespace) -> None:
    keyed.tenant("aaa", OTHER)  # newer than `search`, and before it in the alphabet

    def ready() -> dict[str, str]:
        listed = keyed.get("itn", "aaa").get("status", {}).get("conditions", ())
        found: dict[str, str] = next((one for one in listed if one["type"] == "Ready"), {})
        return found

    wait_until(lambda: ready().get("reason") == "KeysClash", "the clash to be named")
    assert "tenant search" in ready()["message"]
    keyed.answers("one", OTHER, 200)
    keyed("delete", "itn", "aaa")


def test_a_secret_needs_the_label_before_its_keys_are_accepted(keyed: Namespace) -> None:
    keyed.tenant("new", NEWCOMER)
    keyed.answers("one", NEWCOMER, 200)
    keyed("label", "secret", "new-keys", f"{USE_LABEL}-")
    keyed("patch", "secret", "new-keys", "-p", json.dumps({"stringData": {"chat": UNLABELLED}}))
    keyed.answers("one", NEWCOMER, 401)
    keyed.answers("one", UNLABELLED, 401)
    ready = keyed.get("itn", "new")["status"]["conditions"][0]
    assert (ready["status"], ready["reason"]) == ("False", "SecretNotLabelled")
    keyed("label", "secret", "new-keys", f"{USE_LABEL}=true")
    keyed.answers("one", UNLABELLED, 200, within_s=SOON_S)
    keyed("delete", "itn", "new")


def test_a_service_uses_tenants_of_another_namespace_without_their_keys(
    keyed: Namespace, kubectl: Kubectl
) -> None:
    with namespace(kubectl, "keys-tenants") as tenants:
        tenants.tenant("ads", ELSEWHERE)
        share, use = _documented_commands(tenants.name, keyed.name)
        kubectl(*use)
        keyed.answers("one", ELSEWHERE, 401)
        wait_until(
            lambda: keyed.condition("one", "Degraded")["reason"] == "TenantsNotShared",
            "the missing consent to be named",
        )
        kubectl(*share)
        keyed.answers("one", ELSEWHERE, 200, within_s=SOON_S)
        keyed.answers("one", OTHER, 401)  # of a tenant beside the service
        secrets = keyed.get("secrets")["items"]
        data = [base64.b64decode(text) for one in secrets for text in (one["data"] or {}).values()]
        assert not [text for text in data if ELSEWHERE.encode() in text]
        tenants("annotate", "itn", "ads", "evenkeel.dev/share-tenant-")
        keyed.answers("one", ELSEWHERE, 401, within_s=SOON_S)
    keyed.patch("one", tenancy={"namespace": None})
    keyed.answers("one", OTHER, 200)


def _documented_commands(tenants: str, services: str) -> tuple[list[str], list[str]]:
    """Both commands of the page, with the names of this test."""
    text = (ROOT / "docs/reference/rights.md").read_text()
    (block,) = re.findall(r"<!-- test: e2e/test_keys.py -->\n```sh\n(.*?)```", text, re.DOTALL)
    here = block.replace("fis llama", "fis one").replace("team-ml", services)
    named = here.replace("-n tenants", f"-n {tenants}").replace('"tenants"', f'"{tenants}"')
    share, use = (shlex.split(line)[1:] for line in named.splitlines())
    return share, use


def test_a_deleted_tenant_is_refused_at_once_and_its_streams_finish(
    keyed: Namespace,
) -> None:
    with keyed.client("one", OTHER) as client:
        stream = Stream(client, tokens=1500).started()
        keyed("delete", "itn", "search")
        keyed.answers("one", OTHER, 401, within_s=SOON_S)
        assert stream.is_alive()
        stream.finish()


def test_no_key_is_logged_or_shown(keyed: Namespace, kubectl: Kubectl) -> None:
    """Tenants' keys, the engines' key and the routers' token, in plain and in Base64."""
    secrets = keyed.get("secrets")["items"]
    hidden = {OLD, NEW, OTHER, ELSEWHERE}
    for secret in secrets:
        if secret["metadata"]["name"] == "one-credentials":
            entries = secret["data"].values()
            hidden |= {base64.b64decode(entry).decode() for entry in entries}
    assert len(hidden) > 4
    seen = {"logs": _logs(keyed, kubectl), "objects": _objects(keyed)}
    for key in hidden:
        encoded = base64.b64encode(key.encode()).decode()
        for where, text in seen.items():
            assert key not in text, where
            assert encoded not in text, where


def _logs(team: Namespace, kubectl: Kubectl) -> str:
    found = kubectl(
        "-n", SYSTEM, "logs", "-l", "app.kubernetes.io/name=evenkeel-operator", "--tail=-1"
    )
    for component in ("engine", "router"):
        for pod in team.pods("one", component):
            found += team("logs", pod)
    assert "/v1/completions" in found  # the right logs
    return found


def _objects(team: Namespace) -> str:
    """Everything but Secrets, where keys belong."""
    kinds = (
        "fis,itn,deploy,rs,pods,cm,svc,ingress,netpol,events,sa,role,rolebinding,pdb,endpointslices"
    )
    return team("get", kinds, "-o", "json")


def _weight(router: str, token: str) -> float:
    """The weight of the tenant `search`, as a router has it."""
    answer = httpx.get(router + STATE_PATH, headers={"Authorization": f"Bearer {token}"})
    state = decode_state(answer.raise_for_status().content)
    return {tenant.name: tenant.weight for tenant in state.tenants}["search"]
