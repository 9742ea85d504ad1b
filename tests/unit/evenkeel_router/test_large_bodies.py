"""Large bodies, read by the process beside the loop: the same result as here, and what happens when it ends."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from evenkeel_fairshare.prefix.index import namespace_seed, text_blocks
from evenkeel_router.api.answers import ErrorAnswer, GarbageError, of_reply, written_in
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.errors import Outcome, Refusal
from evenkeel_router.api.inference import Limits
from evenkeel_router.request import body_worker, large_bodies
from evenkeel_router.request.body_worker import MAX_VALUES, values_in
from evenkeel_router.request.large_bodies import (
    LARGE_BYTES,
    MOST_MARKS,
    SMALL_BYTES,
    LargeBodies,
    is_large,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.router_rooms import client

LIMITS = Limits("m", 4096, frozenset({"french"}))
TEXT = "A line, and [another] one. " * 6000
JSON = "application/json"
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a,[{"\\é', max_size=5),
    lambda some: st.lists(some, max_size=4) | st.dictionaries(st.text(alphabet='b"\\,', max_size=3), some, max_size=4),
    max_leaves=20,
)  # fmt: skip


@pytest.fixture
async def bodies() -> AsyncIterator[LargeBodies]:
    async with LargeBodies() as beside:
        yield beside


async def read(bodies: LargeBodies, endpoint: Endpoint, body: bytes, tenant: str = "a") -> Any:
    return await bodies.inference(
        endpoint, body, LIMITS, JSON, client=client(tenant), block_bytes=256
    )


def count_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(count_of, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(count_of, value))
    return 1


@examples(100)
@given(values)
def test_values_are_counted_without_those_in_strings(value: Any) -> None:
    body = json.dumps(value, ensure_ascii=False).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_worker, "MAX_VALUES", body.count(b'"') // 4)
        # An empty list or object counts as if it had a value.
        assert count_of(value) <= values_in(body) <= 2 * count_of(value)


@pytest.mark.parametrize(
    ("body", "want"),
    [
        (b"[" * SMALL_BYTES, False),
        (b"x" * LARGE_BYTES, False),
        (b"x" * (LARGE_BYTES + 1), True),
        (b"[" * MOST_MARKS + b"x" * SMALL_BYTES, False),
        (b"{" * MOST_MARKS + b"," + b"x" * SMALL_BYTES, True),
    ],
)
def test_a_body_is_large_by_its_size_or_by_its_marks(body: bytes, want: bool) -> None:
    assert is_large(body) is want


@pytest.mark.parametrize(
    ("endpoint", "members"),
    [
        (Endpoint.COMPLETIONS, {"prompt": TEXT}),
        (Endpoint.COMPLETIONS, {"prompt": [1, 2, 3] * 9000, "stream": True}),
        (Endpoint.COMPLETIONS, {"rid": "x", "prompt": TEXT, "seed": 7}),
        (Endpoint.COMPLETIONS, {"prompt": TEXT, "stream": True, "stream_options": {"x": 1}}),
        (Endpoint.CHAT, {"messages": [{"role": "user", "content": TEXT}], "tools": [{}]}),
        (
            Endpoint.CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9000}}]}]},
        ),
        (Endpoint.CHAT, {"model": "french", "messages": [{"role": "user", "content": TEXT}]}),
        (Endpoint.MESSAGES, {"max_tokens": 9, "messages": [{"role": "user", "content": TEXT}]}),
        (Endpoint.RESPONSES, {"input": TEXT, "stream": True}),
        (Endpoint.GENERATE, {"text": TEXT, "sampling_params": {"custom_params": {}, "n": 2}}),
        (Endpoint.RERANK, {"query": TEXT, "documents": ["a", "b"]}),
    ],
)  # fmt: skip
async def test_a_body_read_beside_the_loop_gives_the_same_request(
    bodies: LargeBodies, endpoint: Endpoint, members: dict[str, Any]
) -> None:
    body = json.dumps({"model": "m"} | members).encode()
    here = endpoint.api.parse(body, LIMITS, JSON)
    for spaced in (body, b" \n" + body):
        there = await read(bodies, endpoint, spaced)
        assert there.body == here.body
        blocks = text_blocks(
            here.text, block_bytes=256, seed=namespace_seed(client("a").cache_salt)
        )
        assert there.hashed is not None
        assert list(there.hashed.hashes) == blocks
        assert (there.hashed.block_bytes, there.hashed.text_bytes) == (256, len(here.text))
        same = msgspec.structs.replace(there, body=here.body, text=here.text, hashed=None, values=0)
        assert same == here


async def test_a_body_that_is_copied_in_slices_is_whole(
    bodies: LargeBodies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_bodies, "SLICE_BYTES", 1000)
    body = json.dumps({"rid": "x", "model": "m", "prompt": TEXT, "seed": 7}).encode()
    here = Endpoint.COMPLETIONS.api.parse(body, LIMITS, JSON)
    assert here.body != body
    assert (await read(bodies, Endpoint.COMPLETIONS, body)).body == here.body


async def test_a_form_read_beside_the_loop_gives_the_same_request(bodies: LargeBodies) -> None:
    part = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n%b\r\n--b--'
    body, endpoint = part % (b"x,[{" * 9000), Endpoint.TRANSCRIPTIONS
    there = await bodies.inference(
        endpoint, body, LIMITS, "multipart/form-data; boundary=b",
        client=client(), block_bytes=256,
    )  # fmt: skip
    here = endpoint.api.parse(body, LIMITS, "multipart/form-data; boundary=b")
    assert msgspec.structs.replace(there, hashed=None) == here


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","prompt":[%b]}' % b",".join([b"[]"] * 3000),
        b'{"model":"m","prompt":' + b"[" * 20_000,
        b'{"model":"m","prompt":"\xff"}',
        b'{"model":"other","prompt":"x"}',
        b'{"model":"m","prompt":"x","max_tokens":100000}',
    ],
)
async def test_a_body_read_beside_the_loop_is_refused_in_the_same_words(
    bodies: LargeBodies, body: bytes
) -> None:
    with pytest.raises(Refusal) as here:
        Endpoint.COMPLETIONS.api.parse(body, LIMITS, JSON)
    with pytest.raises(Refusal) as there:
        await read(bodies, Endpoint.COMPLETIONS, body)
    assert vars(there.value) == vars(here.value)


async def test_a_refusal_from_beside_the_loop_keeps_its_headers(bodies: LargeBodies) -> None:
    with pytest.raises(Refusal) as refusal:
        await bodies.inference(
            Endpoint.TRANSCRIPTIONS, b"{}", LIMITS, JSON, client=client(), block_bytes=256
        )
    assert ("accept", "multipart/form-data") in refusal.value.more


@pytest.mark.parametrize(
    "members",
    [
        b'"prompt":[%b]' % b",".join([b"[]"] * (MAX_VALUES + 1)),
        b'"prompt":[%b]' % b",".join([b"1"] * (MAX_VALUES + 1)),
        b'"stop":[%b]' % b",".join([b'""'] * (2 * MAX_VALUES)),
        b'"n":1,' * (MAX_VALUES + 1) + b'"prompt":"x"',
    ],
)
async def test_more_values_than_the_bound_are_refused_before_any_is_built(
    bodies: LargeBodies, members: bytes
) -> None:
    with pytest.raises(Refusal) as refused:
        await read(bodies, Endpoint.COMPLETIONS, b'{"model":"m",%b}' % members)
    assert (refused.value.status, refused.value.code) == (400, "too_many_values")
    assert f"send at most {MAX_VALUES}" in refused.value.message


async def test_a_million_tokens_are_read_as_ids_and_as_text(bodies: LargeBodies) -> None:
    ids = b'{"model":"m","prompt":[%b]}' % b",".join([b"12345"] * 1_000_000)
    assert (await read(bodies, Endpoint.COMPLETIONS, ids)).prompt_tokens == 1_000_000
    text = json.dumps({"model": "m", "prompt": 'a, [b], {"c"}; ' * 300_000}).encode()
    request = await read(bodies, Endpoint.COMPLETIONS, text)
    assert (request.prompt_bytes, request.values) == (4_500_000, 3)


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":[{"text":"%b"}],"usage":{"prompt_tokens":9}}' % (b"x" * 400),
        b'{"choices":[{"text":"%b"}]}' % (b"x" * 400),
        b'{"data":[],"usage":{"prompt_tokens":5}}',
    ],
)
async def test_an_answer_read_beside_the_loop_gives_the_same_usage(
    bodies: LargeBodies, body: bytes
) -> None:
    endpoint = Endpoint.COMPLETIONS
    found = await bodies.answer(endpoint, body, JSON, tenant="a", counts_text=True)
    assert found == (of_reply(endpoint, body, JSON), written_in(body))


async def test_errors_and_garbage_in_answers_are_told_apart(bodies: LargeBodies) -> None:
    with pytest.raises(GarbageError, match="is not JSON"):
        await bodies.answer(Endpoint.CHAT, b"{", JSON, tenant="a", counts_text=True)
    error = b'{"error":{"message":"no","code":404}}'
    with pytest.raises(ErrorAnswer):
        await bodies.answer(Endpoint.CHAT, error, JSON, tenant="a", counts_text=True)


async def test_a_process_that_ended_fails_one_request_and_a_new_one_follows(
    bodies: LargeBodies,
) -> None:
    body = json.dumps({"model": "m", "prompt": TEXT}).encode()
    await bodies.start()
    assert bodies._process is not None
    bodies._process.kill()
    with pytest.raises(Refusal) as refused:
        await read(bodies, Endpoint.COMPLETIONS, body)
    assert (refused.value.outcome, refused.value.code) == (Outcome.UNAVAILABLE, "overloaded")
    assert refused.value.retry_after_s == 1.0
    assert (await read(bodies, Endpoint.COMPLETIONS, body)).body == body


async def test_a_client_that_leaves_does_not_disturb_the_next_one(bodies: LargeBodies) -> None:
    await bodies.start()
    body = json.dumps({"model": "m", "prompt": TEXT * 20}).encode()
    leaving = asyncio.create_task(read(bodies, Endpoint.COMPLETIONS, body))
    await asyncio.sleep(0)
    leaving.cancel()
    other = json.dumps({"model": "m", "prompt": TEXT}).encode()
    assert (await read(bodies, Endpoint.COMPLETIONS, other)).body == other
    assert leaving.cancelled()


async def test_tenants_take_turns(bodies: LargeBodies) -> None:
    body, ended = json.dumps({"model": "m", "prompt": TEXT}).encode(), list[str]()

    async def one(tenant: str) -> None:
        await read(bodies, Endpoint.COMPLETIONS, body, tenant)
        ended.append(tenant)

    await asyncio.gather(*map(one, ["flood", "flood", "flood", "flood", "calm"]))
    assert ended.index("calm") <= 2


async def test_the_hashes_of_a_long_prompt_fit_an_array(bodies: LargeBodies) -> None:
    request = await read(
        bodies, Endpoint.COMPLETIONS, json.dumps({"model": "m", "prompt": TEXT}).encode()
    )
    assert request.hashed is not None
    assert isinstance(request.hashed.hashes, array)
    assert not request.text
