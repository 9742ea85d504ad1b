"""A configuration file that changes, breaks, vanishes and comes back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from evenkeel_contract.routerconfig import RouterConfig
from evenkeel_contract.routerdocument import dump_router_config
from evenkeel_router.cluster.config_watch import FileSource, load

from tests.support.routers import applying, config_for, until


def test_a_file_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    config, faults, _ = load(tmp_path / "none.json")
    assert config is None
    assert str(faults[0]) == "document: cannot be read: No such file or directory"


async def test_only_a_valid_configuration_is_applied_and_faults_are_reported(
    tmp_path: Path,
) -> None:
    path, good = tmp_path / "router.json", config_for()
    path.write_bytes(dump_router_config(good))
    applied: list[RouterConfig] = []
    faults: list[tuple[str, ...]] = []
    source = FileSource(path, path.read_bytes(), interval_s=0.005)
    watching = asyncio.create_task(source.watch(applying(applied), faults.append))
    await asyncio.sleep(0.05)  # looks at the unchanged file do not end the watch
    path.write_bytes(b"{")
    await until(lambda: len(faults) == 1, "the fault")
    assert "is not JSON" in faults[0][0]
    path.unlink()
    await until(lambda: len(faults) == 2, "the missing file")
    other = replace(good, model="other")
    path.write_bytes(dump_router_config(other))
    await until(lambda: applied == [other], "the new configuration")
    assert faults[-1] == ()
    path.touch()
    await asyncio.sleep(0.05)  # a touched file is no change: nothing to wait for
    assert len(applied) == 1
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
