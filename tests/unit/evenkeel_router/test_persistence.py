"""Reading the store at the start and writing it ever after; a store that is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest
from evenkeel_fairshare.ledger import Delta, Ledger, ReplicaRow
from evenkeel_fairshare.ledger.merge_table import Rows
from evenkeel_router.ledger import persistence as module
from evenkeel_router.ledger.persistence import Persistence
from evenkeel_router.ledger.stores.contract import StoreError

from tests.support.ledger_worlds import content, ledger
from tests.support.routers import PATIENCE_S


class Memory:
    """A store that is away as long as it is told to be."""

    def __init__(self, kept: Sequence[Delta] = ()) -> None:
        self.kept = list(kept)
        self.away = asyncio.Event()
        self.calls: list[str] = []
        self.called = asyncio.Condition()

    async def load(self) -> Sequence[Delta]:
        await self._call("load")
        return self.kept

    async def save(self, whole: Sequence[Delta]) -> None:
        await self._call("save")
        self.kept = list(whole)

    async def close(self) -> None:
        self.calls.append("close")

    async def _call(self, name: str) -> None:
        async with self.called:
            self.calls.append(name)
            self.called.notify_all()
        if self.away.is_set():
            raise StoreError(f"{name}: nobody there")

    async def times(self, name: str, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S), self.called:
            await self.called.wait_for(lambda: self.calls.count(name) >= count)


@asynccontextmanager
async def keeping(
    of: Ledger, store: Memory, interval_s: float = 0.01
) -> AsyncIterator[Persistence]:
    now = asyncio.get_running_loop().time
    one = Persistence(of, store, interval_s=lambda: interval_s, now=now)
    task = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)


def known(router: str) -> Ledger:
    one = ledger(router)
    one.members = frozenset({router})
    for name in ("one", "two"):
        row = ReplicaRow("ns/t/a", service=7.0, normalised=7.0, deficit=-3.0, waiting=1)
        one.observe(name, since=0, sequence=4, rows=[row])
        one.received(name, "ns/t/b", 5.0)
    one.requested({"ns/t/a": 2.5})
    return one


async def test_what_was_saved_is_there_again_in_another_process() -> None:
    before, store = known("before"), Memory()
    async with keeping(before, store):
        await store.times("save", 1)
    after = ledger("after")
    async with keeping(after, Memory(store.kept)) as one:
        async with asyncio.timeout(PATIENCE_S):
            await one.loaded.wait()
    assert content(after) | {"adopted": 0} == content(before) | {"adopted": 0}


async def test_the_end_saves_once_more_and_closes() -> None:
    one, store = known("here"), Memory()
    async with keeping(one, store, interval_s=3600) as kept:
        async with asyncio.timeout(PATIENCE_S):
            await kept.loaded.wait()
    assert store.calls == ["load", "save", "close"]


async def test_nothing_is_saved_over_a_store_that_was_not_read() -> None:
    store = Memory(list(known("before").parts()))
    store.away.set()
    here = ledger("here")
    async with keeping(here, store) as one:
        await store.times("load", 3)
        assert one.error == "load: nobody there"
        assert "save" not in store.calls
        store.away.clear()
        await store.times("save", 1)
        assert one.error is None
    assert here.served("ns/t/a") == 14.0


async def test_a_router_that_ends_before_it_read_its_store_does_not_write_it() -> None:
    store = Memory(list(known("before").parts()))
    store.away.set()
    async with keeping(ledger("here"), store):
        await store.times("load", 1)
    assert "save" not in store.calls
    assert store.calls[-1] == "close"


async def test_a_store_that_goes_away_is_written_again_when_it_is_back() -> None:
    here, store = known("here"), Memory()
    async with keeping(here, store) as one:
        await store.times("save", 1)
        store.away.set()
        seen = store.calls.count("save")
        await store.times("save", seen + 2)
        assert one.error == "save: nobody there"
        here.received("one", "ns/t/b", 100.0)
        store.away.clear()
        seen = store.calls.count("save")
        await store.times("save", seen + 2)
        assert one.error is None
    again = ledger("again")
    for part in store.kept:
        again.merge(part)
    assert again.served("ns/t/b") == 110.0


def cut_short(part: Delta) -> Delta:
    """Its only page lacks a cell."""
    (page,) = part.replica_accounts
    cut = Rows(page.clients.names, page.clients.cells[:-1])
    return part._replace(replica_accounts=(page._replace(clients=cut),))


async def test_an_invalid_part_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    parts = list(known("before").parts())
    here = ledger("here")
    async with keeping(here, Memory([cut_short(parts[0]), *parts[1:]])) as one:
        async with asyncio.timeout(PATIENCE_S):
            await one.loaded.wait()
    assert "is invalid" in caplog.text
    assert here.served("ns/t/a") == 7.0


async def test_after_an_invalid_part_no_account_counts_as_complete() -> None:
    """Else nobody would ask the replica or a peer for what is missing."""
    before = ledger("before")
    rows = [ReplicaRow(f"ns/t/{n}", service=1.0) for n in range(5000)]
    before.observe("one", since=0, sequence=9, rows=rows)
    before.observe("two", since=0, sequence=4, rows=rows[:1])
    parts = list(before.parts())
    assert len(parts) == 5
    here = ledger("here")
    async with keeping(here, Memory([cut_short(parts[0]), *parts[1:]])) as one:
        async with asyncio.timeout(PATIENCE_S):
            await one.loaded.wait()
    assert (here.sequence("one"), here.sequence("two")) == (0, 4)
