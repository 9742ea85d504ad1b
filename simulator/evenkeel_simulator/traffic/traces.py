"""Traces from files: CSV and Mooncake JSONL, plain or gzip.

A fault names file, line and field; of many the first are named and all are counted (`TraceError`).

CSV has a header with `client,arrival_s,input_tokens,output_tokens` and, if prefixes are known, `hash_ids`:
integers between spaces, one per block of 512 tokens, the last block possibly partial, equal ids for equal
blocks after equal prefixes. Mooncake's lines hold `timestamp` (ms), `input_length`, `output_length`,
`hash_ids` and here also `session`. Further columns and fields are ignored.

A partial last block is a segment of its own length, so it never matches a whole one.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TypeVar

import msgspec
from xxhash import xxh3_64_intdigest

from evenkeel_simulator.engine.cache import Segment
from evenkeel_simulator.traffic.workload import Call, Program

BLOCK_TOKENS = 512
"""Tokens of a block in Mooncake's traces."""
COLUMNS = ("client", "arrival_s", "input_tokens", "output_tokens")
SHOWN_FAULTS = 20
_QUOTED = 60  # characters of a faulty value that a message repeats

_Value = TypeVar("_Value")


class TraceError(ValueError):
    """A trace that cannot be read; the message names file, line and field of the first faults, one a line."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a trace, before it is given to a client."""

    line: int
    client: str | None
    """Client that the trace names; None in a Mooncake trace, which names none."""
    session: str
    """Group of the request: its session, otherwise its client, otherwise its line."""
    arrival_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: Sequence[int]


class _Line(msgspec.Struct):
    """One line of a Mooncake trace."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []
    session: int | str | None = None
    client: int | str | None = None


def read_trace(path: Path) -> list[Row]:
    """All rows of a trace in the order of their arrivals; raises `TraceError`."""
    text = read_text(path)
    faults = _Faults(path)
    read = _jsonl if text.lstrip().startswith("{") else _csv
    rows = [row for row in read(text, faults) if row is not None]
    faults.raise_any()
    if not rows:
        raise TraceError(f"{path}: holds no request")
    rows.sort(key=lambda row: row.arrival_s)
    return rows


class _Faults:
    """The faults of a trace: the first ones in words, and their number."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._first: list[str] = []

    def note(self, line: int, message: str) -> None:
        """Record a fault; reading continues."""
        self.count += 1
        if len(self._first) < SHOWN_FAULTS:
            self._first.append(f"{self.path}, line {line}: {message}")

    def raise_any(self) -> None:
        """Raise `TraceError` if there is one."""
        if not self.count:
            return
        words = list(self._first)
        if self.count > 1:
            which = "" if self.count == len(words) else f"; the first {len(words)}"
            words.insert(0, f"{self.path}: {self.count:,} faults{which}:")
        raise TraceError("\n".join(words))


def read_text(path: Path) -> str:
    """A file, plain or gzip; raises `TraceError`."""
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":  # by its magic number, since names may be wrong
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: byte {error.start} is not UTF-8") from error


def _csv(text: str, faults: _Faults) -> Iterator[Row | None]:
    reader = csv.DictReader(StringIO(text))
    names = reader.fieldnames or []
    missing = [name for name in COLUMNS if name not in names and name != "client"]
    if missing:
        columns = ",".join(COLUMNS)
        faults.note(1, f"no column {', '.join(missing)}; a trace has {columns}[,hash_ids]")
        return
    try:
        for values in reader:
            yield _csv_row(values, reader.line_num, faults)
    except csv.Error as error:
        faults.note(reader.line_num, str(error))


def _csv_row(values: dict[str, str | None], line: int, faults: _Faults) -> Row | None:
    before = faults.count
    client = values.get("client")
    if client is not None and not client.strip():
        faults.note(line, "client is empty")

    def parse(name: str, kind: Callable[[str], _Value], neutral: _Value) -> _Value:
        text = values.get(name)
        if text is None:
            faults.note(line, f"{name} is missing")
            return neutral
        try:
            return kind(text)
        except ValueError:
            wanted = _KINDS.get(kind, "whole numbers between spaces")
            faults.note(line, f"{name} is {text[:_QUOTED]!r}, not {wanted}")
            return neutral

    row = Row(
        line=line,
        client=client,
        session=str(line) if client is None else client,
        arrival_s=parse("arrival_s", float, 0.0),
        input_tokens=parse("input_tokens", int, 1),
        output_tokens=parse("output_tokens", int, 1),
        hash_ids=parse("hash_ids", lambda words: list(map(int, words.split())), [])
        if values.get("hash_ids")
        else [],
    )
    echoes = faults.count > before  # faults of replaced values
    return _checked(row, faults, ("arrival_s", "input_tokens", "output_tokens"), blocks=not echoes)


