"""Traces from files: CSV and Mooncake JSONL, plain or gzip.

Place in the flow: file → **rows** → clients → programs. A fault names file, line and field (`TraceError`).

CSV has a header with `client,arrival_s,input_tokens,output_tokens` and, if prefixes are known, `hash_ids`:
integers between spaces, one per block of 512 tokens, the last block possibly partial, equal ids for equal
blocks after equal prefixes. Mooncake's lines hold `timestamp` (ms), `input_length`, `output_length`,
`hash_ids` and here also `session`. Further columns and fields are ignored.

The surprising thing: a partial last block is a segment of its own length, so it never matches a whole one.
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
from evenkeel_simulator.experiments.workload import Call, Program

BLOCK_TOKENS = 512
"""Tokens of a block in Mooncake's traces."""
COLUMNS = ("client", "arrival_s", "input_tokens", "output_tokens")


_Value = TypeVar("_Value")


class TraceError(ValueError):
    """A trace that cannot be read; the message names file, line and field."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a trace, before it is given to a client."""

    line: int
    client: str | None
    """What the trace says; a Mooncake trace names none."""
    session: str
    """What belongs together: the session if there is one, else the client, else the line."""
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
    text = _read(path)
    rows = list(_jsonl(text, path) if text.lstrip().startswith("{") else _csv(text, path))
    if not rows:
        raise TraceError(f"{path}: holds no request")
    rows.sort(key=lambda row: row.arrival_s)
    return rows


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":  # by its magic number: names lie
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: byte {error.start} is not UTF-8") from error


def _csv(text: str, path: Path) -> Iterator[Row]:
    reader = csv.DictReader(StringIO(text))
    names = reader.fieldnames or []
    missing = [name for name in COLUMNS if name not in names and name != "client"]
    if missing:
        raise TraceError(
            f"{path}, line 1: no column {', '.join(missing)}; "
            f"a trace has {','.join(COLUMNS)}[,hash_ids]"
        )
    try:
        for values in reader:
            yield _csv_row(values, reader.line_num, path)
    except csv.Error as error:
        raise TraceError(f"{path}, line {reader.line_num}: {error}") from error


def _csv_row(values: dict[str, str | None], line: int, path: Path) -> Row:
    where = f"{path}, line {line}"
    client = values.get("client")
    if client is not None and not client.strip():
        raise TraceError(f"{where}: client is empty")
    row = Row(
        line=line,
        client=client,
        session=str(line) if client is None else client,
        arrival_s=_parse(values, "arrival_s", float, where),
        input_tokens=_parse(values, "input_tokens", int, where),
        output_tokens=_parse(values, "output_tokens", int, where),
        hash_ids=_parse({"hash_ids": "", **values}, "hash_ids", _integers, where),
    )
    return _checked(row, where, ("arrival_s", "input_tokens", "output_tokens"))


def _integers(text: str) -> list[int]:
    return [int(word) for word in text.split()]


_KINDS: Mapping[object, str] = {float: "a number", int: "a whole number"}


def _parse(
    values: Mapping[str, str | None], name: str, parse: Callable[[str], _Value], where: str
) -> _Value:
    text = values[name]
    if text is None:
        raise TraceError(f"{where}: {name} is missing")
    try:
        return parse(text)
    except ValueError:
        kind = _KINDS.get(parse, "whole numbers between spaces")
        raise TraceError(f"{where}: {name} is {text!r}, not {kind}") from None


def _jsonl(text: str, path: Path) -> Iterator[Row]:
    decoder = msgspec.json.Decoder(_Line)
    for number, line_text in enumerate(text.splitlines(), start=1):
        if not line_text.strip():
            continue
        where = f"{path}, line {number}"
        try:
            line = decoder.decode(line_text)
        except msgspec.MsgspecError as error:
            raise TraceError(f"{where}: {error}") from error
        client = None if line.client is None else str(line.client)
        named = line.session if line.session is not None else client
        yield _checked(
            Row(
                line=number,
                client=client,
                session=str(number if named is None else named),
                arrival_s=line.timestamp / 1e3,
                input_tokens=line.input_length,
                output_tokens=line.output_length,
                hash_ids=line.hash_ids,
            ),
            where,
            ("timestamp", "input_length", "output_length"),
        )


def _checked(row: Row, where: str, names: tuple[str, str, str]) -> Row:
    """The row, if an engine could make sense of it; `names` are those of the file."""
    arrival, input_name, output_name = names
    if not 0 <= row.arrival_s < float("inf"):
        raise TraceError(f"{where}: {arrival} is {row.arrival_s}, must be at least 0 and finite")
    if row.input_tokens < 1:
        raise TraceError(f"{where}: {input_name} is {row.input_tokens}, must be at least 1")
    if row.output_tokens < 1:
        raise TraceError(f"{where}: {output_name} is {row.output_tokens}, must be at least 1")
    blocks = -(-row.input_tokens // BLOCK_TOKENS)
    if row.hash_ids and len(row.hash_ids) != blocks:
        raise TraceError(
            f"{where}: hash_ids has {len(row.hash_ids)} entries, {input_name} {row.input_tokens} "
            f"makes {blocks} blocks of {BLOCK_TOKENS} tokens"
        )
    return row


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
    """A program of one call per row; `speed` 2 lets them arrive in half the time."""
    return [
        Program(
            id=str(row.line),
            client=client(row),
            arrival_s=row.arrival_s / speed,
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
    """One segment per block; the last one holds what is left."""
    last = len(row.hash_ids) - 1
    rest = row.input_tokens - last * BLOCK_TOKENS
    return tuple(
        Segment(hash_id, BLOCK_TOKENS if place < last else rest)
        for place, hash_id in enumerate(row.hash_ids)
    )
