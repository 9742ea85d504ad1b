"""The plug-in inside the real engine: fair, true to its accounts, invisible in outputs, closed where it does not fit."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from evenkeel_contract.reports import ClientReport
from evenkeel_sglang.seams import SUPPORTED

from tests.sglang.engine import Answer, Engine, Since, ask, clients_of, tokens
from tests.sglang.refusals import refusals
from tests.sglang.shared import POOL_TOKENS, QUANTUM, RUNNING, SharedEngine
from tests.support.reporting import report_of

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

LONGEST_INPUT, LONGEST_OUTPUT = 220, 16
# U = we·L_input + wq·M: what runs for one client after its last turn. Whatever memory holds is at most the pool, and
# beyond the papers' M lies what the engine bets on (ALGORITHMS §7 A1): outputs of all that run.
U = LONGEST_INPUT + 2 * POOL_TOKENS

POLICY = "--schedule-policy=dlpm"
MODES = (
    "--dllm-algorithm=LowConfidence",
    "--dp-size=2",
    "--disaggregation-mode=prefill",
    "--enable-priority-scheduling",
)

Start = Callable[..., Engine]


def queue_of(rng: random.Random, client: str, count: int, **options: Any) -> list[dict[str, Any]]:
    """Requests of one client that share a prefix of 200 tokens."""
    prefix = tokens(rng, 200)
    return [ask(client, prefix + tokens(rng, 20), **options) for _ in range(count)]


async def watched(
    port: int, running: Coroutine[Any, Any, list[Answer]]
) -> list[dict[str, ClientReport]]:
    """The engine's reports while `running` runs, as fast as they come."""
    answers = asyncio.create_task(running)
    samples = []
    while not answers.done():
        samples.append(await asyncio.to_thread(clients_of, port))
        await asyncio.sleep(0.01)
    await answers
    return samples


def places(answers: list[Answer], client: str) -> list[int]:
    """Where in the order of finishing a client's requests stand."""
    ordered = sorted(answers, key=lambda answer: answer.finished_s)
    return [place for place, answer in enumerate(ordered) if f"/{client};" in answer.client]


async def test_a_flood_does_not_delay_the_other_client_and_accounts_are_exact(
    plain: SharedEngine,
) -> None:
    rng = random.Random(1)
    asks = [*queue_of(rng, "greedy", 200), *queue_of(rng, "modest", 20)]

    answers = await plain.run_queue(asks)

    # The modest one was sent last and is done long before the flood is: level with it all along, but for U + Q^u.
    ahead = (LONGEST_INPUT + 2 * LONGEST_OUTPUT * RUNNING + QUANTUM) / (20 + 2 * LONGEST_OUTPUT)
    assert max(places(answers, "modest")) < 2 * 20 + 2 * ahead
    assert all(len(answer.output_ids) == LONGEST_OUTPUT for answer in answers)
    rows = clients_of(plain.reports_port)
    for name, count in (("greedy", 200), ("modest", 20)):
        row = rows[f"ns/{name}/{name}"]
        assert row.requests == count
        assert row.extend_tokens + row.cached_tokens == count * LONGEST_INPUT
        assert row.output_tokens == count * LONGEST_OUTPUT
        assert row.service == row.extend_tokens + 2 * row.output_tokens
        assert (row.waiting, row.running) == (0, 0)
    # As much from the cache as a policy that looks at nothing else would get: all but the first prefixes.
    assert rows["ns/greedy/greedy"].cached_tokens > 0.85 * 200 * LONGEST_INPUT
    assert plain.metrics()['evenkeel_engine_policy_active{policy="DLPM"}'] == 1


async def test_service_is_quanta_given_less_what_is_left_at_both_levels(
    plain: SharedEngine,
) -> None:
    rng = random.Random(2)
    asks = [
        *queue_of(rng, "chat", 120, tenant="big", weights=(4, 3)),
        *queue_of(rng, "batch", 120, tenant="big", weights=(4, 1)),
        *queue_of(rng, "solo", 120, tenant="small"),
    ]

    samples = await watched(plain.reports_port, plain.run_queue(asks))

    client_weights = {"ns/big/chat": 3, "ns/big/batch": 1, "ns/small/solo": 1}
    tenant_weights = {"ns/big": 4, "ns/small": 1}
    seen = 0
    for sample in samples:
        backlogged = [name for name in client_weights if name in sample and sample[name].waiting]
        tenant_service = dict.fromkeys(tenant_weights, 0.0)
        for name in client_weights.keys() & sample.keys():
            tenant_service[name.rsplit("/", 1)[0]] += sample[name].service
        for name in backlogged:
            row, tenant = sample[name], name.rsplit("/", 1)[0]
            # W = q(t1) + k·Q^u·w − q(t2), with q(t1) = 0 and k a whole number (DLPM, proof of Theorem 4.1).
            assert (row.service + row.deficit) % (QUANTUM * client_weights[name]) == 0
            quantum = QUANTUM * tenant_weights[tenant]
            assert (tenant_service[tenant] + row.tenant_deficit) % quantum == 0
            assert row.service == pytest.approx(row.normalised * client_weights[name])
            seen += 1
        if len(backlogged) == 3 and all(sample[name].requests for name in backlogged):
            tenants = [tenant_service[name] / weight for name, weight in tenant_weights.items()]
            siblings = [sample[name].normalised for name in ("ns/big/chat", "ns/big/batch")]
            assert max(tenants) - min(tenants) <= 2 * (U + QUANTUM)
            assert max(siblings) - min(siblings) <= 2 * (U + QUANTUM)
    assert seen > 20, "too few samples of clients that wait"


