"""Two models behind one gateway: one address, no routers of the services, cache hits as without it, rollouts and drains that the other
model does not see, and shares over both.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest
from anthropic import Anthropic
from evenkeel_contract.adminstate import STATE_PATH, RouterState, TenantState, decode_state
from evenkeel_contract.names import ADMIN_PORT
from openai import NotFoundError, OpenAI

from e2e.installed import MODEL, ROOT, Namespace, ingress, request, service, under_load
from e2e.operators import wait_until

pytestmark = [pytest.mark.core, pytest.mark.timeout(600)]
KEY, LAW, BASE = "sk-ads-gateway", "sk-law-gateway", "models-gateway"
SMALL = "small-1b"
FLOOD = 24
"""Open requests of a tenant at a model: three batches."""
TURNS = 5


@pytest.fixture(scope="module")
def both(team: Namespace) -> Namespace:
    """A gateway of the sample, at a host, with two services; clients use their own keys."""
    team.tenant("ads", KEY)
    team.tenant("law", LAW)
    reject = {"anonymous": "Reject"}
    team.serve("simulated", replicas=2, tenancy=reject)
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


@contextmanager
def states(team: Namespace) -> Iterator[Callable[[], list[RouterState]]]:
    """What each router of the gateway says of its models."""
    headers = {"Authorization": f"Bearer {team.admin_token(BASE)}"}
    with ExitStack() as stack:
        urls = [
            stack.enter_context(team.forwarded(pod, ADMIN_PORT)) + STATE_PATH
            for pod in team.pods(BASE, "router")
        ]
        yield lambda: [
            decode_state(httpx.get(url, headers=headers).raise_for_status().content) for url in urls
        ]


def tenants(state: RouterState, of: str) -> dict[str, TenantState]:
    """The tenants of one service, by name."""
    (found,) = (one for one in state.services if one.service == of)
    return {tenant.name: tenant for tenant in found.tenants}


def cached_part(team: Namespace, name: str, model: str) -> float:
    """The part of the input tokens of conversations that the engines had in their caches, without each first turn."""
    seen = cached = 0
    prompts = [f"{uuid4()} " for _ in range(4)]
    with team.client(name, KEY) as http:
        for turn in range(TURNS):
            for number, before in enumerate(prompts):
                prompts[number] = before + f"turn {turn} " + "keel " * 300
                body = {**request(tokens=2, model=model), "prompt": prompts[number]}
                answer = http.post("/v1/completions", json=body).raise_for_status()
                usage = answer.json()["usage"]
                if turn:
                    seen += usage["prompt_tokens"]
                    cached += usage["prompt_tokens_details"]["cached_tokens"]
    return cached / seen


@contextmanager
def flooded(team: Namespace, loads: Sequence[tuple[str, str]]) -> Iterator[None]:
    """(key, model) of each load: requests one after another from `FLOOD` senders; all must be answered."""
    stop, wrong = threading.Event(), list[str]()

    async def send(http: httpx.AsyncClient, key: str, model: str) -> None:
        headers = {"Authorization": f"Bearer {key}", "Host": team.host("models")}
        while not stop.is_set():
            body = {**request(tokens=64, model=model), "prompt": f"{uuid4()} " * 8}
            answer = await http.post("/v1/completions", json=body, headers=headers)
            if not answer.is_success:
                wrong.append(answer.text)

    async def all_of_them() -> None:
        limits = httpx.Limits(max_connections=None)
        url = f"http://{ingress()}"
        async with (
            httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http,
            asyncio.TaskGroup() as group,
        ):
            for key, model in loads:
                for _ in range(FLOOD):
                    group.create_task(send(http, key, model))

    thread = threading.Thread(target=asyncio.run, args=(all_of_them(),))
    thread.start()
    try:
        yield
        assert thread.is_alive()
    finally:
        stop.set()
        thread.join(timeout=120)
    assert not wrong, wrong[:3]


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


def test_anthropics_client_uses_both_models_too(both: Namespace) -> None:
    headers = {"Host": both.host("models")}
    with Anthropic(
        base_url=f"http://{ingress()}", api_key=KEY, default_headers=headers
    ) as anthropic:
        for name in ("smart", SMALL):
            ahoy: Any = {"role": "user", "content": "Ahoy"}
            with anthropic.messages.stream(model=name, max_tokens=8, messages=[ahoy]) as stream:
                assert stream.get_final_message().usage.output_tokens


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
    with states(both) as read:
        state = read()[0]
    assert [(one.service, one.model) for one in state.services] == [
        ("simulated", MODEL),
        ("small", SMALL),
    ]
    assert all(one.routable for own in state.services for one in own.replicas)


def processes(team: Namespace, name: str, component: str) -> dict[str, int]:
    """Pods that run, with the restarts of their containers."""
    return {
        pod: sum(one["restartCount"] for one in item["status"]["containerStatuses"])
        for pod, item in team.pods(name, component).items()
    }


def test_rollout_and_drain_of_one_model_are_not_seen_by_the_other(both: Namespace) -> None:
    """Nor by clients of the model itself."""
    small, routers = processes(both, "small", "engine"), processes(both, BASE, "router")
    old = both.pods("simulated", "engine").keys()
    with (
        under_load(both, "models", KEY, model=SMALL),
        under_load(both, "models", KEY, model="smart"),
    ):
        both.patch("simulated", engine={"template": {"metadata": {"annotations": {"a": "b"}}}})
        wait_until(
            lambda: len(now := both.pods("simulated", "engine").keys()) == 2 and not now & old,
            "two new replicas",
            timeout_s=180,
        )
        both("scale", "fis/simulated", "--replicas=1")
        both.ready("simulated", replicas=1)
    assert processes(both, "small", "engine") == small
    assert processes(both, BASE, "router") == routers


def test_a_tenants_share_holds_over_both_models(both: Namespace) -> None:
    """Ads floods both, law one of them. Three of the four GPUs serve that one, so law is owed two thirds of it."""
    for name, gpus in (("simulated", 3), ("small", 1)):
        args = ["--profile=a100-llama3.1-8b", "--max-running-requests=8", "--speed=0.3"]
        both.patch(name, engine={"args": args, "gpu": {"count": gpus}})
    both.ready("simulated", replicas=1)
    both.ready("small", replicas=1)
    loads = ((KEY, "smart"), (KEY, SMALL), (LAW, "smart"))

    def heavier(state: RouterState) -> bool:
        found = tenants(state, "simulated")
        return {"ads", "law"} <= found.keys() and found["law"].weight > 1.5 * found["ads"].weight

    with states(both) as read, flooded(both, loads):

        def part_of_law(seconds: float) -> float:
            """Law's part of what the model serves from now on."""
            before = tenants(read()[0], "simulated")
            threading.Event().wait(seconds)
            after = tenants(read()[0], "simulated")
            gained = {name: after[name].service - before[name].service for name in before}
            return gained["law"] / sum(gained.values())

        wait_until(lambda: all("law" in tenants(one, "simulated") for one in read()), "law")
        assert not any(heavier(one) for one in read())
        both("patch", "fig", "models", "--type=merge", "-p", '{"spec":{"shareAcross":"Gateway"}}')
        wait_until(lambda: all(heavier(one) for one in read()), "weights", timeout_s=120)
        wait_until(lambda: part_of_law(5.0) > 0.58, "law's share", timeout_s=120)
        both("patch", "fig", "models", "--type=merge", "-p", '{"spec":{"shareAcross":null}}')
        wait_until(lambda: not any(heavier(one) for one in read()), "the weights of the tenants")


def test_without_the_gateway_services_route_and_hit_caches_as_before(
    both: Namespace,
) -> None:
    both("scale", "fis/simulated", "--replicas=2")
    both.ready("simulated", replicas=2)
    behind = cached_part(both, "models", "smart")
    both("delete", "fig", "models", "--wait=false")
    wait_until(
        lambda: (
            len(both.pods("simulated", "router")) == 2 and len(both.pods("small", "router")) == 2
        ),
        "routers of the services",
        timeout_s=120,
    )
    both.answers("simulated", KEY, 200, within_s=60)
    assert behind > cached_part(both, "simulated", MODEL) - 0.05
