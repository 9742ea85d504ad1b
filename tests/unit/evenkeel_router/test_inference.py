"""Bodies: what is refused, what is read, and what is sent on in their place."""

import json
from dataclasses import replace
from typing import Any

import pytest
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.errors import Outcome, Refusal
from evenkeel_router.api.inference import Inference, Limits, with_client_key
from evenkeel_router.api.prompt import MAX_PARTS, MAX_PROMPTS
from evenkeel_router.api.reading import MAX_MEMBERS

LIMITS = Limits(model="m", max_output_tokens=1000)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION = {"model": "m", "prompt": "Hi"}
GENERATE = {"text": "Hi"}


def read(endpoint: Endpoint, body: dict[str, Any] | bytes) -> Inference:
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return endpoint.api.parse(body, LIMITS, "")


def refused(endpoint: Endpoint, body: dict[str, Any] | bytes) -> Refusal:
    with pytest.raises(Refusal) as caught:
        read(endpoint, body)
    return caught.value


@pytest.mark.parametrize(
    ("body", "want_code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b'{"model":"m","prompt":"a"}{', "invalid_json"),
        (b'{"model":"m","prompt":tru}', "invalid_json"),
        (b'{"model":"m","prompt":"\\ud800"}', "invalid_json"),
        (b'\xef\xbb\xbf{"model":"m"}', "invalid_json"),
        (b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json"),
        (b'{"model":"m","prompt":"\xff"}', "invalid_utf8"),
        (b'{"model":"m","prompt":"a","unread":"\xff"}', "invalid_utf8"),
        (b"[]", "invalid_type"),
        (b"null", "invalid_type"),
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes, want_code: str) -> None:
    refusal = refused(Endpoint.COMPLETIONS, body)
    assert (refusal.outcome, refusal.status, refusal.code) == (
        Outcome.INVALID_REQUEST,
        400,
        want_code,
    )


@pytest.mark.parametrize(
    ("endpoint", "body", "want_param", "want_code"),
    [
        (Endpoint.COMPLETIONS, {"model": "m"}, "prompt", "missing_required_parameter"),
        (Endpoint.COMPLETIONS, COMPLETION | {"model": 7}, "model", "invalid_type"),
        (Endpoint.COMPLETIONS, COMPLETION | {"prompt": 7}, "prompt", "invalid_type"),
        (Endpoint.COMPLETIONS, COMPLETION | {"prompt": []}, "prompt", "invalid_value"),
        (Endpoint.COMPLETIONS, COMPLETION | {"prompt": ["a"] * 2049}, "prompt", "invalid_value"),
        (Endpoint.COMPLETIONS, COMPLETION | {"prompt": [[1]] * 2049}, "prompt", "invalid_value"),
        (
            Endpoint.GENERATE,
            GENERATE | {"sampling_params": [{}] * 2049},
            "sampling_params",
            "invalid_value",
        ),
        (Endpoint.COMPLETIONS, COMPLETION | {"max_tokens": "many"}, "max_tokens", "invalid_type"),
        (Endpoint.COMPLETIONS, COMPLETION | {"max_tokens": -1}, "max_tokens", "invalid_value"),
        (Endpoint.COMPLETIONS, COMPLETION | {"max_tokens": 1001}, "max_tokens", "invalid_value"),
        (Endpoint.COMPLETIONS, COMPLETION | {"max_tokens": 10**400}, "max_tokens", "invalid_value"),
        (Endpoint.COMPLETIONS, COMPLETION | {"n": 0}, "n", "invalid_value"),
        (Endpoint.COMPLETIONS, COMPLETION | {"n": 129}, "n", "invalid_value"),
        (Endpoint.COMPLETIONS, COMPLETION | {"stream": "yes"}, "stream", "invalid_type"),
        (Endpoint.CHAT, {"model": "m"}, "messages", "missing_required_parameter"),
        (Endpoint.CHAT, CHAT | {"messages": []}, "messages", "invalid_value"),
        (Endpoint.CHAT, CHAT | {"messages": "Hi"}, "messages", "invalid_type"),
        (
            Endpoint.CHAT,
            CHAT | {"messages": [{}]},
            "messages[0].role",
            "missing_required_parameter",
        ),
        (
            Endpoint.CHAT,
            CHAT | {"max_completion_tokens": -5},
            "max_completion_tokens",
            "invalid_value",
        ),
        (Endpoint.EMBEDDINGS, {"model": "m"}, "input", "missing_required_parameter"),
        (Endpoint.GENERATE, {}, "text", "missing_required_parameter"),
        (Endpoint.GENERATE, {"input_ids": []}, "input_ids", "invalid_value"),
        (
            Endpoint.GENERATE,
            GENERATE | {"sampling_params": {"max_new_tokens": -1}},
            "sampling_params.max_new_tokens",
            "invalid_value",
        ),
        (
            Endpoint.GENERATE,
            GENERATE | {"sampling_params": [{"n": 1}, {"n": 0}]},
            "sampling_params.n",
            "invalid_value",
        ),
    ],
)
def test_a_wrong_field_is_named(
    endpoint: Endpoint, body: dict[str, Any], want_param: str, want_code: str
) -> None:
    refusal = refused(endpoint, body)
    assert refusal.outcome is Outcome.INVALID_REQUEST
    assert (refusal.param, refusal.code) == (want_param, want_code)
    assert want_param.split("[")[0].split(".")[-1] in refusal.message


def test_a_huge_number_is_not_repeated_to_the_client() -> None:
    assert len(refused(Endpoint.COMPLETIONS, COMPLETION | {"max_tokens": 10**4000}).message) < 100


def test_another_model_is_not_found() -> None:
    refusal = refused(Endpoint.CHAT, CHAT | {"model": "gpt-4"})
    assert (refusal.outcome, refusal.code, refusal.param) == (
        Outcome.NOT_FOUND,
        "model_not_found",
        "model",
    )


def test_a_long_list_of_token_ids_is_one_prompt() -> None:
    assert read(Endpoint.COMPLETIONS, COMPLETION | {"prompt": [7] * 5000}).prompt_tokens == 5000


def test_the_error_of_an_unknown_model_repeats_at_most_a_name_s_length() -> None:
    refusal = refused(Endpoint.CHAT, CHAT | {"model": "x" * 100_000})
    assert refusal.code == "model_not_found"
    assert len(refusal.message) < 300


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (
            Endpoint.COMPLETIONS,
            b' {"model" : "m",\n"prompt":"a", "seed": [1e400, 2.50, "\\u00e9"]} ',
        ),
        (Endpoint.CHAT, json.dumps(CHAT | {"max_tokens": 0, "seed": 10**30}).encode()),
        (Endpoint.EMBEDDINGS, b'{"model":"m","input":["a","b"]}'),
        (Endpoint.GENERATE, b'{"text":["a","b"],"sampling_params":null}'),
        (
            Endpoint.CHAT,
            json.dumps(CHAT | {"stream": True, "stream_options": {"include_usage": True}}).encode(),
        ),
    ],
)
def test_a_body_without_need_of_change_is_forwarded_untouched(
    endpoint: Endpoint, body: bytes
) -> None:
    assert read(endpoint, body).body == body


