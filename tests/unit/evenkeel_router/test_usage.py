"""What replicas say a request used."""

import pytest
from evenkeel_fairshare.fleet.contract import Usage
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.usage import GarbageError, of_chunk, of_reply


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
    ],
)
def test_usage_is_read_out_of_a_reply(endpoint: Endpoint, body: bytes, want: Usage | None) -> None:
    assert of_reply(endpoint, body) == want


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b'{"usage":', b"[1]", b'{"usage":7}', b"[" * 99999]
)
@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.GENERATE])
def test_a_reply_that_is_none_is_garbage(endpoint: Endpoint, body: bytes) -> None:
    if (endpoint, body) == (Endpoint.GENERATE, b'{"usage":7}'):
        assert of_reply(endpoint, body) is None  # an object, with fields of its own
        return
    with pytest.raises(GarbageError, match=endpoint.value):
        of_reply(endpoint, body)


def test_an_events_usage_may_come_alone_or_with_content() -> None:
    assert of_chunk(b'{"choices":[],"usage":{"prompt_tokens":1}}') == (Usage(1, 0, 0), True)
    assert of_chunk(b'{"choices":[{}],"usage":{"prompt_tokens":1}}') == (Usage(1, 0, 0), False)
    assert of_chunk(b'{"usage":null}') == (None, False)
    assert of_chunk(b"{") == (None, False)
