"""Workflows, documents and metadata state what the tree does."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from evenkeel_sglang.seams import SUPPORTED, TESTED
from evenkeel_vllm import seams as vllm_seams

from e2e.rig.layout import KUBERNETES_VERSION
from release.names import CHART, PROJECT, ROOT, VERSION

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_targets_and_modules_of_the_tree(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    commands = "\n".join(step.get("run", "") for step in steps(path))
    called = set(re.findall(r"^(?:sudo )?make ([a-z0-9-]+)", commands, re.MULTILINE))
    assert called
    assert called <= targets
    modules = set(re.findall(r"\bpython3? -m (\w+)", commands))
    assert {name for name in modules if not (ROOT / name / "__main__.py").is_file()} == set()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_only_the_rights_that_they_name(path: Path) -> None:
    assert "permissions" in yaml.safe_load(path.read_text())


def test_the_compatibility_page_has_the_versions_of_the_tests() -> None:
    page = (ROOT / "docs/reference/compatibility.md").read_text()
    rows = {
        cells[1]: (cells[2], cells[3])
        for line in page.splitlines()
        if len(cells := [cell.strip() for cell in line.split("|")]) == 5
    }
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    oldest = re.fullmatch(r">=(\d+\.\d+)\.0-0", chart["kubeVersion"])
    assert oldest is not None
    assert rows["Kubernetes"] == (f"{oldest[1]} and newer", KUBERNETES_VERSION.lstrip("v"))
    pinned = (ROOT / "e2e/rig/programs/helm/go.mod").read_text()
    assert f"helm.sh/helm/v3 v{rows['Helm'][1]}" in pinned
    assert rows["Python"][0] == f"{PROJECT['requires-python'].lstrip('>=')} and newer"
    assert rows["SGLang with the plug-in"] == (SUPPORTED, SUPPORTED)
    assert rows["vLLM with the plug-in"] == (vllm_seams.SUPPORTED, vllm_seams.SUPPORTED)
    assert f"Evenkeel {VERSION.rpartition('.')[0]} " in page
    tests = {
        cells[0]: cells[3]
        for cells in re.findall(r"^\| (0\.5\.\d+) \| (.+) \| (.+) \| (.+) \|$", page, re.MULTILINE)
    }
    assert {version for version, result in tests.items() if result == "pass"} <= set(TESTED)
    assert "fail" not in {tests[version] for version in TESTED}


def test_all_metadata_has_the_version_of_the_project() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == VERSION
    page = (ROOT / "docs/how-to/install-a-release.md").read_text()
    assert set(re.findall(r"--version (\S+)|-(\d[\d.]+\d)-py3", page)) == {
        (VERSION, ""),
        ("", VERSION),
    }


def test_renovate_leaves_the_tested_versions_of_sglang_alone() -> None:
    rules = json.loads((ROOT / "renovate.json").read_text())["packageRules"]
    (off,) = [rule for rule in rules if rule.get("enabled") is False]
    assert "sglang" in off["matchPackageNames"]


def test_every_extra_is_documented() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs/how-to/install-a-release.md").read_text()
    documented = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert documented == set(project["optional-dependencies"]) - {"dev"}
