"""`evenkeel check`: faults, notes and exit codes, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from evenkeel_cli import main
from evenkeel_cli.exitcode import ExitCode
from typer.testing import CliRunner, Result

from tests.support.sample_documents import SERVICE, TENANT

ROOT = Path(__file__).parents[3]


def check(folder: Path, text: str, *options: str) -> Result:
    file = folder / "f.yaml"
    file.write_text(text)
    arguments = ["check", str(file), *options]
    return CliRunner().invoke(main.build(arguments), arguments)


def test_a_valid_file_is_named_with_its_notes(tmp_path: Path) -> None:
    result = check(tmp_path, SERVICE + "  exposure: {ingress: {host: llm.example.com}}\n")
    assert result.exit_code == ExitCode.OK
    assert "f.yaml: valid for evenkeel up" in result.stdout
    assert "note: " in result.stdout
    assert "spec.exposure.ingress has no effect here" in result.stdout


def test_every_fault_is_reported_with_its_place_and_exit_code_2(
    tmp_path: Path,
) -> None:
    text = SERVICE.replace("replicas: 2", "replicas: two") + "---\n" + TENANT
    result = check(tmp_path, text)
    assert result.exit_code == ExitCode.INVALID
    assert (
        "f.yaml:6: document 1 (FairInferenceService sample) spec.engine.replicas" in result.stderr
    )
    assert "f.yaml:15: document 2 (InferenceTenant ads) spec.apiKeys[0].secretRef" in result.stderr
    assert "--cluster" in result.stderr


def test_json_has_the_place_and_the_message_of_every_fault(tmp_path: Path) -> None:
    result = check(tmp_path, SERVICE.replace("replicas: 2", "replicas: two"), "--json")
    assert result.exit_code == ExitCode.INVALID
    report = json.loads(result.stdout)
    assert not report["valid"]
    (fault,) = report["faults"]
    assert fault == {
        "file": str(tmp_path / "f.yaml"),
        "line": 6,
        "document": 1,
        "resource": "FairInferenceService sample",
        "path": "spec.engine.replicas",
        "message": "must be an integer, not 'two'",
    }


@pytest.mark.parametrize("text", ["", "a: [", "a: 1\na: 2\n"])
def test_a_file_that_is_no_manifest_has_one_fault_in_json_too(text: str, tmp_path: Path) -> None:
    for options in ((), ("--cluster",)):
        result = check(tmp_path, text, "--json", *options)
        assert result.exit_code == ExitCode.INVALID
        assert json.loads(result.stdout)["faults"]


def test_for_a_cluster_secrets_and_services_may_be_elsewhere(tmp_path: Path) -> None:
    assert check(tmp_path, TENANT).exit_code == ExitCode.INVALID
    result = check(tmp_path, TENANT, "--cluster")
    assert result.exit_code == ExitCode.OK, result.output
    assert "f.yaml: valid for kubectl apply" in result.stdout
    other = SERVICE.replace("sample", "other")
    assert check(tmp_path, f"{SERVICE}---\n{other}", "--cluster").exit_code == ExitCode.OK


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"{SERVICE}---\n{SERVICE}", "metadata.name: 'sample' is given twice"),
        (f"{TENANT}---\n{TENANT}", "metadata.name: 'ads' is given twice"),
        (SERVICE.replace("replicas: 2", "args: [--fast]"), "unrecognized arguments: --fast"),
        (SERVICE.replace("Service", "Servise"), "did you mean FairInferenceService?"),
        (TENANT.replace("clients:", "client:"), "did you mean clients?"),
    ],
)
def test_faults_of_a_file_for_a_cluster(text: str, fault: str, tmp_path: Path) -> None:
    result = check(tmp_path, text, "--cluster")
    assert result.exit_code == ExitCode.INVALID
    assert fault in result.stderr


def test_the_samples_of_the_tree_are_valid() -> None:
    files = [str(path) for path in sorted((ROOT / "crds" / "samples").glob("*.yaml"))]
    arguments = ["check", "--cluster", *files]
    assert CliRunner().invoke(main.build(arguments), arguments).exit_code == ExitCode.OK
    files = [
        str(path)
        for path in sorted((ROOT / "examples").glob("*.yaml"))
        if path.name != "route.yaml"
    ]
    arguments = ["check", *files]
    assert CliRunner().invoke(main.build(arguments), arguments).exit_code == ExitCode.OK
