"""What replicas say a request used."""

import json
from typing import Any

import pytest
from evenkeel_fairshare.fleet.contract import Usage
from evenkeel_router.api.answers import ErrorAnswer, GarbageError, of_reply
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.openai import of_chunk


@pytest.mark.parametrize(
    ("endpoint", "body", "want"),
    [
        (Endpoint.CHAT, b'{"choices":[]}', None),
        (Endpoint.CHAT, b'{"usage":null}', None),
        (Endpoint.CHAT, b'{"usage":{}}', Usage(0, 0, 0)),
        (
            Endpoint.CHAT,
            b'{"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":null}}',
            Usage(9, 0, 2),
        ),
        (
            Endpoint.EMBEDDINGS,
            b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":null}}}',
            Usage(9, 0, 0),
        ),
        (  # no replica can have found more than there was, or produced less than nothing
            Endpoint.COMPLETIONS,
            (
                b'{"usage":{"prompt_tokens":9,"completion_tokens":-2,'
                b'"prompt_tokens_details":{"cached_tokens":99}}}'
            ),
            Usage(9, 9, 0),
        ),
        (Endpoint.GENERATE, b'{"text":"a"}', None),
        (
            Endpoint.GENERATE,
            (
                b'[{"meta_info":{"prompt_tokens":5,"cached_tokens":1,"completion_tokens":2}},'
                b'{"meta_info":{"prompt_tokens":7,"cached_tokens":0,"completion_tokens":3}}]'
            ),
            Usage(12, 1, 5),
        ),
        (
            Endpoint.RESPONSES,
            (
                b'{"usage":{"input_tokens":9,"output_tokens":2,'
                b'"input_tokens_details":{"cached_tokens":4}}}'
            ),
            Usage(9, 4, 2),
        ),
        (Endpoint.RESPONSES, b'{"status":"completed","error":null,"usage":null}', None),
        (  # Anthropic's input does not contain what came from the cache
            Endpoint.MESSAGES,
            (
                b'{"usage":{"input_tokens":5,"cache_read_input_tokens":4,'
                b'"cache_creation_input_tokens":null,"output_tokens":2}}'
            ),
            Usage(9, 4, 2),
        ),
        (
            Endpoint.MESSAGES,
            b'{"usage":{"input_tokens":-5,"cache_read_input_tokens":-4}}',
            Usage(0),
        ),
        (Endpoint.COUNT_TOKENS, b'{"input_tokens":5}', None),
        (Endpoint.RERANK, b'{"results":[],"usage":{"prompt_tokens":9}}', Usage(9)),
        (
            Endpoint.RERANK,
            b'[{"score":1,"meta_info":{"prompt_tokens":9}},{"score":0,"meta_info":{"prompt_tokens":4}}]',
            Usage(13),
        ),
        (Endpoint.RERANK, b'[{"score":1,"meta_info":null}]', None),
        (Endpoint.SCORE, b'{"scores":[[1]],"usage":{"prompt_tokens":9}}', Usage(9)),
        (
            Endpoint.CLASSIFY,
            b'{"data":[],"usage":{"prompt_tokens":9,"completion_tokens":0}}',
            Usage(9),
        ),
        (Endpoint.TOKENIZE, b'{"tokens":[1],"count":1}', None),
        (
            Endpoint.TRANSCRIPTIONS,
            b'{"text":"eight by","usage":{"type":"duration","seconds":3}}',
            Usage(150, 0, 2),
        ),
        (
            Endpoint.TRANSCRIPTIONS,
            b'{"text":"x","usage":{"type":"tokens","input_tokens":8,"output_tokens":3}}',
            Usage(8, 0, 3),
        ),
        (Endpoint.TRANSCRIPTIONS, b'{"text":"x"}', None),
    ],
)
def test_usage_is_read_out_of_a_reply(endpoint: Endpoint, body: bytes, want: Usage | None) -> None:
    assert of_reply(endpoint, body) == want


@pytest.mark.parametrize(
    ("endpoint", "body", "status", "message"),
    [
        (Endpoint.RESPONSES, {"status": "failed", "error": {"message": "no"}, "usage": {}}, 502, "no"),
        (Endpoint.CHAT, {"choices": [{"finish_reason": "abort"}], "usage": {"prompt_tokens": 3}}, 502,
         "The replica gave the request up (abort)."),
        (Endpoint.GENERATE, {"text": "", "meta_info": {"prompt_tokens": 3, "finish_reason":
         {"type": "abort", "message": "too long", "status_code": 400}}}, 400, "too long"),
        (Endpoint.EMBEDDINGS, {"error": "busy", "error_type": "overloaded"}, 503, "busy"),
        (Endpoint.COMPLETIONS, {"error": "no", "error_type": "validation"}, 422, "no"),
        (Endpoint.COMPLETIONS, {"error": "no", "error_type": "generation"}, 502, "no"),
        (Endpoint.COMPLETIONS, {"error": {"message": "no", "code": 429}}, 429, "no"),
        (Endpoint.COMPLETIONS, {"error": {"message": "no", "code": "429"}}, 429, "no"),
        (Endpoint.COMPLETIONS, {"error": {"message": "no", "type": "BadRequestError"}}, 400, "no"),
        (Endpoint.COMPLETIONS, {"error": "no", "status_code": 404}, 404, "no"),
        (Endpoint.COMPLETIONS, {"error": "no", "status": 503}, 503, "no"),
        (Endpoint.COMPLETIONS, {"object": "error", "message": "no", "code": 400}, 400, "no"),
        (Endpoint.COMPLETIONS, {"error": "no", "code": 200}, 502, "no"),
        (Endpoint.MESSAGES, {"type": "error", "error": {"type": "not_found_error", "message": "x"}}, 404, "x"),
        (Endpoint.TOKENIZE, {"detail": "Not Found"}, 502, "Not Found"),
    ],
)  # fmt: skip
def test_an_error_in_a_reply_is_found(
    endpoint: Endpoint, body: dict[str, Any], status: int, message: str
) -> None:
    with pytest.raises(ErrorAnswer) as raised:
        of_reply(endpoint, json.dumps(body).encode())
    refusal = raised.value.refusal
    assert (refusal.status, refusal.message) == (status, message)


