"""`evenkeel up` with the two models of the example: stock clients, cache hits as without the gateway, rollouts and drains of one model
that the other does not see, and shares over both.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from anthropic import Anthropic
from evenkeel_contract.adminstate import TenantState
from openai import OpenAI

from tests.support.up_process import DEADLINE_S, Up

TWO_MODELS = Path(__file__).parents[2] / "examples" / "two-models.yaml"
BIG, SMALL = "llama-70b", "llama-8b"
KEYS = {"ads": "sk-ads-chat", "research": "sk-research-notebook"}
LOADS = (("ads", "smart"), ("ads", "llama-3.1-8b"), ("research", "smart"))
"""Ads floods both models, research the big one."""
OPEN = 24
"""Open requests of each load: three batches."""

pytestmark = [pytest.mark.usefixtures("source_path"), pytest.mark.timeout(300)]


def example(**spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The documents of the example; `spec`: name → fields of its spec, and of its engine."""
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(TWO_MODELS.read_text()))
    for document in documents:
        document.get("spec", {}).update(spec.get(document["metadata"]["name"], {}))
    return documents


def engine(replicas: int, *args: str, gpus: int = 1) -> dict[str, Any]:
    return {
        "engine": {
            "runtime": "Simulator", "replicas": replicas, "args": list(args), "gpu": {"count": gpus},
        }
    }  # fmt: skip


@contextmanager
def running(folder: Path, documents: list[dict[str, Any]]) -> Iterator[Up]:
    """A fleet of these documents."""
    folder.mkdir(exist_ok=True)
    (folder / "fleet.yaml").write_text(yaml.safe_dump_all(documents))
    up = Up(folder)
    try:
        up.until_ready()
        yield up
        assert up.stop() == 0
    finally:
        if up.process.poll() is None:
            up.process.kill()
        up.process.wait()


def test_stock_clients_use_both_models(tmp_path: Path) -> None:
    ahoy: Any = {"role": "user", "content": "Ahoy"}
    with running(tmp_path, example()) as up:
        with OpenAI(base_url=f"{up.url}/v1", api_key=KEYS["ads"]) as openai:
            assert {"smart", "llama-3.1-8b"} <= {one.id for one in openai.models.list()}
            for name in ("smart", "gpt-4o", "llama-3.1-8b"):
                chunks = openai.chat.completions.create(
                    model=name, messages=[ahoy], max_tokens=4, stream=True
                )
                assert [chunk for chunk in chunks if chunk.choices]
        with Anthropic(base_url=up.url, api_key=KEYS["ads"]) as anthropic:
            for name in ("smart", "llama-3.1-8b"):
                with anthropic.messages.stream(model=name, max_tokens=4, messages=[ahoy]) as stream:
                    assert stream.get_final_message().usage.output_tokens == 4


def hits(up: Up, *models: str) -> dict[str, int]:
    """Model → input tokens of conversations that the engines had in their caches. Conversations of all models take turns."""
    found = dict.fromkeys(models, 0)
    prompts = {(model, number): f"{model} {number} " for model in models for number in range(4)}
    for turn in range(5):
        for one, before in prompts.items():
            prompts[one] = before + f"turn {turn} " + "keel " * 300
            messages = [{"role": "user", "content": prompts[one]}]
            headers = {"Authorization": f"Bearer {KEYS['ads']}"}
            body = {"model": one[0], "messages": messages, "max_tokens": 2}
            answer = httpx.post(
                f"{up.url}/v1/chat/completions", json=body, headers=headers,
                timeout=DEADLINE_S, trust_env=False,
            )  # fmt: skip
            usage = answer.raise_for_status().json()["usage"]
            found[one[0]] += usage["prompt_tokens_details"]["cached_tokens"]
    return found


def test_each_model_hits_its_caches_as_it_does_alone(tmp_path: Path) -> None:
    sizes = {BIG: engine(2, "--speed=20"), SMALL: engine(2, "--speed=20")}
    with running(tmp_path / "both", example(**sizes)) as up:
        behind = hits(up, "smart", "llama-3.1-8b")
    alone = {}
    for service, name, served in ((BIG, "smart", "smart"), (SMALL, "llama-3.1-8b", None)):
        other = SMALL if service == BIG else BIG
        documents = [
            one
            for one in example(**sizes)
            if one["kind"] != "FairInferenceGateway" and one["metadata"]["name"] != other
        ]
        if served is not None:  # the same text for the same model
            (own,) = (one for one in documents if one["metadata"]["name"] == service)
            own["spec"]["model"]["servedName"] = served
        with running(tmp_path / service, documents) as up:
            alone |= hits(up, name)
    assert all(alone.values())
    assert behind == alone


