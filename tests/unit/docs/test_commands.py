"""Every block of commands names the test that runs it, and its programs, targets, options, files and values exist.

The comment before a block, `<!-- test: … -->`, is `up` and `run` (tests/integration/test_documented_commands.py), or the
path of the test that covers it, on a cluster for most. `trace` runs here, with the files of its page. Blocks of YAML are
decoded by the contract.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import typer.main
import yaml
from evenkeel_cli.main import build, verbs
from evenkeel_cli.route.routefile import check_route
from evenkeel_contract.decode import decode
from evenkeel_contract.names import GROUP
from evenkeel_contract.spec.gateway import GatewaySpec
from evenkeel_contract.spec.resources import (
    InferenceTenant,
    ServiceCondition,
    ServiceSpec,
    TenantSpec,
)
from evenkeel_contract.validate import parse_service
from evenkeel_laboratory.commands.planning import Change
from typer.testing import CliRunner

from release.names import INSTALL
from tests.support.documents import Block, blocks, user_pages
from tests.support.helm import template
from tests.support.plain_words import ROOT, descriptions, tree

SHELL: Final = ("sh", "bash", "console")
RUNS: Final = ("up", "run", "trace")
TRACE: Final = "examples/trace.csv"
COMMAND_BLOCKS: Final = [one for page in user_pages() for one in blocks(page) if one.kind in SHELL]
YAML_BLOCKS: Final = [
    one
    for page in user_pages()
    for one in blocks(page)
    if one.kind == "yaml" and one.note != "test: daemonset"  # e2e/test_model_cache.py applies it
]
TARGETS: Final = frozenset(
    re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
)
VALUES: Final = frozenset(
    path
    for path, _ in descriptions(
        json.loads((ROOT / "charts/evenkeel/values.schema.json").read_text())
    )
)
CONDITIONS: Final = frozenset(one.value for one in ServiceCondition)


def of(block: Block) -> str:
    return f"{block.path.relative_to(ROOT)}:{block.line}"


def commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a block, without assignments, comments and the words of a loop."""
    text = re.sub(r"\\\n\s*", " ", text)
    text = re.sub(r"\s+# .*$", "", text, flags=re.MULTILINE)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    words: list[str] = []
    for word in [*lexer, ";"]:
        if not set(word) <= set(";&|()\n"):
            words.append(word)
            continue
        while words and (
            re.match(r"\w+=", words[0]) or words[0] in ("do", "done", "export", "wait")
        ):
            words.pop(0)
        if words:
            yield words
        words = []


def fault_of(words: list[str]) -> str | None:
    """What does not exist of a command; None for programs of others."""
    program, *arguments = words
    match program.rpartition("/")[2]:
        case "make":
            unknown = [one for one in arguments if "=" not in one and one not in TARGETS]
            return f"no target {unknown}" if unknown else None
        case "evenkeel":
            return _fault_of_evenkeel(arguments)
        case "helm" | "kubectl":
            return _fault_on_cluster(arguments)
    return None


def _fault_of_evenkeel(arguments: list[str]) -> str | None:
    if not arguments or arguments[0] not in verbs():
        return f"no command {arguments[:1]}"
    group = typer.main.get_command(build(arguments))
    assert isinstance(group, typer.core.TyperGroup)
    command = group.commands[arguments[0]]
    try:
        command.make_context(arguments[0], arguments[1:])
    except Exception as error:  # noqa: BLE001 - whatever the parser finds
        return str(error)
    return None


def _fault_on_cluster(arguments: list[str]) -> str | None:
    for flag, value in itertools.pairwise(arguments):
        if flag == "--set" and value.partition("=")[0] not in VALUES:
            return f"no value {value} in the chart"
        if (
            flag == "-f"
            and not any((folder / value).exists() for folder in (ROOT, ROOT / "crds/samples"))
            and value not in (INSTALL, "-")
        ):
            return f"no file {value}"
    for one in arguments:
        name = one.partition("=")[0]
        if one.startswith("--for=condition=") and one.rpartition("=")[2] not in CONDITIONS:
            return f"no condition {one}"
        if name.startswith(f"{GROUP}/") and not tree().words >= set(
            name.rpartition("/")[2].split("-")
        ):
            return f"no annotation {name}"
        if one.startswith("charts/") and not (ROOT / one).is_dir():
            return f"no chart {one}"
    return None


