"""A recording of traffic: JSON lines that a router writes and `evenkeel plan` reads. It never holds text or keys.

The first line is a `Header`; a recording may hold several, each with its requests behind it: one per file and router. Hashes
of prompt blocks are keyed with a random salt that no file holds. So equal prefixes of one recording have equal hashes, and
a hash reveals nothing to a reader who guesses the text.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Annotated, Any, Final

import msgspec

from evenkeel_contract.messages import UNREADABLE

RECORDING_VERSION: Final = 1
RECORDING_PATH: Final = "/v1/recording"
"""PUT starts a recording, DELETE stops it, GET returns its `RecordingState`."""
RECORDING_FILE_PATH: Final = "/v1/recording/file"
SALT_BYTES: Final = 32
_HASH_MASK: Final = 2**53 - 1  # every JSON reader has these integers

Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Header(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="recording"):
    """What was in force when a file of the recording began."""

    version: int = RECORDING_VERSION
    service: str
    """`namespace/name`."""
    model: str
    router: str
    started_unix: float
    """Arrivals count from here."""
    salt_id: str
    """Id of the salt: equal for files whose hashes can be compared. It does not reveal the salt."""
    block_tokens: int | None = None
    """Tokens of a block of the prompt; None if blocks are pieces of text."""
    scheduling: dict[str, Any] = {}
    """`scheduling` of the RouterConfig."""
    weights: dict[str, float] = {}
    """`namespace/tenant` or `namespace/tenant/client` → weight; `namespace/tenant/*`: clients that the tenant does not name."""


class FleetLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="fleet"):
    """The replicas that take requests have changed."""

    at_s: Seconds
    replicas: tuple[str, ...]


class RequestLine(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="line", tag="request"
):
    """One request that is over. Times are seconds."""

    arrival_s: Seconds
    client: str
    """`namespace/tenant/client`."""
    api: str
    """Path of the API, such as `/v1/chat/completions`."""
    duration_s: Seconds
    ttft_s: Seconds | None = None
    """Time to the first byte: of the first token where the answer was streamed."""
    streamed: bool = False
    input_tokens: Tokens = 0
    """Tokens of the input. The replica reported them, like the next two; estimated where `estimated` is true."""
    cached_tokens: Tokens = 0
    output_tokens: Tokens = 0
    estimated: bool = False
    blocks: tuple[int, ...] = ()
    """Hashes of the whole blocks of the prompt, each together with all blocks before it."""
    adapter: str = ""
    replica: str = ""
    """Name of the replica; empty if no replica had the request."""
    outcome: str = ""
    """Why it failed; empty if it did not."""


Line = Header | FleetLine | RequestLine


class StartRecording(msgspec.Struct, frozen=True):
    """The body of PUT."""

    salt: str = ""
    """Hexadecimal digits of `SALT_BYTES` bytes, the same for all routers of a fleet; empty: the router draws one."""


class RecordingState(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to GET, PUT and DELETE."""

    allowed: bool
    """Whether the configuration has `recording`."""
    recording: bool = False
    """Whether arriving requests are recorded."""
    open: int = 0
    """Requests that have arrived and have not ended. They are written when they end, after a stop too."""
    requests: int = 0
    dropped: int = 0
    """Requests that are missing: the disk failed, or was too slow."""
    size_bytes: int = 0
    max_bytes: int = 0
    fault: str = ""
    """Why nothing can be written; empty if the last write succeeded."""


class RecordingError(ValueError):
    """A line is no line of a recording."""


_encoder = msgspec.json.Encoder()
_lines = msgspec.json.Decoder(Line)
_start = msgspec.json.Decoder(StartRecording)
_state = msgspec.json.Decoder(RecordingState)


def encode_line(line: Line) -> bytes:
    """One line with its end."""
    return _encoder.encode(line) + b"\n"


def decode_line(data: bytes) -> Line:
    """Read one line of a recording; raises `RecordingError`."""
    try:
        line: Line = _lines.decode(data)
    except UNREADABLE as error:
        raise RecordingError(str(error)) from error
    if isinstance(line, Header) and line.version != RECORDING_VERSION:
        raise RecordingError(
            f"version is {line.version}, this program reads {RECORDING_VERSION}; use the evenkeel of the router"
        )
    return line


def decode_start(data: bytes) -> bytes | None:
    """The salt of a PUT; None if it has none. Raises `RecordingError`."""
    try:
        salt = bytes.fromhex(_start.decode(data).salt) if data else b""
    except (*UNREADABLE, ValueError) as error:
        raise RecordingError(str(error)) from error
    if salt and len(salt) != SALT_BYTES:
        raise RecordingError(f"salt has {len(salt)} bytes, must have {SALT_BYTES}")
    return salt or None


def decode_recording_state(data: bytes) -> RecordingState:
    """Read the state of a recording; raises `RecordingError`."""
    try:
        return _state.decode(data)
    except UNREADABLE as error:
        raise RecordingError(str(error)) from error


def salted(blocks: Iterable[int], salt: bytes) -> tuple[int, ...]:
    """Hashes of prompt blocks (64 bits), keyed: 53 bits of BLAKE2b."""
    mask = 2**64 - 1
    return tuple(
        int.from_bytes(
            blake2b((block & mask).to_bytes(8, "little"), digest_size=8, key=salt).digest(),
            "little",
        )
        & _HASH_MASK
        for block in blocks
    )


def salt_id(salt: bytes) -> str:
    """Id of a salt: equal for equal salts. It does not reveal them."""
    return blake2b(b"id", digest_size=8, key=salt).hexdigest()
