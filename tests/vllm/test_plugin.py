"""The replica policies inside the real vLLM: fair, true to their accounts, invisible in outputs, closed where they do not fit."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from evenkeel_contract.enginesettings import (
    INCARNATION_VARIABLE,
    ON_MISMATCH_VARIABLE,
    POLICY_VARIABLE,
    QUANTUM_VARIABLE,
    REPORTS_PORT_VARIABLE,
)
from evenkeel_contract.names import SESSION_HEADER
from evenkeel_contract.reports import ClientReport
from evenkeel_contract.vllm import SCHEDULER_FLAG

from bench.gpu.engine import EngineError
from bench.vllm_engine import running_vllm
from tests.sglang.engine import PACE_S, at_rest, clients_of, tokens, unused_port
from tests.support.routers import until
from tests.vllm.conftest import UNTESTED

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

RUNNING = 8
QUANTUM = 500
LONGEST_INPUT, LONGEST_OUTPUT = 220, 16
U = LONGEST_INPUT + 2 * RUNNING * LONGEST_OUTPUT


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine with the plug-in."""

    url: str
    reports_port: int
    log: Path

    def clients(self) -> dict[str, ClientReport]:
        return clients_of(self.reports_port)

    def metric(self, name: str) -> float:
        lines = httpx.get(self.url + "/metrics").raise_for_status().text.splitlines()
        samples = (line.rsplit(" ", 1) for line in lines)
        return sum(float(value) for key, value in samples if key.partition("{")[0] == name)

    async def idle(self) -> None:
        """Wait until nothing runs and nothing waits, by its reports."""

        def is_idle() -> bool:
            return not any(row.waiting or row.running for row in self.clients().values())

        await until(is_idle, "it to be idle")


@contextmanager
def engine(
    environment: Path, folder: Path, *flags: str, policy: str = "DLPM", **settings: str
) -> Iterator[Engine]:
    port = unused_port()
    log = folder / "engine.log"
    variables = {
        POLICY_VARIABLE: policy,
        QUANTUM_VARIABLE: str(QUANTUM),
        REPORTS_PORT_VARIABLE: str(port),
        INCARNATION_VARIABLE: "one",
        **settings,
    }
    with running_vllm(
        environment=environment,
        served_name="tiny",
        flags=(SCHEDULER_FLAG, f"--max-num-seqs={RUNNING}", *flags),
        log=log,
        settings=variables,
    ) as url:
        yield Engine(url, port, log)


@dataclass(frozen=True, slots=True)
class Answer:
    client: str
    token_ids: tuple[int, ...]
    cached_tokens: int
    finished_s: float


@dataclass(frozen=True, slots=True)
class Ask:
    """One completion of a forced length, of one client."""

    client: str
    prompt: list[int]
    tenant: str = ""
    weights: tuple[int, int] = (1, 1)
    seed: int = 0
    output_tokens: int = LONGEST_OUTPUT

    async def send(self, http: httpx.AsyncClient) -> Answer:
        suffix = f";s={self.seed}" if self.seed else ""
        key = f"ek1;ns/{self.tenant or self.client}/{self.client};w={self.weights[0]},{self.weights[1]}{suffix}"
        body = {
            "model": "tiny",
            "prompt": self.prompt,
            "max_tokens": self.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "return_token_ids": True,
        }
        response = await http.post("/v1/completions", json=body, headers={SESSION_HEADER: key})
        finished_s = time.monotonic()
        answer = response.raise_for_status().json()
        details = answer["usage"]["prompt_tokens_details"] or {}
        ids = tuple(answer["choices"][0]["token_ids"])
        return Answer(self.client, ids, details.get("cached_tokens") or 0, finished_s)