_KINDS: Mapping[object, str] = {float: "a number", int: "a whole number"}


def _jsonl(text: str, faults: _Faults) -> Iterator[Row | None]:
    decoder = msgspec.json.Decoder(_Line)
    for number, line_text in enumerate(text.splitlines(), start=1):
        if not line_text.strip():
            continue
        try:
            line = decoder.decode(line_text)
        except msgspec.MsgspecError as error:
            faults.note(number, str(error))
            continue
        client = None if line.client is None else str(line.client)
        named = line.session if line.session is not None else client
        row = Row(
            line=number,
            client=client,
            session=str(number if named is None else named),
            arrival_s=line.timestamp / 1e3,
            input_tokens=line.input_length,
            output_tokens=line.output_length,
            hash_ids=line.hash_ids,
        )
        yield _checked(row, faults, ("timestamp", "input_length", "output_length"), blocks=True)


def _checked(row: Row, faults: _Faults, names: tuple[str, str, str], *, blocks: bool) -> Row | None:
    """The row if its values are valid for an engine; `names` are those of the file.

    `blocks`: check the number of hash ids too.
    """
    before = faults.count
    arrival, input_name, output_name = names
    if not 0 <= row.arrival_s < float("inf"):
        faults.note(row.line, f"{arrival} is {row.arrival_s}, must be at least 0 and finite")
    for name, tokens in ((input_name, row.input_tokens), (output_name, row.output_tokens)):
        if tokens < 1:
            faults.note(row.line, f"{name} is {tokens}, must be at least 1")
    wanted = -(-row.input_tokens // BLOCK_TOKENS)
    if blocks and row.input_tokens >= 1 and row.hash_ids and len(row.hash_ids) != wanted:
        faults.note(
            row.line,
            f"hash_ids has {len(row.hash_ids)} entries, {input_name} {row.input_tokens} "
            f"makes {wanted} blocks of {BLOCK_TOKENS} tokens",
        )
    return row if faults.count == before else None


def hash_clients(clients: int, *, seed: int = 0) -> Callable[[Row], str]:
    """Spread sessions over clients by a hash: the same session, the same client, on every machine."""
    if clients < 1:
        raise ValueError(f"clients is {clients}, must be at least 1")
    return lambda row: f"client-{session_hash(row, seed) % clients}"


def session_hash(row: Row, seed: int) -> int:
    """64 bits that all rows of a session share."""
    return xxh3_64_intdigest(row.session.encode(), seed=seed % 2**64)


def named_clients(path: Path) -> Callable[[Row], str]:
    """The clients that the trace names; raises `TraceError` for a row that names none."""

    def name(row: Row) -> str:
        if row.client is None:
            raise TraceError(
                f"{path}, line {row.line}: client is missing; spread the trace with --clients hash:N"
            )
        return row.client

    return name


def programs(
    rows: Iterable[Row], client: Callable[[Row], str], *, speed: float = 1.0
) -> list[Program]:
    """A program of one call per row. Times count from the first arrival; `speed` 2 lets them arrive in half the time."""
    rows = list(rows)
    start_s = min((row.arrival_s for row in rows), default=0.0)
    return [
        Program(
            id=str(row.line),
            client=client(row),
            arrival_s=(row.arrival_s - start_s) / speed,
            calls=(
                Call(
                    input_tokens=row.input_tokens,
                    output_tokens=row.output_tokens,
                    max_output_tokens=row.output_tokens,
                    prompt=_segments(row),
                ),
            ),
        )
        for row in rows
    ]


def _segments(row: Row) -> tuple[Segment, ...]:
    """One segment per block; the last one has the remaining tokens."""
    last = len(row.hash_ids) - 1
    rest = row.input_tokens - last * BLOCK_TOKENS
    return tuple(
        Segment(hash_id, BLOCK_TOKENS if place < last else rest)
        for place, hash_id in enumerate(row.hash_ids)
    )