async def test_outputs_are_the_same_with_and_without_the_plug_in(
    stock: SharedEngine, templated: SharedEngine
) -> None:
    rng = random.Random(3)
    shared = tokens(rng, 64)
    prompts = [shared + tokens(rng, 8 + i) if i % 2 else tokens(rng, 40 + i) for i in range(20)]

    async def outputs(engine: Engine) -> list[tuple[int, ...]]:
        found = []
        for prompt in prompts:  # one at a time: batches change float sums
            (answer,) = await engine.run_queue([ask("a", prompt, output_tokens=12)])
            found.append(answer.output_ids)
        return found

    assert await outputs(templated) == await outputs(stock)
    active = 'evenkeel_engine_policy_active{policy="DLPM"}'
    assert active in templated.metrics()
    assert not any(name.startswith("evenkeel_") for name in stock.metrics())


@pytest.mark.parametrize("count", [300, pytest.param(5000, marks=pytest.mark.slow)])
async def test_nothing_is_lost_or_served_twice_under_aborts_retractions_and_chunks(
    tight: SharedEngine, count: int
) -> None:
    rng, since, told = random.Random(4), Since(tight.reports_port), len(tight.log)
    prefix = {name: tokens(rng, 100) for name in ("a", "b", "c")}
    finished, aborted = 0, 0
    # A connection each: one that SGLang closes after 5 s at rest, just as it is taken again, would be lost.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    slots = asyncio.Semaphore(60)

    async def one(http: httpx.AsyncClient, index: int) -> None:
        nonlocal finished, aborted
        client = rng.choice("abc")
        body = ask(client, prefix[client] + tokens(rng, rng.randrange(1, 120)), output_tokens=40)
        # An end that the engine may hope for: with `ignore_eos` it sets all of it aside and retracts nobody.
        body["sampling_params"] |= {"ignore_eos": False, "min_new_tokens": 40}
        patience_s = rng.uniform(0, 2) if index % 5 == 0 else None
        async with slots:
            try:
                response = await asyncio.wait_for(http.post("/generate", json=body), patience_s)
            except TimeoutError:
                aborted += 1
                return
        assert len(response.raise_for_status().json()["output_ids"]) == 40
        finished += 1

    async with httpx.AsyncClient(base_url=tight.url, timeout=600, limits=limits) as http:
        await asyncio.gather(*(one(http, index) for index in range(count)))
        await tight.idle(http)

    assert finished + aborted == count
    rows = since.rows()
    assert rows.keys() == {"ns/a/a", "ns/b/b", "ns/c/c"}
    made = sum(row.output_tokens for row in rows.values())
    assert (
        40 * finished <= made <= 40 * count
    )  # each token once, also of those taken out of the batch
    assert sum(row.requests for row in rows.values()) >= finished
    # What a client computes again since it gave memory to another one is paid once (R16). It does where requests wait for seconds.
    retracted = sum(map(int, re.findall(r"#retracted_reqs: (\d+)", tight.log[told:])))
    assert retracted
    most_unpaid = retracted * (LONGEST_INPUT + 40)
    for row in rows.values():
        assert (row.waiting, row.running) == (0, 0)
        assert 0 <= row.extend_tokens + 2 * row.output_tokens - row.service <= most_unpaid
        # At rest: a debt of at most U is left. (What was forfeited on the way whenever nothing of a client was there is
        # not told, so the identity is not to be had here.)
        assert -(LONGEST_INPUT + 2 * 1024) < row.deficit <= 0


async def test_a_seed_is_where_a_client_starts_once(plain: SharedEngine) -> None:
    rng = random.Random(5)
    asks = [
        *queue_of(rng, "ahead", 30, tenant="team", seed=-3000),
        *queue_of(rng, "ahead", 10, tenant="team", seed=-9_000_000),
        *queue_of(rng, "level", 40, tenant="team"),
    ]

    answers = await plain.run_queue(asks)

    assert clients_of(plain.reports_port)["ns/team/ahead"].seed == -3000
    # It owes more than all 40 requests of the other cost, though it came first.
    assert 3000 > 200 + 40 * (20 + 2 * LONGEST_OUTPUT)
    assert max(places(answers, "level")) < 40 + RUNNING  # a batch may finish in any order


