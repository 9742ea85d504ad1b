"""The real engine for the suite. Engines that tests share are started once; others are the test's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.sglang.engine import Engine, installed, unused_port
from tests.sglang.shared import START, Shared

FAILED = pytest.StashKey[bool]()
USES = pytest.StashKey[Counter[str]]()
"""How many tests still take each shared engine."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests of a shared engine run one after another. `trylast`: without those that are not selected."""
    names = list(START)

    def place(item: pytest.Item) -> float:
        found = [names.index(name) for name in _shared(item)]
        return sum(found) / len(found) if found else -1.0

    items.sort(key=place)
    config.stash[USES] = Counter(name for item in items for name in _shared(item))


def _shared(item: pytest.Item) -> Sequence[str]:
    if item.get_closest_marker("sglang") is None:
        return ()
    return [name for name in getattr(item, "fixturenames", ()) if name in START]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture
def start(tmp_path: Path) -> Iterator[type[Engine]]:
    """Starts engines of this test: `start(policy, ...)`."""
    installed()
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


class Engines:
    """The shared engines of a session."""

    def __init__(self, folders: pytest.TempPathFactory, uses: Counter[str]) -> None:
        self._folders = folders
        self._uses = uses
        self._running: dict[str, Shared] = {}

    def lend(self, name: str, borrower: pytest.Item) -> Iterator[Shared]:
        """The engine for one test. It is stopped after its last test, and after one that failed."""
        running = self._running.get(name)
        if running is None or not running.ready_for_the_next():
            self.stop(name)
            installed()
            running = self._running[name] = START[name](self._folders.mktemp(name))
        borrower.stash[FAILED] = False
        yield running
        self._uses[name] -= 1
        if borrower.stash[FAILED] or self._uses[name] <= 0:
            self.stop(name)

    def stop(self, *names: str) -> None:
        for name in names or list(self._running):
            running = self._running.pop(name, None)
            if running is not None:
                running.stop()


@pytest.fixture(scope="session")
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engines]:
    engines = Engines(tmp_path_factory, request.config.stash[USES])
    yield engines
    engines.stop()


def _lent(name: str):  # type: ignore[no-untyped-def]
    @pytest.fixture(name=name)
    def shared(request: pytest.FixtureRequest, engines: Engines) -> Iterator[Shared]:
        yield from engines.lend(name, request.node)

    return shared


# Each has a fixture of its name.
globals().update({f"_{name}": _lent(name) for name in START})