def test_as_many_sampling_parameters_as_prompts_are_allowed() -> None:
    body = json.dumps(GENERATE | {"sampling_params": [{}] * MAX_PROMPTS}).encode()
    assert read(Endpoint.GENERATE, body).sequences == MAX_PROMPTS


@pytest.mark.parametrize(
    ("given", "want_options"),
    [
        ({}, {"include_usage": True}),
        ({"stream_options": None}, {"include_usage": True}),
        (
            {"stream_options": {"include_usage": False, "include_obfuscation": 2.50}},
            {"include_usage": True, "include_obfuscation": 2.50},
        ),
    ],
)
def test_the_router_asks_for_the_usage_of_a_stream(
    given: dict[str, Any], want_options: dict[str, Any]
) -> None:
    inference = read(Endpoint.COMPLETIONS, COMPLETION | {"stream": True} | given)
    assert json.loads(inference.body) == COMPLETION | {
        "stream": True,
        "stream_options": want_options,
    }
    assert inference.stream
    assert not inference.wants_usage


def test_usage_is_asked_for_by_a_splice_that_leaves_every_other_byte() -> None:
    body = b'\n{ "model":"m","prompt":"\\n\\u0022stream_options\\u0022","stream":true, "seed":1.50}'
    inference = read(Endpoint.COMPLETIONS, body)
    assert inference.body == b'\n{"stream_options":{"include_usage":true},' + body[2:]


def test_an_escaped_spelling_of_stream_options_is_the_clients_own() -> None:
    body = (
        b'{"model":"m","prompt":"a","stream":true,"stream\\u005foptions":{"include_usage":false}}'
    )
    assert json.loads(read(Endpoint.COMPLETIONS, body).body)["stream_options"] == {
        "include_usage": True
    }


@pytest.mark.parametrize(
    "name",
    [
        *("routing_key", "rid", "priority", "extra_key", "custom_params", "cache_salt"),
        *("session_id", "vllm_xargs", "kv_transfer_params", "ec_transfer_params"),
    ],
)
@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.GENERATE])
def test_a_guarded_field_is_taken_out_whatever_its_value(endpoint: Endpoint, name: str) -> None:
    clean = {Endpoint.CHAT: CHAT, Endpoint.COMPLETIONS: COMPLETION, Endpoint.GENERATE: GENERATE}
    for value in ("x", 7, None, {"a": [1]}):
        inference = read(endpoint, clean[endpoint] | {name: value})
        assert json.loads(inference.body) == clean[endpoint]
        assert inference.stripped == (name,)


