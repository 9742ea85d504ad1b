"""The dashboards match Grafana's own schema (`@grafana/schema`), which the TypeScript compiler checks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from monitoring.generate import CHART, ROOT

PACKAGES: Final = ROOT / "console/node_modules"
DASHBOARDS: Final = sorted((CHART / "dashboards").glob("*.json"))
FLAGS: Final = (
    "--noEmit --strict --skipLibCheck --module esnext --moduleResolution bundler --target es2022"
)

pytestmark = [
    pytest.mark.console,
    pytest.mark.skipif(
        not (PACKAGES / "@grafana/schema").exists(), reason="needs the packages of `make console`"
    ),
]

Plain = dict[str, Any]


def faults(folder: Path, dashboards: list[Plain]) -> str:
    """What the compiler says of the dashboards as literals of the schema's type."""
    (folder / "node_modules").symlink_to(PACKAGES)
    (folder / "schema.ts").write_text((ROOT / "monitoring/grafana-schema.ts").read_text())
    for number, one in enumerate(dashboards):
        literal = f"export const dashboard: Dashboard = {json.dumps(one, indent=1)};\n"
        (folder / f"{number}.ts").write_text(
            f'import type {{ Dashboard }} from "./schema";\n{literal}'
        )
    names = [path.name for path in folder.glob("*.ts")]
    done = subprocess.run(
        [PACKAGES / ".bin/tsc", *FLAGS.split(), *names],
        cwd=folder, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    return done.stdout


def test_every_dashboard_matches_the_schema(tmp_path: Path) -> None:
    assert len(DASHBOARDS) >= 3
    assert faults(tmp_path, [json.loads(path.read_text()) for path in DASHBOARDS]) == ""


def _misspell(panel: Plain) -> None:
    panel["descripton"] = panel.pop("description")


def _other_type(panel: Plain) -> None:
    panel["fieldConfig"]["defaults"]["min"] = "0"


def _other_option(panel: Plain) -> None:
    panel["options"]["tooltip"]["mode"] = "every"


def _without_place(panel: Plain) -> None:
    del panel["gridPos"]["w"]


@pytest.mark.parametrize("spoil", [_misspell, _other_type, _other_option, _without_place])
def test_a_dashboard_that_grafana_would_not_take_is_found(
    tmp_path: Path, spoil: Callable[[Plain], None]
) -> None:
    plain = json.loads(DASHBOARDS[0].read_text())
    spoil(next(panel for panel in plain["panels"] if panel["type"] == "timeseries"))
    assert faults(tmp_path, [plain]).startswith("0.ts")
