"""The runbooks that a fleet of `evenkeel up` links."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from evenkeel_cli.up.routers import runbooks_of_clone
from evenkeel_contract.routerdocument import check_router_config

from tests.support.routers import config_for


def test_a_fleet_from_a_clone_knows_its_runbooks() -> None:
    address = runbooks_of_clone()
    assert address is not None
    folder = Path(unquote(urlsplit(address).path))
    assert (folder / "replicas-missing.md").is_file()
    assert not list(check_router_config(replace(config_for(), runbooks=address)))
