"""Tokens mode, the router before simulated replicas: exact counts, matches by pages, and reasons where not."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from evenkeel_contract.adminstate import decode_state
from evenkeel_contract.routerconfig import (
    SIMULATOR_TOKENIZER,
    PrefixConfig,
    PrefixMode,
    ReplicaConfig,
)
from evenkeel_contract.simulatedprompt import encode
from evenkeel_fairshare.fleet.contract import Dispatch
from evenkeel_router.api.identity import Client
from evenkeel_router.app import Router
from evenkeel_router.prefix.tokenised import WRONG_IN_A_ROW
from evenkeel_simulator.server.app import RunningServer, running_server

from tests.support.conversations import APIS, QUESTIONS, assert_alike, converse, predictions_of
from tests.support.routers import (
    KEY,
    MODEL,
    PATIENCE_S,
    applied,
    config_for,
    fleet,
    router_of,
    simulated,
    until,
)

AUTH = {"Authorization": f"Bearer {KEY}"}
PAGE = 16
STORY = "Once upon a time there was a router that knew every page of every cache. " * 8


def tokens_fleet(
    replicas: int = 2, tokenizer: str | None = SIMULATOR_TOKENIZER
) -> AbstractAsyncContextManager[tuple[Router, list[RunningServer]]]:
    return fleet(replicas, prefix=PrefixConfig(mode=PrefixMode.TOKENS, tokenizer=tokenizer))


def client_of(router: Router) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S, headers=AUTH)


async def usage(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    response = await client.post(path, json={"model": MODEL, "max_tokens": 4} | body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer["meta_info"] if path == "/generate" else answer["usage"]


async def test_the_routers_count_of_tokens_is_the_replicas() -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": STORY}]
    async with tokens_fleet() as (router, _), client_of(router) as client:
        for path, body in (
            ("/v1/completions", {"prompt": STORY}),
            ("/v1/completions", {"prompt": encode(STORY).tolist()}),
            ("/v1/chat/completions", {"messages": chat}),
            ("/generate", {"text": STORY, "sampling_params": {"max_new_tokens": 4}}),
        ):
            assert (await usage(client, path, **body))["prompt_tokens"] > 100
        turn = {"role": "user", "content": STORY}
        for path, body in WRONG_IN_A_ROW * (
            ("/v1/messages", {"messages": [turn], "system": "Be brief."}),
            ("/v1/responses", {"input": [turn], "instructions": "Be brief."}),
        ):
            assert (await usage(client, path, **body))["output_tokens"] > 0
        assert not router.rooms.prefixes.untokenised.counts
        for kind in ("prompt", "chat", "messages chat", "responses chat"):
            assert not router.rooms.prefixes.untokenised.distrusts(kind)


async def test_the_prediction_for_a_repeated_prompt_is_exact() -> None:
    async with tokens_fleet() as (router, _), client_of(router) as client:
        for _ in range(3):
            await usage(client, "/v1/completions", prompt=STORY)
        predicted = router.rooms.totals.predictions["estimated"]
        pages = (len(encode(STORY)) - 1) // 16
        assert predicted.predicted_tokens == predicted.reported_tokens == 2 * 16 * pages
        assert predicted.error_tokens.total == 0
        async with httpx.AsyncClient() as plain:
            state = await plain.get(f"http://127.0.0.1:{router.admin_port}/v1/state")
            page = (await plain.get(f"http://127.0.0.1:{router.probe_port}/metrics")).text
    shown = decode_state(state.content).prefix
    assert shown.mode == "Tokens"
    assert shown.predictions["estimated"].predicted_tokens == predicted.predicted_tokens
    line = f'evenkeel_router_prefix_predicted_tokens_total{{mode="estimated",model_name="{MODEL}"}}'
    assert f"{line} {float(predicted.predicted_tokens)}" in page


@pytest.mark.parametrize("mode", PrefixMode)
async def test_a_conversation_hits_as_much_over_every_chat_api(
    mode: PrefixMode,
) -> None:
    tokenizer = SIMULATOR_TOKENIZER if mode is PrefixMode.TOKENS else None
    found = {}
    for name, api in APIS.items():  # each with caches of its own
        prefix = PrefixConfig(mode=mode, tokenizer=tokenizer)
        async with fleet(2, prefix=prefix) as (router, _), client_of(router) as client:
            turns = await converse(client, api, MODEL)
            found[name] = turns, predictions_of(router)
    predicted, reported = assert_alike(found, PAGE)
    if mode is PrefixMode.TOKENS:  # whole pages; those with an answer's tokens are not predicted
        assert predicted >= reported - (len(QUESTIONS) - 1) * 2 * PAGE


async def test_a_prompt_that_cannot_be_tokenised_is_matched_by_its_text() -> None:
    async with tokens_fleet() as (router, _), client_of(router) as client:
        for _ in range(2):
            await usage(client, "/v1/completions", prompt=STORY, suffix="the end")
        assert {r.value: n for r, n in router.rooms.prefixes.untokenised.counts.items()} == {
            "options": 2
        }
        predicted = router.rooms.totals.predictions["text"]
        assert predicted.predicted_tokens > 0
        async with httpx.AsyncClient() as plain:
            page = (await plain.get(f"http://127.0.0.1:{router.probe_port}/metrics")).text
    assert f'untokenised_total{{model_name="{MODEL}",reason="options"}} 2.0' in page


async def test_requests_are_served_without_a_tokenizer_and_the_state_says_why() -> None:
    async with tokens_fleet(tokenizer="/nowhere") as (router, _), client_of(router) as client:
        await usage(client, "/v1/completions", prompt=STORY)
        async with httpx.AsyncClient() as plain:
            state = await plain.get(f"http://127.0.0.1:{router.admin_port}/v1/state")
    shown = decode_state(state.content).prefix
    assert shown.tokenizer_error == "/nowhere: the model has no tokenizer.json"
    assert shown.untokenised == {"no_tokenizer": 1}


async def test_replicas_are_asked_what_they_make_tokens_with() -> None:
    prefix = PrefixConfig(mode=PrefixMode.TOKENS, page_tokens=64)
    async with fleet(prefix=prefix) as (router, _), client_of(router) as client:
        untokenised = router.rooms.prefixes.untokenised
        await until(lambda: router.services.only.tokenising.tokenizer is not None, "a tokenizer")
        for _ in range(2):
            await usage(client, "/v1/completions", prompt=STORY)
        predicted = router.rooms.totals.predictions["estimated"]
        pages = (
            len(encode(STORY)) - 1
        ) // 16  # as the replicas cut them, not as the configuration says
        assert predicted.predicted_tokens == predicted.reported_tokens == 16 * pages
        assert not untokenised.counts
        assert untokenised.error == ""


async def test_a_replica_that_does_not_say_it_is_served_by_text() -> None:
    async with running_server(simulated(reports_port=None)) as server:
        config = config_for(
            ReplicaConfig(name="r0", url=server.url), prefix=PrefixConfig(mode=PrefixMode.TOKENS)
        )
        async with router_of(config) as router, client_of(router) as client:
            await usage(client, "/v1/completions", prompt=STORY)
            untokenised = router.rooms.prefixes.untokenised
            assert {reason.value: count for reason, count in untokenised.counts.items()} == {
                "no_tokenizer": 1
            }
            await until(lambda: bool(untokenised.error), "the reason")
            assert untokenised.error == "no replica has reported its tokenizer"


async def test_a_change_to_tokens_mode_and_back_takes_effect_while_requests_run() -> None:
    async with fleet() as (router, _), client_of(router) as client:
        before = router.rooms.settings.config
        tokens = replace(before, prefix=PrefixConfig(mode=PrefixMode.TOKENS))
        for config, want in ((tokens, True), (before, False), (tokens, True)):
            applied(router.rooms, config)
            router.services.only.tokenising.configure(config.prefix)
            await until(
                lambda want=want: (router.services.only.tokenising.tokenizer is not None) is want,  # type: ignore[misc]
                "the tokenizer to come or go",
            )
            assert (await usage(client, "/v1/completions", prompt=STORY))["prompt_tokens"] > 100


async def test_limits_and_credit_count_the_tokens_that_there_are() -> None:
    prompt = (
        "1 2 3 4 5 6 7 8 9 " * 30
    )  # two tokens for every two bytes, where an estimate says four bytes each
    tokens = len(encode(prompt))
    async with tokens_fleet(1) as (router, _), client_of(router) as client:
        seen: list[int] = []
        dispatched = router.rooms.replicas.fleet.policy.dispatched

        def watch(request: Dispatch, slot: int) -> None:
            seen.append(request.input_tokens)
            dispatched(request, slot)

        router.rooms.replicas.fleet.policy.dispatched = watch  # type: ignore[method-assign]
        admission, changes = router.rooms.intake.admission, list[int]()
        enter, correct, leave = admission.enter, admission.correct, admission.leave

        def entered(of: Client, estimate: int, *rest: Any) -> None:
            changes.append(estimate)
            enter(of, estimate, *rest)

        def corrected(of: Client, beyond: int, now_s: float) -> None:
            changes.append(beyond)
            assert sum(changes) == tokens
            correct(of, beyond, now_s)

        def left(of: Client, unpaid: int, *rest: Any) -> None:
            changes.append(unpaid)
            leave(of, unpaid, *rest)

        admission.enter, admission.correct, admission.leave = entered, corrected, left  # type: ignore[method-assign]
        reported = await usage(client, "/v1/completions", prompt=prompt)
    assert seen == [tokens] == [reported["prompt_tokens"]]
    assert (len(changes), sum(changes)) == (3, reported["total_tokens"])