async def test_the_older_supported_version_is_as_fair(older: SharedEngine) -> None:
    rng = random.Random(6)
    answers = await older.run_queue([*queue_of(rng, "greedy", 80), *queue_of(rng, "modest", 8)])
    assert max(places(answers, "modest")) < 60
    row = clients_of(older.reports_port)["ns/greedy/greedy"]
    assert row.extend_tokens + row.cached_tokens == 80 * LONGEST_INPUT


async def test_reports_count_requests_without_a_client_key(plain: SharedEngine) -> None:
    before = await asyncio.to_thread(report_of, plain.reports_port)
    bodies = [ask("named", [5, 6, 7], output_tokens=1) for _ in range(3)]
    del bodies[0]["routing_key"]
    async with httpx.AsyncClient(base_url=plain.url, timeout=120) as http:
        for body in bodies:
            (await http.post("/generate", json=body)).raise_for_status()
    after = await asyncio.to_thread(report_of, plain.reports_port)
    assert (after.requests - before.requests, after.unnamed - before.unnamed) == (3, 1)


async def test_a_search_over_beams_is_charged_as_one_of_them(plain: SharedEngine) -> None:
    """SGLang's usage has the tokens of all answers (docs/explanation/charges)."""
    since = Since(plain.reports_port)
    body = ask("beams", tokens(random.Random(1), 50), output_tokens=8)
    body["sampling_params"] |= {"beam_width": 4, "n": 4}
    async with httpx.AsyncClient(base_url=plain.url, timeout=120) as http:
        answer = (await http.post("/generate", json=body)).raise_for_status().json()
        await plain.idle(http)
    usage = answer["meta_info"] if isinstance(answer, dict) else answer[0]["meta_info"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (50, 4 * 8)
    (row,) = since.rows().values()
    assert (row.extend_tokens, row.output_tokens, row.service) == (50, 7, 50 + 2 * 7)


async def test_every_prompt_of_one_call_is_its_clients(plain: SharedEngine) -> None:
    since = Since(plain.reports_port)
    body = ask("many", tokens(random.Random(8), 30), output_tokens=4)
    async with httpx.AsyncClient(base_url=plain.url, timeout=120) as http:
        call = body | {"input_ids": [body["input_ids"]] * 3}
        answers = (await http.post("/generate", json=call)).raise_for_status().json()
        drawn = (await http.post("/generate", json=_drawn_twice(body))).raise_for_status().json()
        await plain.idle(http)
    assert len(answers) == 3
    rows = since.rows()
    many = rows.pop("ns/many/many")
    # SGLang asks once more before the two, to have their prompt cached.
    assert many.requests == 3 + 2 + 1
    # That request's token is in no usage, so it costs nothing. It was computed, so it is reported.
    meta = [answer["meta_info"] for answer in (*answers, *drawn)]
    output_tokens = sum(one["completion_tokens"] for one in meta)
    assert output_tokens == 5 * 4 == many.output_tokens - 1
    assert many.service == many.extend_tokens + 2 * output_tokens
    assert many.extend_tokens + many.cached_tokens == (3 + 2 + 1) * 30
    assert rows == {}


def _drawn_twice(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"sampling_params": body["sampling_params"] | {"n": 2, "temperature": 1}}


# What starts no engine: SGLang's own functions find the plug-in, and read flags, in a process without a model (`refusals.py`).


def test_a_version_that_does_not_fit_refuses_to_start(older_seam: str) -> None:
    (refusal,) = refusals(["--schedule-policy=dlpm"], path=[older_seam])
    assert "does not fit the plug-in" in refusal
    assert "Refusing to start" in refusal
    assert SUPPORTED in refusal


@pytest.mark.parametrize("sglang", [None, "0.5.21"])
def test_a_mode_that_bypasses_the_policy_is_refused_with_its_flags(sglang: str | None) -> None:
    rust = "SGLANG_RUST_SERVER=1"
    found = refusals([POLICY], ["--schedule-policy=fcfs", rust], *([POLICY, mode] for mode in (*MODES, rust)), sglang=sglang)  # fmt: skip
    assert found[:2] == ["", ""]
    for mode, refusal in zip((*MODES, rust), found[2:], strict=True):
        assert f"{mode.partition('=')[0]} is set; remove it" in refusal


def test_a_refusal_ends_the_engine_before_the_model_is_loaded(start: Start) -> None:
    engine = start(POLICY, "--dp-size=2", wait=False)
    assert engine.wait_ended() != 0
    assert "--dp-size is set; remove it" in engine.log
    assert "Load weight" not in engine.log


def test_a_setting_that_cannot_be_stops_the_engine_and_names_it(start: Start) -> None:
    """The scheduler's process reads settings."""
    engine = start(POLICY, environment={"EVENKEEL_CLIENT_QUANTUM": "-1"}, wait=False)
    assert engine.wait_ended() != 0
    assert "EVENKEEL_CLIENT_QUANTUM is -1.0; it must be a positive number" in engine.log
