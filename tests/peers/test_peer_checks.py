"""Other checkers of Kubernetes objects: every finding is mended, or answered in one line of `findings.yaml`.

They read the golden objects: the chart with its defaults and with everything, and the objects of three services. checkov and
kube-score have opinions; kubeconform compares with the schemas of the API. `make test-peers` installs them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.peers import schemas
from tests.peers.programs import ROOT, said_by

GOLDEN: Final = sorted((ROOT / "tests" / "golden").glob("*/*.yaml"))
ANSWERS: Final[Mapping[str, Mapping[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("findings.yaml").read_text()
)
Finding = tuple[str, str]
"""Check, object."""
pytestmark = pytest.mark.timeout(600)


def found_by_checkov() -> set[Finding]:
    said = said_by("checkov", "-d", ROOT / "tests" / "golden", "--framework=kubernetes", "--quiet",
                   "--skip-download", "--output=json")  # fmt: skip
    failed = json.loads(said)["results"]["failed_checks"]
    return {(one["check_id"], one["resource"].rpartition(".")[2]) for one in failed}


def found_by_kube_score() -> set[Finding]:
    """Its grades: 10 is good, 5 a warning, 1 critical."""
    objects = [
        one
        for path in GOLDEN
        for one in json.loads(said_by("kube-score", "score", "--output-format=json", path))
    ]
    return {
        (one["check"]["id"], each["object_meta"]["name"])
        for each in objects
        for one in each["checks"]
        if one["grade"] < 10 and not one["skipped"]
    }


@pytest.mark.slow
@pytest.mark.parametrize("find", [found_by_checkov, found_by_kube_score])
def test_every_finding_is_mended_or_answered(find: Callable[[], set[Finding]]) -> None:
    found = find()
    is_of_checkov = find is found_by_checkov
    answered = {
        (check, name)
        for check, one in ANSWERS.items()
        for name in one["objects"]
        if check.startswith("CKV") == is_of_checkov
    }
    assert found - answered == set(), "neither mended nor answered"
    assert answered - found == set(), "answers that nothing needs any more"


@pytest.mark.slow
def test_every_object_has_the_fields_of_its_kind_and_no_others(tmp_path: Path) -> None:
    schemas.write(tmp_path)
    said = said_by("kubeconform", "-strict", "-output=json", "-summary",
                   f"-schema-location={tmp_path}/{schemas.LOCATION}", *GOLDEN)  # fmt: skip
    result = json.loads(said)
    assert result["summary"]["valid"] > 0
    assert [(one["filename"], one["name"], one["msg"]) for one in result["resources"]] == []
    odd = tmp_path / "odd.yaml"
    odd.write_text("apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {prots: []}\n")
    assert "prots" in said_by(
        "kubeconform", "-strict", f"-schema-location={tmp_path}/{schemas.LOCATION}", odd
    )


def test_answers_are_sentences_of_one_line() -> None:
    for check, one in ANSWERS.items():
        assert one["answer"].endswith("."), check
        assert "\n" not in one["answer"], check
