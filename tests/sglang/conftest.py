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


@pytest.fixture
def older_seam(tmp_path: Path) -> str:
    """A folder for PYTHONPATH in which one of SGLang's seams looks as it did in 0.5.18."""
    (tmp_path / "sitecustomize.py").write_text(
        "import builtins, sys\n"
        "_import = builtins.__import__\n"
        "def older(name, *rest, **named):\n"
        "    module = _import(name, *rest, **named)\n"
        "    policy = sys.modules.get('sglang.srt.managers.schedule_policy')\n"
        "    if policy is not None and hasattr(policy, 'SchedulePolicy'):\n"
        "        policy.SchedulePolicy.calc_priority = lambda self, waiting_queue: None\n"
        "    return module\n"
        "builtins.__import__ = older\n"
    )
    return str(tmp_path)