def test_a_guarded_field_is_not_smuggled_by_doubling_or_escaping_it() -> None:
    body = b'{"rid":"a","model":"m","r\\u0069d":"b","prompt":"p","rid":"c","seed":1.50}'
    inference = read(Endpoint.COMPLETIONS, body)
    assert inference.body == b'{"model":"m","prompt":"p","seed":1.50}'


def test_custom_params_are_taken_out_of_sampling_params_too() -> None:
    one = read(Endpoint.GENERATE, GENERATE | {"sampling_params": {"n": 1, "custom_params": {}}})
    assert json.loads(one.body) == GENERATE | {"sampling_params": {"n": 1}}
    several = read(
        Endpoint.GENERATE, GENERATE | {"sampling_params": [{"custom_params": 1}, {"n": 1}]}
    )
    assert json.loads(several.body) == GENERATE | {"sampling_params": [{}, {"n": 1}]}
    assert several.stripped == ("sampling_params.custom_params",)


def test_the_client_key_on_generate_is_the_only_routing_key() -> None:
    body = read(Endpoint.GENERATE, GENERATE | {"routing_key": "forged"}).body
    pairs = json.loads(with_client_key(body, "ek1;a/b/c;w=1,1"), object_pairs_hook=list)
    assert pairs == [("routing_key", "ek1;a/b/c;w=1,1"), ("text", "Hi")]


def test_a_splice_into_an_empty_object_adds_no_comma() -> None:
    assert with_client_key(b"{ }", "k") == b'{"routing_key":"k" }'


def test_token_ids_are_counted_and_text_is_measured() -> None:
    ids = read(Endpoint.COMPLETIONS, COMPLETION | {"prompt": [1, 2, 3]})
    assert (ids.prompt_tokens, ids.text) == (3, b"[1,2,3]")
    batch = read(Endpoint.GENERATE, {"input_ids": [[1, 2], [3]]})
    assert (batch.prompt_tokens, batch.text) == (3, b"[1,2]")
    text = read(Endpoint.COMPLETIONS, COMPLETION | {"prompt": ["héé", "x"]})
    assert (text.prompt_tokens, text.text, text.prompt_bytes) == (None, "héé".encode(), 6)


def test_the_text_of_a_conversation_is_canonical() -> None:
    def text(**message: Any) -> bytes:
        return read(Endpoint.CHAT, CHAT | {"messages": [{"role": "user"} | message]}).text

    assert text(content="Hi") == text(content=[{"type": "text", "text": "Hi"}])
    assert text(content="Hi") == text(content="Hi", name=None, refusal=None, audio=None)
    assert text(content="Hi") != text(content="Hi", name="somebody")  # templates may print it
    assert text(content="Hi") != text(content="Ho")
    assert text(content=None) != text(content=None, tool_calls=[{"id": "1"}])
    picture = {"type": "image_url", "image_url": {"url": "data:,x"}}
    other = {"type": "image_url", "image_url": {"url": "data:,y"}}
    assert text(content=[picture]) != text(content=[other])
    assert text(content=[{"type": "odd"}]) != text(content=[{"type": "even"}])
    assert text(content="Hi", reasoning_content="hm") != text(content="Hi")


def test_a_longer_conversation_begins_with_the_shorter_one() -> None:
    turn = [{"role": "user", "content": "Hi"}]
    longer = [*turn, {"role": "assistant", "content": "Ho"}]
    first = read(Endpoint.CHAT, CHAT | {"messages": turn, "tools": [{"a": 1}]}).text
    second = read(Endpoint.CHAT, CHAT | {"messages": longer, "tools": [{"a": 1}]}).text
    assert second.startswith(first)
    assert first.startswith(b'[{"a": 1}]')


def test_embeddings_never_stream() -> None:
    body = {"model": "m", "input": "a", "stream": True}
    assert not read(Endpoint.EMBEDDINGS, body).stream