async def run_queue(found: Engine, asks: list[Ask]) -> list[Answer]:
    """All wait, in about this order, before the first of them starts: the scheduler's process is stopped meanwhile."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    (scheduler,) = (
        process
        for process in psutil.Process().children(recursive=True)
        if "EngineCore" in " ".join(process.cmdline())
    )
    async with httpx.AsyncClient(base_url=found.url, timeout=600, limits=limits) as http:
        scheduler.suspend()
        try:
            tasks = []
            for ask in asks:
                tasks.append(asyncio.create_task(ask.send(http)))
                await asyncio.sleep(PACE_S)
            feeder = scheduler.parent()
            assert feeder is not None
            await at_rest(feeder)
        finally:
            scheduler.resume()
        return await asyncio.gather(*tasks)


def queue_of(rng: random.Random, client: str, count: int, **options: Any) -> list[Ask]:
    """Requests of one client that share a prefix of 200 tokens."""
    prefix = tokens(rng, 200)
    return [Ask(client, prefix + tokens(rng, 20), **options) for _ in range(count)]


async def watched(
    found: Engine, running: Coroutine[Any, Any, list[Answer]]
) -> list[dict[str, ClientReport]]:
    """The engine's reports while `running` runs, as fast as they come."""
    answers = asyncio.create_task(running)
    samples = []
    while not answers.done():
        samples.append(await asyncio.to_thread(found.clients))
        await asyncio.sleep(0.01)
    await answers
    return samples


async def test_a_flood_does_not_delay_the_other_client_and_accounts_are_exact(
    environment: Path, tmp_path: Path
) -> None:
    rng = random.Random(1)
    with engine(environment, tmp_path) as found:
        asks = [*queue_of(rng, "greedy", 150), *queue_of(rng, "modest", 15)]
        answers = await run_queue(found, asks)
        await found.idle()
        rows = found.clients()
    # The modest client sends last and is done long before the flood: level with it all along, but for U + Q^u.
    ordered = sorted(answers, key=lambda answer: answer.finished_s)
    last = max(place for place, one in enumerate(ordered) if one.client == "modest")
    ahead = (U + QUANTUM) / (20 + 2 * LONGEST_OUTPUT)
    assert last < RUNNING + 2 * 15 + 2 * ahead < 150
    for name, count in (("greedy", 150), ("modest", 15)):
        row = rows[f"ns/{name}/{name}"]
        assert row.requests == count
        assert row.extend_tokens + row.cached_tokens == count * LONGEST_INPUT
        assert row.output_tokens == count * LONGEST_OUTPUT
        assert row.service == row.extend_tokens + 2 * row.output_tokens
        assert (row.waiting, row.running) == (0, 0)
        cached = sum(one.cached_tokens for one in answers if one.client == name)
        assert row.cached_tokens == cached, "as the engine reports to its clients"
    assert rows["ns/greedy/greedy"].cached_tokens > 0.8 * 150 * LONGEST_INPUT


async def test_a_tenant_of_three_times_the_weight_gets_three_times_the_service(
    environment: Path, tmp_path: Path
) -> None:
    rng = random.Random(3)
    asks = [
        ask
        for name, weight in (("heavy", 3), ("light", 1))
        for ask in queue_of(rng, name, 100, tenant=name, weights=(weight, 1), output_tokens=64)
    ]
    rng.shuffle(asks)
    with engine(environment, tmp_path) as found:
        answers = await run_queue(found, asks)
    first = sorted(answers, key=lambda answer: answer.finished_s)[:120]
    part = sum(answer.client == "heavy" for answer in first) / 120
    # Ahead or behind by a quantum and what runs: ten answers of 148 weighted tokens.
    assert part == pytest.approx(0.75, abs=10 / 120)


async def test_service_is_quanta_given_less_what_is_left_at_both_levels(
    environment: Path, tmp_path: Path
) -> None:
    rng = random.Random(2)
    asks = [
        *queue_of(rng, "chat", 480, tenant="big", weights=(4, 3)),
        *queue_of(rng, "batch", 480, tenant="big", weights=(4, 1)),
        *queue_of(rng, "solo", 480, tenant="small"),
    ]
    rng.shuffle(asks)
    with engine(environment, tmp_path) as found:
        samples = await watched(found, run_queue(found, asks))
    client_weights = {"ns/big/chat": 3, "ns/big/batch": 1, "ns/small/solo": 1}
    seen = 0
    for sample in samples:
        tenant_service = {"ns/big": 0.0, "ns/small": 0.0}
        for name in client_weights.keys() & sample.keys():
            tenant_service[name.rsplit("/", 1)[0]] += sample[name].service
        backlogged = [name for name in client_weights if name in sample and sample[name].waiting]
        for name in backlogged:
            row, tenant = sample[name], name.rsplit("/", 1)[0]
            # W = q(t1) + k·Q^u·w − q(t2), with q(t1) = 0 and k a whole number (DLPM, proof of Theorem 4.1).
            assert (row.service + row.deficit) % (QUANTUM * client_weights[name]) == 0
            quantum = QUANTUM * (4 if tenant == "ns/big" else 1)
            assert (tenant_service[tenant] + row.tenant_deficit) % quantum == 0
            seen += 1
        if len(backlogged) == 3 and all(sample[name].requests for name in backlogged):
            siblings = [sample[name].normalised for name in ("ns/big/chat", "ns/big/batch")]
            assert max(siblings) - min(siblings) <= 2 * (U + QUANTUM)
            tenants = [tenant_service["ns/big"] / 4, tenant_service["ns/small"]]
            assert max(tenants) - min(tenants) <= 2 * (U + QUANTUM)
    assert seen > 5, "too few samples of clients that wait"