@pytest.mark.parametrize("block", COMMAND_BLOCKS, ids=of)
def test_a_block_of_commands_names_its_test_and_what_exists(block: Block) -> None:
    kind, _, name = block.note.partition(": ")
    assert kind == "test", "write <!-- test: … --> before the block"
    assert name in RUNS or (ROOT / name).is_file()
    assert [(words, fault) for words in commands(block.text) if (fault := fault_of(words))] == []


def test_a_block_of_commands_says_that_it_is_one() -> None:
    program = re.compile(
        r"^ *(\$ )?(\.venv/bin/|python3? -m )?(evenkeel|kubectl|helm|make|curl|pip) ", re.MULTILINE
    )
    unmarked = [
        of(one)
        for page in user_pages()
        for one in blocks(page)
        if one.kind == "" and program.search(one.text)
    ]
    assert unmarked == []


@pytest.mark.parametrize(
    "block", [one for one in COMMAND_BLOCKS if one.note == "test: trace"], ids=of
)
def test_a_command_that_reads_the_example_trace_runs_as_read(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for one in blocks(block.path):
        if one.note.startswith("test: file "):
            (tmp_path / one.note.split()[2]).write_text(one.text)
    monkeypatch.chdir(tmp_path)
    for _, *arguments in commands(block.text):
        ran = CliRunner().invoke(build(arguments), arguments)
        assert ran.exit_code == 0, ran.output
        out = tmp_path / re.findall(r"written to (\S+)/", ran.output)[0]
        assert {".json", ".png"} <= {path.suffix for path in out.iterdir()}


def test_every_trace_in_a_command_is_the_example() -> None:
    read = re.findall(r"--trace[ =](\S+)", "".join(one.text for one in COMMAND_BLOCKS))
    assert set(read) == {TRACE}


@pytest.mark.parametrize("block", YAML_BLOCKS, ids=of)
def test_a_block_of_yaml_is_valid(block: Block) -> None:
    plain = yaml.safe_load(block.text)
    match block.note.removeprefix("test: "):
        case "tenant":
            _, faults = decode(InferenceTenant, plain)
        case "spec FairInferenceService":
            model = {"model": {"source": "hf://org/model", "servedName": "m"}}
            _, faults = decode(ServiceSpec, model | plain)
        case "file service.yaml":
            _, faults = parse_service(plain)
        case "change":
            _, faults = decode(Change, plain)
        case "spec InferenceTenant" | "spec FairInferenceGateway" as note:
            kind: type = TenantSpec if note.endswith("Tenant") else GatewaySpec
            _, faults = decode(kind, plain)
        case "route":
            _, faults = check_route(plain)
        case "keda":  # of another project: only the target is ours
            assert plain["spec"]["scaleTargetRef"]["apiVersion"] == f"{GROUP}/v1alpha1"
            return
        case "kustomize":
            named = {plain["openapi"]["path"], *plain["configurations"]}
            assert {path.name for path in (ROOT / "crds/gitops").iterdir()} >= named
            return
        case "values":
            assert template(**plain)[1] == ""
            return
        case note:
            pytest.fail(f"{note!r} is no kind of YAML")
    assert faults == ()


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("make up ARGS=--port=9080", None),
        ("make no-such-target", "no target"),
        (".venv/bin/evenkeel top --once", None),
        ("evenkeel top --no-such-option", "No such option"),
        ("evenkeel no-such-command", "no command"),
        ("kubectl apply -f crds/samples/tenant.yaml", None),
        ("kubectl apply -f crds/samples/none.yaml", "no file"),
        ("kubectl annotate fis/x evenkeel.dev/upgrade=Always", None),
        (f"kubectl annotate fis/x evenkeel.dev/{'x' * 12}=1", "no annotation"),
        ("kubectl wait --for=condition=Happy fis/x", "no condition"),
        ("helm upgrade evenkeel charts/evenkeel --set images.registry=x", None),
        ("helm upgrade evenkeel charts/evenkeel --set image.registry=x", "no value"),
        ("for i in $(seq 3); do\n  X=1 make no-such-target &\ndone", "no target"),
    ],
)
def test_a_command_that_does_not_exist_is_found(line: str, fault: str | None) -> None:
    found = [one for words in commands(line) if (one := fault_of(words))]
    assert found == [] if fault is None else found[0].startswith(fault)


def test_the_tutorials_have_commands_that_run() -> None:
    pages = {block.path.name for block in COMMAND_BLOCKS if block.note == "test: run"}
    assert {"laptop.md", "five-teams.md"} <= pages
    assert len(COMMAND_BLOCKS) > 20
