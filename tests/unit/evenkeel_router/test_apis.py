"""Bodies of the APIs beside OpenAI's first ones: what is read, refused and sent on."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from evenkeel_contract.names import ROUTER_FIELDS
from evenkeel_router.api.endpoints import Endpoint, dialect_of
from evenkeel_router.api.errors import Dialect, Outcome, Refusal
from evenkeel_router.api.fields import CLOSED, OPEN, metric_name, shown
from evenkeel_router.api.inference import Inference, Limits
from evenkeel_router.api.prompt import MAX_PARTS, MAX_PROMPTS

LIMITS = Limits(model="m", max_output_tokens=1000)
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 7,
    "messages": [{"role": "user", "content": "Hi"}],
}
RESPONSES: dict[str, Any] = {"model": "m", "input": "Hi"}
SMALLEST: dict[Endpoint, dict[str, Any]] = {
    Endpoint.RESPONSES: RESPONSES,
    Endpoint.MESSAGES: MESSAGES,
    Endpoint.COUNT_TOKENS: MESSAGES,
    Endpoint.RERANK: {"query": "q", "documents": ["d"]},
    Endpoint.SCORE: {"query": "q", "items": ["d"]},
    Endpoint.BARE_RERANK: {"query": "q", "documents": ["d"]},
    Endpoint.V2_RERANK: {"query": "q", "documents": ["d"]},
    Endpoint.BARE_SCORE: {"queries": "q", "documents": ["d"]},
    Endpoint.CLASSIFY: {"input": "Hi"},
    Endpoint.BARE_CLASSIFY: {"text": "Hi"},
    Endpoint.POOLING: {"input": "Hi"},
    Endpoint.TOKENIZE: {"prompt": "Hi"},
    Endpoint.V1_TOKENIZE: {"prompt": "Hi"},
    Endpoint.DETOKENIZE: {"tokens": [1, 2]},
    Endpoint.V1_DETOKENIZE: {"tokens": [1, 2]},
}
FORM = 'multipart/form-data; boundary="b"'


def read(endpoint: Endpoint, body: dict[str, Any] | bytes) -> Inference:
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return endpoint.api.parse(body, LIMITS, "")


def refused(endpoint: Endpoint, body: dict[str, Any]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        read(endpoint, body)
    return caught.value


def form(**fields: str) -> bytes:
    """A form with a file of four bytes."""
    parts = [f'Content-Disposition: form-data; name="{k}"\r\n\r\n{v}' for k, v in fields.items()]
    parts.append('content-disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF')
    return "".join(f"--b\r\n{part}\r\n" for part in parts).encode() + b"--b--\r\n"


def heard(body: bytes, content_type: str = FORM) -> Inference:
    return Endpoint.TRANSCRIPTIONS.api.parse(body, LIMITS, content_type)


def test_every_endpoint_has_a_row_and_a_parser() -> None:
    older = {Endpoint.COMPLETIONS, Endpoint.CHAT, Endpoint.EMBEDDINGS, Endpoint.GENERATE}
    forms = {Endpoint.TRANSCRIPTIONS, Endpoint.TRANSLATIONS}
    assert set(SMALLEST) | older | forms == set(Endpoint)
    for endpoint, body in SMALLEST.items():
        assert read(endpoint, body).body


@pytest.mark.parametrize("endpoint", SMALLEST)
def test_fields_that_are_not_listed_are_removed(endpoint: Endpoint) -> None:
    body = SMALLEST[endpoint] | {"request_id": "HEALTH_CHECK_1", "priority": 9, "x": 1, "user": "u"}
    inference = read(endpoint, json.dumps(body).encode().replace(b"priority", b"prior\\u0069ty"))
    assert set(inference.stripped) >= {"request_id", "priority", "x"}
    sent = json.loads(inference.body)
    assert sent.pop("store", False) is False
    sent.pop("user", None)
    assert sent == SMALLEST[endpoint]


@pytest.mark.parametrize("endpoint", SMALLEST)
def test_a_model_that_is_named_is_the_one_that_is_served(endpoint: Endpoint) -> None:
    refusal = refused(endpoint, SMALLEST[endpoint] | {"model": "other"})
    assert (refusal.outcome, refusal.code, refusal.param) == (
        Outcome.NOT_FOUND,
        "model_not_found",
        "model",
    )
    assert read(endpoint, SMALLEST[endpoint] | {"model": "m"})


def test_the_body_of_messages_is_sent_as_it_came() -> None:
    body = json.dumps(MESSAGES | {"stream": True}).encode()
    inference = read(Endpoint.MESSAGES, body)
    assert (inference.body, inference.stream, inference.max_output_tokens) == (body, True, 7)


def test_messages_have_one_text_whether_content_is_a_string_or_a_block() -> None:
    def text(content: Any, **more: Any) -> bytes:
        messages = [{"role": "user", "content": content}]
        return read(Endpoint.MESSAGES, MESSAGES | {"messages": messages} | more).text

    assert text("Hi") == text([{"type": "text", "text": "Hi"}])
    assert text("Hi", system="S") == text("Hi", system=[{"type": "text", "text": "S"}])
    assert text("Hi", system="S") != text("Hi")
    assert text("Hi", tools=[{"name": "f"}]) != text("Hi")
    assert text([{"type": "thinking", "thinking": "hm"}]) == text("hm")
    results = [
        text([{"type": "tool_result", "tool_use_id": "1", "content": given}]) for given in "ab"
    ]
    assert results[0] != results[1]


@pytest.mark.parametrize(
    ("endpoint", "changes", "want_code", "want_param"),
    [
        (Endpoint.MESSAGES, {"max_tokens": None}, "invalid_type", "max_tokens"),
        (Endpoint.MESSAGES, {"max_tokens": 1001}, "invalid_value", "max_tokens"),
        (Endpoint.MESSAGES, {"messages": []}, "invalid_value", "messages"),
        (Endpoint.MESSAGES, {"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        (Endpoint.COUNT_TOKENS, {"messages": []}, "invalid_value", "messages"),
        (Endpoint.RESPONSES, {"input": 5}, "invalid_type", "input"),
        (Endpoint.RESPONSES, {"max_output_tokens": -1}, "invalid_value", "max_output_tokens"),
        (Endpoint.RESPONSES, {"store": True}, "unsupported_parameter", "store"),
        (Endpoint.RESPONSES, {"background": True}, "unsupported_parameter", "background"),
        (Endpoint.RESPONSES, {"previous_response_id": "resp_1"}, "unsupported_parameter", "previous_response_id"),
        (Endpoint.RESPONSES, {"conversation": "conv_1"}, "unsupported_parameter", "conversation"),
        (Endpoint.RESPONSES, {"conversation": {"id": "conv_1"}}, "unsupported_parameter", "conversation"),
        (Endpoint.RESPONSES, {"input": [{"type": "item_reference", "id": "i"}]}, "unsupported_parameter", "input[0]"),
        (Endpoint.MESSAGES, {"max_tokens": -1}, "invalid_value", "max_tokens"),
        (Endpoint.RESPONSES, {"prompt": {"id": "pmpt_1"}}, "unsupported_parameter", "prompt"),
        (Endpoint.RERANK, {"documents": []}, "invalid_value", "documents"),
        (Endpoint.RERANK, {"documents": ["d"] * (MAX_PROMPTS + 1)}, "invalid_value", "documents"),
        (Endpoint.SCORE, {"items": []}, "invalid_value", "items"),
        (Endpoint.CLASSIFY, {"input": []}, "invalid_value", "input"),
        (Endpoint.TOKENIZE, {"prompt": None}, "missing_required_parameter", "prompt"),
        (Endpoint.DETOKENIZE, {"tokens": "x"}, "invalid_type", "tokens"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_field(
    endpoint: Endpoint, changes: dict[str, Any], want_code: str, want_param: str
) -> None:
    refusal = refused(endpoint, SMALLEST[endpoint] | changes)
    assert (refusal.outcome, refusal.code, refusal.param) == (
        Outcome.INVALID_REQUEST,
        want_code,
        want_param,
    )
    assert want_param.partition("[")[0] in refusal.message


def test_a_score_without_its_texts_is_refused() -> None:
    refusal = refused(Endpoint.SCORE, {"query": "q"})
    assert (refusal.code, refusal.param) == ("missing_required_parameter", "query")


def test_conversations_of_too_many_parts_are_refused() -> None:
    block = {"type": "text", "text": ""}
    many = [{"role": "user", "content": [block] * MAX_PARTS}, {"role": "user", "content": "x"}]
    assert refused(Endpoint.MESSAGES, MESSAGES | {"messages": many}).param == "messages"
    assert refused(Endpoint.RESPONSES, RESPONSES | {"input": many}).param == "input"


def test_nothing_of_a_response_is_stored() -> None:
    assert json.loads(read(Endpoint.RESPONSES, RESPONSES).body) == RESPONSES | {"store": False}
    for store in (False, None):
        body = json.dumps(RESPONSES | {"store": store}).encode()
        assert read(Endpoint.RESPONSES, body).body == body


def test_a_response_is_read_with_its_bounds() -> None:
    inference = read(Endpoint.RESPONSES, RESPONSES | {"max_output_tokens": 9, "stream": True})
    assert (inference.max_output_tokens, inference.stream) == (9, True)
    assert read(Endpoint.RESPONSES, RESPONSES).max_output_tokens is None


def test_the_text_of_a_response_follows_its_items() -> None:
    def text(*items: dict[str, Any], **more: Any) -> bytes:
        return read(Endpoint.RESPONSES, {"input": list(items)} | more).text

    message = {"role": "user", "content": "Hi"}
    parts = {"role": "user", "content": [{"type": "input_text", "text": "Hi"}], "type": "message"}
    assert text(message) == text(parts) == read(Endpoint.RESPONSES, RESPONSES).text
    assert text(message, instructions="S").endswith(text(message))
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "1", "output": "42"}
    turns = [text(message), text(message, call), text(message, call, output)]
    assert turns[2].startswith(turns[1])
    assert turns[1].startswith(turns[0])
    assert text(message, call, output | {"output": "43"}) != turns[2]


@pytest.mark.parametrize(
    ("endpoint", "body", "want_bytes", "want_prompts"),
    [
        (Endpoint.RERANK, {"query": "qq", "documents": ["a", "bb"]}, 2 * 4 + 3 + 4, 2),
        (Endpoint.SCORE, {"query": "qq", "items": ["a", "bb"]}, 2 * 4 + 3 + 4, 2),
        (Endpoint.SCORE, {"query": "qq", "items": "a"}, 4 + 3, 1),
        (Endpoint.SCORE, {"text_1": ["a", "b"], "text_2": ["c", "d"]}, 4 * 3, 2),
        (Endpoint.SCORE, {"queries": "a", "documents": ["c"]}, 2 * 3, 1),
        (Endpoint.SCORE, {"queries": ["a", "b"], "items": ["c", "d"]}, 4 * 3, 2),
        (Endpoint.SCORE, {"query": [1, 2], "items": [[3], [4, 5]]}, 2 * 2 * 4 + 3 * 4, 2),
        (Endpoint.BARE_SCORE, {"data_1": "a", "data_2": ["c", "d"]}, 2 * 3 + 2 * 3, 2),
        (Endpoint.RERANK, {"query": "q", "documents": "d"}, 2 * 3, 1),
    ],
)
def test_a_query_counts_once_for_each_document(
    endpoint: Endpoint, body: dict[str, Any], want_bytes: int, want_prompts: int
) -> None:
    inference = read(endpoint, body)
    assert (inference.prompt_bytes, inference.sequences) == (want_bytes, want_prompts)
    assert (inference.max_output_tokens, inference.stream) == (0, False)
    first = read(endpoint, {name: given if isinstance(given, str) or name == "query" else given[:1] for name, given in body.items()})  # fmt: skip
    assert first.text == inference.text


PIXELS = "data:image/png;base64," + "A" * 4000
TURN = {"role": "user", "content": "Hello"}


@pytest.mark.parametrize(
    ("endpoint", "body", "want"),
    [
        (Endpoint.EMBEDDINGS, {"model": "m", "messages": [TURN]}, (1, 0)),
        (Endpoint.EMBEDDINGS, {"messages": [[TURN], [TURN, TURN]]}, (2, 0)),
        (Endpoint.EMBEDDINGS, {"input": [TURN]}, (1, 0)),
        (Endpoint.EMBEDDINGS, {"input": [[TURN], [TURN]]}, (2, 0)),
        (Endpoint.EMBEDDINGS, {"input": [{"text": "a", "image": PIXELS}, {"text": "b"}]}, (2, 1)),
        (Endpoint.POOLING, {"messages": [TURN]}, (1, 0)),
        (Endpoint.POOLING, {"data": {"image": 1}, "task": "plugin"}, (1, 0)),
        (Endpoint.BARE_CLASSIFY, {"input_ids": [[1, 2], [3]]}, (2, 0)),
        (Endpoint.BARE_CLASSIFY, {"text": [["a", "b"], ["c", "d"]]}, (2, 0)),
        (Endpoint.BARE_CLASSIFY, {"text": "a", "image_data": PIXELS}, (1, 1)),
        (Endpoint.CLASSIFY, {"messages": [TURN]}, (1, 0)),
        (
            Endpoint.BARE_RERANK,
            {"query": "q", "documents": [{"content": [{"type": "image_url", "image_url": {"url": PIXELS}}]}, "d"]},
            (2, 1),
        ),
    ],
)  # fmt: skip
def test_prompts_are_read_in_every_shape_that_engines_take(
    endpoint: Endpoint, body: dict[str, Any], want: tuple[int, int]
) -> None:
    inference = read(endpoint, body)
    images = sum(media.items for media in inference.media)
    assert (inference.sequences, images) == want
    assert inference.text
    assert inference.prompt_bytes < 200, "no medium is text"


def test_a_conversation_has_one_prefix_wherever_it_stands() -> None:
    texts = {
        read(Endpoint.EMBEDDINGS, body).text
        for body in (
            {"messages": [TURN]},
            {"input": [TURN]},
            {"input": [[TURN], [TURN]]},
            {"messages": [[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]]},
        )
    }
    assert len(texts) == 1


NAMED = {"type": "image_url", "image_url": {"url": "http://a/b"}, "uuid": "logo"}


@pytest.mark.parametrize(
    ("endpoint", "member", "value"),
    [
        (Endpoint.EMBEDDINGS, "messages", [{"role": "user", "content": [NAMED]}]),
        (Endpoint.EMBEDDINGS, "messages", [[{"role": "user", "content": [NAMED]}]]),
        (Endpoint.EMBEDDINGS, "input", [{"role": "user", "content": [NAMED]}]),
        (Endpoint.POOLING, "messages", [{"role": "user", "content": [NAMED]}]),
        (Endpoint.BARE_CLASSIFY, "messages", [{"role": "user", "content": [NAMED]}]),
        (Endpoint.BARE_RERANK, "documents", [{"content": [NAMED]}, "uuid"]),
        (Endpoint.BARE_SCORE, "queries", {"content": [NAMED]}),
    ],
)
def test_no_api_lets_a_client_name_a_medium_in_the_engines_cache(
    endpoint: Endpoint, member: str, value: Any
) -> None:
    more = (
        {"query": "q"}
        if member == "documents"
        else {"documents": ["d"]}
        if member == "queries"
        else {}
    )
    body = json.dumps(more | {member: value}).encode().replace(b'"uuid": ', b'"u\\u0075id": ')
    inference = read(endpoint, body)
    assert b"logo" not in inference.body
    assert inference.stripped == ("messages.uuid",)
    unnamed = json.loads(json.dumps(value).replace(', "uuid": "logo"', ""))
    assert json.loads(inference.body) == more | {member: unnamed}


STREAMING = {Endpoint.RESPONSES, Endpoint.MESSAGES}


def test_endpoints_without_output_do_not_stream() -> None:
    for endpoint, body in SMALLEST.items():
        if endpoint not in STREAMING:
            inference = read(endpoint, body | {"stream": True})
            assert (inference.stream, inference.max_output_tokens) == (False, 0)


def test_what_the_model_does_not_compute_has_no_prefix() -> None:
    for endpoint, body in SMALLEST.items():
        assert bool(read(endpoint, body).text) is endpoint.api.computes
    assert read(Endpoint.DETOKENIZE, {"tokens": [[1, 2], [3]]}).prompt_tokens == 3
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    assert read(Endpoint.TOKENIZE, chat).prompt_bytes > 2


@pytest.mark.parametrize("endpoint", [Endpoint.TRANSCRIPTIONS, Endpoint.TRANSLATIONS])
def test_fields_of_a_form_that_are_not_listed_are_cut_out(endpoint: Endpoint) -> None:
    clean = form(model="m", language="de")
    for given in (
        form(priority="1", model="m", odd="2", language="de"),
        b"preamble\r\n" + form(model="m", language="de", vllm_xargs="{}"),
    ):
        inference = endpoint.api.parse(given, LIMITS, FORM)
        assert inference.body.removeprefix(b"preamble\r\n") == clean
        assert set(inference.stripped) <= {"priority", "odd", "vllm_xargs"}
        assert inference.stripped
    opened = replace(LIMITS, allowed_fields=frozenset(["priority"]))
    given = form(priority="1", model="m")
    assert endpoint.api.parse(given, opened, FORM).body == given


def test_a_search_over_beams_in_a_form_counts_each_of_them() -> None:
    assert heard(form(n="5", use_beam_search="true")).sequences == 5
    assert heard(form(n="many")).sequences == heard(form()).sequences == 1
    with pytest.raises(Refusal, match="n must be from 1 to"):
        heard(form(n="9" * 40))


def test_a_form_is_sent_as_it_came_and_charged_by_its_bytes() -> None:
    body = form(model="m", stream="true") + b" " * 3200
    inference = heard(body)
    assert (inference.body, inference.stream) == (body, True)
    assert inference.content_type == b'multipart/form-data; boundary="b"'
    assert (inference.prompt_bytes, inference.text) == (0, b"")
    assert inference.prompt_tokens == 1 + len(body) // 320
    assert not heard(form(model="m")).stream
    assert heard(form(), "Multipart/Form-Data; charset=x; boundary=b").content_type == FORM.encode()
    assert heard(b"preamble\r\n" + form()).body.startswith(b"preamble")


@pytest.mark.parametrize(
    ("body", "content_type", "want_code", "want_param"),
    [
        (form(), "application/json", "invalid_content_type", "content-type"),
        (form(), "multipart/form-data", "invalid_content_type", "content-type"),
        (form(), 'multipart/form-data; boundary="b\r\nx: y"', "invalid_content_type", "content-type"),
        (form(model="other"), FORM, "model_not_found", "model"),
        (b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--b--', FORM, "missing_required_parameter", "file"),
        (b"", FORM, "invalid_form", None),
        (b"--b\r\n", FORM, "invalid_form", None),
        (b"--b\r\nx: y\r\n\r\nv\r\n--b--", FORM, "invalid_form", None),
        (b'--b\r\ncontent-disposition: form-data; name="f"\r\n\r\nv', FORM, "invalid_form", None),
        (form(**{f"f{n}": "" for n in range(64)}), FORM, "invalid_value", None),
    ],
)  # fmt: skip
def test_a_form_that_cannot_be_served_is_refused(
    body: bytes, content_type: str, want_code: str, want_param: str | None
) -> None:
    with pytest.raises(Refusal) as caught:
        heard(body, content_type)
    assert (caught.value.code, caught.value.param) == (want_code, want_param)


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("/v1/messages", Dialect.ANTHROPIC),
        ("/v1/messages/count_tokens", Dialect.ANTHROPIC),
        ("/v1/messages/batches", Dialect.ANTHROPIC),
        ("/v1/messagesx", Dialect.OPENAI),
        ("/v1/responses", Dialect.RESPONSES),
        ("/other", Dialect.OPENAI),
        ("", Dialect.OPENAI),
    ],
)
def test_errors_are_written_as_the_path_promises(path: str, want: Dialect) -> None:
    assert dialect_of(path) is want


def test_no_field_is_both_open_and_closed_but_for_three() -> None:
    both = {(path, name) for path, names in OPEN.items() for name in names & CLOSED.keys()}
    assert both == {
        ("/generate", "input_ids"),
        ("/classify", "input_ids"),
        ("/v1/responses", "background"),
    }
    assert set(OPEN) == {endpoint.value for endpoint in Endpoint}
    assert not any(name in names for names in OPEN.values() for name in ROUTER_FIELDS)


def test_clients_cannot_make_names_of_metrics_or_break_a_header() -> None:
    given = ("rid", "x" * 100, "messages.uuid", "a.rid", "sampling_params.priority", "é\r\nx: y")
    assert [metric_name(name) for name in given] == [
        "rid",
        "other",
        "messages.uuid",
        "other",
        "sampling_params.priority",
        "other",
    ]
    assert shown(given) == "rid, messages.uuid, a.rid, sampling_params.priority, ..."
    assert shown(tuple("abcdefghij")) == "a, b, c, d, e, f, g, h, ..."
    assert shown(("rid",)) == "rid"
