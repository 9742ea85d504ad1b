"""`evenkeel up` in tokens mode: the router knows the caches of replicas exactly, also after a crash of either."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_up_command import FILE, Up

pytestmark = pytest.mark.usefixtures("source_path")

STORY = "The lighthouse keeper wrote down the name of every ship that passed at night. " * 20


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """A fleet in which each cache has room for about two of the prompts below."""
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
    return all(replica.kv_state == "InSync" for replica in state.replicas) and (
        not state.prefix.tokenizer_error
    )


def ask(up: Up, number: int) -> int:
    """Send one of a few long chats; the number of cached tokens."""
    answer = up.ask(messages=[{"role": "user", "content": f"{number}: {STORY}"}])
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_the_router_follows_caches_exactly_also_after_a_crash(up: Up) -> None:
    up.until(lambda: in_sync(up))
    for number in (1, 1, 2, 3, 4, 5, 6, 1):
        ask(up, number)
    before = up.state()
    assert before.prefix.predictions["exact"].predicted_tokens > 0
    assert sum(replica.kv_sequence for replica in before.replicas) > 0

    os.kill(up.pids()["replica-0"], signal.SIGKILL)
    up.until_reported("replica-0: ready again")
    up.until(lambda: in_sync(up) and all(replica.routable for replica in up.state().replicas))
    (again,) = (one for one in up.state().replicas if one.name == "replica-0")
    assert again.prefix_blocks == 0, "its cache is empty after the restart"

    held = {one.name: one.prefix_blocks for one in up.state().replicas}
    os.kill(up.pids()["router"], signal.SIGKILL)
    up.until_reported("router: ready again")
    up.until(lambda: len(up.state().replicas) == 2 and in_sync(up))
    assert {one.name: one.prefix_blocks for one in up.state().replicas} == held, (
        "restored by the replay of events"
    )
    up.until(lambda: up.ask().status_code == 200)