def test_too_many_parts_are_refused_before_they_are_read() -> None:
    parts = [{"type": "text", "text": "a"}] * (MAX_PARTS // 2)
    within = {"model": "m", "messages": [{"role": "user", "content": parts}] * 2}
    assert read(Endpoint.CHAT, within).text.count(b"a") == MAX_PARTS
    beyond = {"model": "m", "messages": [*within["messages"], {"role": "user"}]}
    refusal = refused(Endpoint.CHAT, beyond)
    assert (refusal.param, refusal.code) == ("messages", "invalid_value")


def test_a_body_of_countless_fields_is_not_written_anew() -> None:
    many = {f"x{number}": 1 for number in range(MAX_MEMBERS - 2)}
    assert json.loads(read(Endpoint.COMPLETIONS, COMPLETION | many).body) == COMPLETION
    assert "fields" in refused(Endpoint.COMPLETIONS, COMPLETION | many | {"rid": "a"}).message


@pytest.mark.parametrize("name", ["bootstrap_host", "routed_dp_rank", "data_parallel_rank", "odd"])
@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.GENERATE])
def test_only_listed_fields_reach_an_engine_unless_one_is_allowed(
    endpoint: Endpoint, name: str
) -> None:
    clean = {Endpoint.CHAT: CHAT, Endpoint.COMPLETIONS: COMPLETION, Endpoint.GENERATE: GENERATE}
    body = clean[endpoint] | {name: 1, "rid": "x"}
    inference = read(endpoint, body)
    assert json.loads(inference.body) == clean[endpoint]
    assert inference.stripped == (name, "rid")
    open_one = replace(LIMITS, allowed_fields=frozenset([name]))
    opened = endpoint.api.parse(json.dumps(body).encode(), open_one, "")
    assert json.loads(opened.body) == clean[endpoint] | {name: 1}
    assert opened.stripped == ("rid",)


def test_an_allowed_field_is_open_inside_sampling_params_too() -> None:
    body = GENERATE | {"sampling_params": {"n": 2, "custom_params": {}, "odd": 1}}
    open_one = replace(LIMITS, allowed_fields=frozenset(["custom_params"]))
    opened = Endpoint.GENERATE.api.parse(json.dumps(body).encode(), open_one, "")
    assert json.loads(opened.body)["sampling_params"] == {"n": 2, "custom_params": {}}
    assert (opened.stripped, opened.sequences) == (("sampling_params.odd",), 2)


@pytest.mark.parametrize("given", [7, 7.0, "7"])
def test_numbers_are_read_as_engines_read_them_and_sent_as_they_came(given: Any) -> None:
    body = json.dumps(COMPLETION | {"max_tokens": given, "n": "2", "stream": "true"}).encode()
    inference = read(Endpoint.COMPLETIONS, body)
    assert (inference.max_output_tokens, inference.sequences, inference.stream) == (14, 2, True)
    sent = json.loads(inference.body)
    assert (sent["max_tokens"], sent["n"], sent["stream"]) == (given, "2", "true")


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
def test_a_body_may_leave_the_model_out_as_engines_allow(endpoint: Endpoint) -> None:
    body = {Endpoint.CHAT: CHAT, Endpoint.COMPLETIONS: COMPLETION}[endpoint]
    for model in ({}, {"model": None}):
        bare = {name: value for name, value in body.items() if name != "model"} | model
        assert json.loads(read(endpoint, bare).body) == bare


def test_a_completion_of_embeddings_needs_no_prompt() -> None:
    inference = read(Endpoint.COMPLETIONS, {"model": "m", "prompt_embeds": "A" * 4000})
    assert [media.kind for media in inference.media] == ["embeds"]
    assert inference.text


def test_a_part_of_a_message_may_be_a_string() -> None:
    def inference(*parts: Any) -> Inference:
        return read(Endpoint.CHAT, CHAT | {"messages": [{"role": "user", "content": list(parts)}]})

    text = {"type": "text", "text": "b"}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert inference("a", text).text == inference({"type": "text", "text": "a"}, text).text
    assert inference("a", image).media == inference(image).media
    assert json.loads(inference("a", text).body)["messages"][0]["content"] == ["a", text]


@pytest.mark.parametrize("kind", [{"type": "image_url"}, {}])
def test_no_client_names_a_medium_in_the_engines_cache(kind: dict[str, str]) -> None:
    part = kind | {"text": "a", "image_url": {"url": "http://a/b"}}
    messages = [
        {"role": "user", "content": [part | {"uuid": "logo"}, {"type": "text", "text": "b"}]}
    ]
    inference = read(Endpoint.CHAT, CHAT | {"messages": messages})
    assert json.loads(inference.body)["messages"][0]["content"][0] == part
    assert inference.stripped == ("messages.uuid",)


def test_a_search_over_beams_counts_each_of_them() -> None:
    sampling = {"beam_width": 8, "n": 2, "max_new_tokens": 10}
    inference = read(Endpoint.GENERATE, GENERATE | {"sampling_params": sampling})
    assert (inference.sequences, inference.max_output_tokens) == (8, 80)


@pytest.mark.parametrize(
    ("fields", "bound"),
    [
        ({"max_tokens": 0}, 0),
        ({"max_completion_tokens": 0, "max_tokens": 7}, 7),
        ({"max_completion_tokens": 0}, None),
        ({"max_completion_tokens": 5, "max_tokens": 7}, 5),
    ],
)
def test_a_chats_output_is_bounded_as_sglang_reads_its_two_fields(
    fields: dict[str, Any], bound: int | None
) -> None:
    assert read(Endpoint.CHAT, CHAT | fields).max_output_tokens == bound
