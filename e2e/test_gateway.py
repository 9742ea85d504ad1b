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
from evenkeel_contract.names import ADMIN_PORT, TRAFFIC_PORT
from openai import NotFoundError, OpenAI

from e2e.installed import MODEL, ROOT, Namespace, ingress, request, service, under_load
from e2e.operators import wait_until

pytestmark = pytest.mark.timeout(600)
KEY, LAW, BASE = "sk-ads-gateway", "sk-law-gateway", "models-gateway"
SMALL = "small-1b"
FLOOD = 24
"""Open requests of a tenant at a model: three batches."""
CONVERSATIONS, TURNS = 5, 5
"""An odd number, so that replicas in turn would not keep a conversation by chance."""


@pytest.fixture(scope="module")
def both(team: Namespace) -> Namespace:
    """A gateway of the sample, at a host, with two services; clients use their own keys."""
    team.tenant("ads", KEY)
    team.tenant("law", LAW)
    reject = {"anonymous": "Reject"}
    simulated = service("simulated", host=team.host("simulated"), replicas=2, tenancy=reject)
    small: dict[str, Any] = service("small", host=team.host("small"), tenancy=reject)
    small["metadata"]["labels"] = {"models": "public"}
    small["spec"]["model"]["servedName"] = SMALL
    team.apply(simulated, small)
    team("apply", "-f", str(ROOT / "crds/samples/gateway.yaml"))
    host = {"ingress": {"host": team.host("models")}}
    change = json.dumps({"spec": {"exposure": host, "tenancy": reject}})
    team("patch", "fig", "models", "--type=merge", "-p", change)
    team.ready("simulated", replicas=2)
    team.ready("small", replicas=1)
    team("wait", "--for=condition=Ready", "fig/models", "--timeout=180s")
    team("wait", "--for=condition=ModelsReady", "fig/models", "--timeout=60s")
    team.reached("models", KEY)
    return team


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


def cached_part(team: Namespace, base: str, model: str) -> float:
    """The part of the input tokens of conversations that the engines had in their caches, without each first turn.

    By one router: the ingress takes two of them in turn, and where both engines are idle, two routers may prefer different ones.
    """
    seen = cached = 0
    prompts = [f"{uuid4()} " for _ in range(CONVERSATIONS)]
    headers = {"Authorization": f"Bearer {KEY}"}
    with (
        team.forwarded(next(iter(team.pods(base, "router"))), TRAFFIC_PORT) as url,
        httpx.Client(base_url=url, headers=headers, timeout=60) as http,
    ):
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


@pytest.mark.core
def test_stock_clients_use_both_models(both: Namespace) -> None:
    ahoy: Any = {"role": "user", "content": "Ahoy"}
    address, headers = f"http://{ingress()}", {"Host": both.host("models")}
    with OpenAI(base_url=f"{address}/v1", api_key=KEY, default_headers=headers) as openai:
        assert [model.id for model in openai.models.list()] == ["smart", SMALL]
        for name in ("smart", SMALL):
            chunks = openai.chat.completions.create(
                model=name, max_tokens=8, stream=True, messages=[ahoy]
            )
            assert [chunk for chunk in chunks if chunk.choices]
        with pytest.raises(NotFoundError, match="did you mean smart"):
            openai.completions.create(model="smrt", prompt="Ahoy")
    with Anthropic(base_url=address, api_key=KEY, default_headers=headers) as anthropic:
        for name in ("smart", SMALL):
            with anthropic.messages.stream(model=name, max_tokens=8, messages=[ahoy]) as stream:
                assert stream.get_final_message().usage.output_tokens == 8


@pytest.mark.core
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


@pytest.mark.core
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


@contextmanager
def rollout(team: Namespace, *names: str) -> Iterator[None]:
    """Within it specs change; at its end all replicas of these services are new, as many as before, and ready."""
    old = {name: team.pods(name, "engine").keys() for name in names}
    yield
    wait_until(
        lambda: not any(team.pods(name, "engine").keys() & old[name] for name in names),
        "the end of the old replicas",
        timeout_s=180,
    )
    for name in names:
        team.ready(name, replicas=len(old[name]))


@pytest.mark.core
def test_rollout_and_drain_of_one_model_are_not_seen_by_the_other(both: Namespace) -> None:
    """Nor by clients of the model itself."""
    small, routers = processes(both, "small", "engine"), processes(both, BASE, "router")
    with (
        under_load(both, "models", KEY, model=SMALL, tokens=400),
        under_load(both, "models", KEY, model="smart", tokens=400),
    ):
        with rollout(both, "simulated"):
            both.patch("simulated", engine={"template": {"metadata": {"annotations": {"a": "b"}}}})
        both("scale", "fis/simulated", "--replicas=1")
        both.ready("simulated", replicas=1)
    assert processes(both, "small", "engine") == small
    assert processes(both, BASE, "router") == routers


def share_across(team: Namespace, value: str | None) -> None:
    change = json.dumps({"spec": {"shareAcross": value}})
    team("patch", "fig", "models", "--type=merge", "-p", change)


def test_a_tenants_share_holds_over_both_models(both: Namespace) -> None:
    """Ads floods both, law one of them. Three of the four GPUs serve that one, so law is owed two thirds of it."""
    args = ["--profile=a100-llama3.1-8b", "--max-running-requests=8", "--speed=0.3"]
    with rollout(both, "simulated", "small"):
        for name, gpus in (("simulated", 3), ("small", 1)):
            both.patch(name, engine={"args": args, "gpu": {"count": gpus}})
    loads = ((KEY, "smart"), (KEY, SMALL), (LAW, "smart"))
    with states(both) as read, flooded(both, loads):

        def at_big_model() -> list[dict[str, TenantState]]:
            return [tenants(state, "simulated") for state in read()]

        def heavier() -> bool:
            return all(one["law"].weight > 1.5 * one["ads"].weight for one in at_big_model())

        def part_of_law() -> float:
            """Law's part of what all routers served in some seconds."""
            before = at_big_model()
            threading.Event().wait(5.0)
            gained = {
                name: sum(
                    now[name].service - then[name].service
                    for then, now in zip(before, at_big_model(), strict=True)
                )
                for name in ("ads", "law")
            }
            return gained["law"] / sum(gained.values())

        wait_until(lambda: all(one.keys() >= {"ads", "law"} for one in at_big_model()), "both")
        assert not heavier()
        wait_until(lambda: 0.4 < part_of_law() < 0.58, "half of the model for each", timeout_s=60)
        share_across(both, "Gateway")
        wait_until(heavier, "weights over both models", timeout_s=120)
        wait_until(lambda: part_of_law() > 0.58, "law's share", timeout_s=120)
        share_across(both, None)
        wait_until(lambda: not heavier(), "the weights of the tenants", timeout_s=60)


@pytest.mark.core
def test_without_the_gateway_services_route_and_hit_caches_as_before(both: Namespace) -> None:
    both("scale", "fis/simulated", "--replicas=2")
    both.ready("simulated", replicas=2)
    behind = [cached_part(both, BASE, model) for model in ("smart", SMALL)]
    both("delete", "fig", "models", "--wait=false")
    wait_until(
        lambda: all(len(both.pods(name, "router")) == 2 for name in ("simulated", "small")),
        "routers of the services",
        timeout_s=120,
    )
    for name in ("simulated", "small"):
        both.reached(name, KEY)
    alone = [cached_part(both, "simulated", MODEL), cached_part(both, "small", SMALL)]
    assert min(alone) > 0.5
    assert behind == pytest.approx(alone, abs=0.02)