@contextmanager
def streaming(up: Up, *models: str) -> Iterator[None]:
    """Streams of these models, one after another for each; all must be whole."""
    stop, ended, wrong = threading.Event(), dict.fromkeys(models, 0), list[str]()

    def ask(model: str) -> None:
        headers = {"Authorization": f"Bearer {KEYS['ads']}"}
        body = {"model": model, "prompt": "Ahoy", "max_tokens": 300, "stream": True}
        while not stop.is_set():
            answer = httpx.post(
                f"{up.url}/v1/completions", json=body, headers=headers,
                timeout=DEADLINE_S, trust_env=False,
            )  # fmt: skip
            if not answer.is_success or not answer.text.rstrip().endswith("data: [DONE]"):
                wrong.append(f"{answer.status_code}: {answer.text[-200:]}")
            ended[model] += 1

    threads = [threading.Thread(target=ask, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert all(ended.values())


def test_rollout_and_drain_of_one_model_are_not_seen_by_the_other(tmp_path: Path) -> None:
    sizes = {BIG: engine(2, "--speed=2"), SMALL: engine(1, "--speed=2")}
    with running(tmp_path, example(**sizes)) as up:
        before = up.pids()
        stay = {name: pid for name, pid in before.items() if not name.startswith(BIG)}
        with streaming(up, "smart", "llama-3.1-8b"):
            rolled = {**sizes, BIG: engine(2, "--speed=2.5")}
            up.file.write_text(yaml.safe_dump_all(example(**rolled)))
            up.until_reported("fleet.yaml applied")
            after = up.pids()
            drained = {**sizes, BIG: engine(1, "--speed=2.5")}
            up.file.write_text(yaml.safe_dump_all(example(**drained)))
            up.until_reported("fleet.yaml applied", 2)
            ended = up.pids()
        assert not set(after.values()) & (set(before.values()) - set(stay.values()))
        assert len(after) == len(before)
        assert len(ended) == len(before) - 1
        assert all({name: now[name] for name in stay} == stay for now in (after, ended))


@contextmanager
def flooded(up: Up) -> Iterator[None]:
    """Requests one after another from `OPEN` senders of each load; all must be answered."""
    stop, wrong = threading.Event(), list[str]()

    async def send(http: httpx.AsyncClient, tenant: str, model: str, number: int) -> None:
        headers = {"Authorization": f"Bearer {KEYS[tenant]}"}
        while not stop.is_set():
            prompt = f"{tenant} {number} " * 8
            body = {"model": model, "prompt": prompt, "max_tokens": 64, "ignore_eos": True}
            answer = await http.post("/v1/completions", json=body, headers=headers)
            if not answer.is_success:
                wrong.append(answer.text)
            number += OPEN

    async def all_of_them() -> None:
        limits = httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(
                base_url=up.url, timeout=DEADLINE_S, limits=limits, trust_env=False
            ) as http,
            asyncio.TaskGroup() as group,
        ):
            for tenant, model in LOADS:
                for number in range(OPEN):
                    group.create_task(send(http, tenant, model, number))

    thread = threading.Thread(target=asyncio.run, args=(all_of_them(),))
    thread.start()
    try:
        yield
        assert thread.is_alive()
    finally:
        stop.set()
        thread.join()
    assert not wrong, wrong[:3]


def at_big_model(up: Up) -> dict[str, TenantState]:
    """The tenants of the big model, by name."""
    (found,) = (one for one in up.state().services if one.service == BIG)
    return {one.name: one for one in found.tenants}


def test_a_tenants_share_holds_over_both_models(tmp_path: Path) -> None:
    """Three of the four GPUs serve the big model, so research is owed two thirds of it."""
    args = ("--profile=a100-llama3.1-8b", "--max-running-requests=8", "--speed=0.3")
    equal = {"ads": {"weight": 1}, BIG: engine(1, *args, gpus=3), SMALL: engine(1, *args)}
    with running(tmp_path, example(**equal)) as up, flooded(up):

        def heavier() -> bool:
            found = at_big_model(up)
            return found["research"].weight > 1.5 * found["ads"].weight

        up.until(lambda: KEYS.keys() <= at_big_model(up).keys())
        assert not heavier()
        shared = {**equal, "models": {"shareAcross": "Gateway"}}
        up.file.write_text(yaml.safe_dump_all(example(**shared)))
        up.until_reported("fleet.yaml applied")
        up.until(heavier)
        part = 0.0
        for _ in range(20):
            before = at_big_model(up)
            threading.Event().wait(1.0)
            after = at_big_model(up)
            gained = {name: after[name].service - before[name].service for name in before}
            part = gained["research"] / sum(gained.values())
            if part > 0.58:
                break
        assert part > 0.58
        up.file.write_text(yaml.safe_dump_all(example(**equal)))
        up.until(lambda: not heavier())
