"""The framing of the bench's far ends, cut at every byte."""

import pytest

from bench.router.http1 import ChunkedBody, FramingError, Head, SizedBody, body_of, split_head

CHUNKED = b"5\r\nhello\r\n1\r\n \r\nA\r\nworld\r\nend\r\n0\r\n\r\n"
PAYLOAD = b"hello world\r\nend"


def fed(body: SizedBody | ChunkedBody, pieces: list[bytes]) -> bytes:
    return b"".join(body.feed(piece) for piece in pieces)


@pytest.mark.parametrize("cut", range(len(CHUNKED) + 1))
def test_a_chunked_body_reads_the_same_wherever_it_is_cut(cut: int) -> None:
    body = ChunkedBody()
    assert fed(body, [CHUNKED[:cut], CHUNKED[cut:]]) == PAYLOAD
    assert body.done


def test_a_chunked_body_reads_the_same_byte_by_byte() -> None:
    body = ChunkedBody()
    assert fed(body, [CHUNKED[i : i + 1] for i in range(len(CHUNKED))]) == PAYLOAD
    assert body.done and body.rest == b""


@pytest.mark.parametrize(
    "body, wire, want",
    [(ChunkedBody(), CHUNKED, PAYLOAD), (SizedBody(4), b"four", b"four")],
)
def test_what_follows_a_body_is_kept(
    body: SizedBody | ChunkedBody, wire: bytes, want: bytes
) -> None:
    assert body.feed(wire + b"HTTP/1.1 200 OK") == want
    assert body.rest == b"HTTP/1.1 200 OK"


def test_an_unfinished_body_is_not_done() -> None:
    for body, wire in ((ChunkedBody(), CHUNKED[:-1]), (SizedBody(5), b"four")):
        body.feed(wire)
        assert not body.done


@pytest.mark.parametrize(
    "wire", [b"xyz\r\n", b"5\r\nhello!!", b"1" * 30], ids=["size", "line end", "size line"]
)
def test_a_faulty_chunk_is_an_error(wire: bytes) -> None:
    with pytest.raises(FramingError):
        ChunkedBody().feed(wire)


def test_a_head_is_read_with_its_headers_in_lower_case() -> None:
    wire = b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nabc"
    found = split_head(wire)
    assert found is not None
    head, rest = found
    assert (head.status, head.headers, rest) == (404, {b"content-length": b"3"}, b"abc")
    assert isinstance(body_of(head), SizedBody)


def test_a_head_is_not_read_before_it_is_whole() -> None:
    wire = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    assert all(split_head(wire[:cut]) is None for cut in range(len(wire)))


def test_a_path_is_read_without_its_query_and_another_protocol_is_refused() -> None:
    assert Head(b"GET /health?x=1 HTTP/1.1", {}).path == b"/health"
    with pytest.raises(FramingError):
        _ = Head(b"PRI * HTTP/2.0", {}).path