async def test_outputs_are_the_same_with_and_without_the_plug_in(
    environment: Path, tmp_path: Path
) -> None:
    rng = random.Random(3)
    shared = tokens(rng, 64)
    asks = [
        Ask("a", shared + tokens(rng, 8 + i) if i % 2 else tokens(rng, 40 + i)) for i in range(12)
    ]

    async def outputs(url: str) -> list[tuple[int, ...]]:
        async with httpx.AsyncClient(base_url=url, timeout=120) as http:
            return [(await ask.send(http)).token_ids for ask in asks]  # batches change float sums

    with engine(environment, tmp_path) as found:
        with_plug_in = await outputs(found.url)
    with running_vllm(
        environment=environment, served_name="tiny", flags=(), log=tmp_path / "plain.log"
    ) as url:
        assert await outputs(url) == with_plug_in


async def test_nothing_is_lost_or_served_twice_under_aborts_preemptions_and_chunks(
    environment: Path, tmp_path: Path
) -> None:
    rng = random.Random(4)
    prefix = {name: tokens(rng, 100) for name in ("a", "b", "c")}
    finished = aborted = 0
    slots = asyncio.Semaphore(40)
    # So little memory that running requests are preempted, and chunks that cut most inputs.
    flags = ("--num-gpu-blocks-override=33", "--max-model-len=512", "--max-num-batched-tokens=64")
    with engine(environment, tmp_path, *flags) as found:

        async def one(http: httpx.AsyncClient, index: int) -> None:
            nonlocal finished, aborted
            client = rng.choice("abc")
            ask = Ask(client, prefix[client] + tokens(rng, rng.randrange(1, 80)), output_tokens=80)
            patience_s = rng.uniform(0, 2) if index % 5 == 0 else None
            async with slots:
                try:
                    answer = await asyncio.wait_for(ask.send(http), patience_s)
                except TimeoutError:
                    aborted += 1
                    return
            assert len(answer.token_ids) == 80
            finished += 1

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=found.url, timeout=600, limits=limits) as http:
            await asyncio.gather(*(one(http, index) for index in range(200)))
        await found.idle()
        rows = found.clients()
        preemptions = found.metric("vllm:num_preemptions_total")
        bypassed = found.metric("evenkeel_engine_policy_bypassed_total")
        refused = found.metric("evenkeel_engine_client_key_refused_total")
    assert finished + aborted == 200
    assert preemptions > 0, "the cache was meant to be too small"
    assert (bypassed, refused) == (0, 0)
    made = sum(row.output_tokens for row in rows.values())
    assert 80 * finished <= made <= 80 * 200, "each token once, also of preempted requests"
    for row in rows.values():
        assert (row.waiting, row.running) == (0, 0)
        assert row.service == row.extend_tokens + 2 * row.output_tokens


@pytest.mark.parametrize(
    ("flags", "settings", "message"),
    [
        ((), {QUANTUM_VARIABLE: "-1"}, "EVENKEEL_CLIENT_QUANTUM is -1.0; it must be a positive number"),
        (("--scheduling-policy=priority",), {}, "--scheduling-policy is set; remove it"),
        ((), {POLICY_VARIABLE: "Fair"}, "no replica policy 'Fair'"),
        ((), {**UNTESTED, ON_MISMATCH_VARIABLE: "Refuse"}, "version 0.32.0 is not tested with this plug-in"),
    ],
)  # fmt: skip
def test_what_does_not_fit_ends_the_start_with_a_reason(
    environment: Path,
    tmp_path: Path,
    flags: tuple[str, ...],
    settings: dict[str, str],
    message: str,
) -> None:
    with (
        pytest.raises(EngineError, match="the engine ended"),
        engine(environment, tmp_path, *flags, **settings),
    ):
        pass
    assert message in (tmp_path / "engine.log").read_text()
