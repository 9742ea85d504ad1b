"""Another checker of Kubernetes objects, checkov: every finding is mended, or answered in one line of `findings.yaml`.

It reads the golden objects: the chart with its defaults and with everything, and the objects of two services.
`make test-peers` installs it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).parents[2]
ANSWERS: Final[Mapping[str, Mapping[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("findings.yaml").read_text()
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_finding_is_mended_or_answered() -> None:
    program = shutil.which("checkov", path=str(ROOT / ".venv-peers" / "bin"))
    if program is None:
        pytest.skip("no checkov here (make test-peers installs it)")
    command = [program, "-d", ROOT / "tests" / "golden", "--framework=kubernetes", "--quiet",
               "--skip-download", "--output=json"]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    failed = json.loads(said)["results"]["failed_checks"]
    found = {(one["check_id"], one["resource"].rpartition(".")[2]) for one in failed}
    answered = {(check, name) for check, one in ANSWERS.items() for name in one["objects"]}
    assert found - answered == set(), "neither mended nor answered"
    assert answered - found == set(), "answers that nothing needs any more"


def test_answers_are_sentences_of_one_line() -> None:
    for check, one in ANSWERS.items():
        assert one["answer"].endswith("."), check
        assert "\n" not in one["answer"], check
