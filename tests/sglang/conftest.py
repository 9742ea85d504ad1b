"""The real engine for the suite: one process per engine asked for, stopped at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.sglang.engine import Engine, engine_environment, unused_port


@pytest.fixture
def start(tmp_path: Path) -> Iterator[type[Engine]]:
    """Starts engines of this test: `start(policy, ...)`."""
    if engine_environment() is None:
        pytest.skip("the real engine is not installed: make sglang")
    with ExitStack() as stack:

        class Started(Engine):
            def __init__(self, *arguments: str, **options: object) -> None:
                super().__init__(*arguments, log=tmp_path / "engine.log", **options)  # type: ignore[arg-type]
                stack.enter_context(self)

        yield Started


@pytest.fixture
def free_port() -> int:
    """A port that nobody listens on now."""
    return unused_port()
