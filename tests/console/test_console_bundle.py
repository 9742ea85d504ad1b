"""The committed page is built from the sources in `console/`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from evenkeel_contract.consolestate import PAGE_PATH
from evenkeel_router.request.console_page import page_files

CONSOLE = Path(__file__).parents[2] / "console"


@pytest.mark.skipif(
    shutil.which("node") is None or not (CONSOLE / "node_modules").exists(),
    reason="the packages of console/ are not installed: run `make console`",
)
def test_the_page_is_that_of_the_sources(tmp_path: Path) -> None:
    subprocess.run(["node", str(CONSOLE / "build.mjs"), str(tmp_path)], check=True)
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    committed = {
        path.removeprefix(PAGE_PATH): file.body
        for path, file in page_files().items()
        if path != PAGE_PATH
    }
    assert built.keys() == committed.keys()
    different = [name for name in built if built[name] != committed[name]]
    assert different == [], "run `make console`"
