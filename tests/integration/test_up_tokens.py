"""`evenkeel up` in tokens mode: real processes, caches that are seen exactly, and again after replica and router are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_up_verb import FILE, Up

pytestmark = pytest.mark.usefixtures("source_path")

STORY = "It is said that nobody ever asked the lighthouse keeper what he had seen at night. " * 20


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """A fleet whose caches hold about two of the prompts below each."""
    text = FILE.replace("args: [--speed=20]}", "args: [--speed=20, --kv-tokens=2500]}")
    text = text.replace("scheduling:", "router: {prefix: {mode: Tokens}}\n  scheduling:")
    assert text.count("Tokens") == text.count("2500") == 1
    (tmp_path / "fleet.yaml").write_text(text)
    started = Up(tmp_path)
    try:
        started.until_ready()
        yield started
    finally:
        if started.process.poll() is None:
            started.stop()


def in_sync(up: Up) -> bool:
    state = up.state()
    return all(replica.kv_standing == "InSync" for replica in state.replicas) and (
        not state.prefix.tokenizer_trouble
    )


def ask(up: Up, number: int) -> int:
    """Serve one of a few long chats; the tokens found cached."""
    answer = up.ask(messages=[{"role": "user", "content": f"{number}: {STORY}"}])
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_fleets_caches_are_seen_exactly_and_again_after_a_crash(up: Up) -> None:
    up.until(lambda: in_sync(up))
    for number in (1, 1, 2, 3, 4, 5, 6, 1):
        ask(up, number)
    before = up.state()
    assert before.prefix.predictions["exact"].predicted_tokens > 0
    assert sum(replica.kv_sequence for replica in before.replicas) > 0

    os.kill(up.pids()["replica-0"], signal.SIGKILL)
    up.until_said("replica-0: ready again")
    up.until(lambda: in_sync(up) and all(replica.routable for replica in up.state().replicas))
    (again,) = (one for one in up.state().replicas if one.name == "replica-0")
    assert again.prefix_blocks == 0, "its cache went with it"

    held = {one.name: one.prefix_blocks for one in up.state().replicas}
    os.kill(up.pids()["router"], signal.SIGKILL)
    up.until_said("router: ready again")
    up.until(lambda: len(up.state().replicas) == 2 and in_sync(up))
    assert {one.name: one.prefix_blocks for one in up.state().replicas} == held, "by replay alone"
    up.until(lambda: up.ask().status_code == 200)
