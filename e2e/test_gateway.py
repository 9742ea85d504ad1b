"""Two models behind one gateway: one address, no routers of the services, and a rollout that the other model does not see."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from evenkeel_contract.adminstate import STATE_PATH, decode_state
from evenkeel_contract.names import ADMIN_PORT
from openai import NotFoundError, OpenAI

from e2e.installed import MODEL, ROOT, Namespace, ingress, request, service
from e2e.operators import wait_until

pytestmark = pytest.mark.core
KEY, BASE = "sk-ads-gateway", "models-gateway"
SMALL = "small-1b"


@pytest.fixture(scope="module")
def both(team: Namespace) -> Namespace:
    """A gateway of the sample, at a host, with two services; clients use their own keys."""
    team.tenant("ads", KEY)
    reject = {"anonymous": "Reject"}
    team.serve("simulated", replicas=1, tenancy=reject)
    small: dict[str, Any] = service("small", host=team.host("small"), tenancy=reject)
    small["metadata"]["labels"] = {"models": "public"}
    small["spec"]["model"]["servedName"] = SMALL
    del small["spec"]["exposure"]
    team.apply(small)
    team.ready("small")
    team("apply", "-f", str(ROOT / "crds/samples/gateway.yaml"))
    host = {"ingress": {"host": team.host("models")}}
    change = json.dumps({"spec": {"exposure": host, "tenancy": reject}})
    team("patch", "fig", "models", "--type=merge", "-p", change)
    team("wait", "--for=condition=Ready", "fig/models", "--timeout=180s")
    team("wait", "--for=condition=ModelsReady", "fig/models", "--timeout=60s")
    team.reached("models", KEY)
    return team


def client(team: Namespace) -> OpenAI:
    headers = {"Host": team.host("models")}
    return OpenAI(base_url=f"http://{ingress()}/v1", api_key=KEY, default_headers=headers)


def test_a_stock_client_lists_and_uses_both_models(both: Namespace) -> None:
    with client(both) as openai:
        assert [model.id for model in openai.models.list()] == ["smart", SMALL]
        for name in ("smart", SMALL):
            stream = openai.chat.completions.create(
                model=name,
                max_tokens=8,
                stream=True,
                messages=[{"role": "user", "content": "Ahoy"}],
            )
            assert [chunk for chunk in stream if chunk.choices]
        with pytest.raises(NotFoundError, match="did you mean smart"):
            openai.completions.create(model="smrt", prompt="Ahoy")


def test_services_behind_a_gateway_have_no_routers_of_their_own(both: Namespace) -> None:
    wait_until(
        lambda: not both.pods("simulated", "router") and not both.pods("small", "router"),
        "no routers of the services",
        timeout_s=120,
    )
    assert len(both.pods(BASE, "router")) == 2
    for name in ("simulated", "small"):
        assert both.condition(name, "Ready")["status"] == "True"
        assert both.condition(name, "RouterReady")["reason"] == "AllReady"


def test_routers_say_what_each_model_served(both: Namespace) -> None:
    token = both.admin_token(BASE)
    pod = next(iter(both.pods(BASE, "router")))
    with both.forwarded(pod, ADMIN_PORT) as address:
        answer = httpx.get(address + STATE_PATH, headers={"Authorization": f"Bearer {token}"})
    state = decode_state(answer.raise_for_status().content)
    assert [(one.service, one.model) for one in state.services] == [
        ("simulated", MODEL),
        ("small", SMALL),
    ]
    assert all(one.routable for own in state.services for one in own.replicas)


def test_a_rollout_of_one_model_is_not_seen_by_the_other(both: Namespace) -> None:
    small = {**request(tokens=2), "model": SMALL}
    before = both.pods("small", "engine").keys()
    with both.client("models", KEY) as http:
        assert http.post("/v1/completions", json=small).status_code == 200
        both.patch("simulated", engine={"template": {"metadata": {"annotations": {"a": "b"}}}})
        for _ in range(20):
            answer = http.post("/v1/completions", json=small)
            assert answer.status_code == 200, answer.text
    assert both.pods("small", "engine").keys() == before
    both.ready("simulated")
    with both.client("models", KEY) as http:
        answer = http.post("/v1/completions", json={**request(tokens=2), "model": "smart"})
        assert answer.status_code == 200, answer.text


def test_without_the_gateway_the_services_have_routers_again(both: Namespace) -> None:
    both("delete", "fig", "models", "--wait=false")
    wait_until(
        lambda: (
            len(both.pods("simulated", "router")) == 2 and len(both.pods("small", "router")) == 2
        ),
        "routers of the services",
        timeout_s=120,
    )
    both.answers("simulated", KEY, 200, within_s=60)
