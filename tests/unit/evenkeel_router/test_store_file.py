"""A ledger in a folder: whatever breaks, a whole ledger is there, and it is never older than one save."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from evenkeel_contract.ledgerwire import encode
from evenkeel_fairshare.ledger import Delta
from evenkeel_router.ledger.stores.contract import StoreError
from evenkeel_router.ledger.stores.file import FileStore

from tests.support.ledger_worlds import content, full_ledger, ledger, merged, whole

NAME = "ledger"
GENERATIONS = ("ledger.0", "ledger.1")
ASIDE = "ledger.new"


def numbered(number: int, *tenants: str) -> list[Delta]:
    """A small ledger that says which one it is."""
    of = ledger(str(number))
    of.requested({f"{tenant}/client": 1.0 for tenant in tenants})
    return whole(of)


async def kept(folder: Path) -> list[str]:
    """Which ledger a router finds that starts now."""
    store = FileStore(folder / NAME)
    try:
        return [delta.router for delta in await store.load()]
    finally:
        await store.close()


async def saved(folder: Path, *numbers: int) -> None:
    store = FileStore(folder / NAME)
    await store.load()
    for number in numbers:
        await store.save(numbered(number))
    await store.close()


async def test_a_ledger_comes_back_as_it_was(tmp_path: Path):
    store = FileStore(tmp_path / NAME)
    assert await store.load() == []
    await store.save(whole(full_ledger()))
    await store.close()
    after = merged(ledger("router-2"), await FileStore(tmp_path / NAME).load())
    assert content(after) | {"adopted": 0} == content(full_ledger()) | {"adopted": 0}


async def test_the_newest_of_two_generations_is_taken(tmp_path: Path):
    for number in range(5):
        await saved(tmp_path, number)
        assert await kept(tmp_path) == [str(number)]
    assert set(os.listdir(tmp_path)) == {*GENERATIONS, "ledger.lock"}


@pytest.fixture
async def two(tmp_path: Path) -> Path:
    """A folder with ledgers 1 and 2; 2, the newer, in the second file."""
    await saved(tmp_path, 1, 2)
    return tmp_path


async def test_a_ledger_torn_at_any_byte_leaves_the_one_before(two: Path):
    newest = two / GENERATIONS[1]
    data = newest.read_bytes()
    for length in range(len(data)):
        newest.write_bytes(data[:length])
        assert await kept(two) == ["1"], length
    newest.write_bytes(data + b"\0")
    assert await kept(two) == ["1"]
    newest.write_bytes(data)
    assert await kept(two) == ["2"]


async def test_a_ledger_with_any_byte_turned_over_leaves_the_one_before(two: Path):
    newest = two / GENERATIONS[1]
    data = newest.read_bytes()
    for at in range(len(data)):
        newest.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        assert await kept(two) == ["1"], at


async def test_what_was_written_aside_when_the_power_went_is_no_ledger(two: Path):
    data = (two / GENERATIONS[1]).read_bytes()
    for length in range(len(data) + 1):
        (two / ASIDE).write_bytes(data[:length])
        assert await kept(two) == ["2"]
    await saved(two, 3)
    assert await kept(two) == ["3"]
    assert not (two / ASIDE).exists()


async def test_where_both_are_spoilt_the_router_starts_anew_and_says_so(
    two: Path, caplog: pytest.LogCaptureFixture
):
    for name in GENERATIONS:
        (two / name).write_bytes(b"not a ledger, but longer than the header of one")
    assert await kept(two) == []
    assert len(caplog.records) == 2
    await saved(two, 7)
    assert await kept(two) == ["7"]


async def test_a_ledger_of_another_version_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    await saved(tmp_path, 1)
    newer = encode(numbered(2))
    monkeypatch.setattr("evenkeel_router.ledger.stores.file.encode", lambda _: b"\x63" + newer[1:])
    await saved(tmp_path, 2)
    monkeypatch.undo()
    assert await kept(tmp_path) == ["1"]
    assert "version 99 is not supported; expected 5" in caplog.text


async def test_two_processes_never_write_to_one_folder(tmp_path: Path):
    first, second = FileStore(tmp_path / NAME), FileStore(tmp_path / NAME)
    await first.load()
    with pytest.raises(StoreError, match="in use by another process"):
        await second.load()
    with pytest.raises(StoreError, match="in use by another process"):
        await second.save(numbered(2))
    await first.save(numbered(1))
    await first.close()
    assert [delta.router for delta in await second.load()] == ["1"]
    await second.close()


async def test_a_folder_that_is_not_there_is_a_fault_with_its_name(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "not there"):
        with pytest.raises(StoreError, match=f"{folder / NAME} cannot be read"):
            await FileStore(folder / NAME).load()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_keeps_the_last_ledger_until_there_is_room_for_the_next(
    small_disk: Path,
):
    store = FileStore(small_disk / NAME)
    await store.load()
    await store.save(numbered(1))
    filler = small_disk / "filler"
    filler.write_bytes(bytes(900 * 1024))
    large = numbered(2, *(f"ns/tenant-{i}" for i in range(10_000)))
    with pytest.raises(StoreError, match="No space left on device"):
        await store.save(large)
    assert not (small_disk / ASIDE).exists()
    filler.unlink()
    await store.save(large)
    await store.close()
    assert await kept(small_disk) == ["2"]


WRITER = """
import asyncio, resource, signal, sys
from pathlib import Path
from evenkeel_router.ledger.stores.contract import StoreError
from evenkeel_router.ledger.stores.file import FileStore
from tests.unit.evenkeel_router.test_store_file import numbered
async def main(path, first, limit_bytes):
    store = FileStore(Path(path))
    await store.load()
    if limit_bytes:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
    number = first
    while True:
        try:
            await store.save(numbered(number))
        except StoreError as error:
            print(error, flush=True)
            return
        print(number, flush=True)
        number += 1
asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


async def writer(folder: Path, first: int, limit_bytes: int = 0) -> asyncio.subprocess.Process:
    """A process that saves one ledger after another and says which are saved."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(folder / NAME), str(first), str(limit_bytes),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def test_a_process_killed_while_it_saves_leaves_what_it_said_was_saved(tmp_path: Path):
    said = 0
    for round_ in range(5):
        process = await writer(tmp_path, said + 1)
        assert process.stdout is not None
        for _ in range(3 + 7 * round_):
            said = int(await process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest, _ = await process.communicate()
        said = int((rest.split() or [str(said).encode()])[-1])
        (found,) = await kept(tmp_path)
        assert said <= int(found) <= said + 1
        said = int(found)


async def test_a_file_that_may_not_grow_keeps_the_last_ledger(tmp_path: Path):
    await saved(tmp_path, 1)
    process = await writer(tmp_path, 2, limit_bytes=50)
    out, _ = await process.communicate()
    assert b"cannot be written: File too large" in out
    assert await kept(tmp_path) == ["1"]
    assert not (tmp_path / ASIDE).exists()