_SOUND: dict[Endpoint, Any] = {
    Endpoint.COMPLETIONS: {"usage": {"prompt_tokens": 3}, "choices": [{"finish_reason": "stop"}]},
    Endpoint.GENERATE: {"meta_info": {"prompt_tokens": 3}},
    Endpoint.RERANK: {"usage": {"prompt_tokens": 3}},
    Endpoint.BARE_RERANK: {"meta_info": {"prompt_tokens": 3}},
    Endpoint.RESPONSES: {"usage": {"input_tokens": 3}, "error": None, "status": "completed"},
    Endpoint.MESSAGES: {"usage": {"input_tokens": 3}, "type": "message"},
    Endpoint.TRANSCRIPTIONS: {"usage": {"input_tokens": 3, "output_tokens": 0}, "text": ""},
}
"""A whole answer with usage for each reader."""
_ERRORS = (
    {"error": {"message": "no"}},
    {"error": "no"},
    {"object": "error", "message": "no"},
    {"type": "error", "message": "no"},
    {"status": "failed", "message": "no"},
)


@pytest.mark.parametrize("endpoint", _SOUND)
@pytest.mark.parametrize("error", _ERRORS, ids=str)
def test_usage_makes_no_error_an_answer(endpoint: Endpoint, error: dict[str, Any]) -> None:
    answer = _SOUND[endpoint]
    assert of_reply(endpoint, json.dumps(answer).encode()) == Usage(3)
    with pytest.raises(ErrorAnswer):
        of_reply(endpoint, json.dumps(answer | error).encode())


@pytest.mark.parametrize("reason", ["abort", "error", {"type": "abort", "message": "no"}], ids=str)
def test_usage_makes_no_given_up_request_an_answer(reason: object) -> None:
    choice, meta = {"finish_reason": reason}, {"prompt_tokens": 3, "finish_reason": reason}
    for endpoint, body in (
        (Endpoint.CHAT, {"usage": {}, "choices": [{"finish_reason": "stop"}, choice]}),
        (Endpoint.GENERATE, [{"meta_info": {"prompt_tokens": 3}}, {"meta_info": meta}]),
        (Endpoint.BARE_RERANK, {"meta_info": meta}),
    ):
        with pytest.raises(ErrorAnswer):
            of_reply(endpoint, json.dumps(body).encode())


def test_a_text_that_looks_like_an_error_is_none() -> None:
    text = json.dumps({"error": {"message": "abort"}, "finish_reason": "abort"})
    body = {"choices": [{"text": text, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}
    assert of_reply(Endpoint.COMPLETIONS, json.dumps(body).encode()) == Usage(3)


@pytest.mark.parametrize("body", [b"[1]", b'{"usage":7}'])
@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.GENERATE])
def test_a_reply_of_an_unknown_shape_has_no_usage(endpoint: Endpoint, body: bytes) -> None:
    assert of_reply(endpoint, body) is None


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"usage":', b"[" * 99999])
@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.GENERATE])
def test_a_reply_that_is_none_is_garbage(endpoint: Endpoint, body: bytes) -> None:
    with pytest.raises(GarbageError, match=endpoint.value):
        of_reply(endpoint, body)


def test_a_transcript_may_be_plain_text() -> None:
    assert of_reply(Endpoint.TRANSCRIPTIONS, b"Hello.", "text/plain; charset=utf-8") is None
    with pytest.raises(GarbageError):
        of_reply(Endpoint.TRANSCRIPTIONS, b"Hello.", "application/json")


def test_an_events_usage_may_come_alone_or_with_content() -> None:
    assert of_chunk(b'{"choices":[],"usage":{"prompt_tokens":1}}') == (Usage(1, 0, 0), True)
    assert of_chunk(b'{"choices":[{}],"usage":{"prompt_tokens":1}}') == (Usage(1, 0, 0), False)
    assert of_chunk(b'{"usage":null}') == (None, False)
    assert of_chunk(b"{") == (None, False)
