"""A stream comes out the same, however it is cut into chunks and reads, and whatever of it bypasses the parser."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from tests.support.nasty import DONE, USAGE
from tests.support.wires import LAST_CHUNK, STREAM_HEAD, framed, streamed, unframed


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """The events of a stream, and what the replica sends, read by read."""
    texts = draw(st.lists(st.integers(0, 300), min_size=1, max_size=8))
    events = [b'data: {"text":"%b","usage":null}\n\n' % (b"x" * size) for size in texts]
    events += [USAGE, DONE]
    chunks: list[bytes] = []
    for event in events:
        match draw(st.sampled_from(["alone", "alone", "alone", "joined", "split"])):
            case "alone":
                chunks.append(event)
            case "joined":
                chunks[-1:] = [b"".join(chunks[-1:]) + event]
            case "split":
                middle = draw(st.integers(1, len(event) - 1))
                chunks += [event[:middle], event[middle:]]
    reads = [framed(chunk) for chunk in chunks]
    reads[-1] += LAST_CHUNK
    for _ in range(draw(st.integers(0, 3))):  # reads that end elsewhere than chunks do
        at = draw(st.integers(0, len(reads) - 1))
        middle = draw(st.integers(0, len(reads[at])))
        reads[at : at + 1] = [reads[at][:middle], reads[at][middle:]]
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(reads) - 1))
        reads[at : at + 2] = [b"".join(reads[at : at + 2])]
    return b"".join(events), [STREAM_HEAD, *filter(None, reads)]


@given(streams(), st.lists(st.booleans(), max_size=12))
def test_a_stream_comes_out_the_same_however_it_is_cut(
    stream: tuple[bytes, list[bytes]], holds: list[bool]
) -> None:
    body, reads = stream
    client = asyncio.run(streamed(reads, holds))
    assert client.scan.broken is None
    assert client.scan.events == body.count(b'"usage":null')
    assert unframed(b"".join(client.transport.written)) == body
