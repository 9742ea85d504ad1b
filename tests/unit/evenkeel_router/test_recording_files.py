"""Both files of a recording: their sizes, what a new file repeats, and the end of traces."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from evenkeel_contract.recording import FleetLine, RequestLine
from evenkeel_contract.recordingconfig import RecordingConfig
from evenkeel_router.telemetry.recorder import _Files, _header
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.telemetry.tracing import Tracing

from tests.support.routers import config_for

SALT = b"s" * 16


def request(n: int, *, blocks: int = 0) -> tuple[RequestLine, tuple[int, ...]]:
    line = RequestLine(
        arrival_s=float(n), client="ns/t/c", api="/v1", duration_s=1.0, ttft_s=0.5, streamed=True,
        input_tokens=3, cached_tokens=1, output_tokens=2, estimated=False, replica="r0",
    )  # fmt: skip
    return line, tuple(range(blocks))


def files_of(path: Path, max_bytes: int) -> _Files:
    header = _header(Rooms.make(config_for(), incarnation="router"), SALT)
    return _Files(RecordingConfig(file=str(path), max_bytes=max_bytes), header, SALT, fresh=True)


@pytest.mark.parametrize("seed", range(8))
def test_a_recording_keeps_its_size_and_each_file_begins_with_its_fleet(
    tmp_path: Path, seed: int
) -> None:
    rng, path = Random(seed), tmp_path / "recording"
    files = files_of(path, 4000)
    assert files.paths() == ()
    fleet: tuple[str, ...] = ()
    number = written = 0
    for _ in range(30):
        lines: list[Any] = []
        if not fleet or not rng.randrange(4):
            fleet = tuple(f"r{n}" for n in range(rng.choice((1, 2, 9))))
            lines.append(FleetLine(at_s=float(number), replicas=fleet))
        for _ in range(rng.choice((0, 1, 3))):
            number += 1
            lines.append(request(number, blocks=rng.choice((0, 5))))
        written += files.write(lines)
        sizes = [one.stat().st_size for one in files.paths()]
        assert files.size_bytes == sum(sizes)
        assert all(size <= 2000 for size in sizes)
        for one in files.paths():
            first, second, *_ = map(msgspec.json.decode, one.read_bytes().splitlines())
            assert first["router"] == "router"
            assert "replicas" in second
    assert written == number
    assert len(files.paths()) == 2
    kept = b"".join(one.read_bytes() for one in files.paths()).splitlines()
    arrivals = [one["arrival_s"] for one in map(msgspec.json.decode, kept) if "arrival_s" in one]
    assert arrivals == [float(n) for n in range(number - len(arrivals) + 1, number + 1)]
    files.close()


async def test_traces_that_wait_are_exported_before_the_router_ends() -> None:
    tracing, exported = Tracing(config_for()), threading.Event()
    ended: list[bool] = []

    def close() -> None:
        exported.wait(0.2)
        ended.append(True)

    spans: Any = SimpleNamespace(close=close)
    tracing.spans = spans
    await tracing.close()
    assert ended == [True]
    assert tracing.spans is None
    await tracing.close()
    assert ended == [True]
