"""`.importlinter` rejects the imports that it is there to reject: each case plants one in a copy of the packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "fairshare",
    "contract",
    "kube",
    "simulator",
    "laboratory",
    "router",
    "operator",
    "plugins/common",
    "plugins/sglang",
    "plugins/vllm",
    "cli",
)


class Case(NamedTuple):
    """One import that must not be there."""

    name: str
    planted: Sequence[tuple[str, str]]
    """Module and the import that it gains."""
    want_broken: str
    """The contract that rejects it."""


CASES = (
    Case(
        "the algorithms import a component's wire types",
        [("evenkeel_fairshare.cost", "evenkeel_contract.key")],
        "layers",
    ),
    Case(
        "the algorithms import a third package",
        [("evenkeel_fairshare.cost", "msgspec")],
        "fairshare-is-alone",
    ),
    Case(
        "the contract reads the clock",
        [("evenkeel_contract.values", "time")],
        "pure-cores",
    ),
    Case(
        "the contract imports a component",
        [("evenkeel_contract.values", "evenkeel_operator.settings")],
        "layers",
    ),
    Case(
        "the operator imports the router",
        [("evenkeel_operator.cluster.observe", "evenkeel_router.app")],
        "layers",
    ),
    Case(
        "the engine model draws random numbers",
        [("evenkeel_simulator.engine.model", "random")],
        "pure-cores",
    ),
    Case(
        "the engine model imports a server",
        [("evenkeel_simulator.engine.model", "evenkeel_simulator.server.app")],
        "simulator-layers",
    ),
    Case(
        "the engine model imports the form of traffic",
        [("evenkeel_simulator.engine.model", "evenkeel_simulator.traffic.workload")],
        "simulator-layers",
    ),
    Case(
        "a simulated replica imports what its image leaves out",
        [("evenkeel_simulator.server.app", "evenkeel_simulator.traffic.records")],
        "images-without-traffic",
    ),
    Case(
        "vLLM's plug-in imports SGLang's",
        [("evenkeel_vllm.prompts", "evenkeel_sglang.prompts")],
        "layers",
    ),
    Case(
        "what the plug-ins share imports one of them",
        [("evenkeel_plugin.scheduling", "evenkeel_sglang.seams")],
        "layers",
    ),
    Case(
        "the command line imports the laboratory",
        [("evenkeel_cli.replay.report", "evenkeel_laboratory.experiments.setup")],
        "fleet-without-laboratory",
    ),
    Case(
        "an experiment imports a verb's module",
        [("evenkeel_laboratory.experiments.setup", "evenkeel_laboratory.commands.scalers")],
        "laboratory-rooms",
    ),
    Case(
        "an experiment imports the operator",
        [("evenkeel_laboratory.experiments.scaling", "evenkeel_operator.core.scaling")],
        "laboratory-parts",
    ),
    Case(
        "the operator's core imports what reads the cluster",
        [("evenkeel_operator.core.objects", "evenkeel_operator.cluster.observe")],
        "operator-layers",
    ),
    Case(
        "the operator's core reaches aiohttp through the Kubernetes client",
        [("evenkeel_operator.core.objects", "evenkeel_kube.client")],
        "operator-pure",
    ),
    Case(
        "the operator's core reaches a socket through two pure modules",
        [
            ("evenkeel_operator.core.status", "evenkeel_operator.manifests.context"),
            ("evenkeel_operator.manifests.context", "evenkeel_contract.values"),
            ("evenkeel_contract.values", "socket"),
        ],
        "operator-pure",
    ),
    Case(
        "a builder imports a pass",
        [("evenkeel_operator.manifests.context", "evenkeel_operator.reconcile")],
        "operator-layers",
    ),
    Case(
        "a builder reads the clock",
        [("evenkeel_operator.manifests.context", "time")],
        "operator-pure",
    ),
    Case(
        "the cluster imports the rotation of replicas",
        [("evenkeel_operator.cluster.apply", "evenkeel_operator.rotation")],
        "operator-layers",
    ),
    Case(
        "rotation imports the autoscaler, its neighbour",
        [("evenkeel_operator.rotation", "evenkeel_operator.autoscaler")],
        "operator-layers",
    ),
    Case(
        "the list of objects to build reaches the API server",
        [("evenkeel_operator.desired", "evenkeel_operator.cluster.observe")],
        "operator-layers",
    ),
    Case(
        "a new module of the operator has no layer",
        [("evenkeel_operator.newcomer", "evenkeel_operator.settings")],
        "operator-layers",
    ),
    Case(
        "the router's transport imports a decision about requests",
        [("evenkeel_router.transport.client_request", "evenkeel_router.request.admission")],
        "router-rooms",
    ),
    Case(
        "the router's API imports the ledger",
        [("evenkeel_router.api.identity", "evenkeel_router.ledger.accounting")],
        "router-rooms",
    ),
    Case(
        "the router's fleet imports what caches hold",
        [("evenkeel_router.fleet.health", "evenkeel_router.prefix.kv_events")],
        "router-rooms",
    ),
    Case(
        "the router's prefixes import the cluster, their neighbour",
        [("evenkeel_router.prefix.prompt_facts", "evenkeel_router.cluster.endpoints")],
        "router-rooms",
    ),
    Case(
        "a request of the router imports its telemetry",
        [("evenkeel_router.request.pipeline", "evenkeel_router.telemetry.logs")],
        "router-rooms",
    ),
    Case(
        "a new room of the router has no layer",
        [("evenkeel_router.newcomer", "evenkeel_router.settings")],
        "router-rooms",
    ),
    Case(
        "the router's identities read the clock",
        [("evenkeel_router.api.identity", "time")],
        "router-pure",
    ),
    Case(
        "the router's parts of limits log",
        [("evenkeel_router.ledger.limit_parts", "logging")],
        "router-pure",
    ),
    Case(
        "the router's selection reaches the event loop through the wait queue",
        [("evenkeel_router.fleet.selection", "evenkeel_router.fleet.wait_queue")],
        "router-pure",
    ),
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages' Python files and the contracts."""
    copied = tmp_path_factory.mktemp("packages")
    shutil.copy(ROOT / ".importlinter", copied)
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            to = copied / path.relative_to(ROOT)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
    return copied


def test_the_copy_as_it_is_keeps_every_contract(copy: Path) -> None:
    assert broken_contracts(copy) == set()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_planted_import_breaks_its_contract(copy: Path, case: Case) -> None:
    with planted(copy, case.planted):
        broken = broken_contracts(copy, only=case.want_broken)
    assert broken == {case.want_broken}


@contextmanager
def planted(copy: Path, imports: Sequence[tuple[str, str]]) -> Iterator[None]:
    """The imports for the time of the context."""
    before = {path: path.read_text() if path.exists() else None for path in paths_of(copy, imports)}
    try:
        for (_, imported), path in zip(imports, before, strict=True):
            path.write_text(f"{before[path] or ''}\nimport {imported}\n")
        yield
    finally:
        for path, text in before.items():
            path.unlink() if text is None else path.write_text(text)


def paths_of(copy: Path, imports: Sequence[tuple[str, str]]) -> list[Path]:
    """The files of the modules that gain an import."""
    found = []
    for module, _ in imports:
        package, _, rest = module.partition(".")
        folders = (copy / name / package for name in FOLDERS)
        folder = next(path for path in folders if path.is_dir())
        found.append(folder / f"{rest.replace('.', '/')}.py")
    return found


def broken_contracts(copy: Path, *, only: str | None = None) -> set[str]:
    """Identifiers of the contracts that lint-imports reports as broken; with `only`, no other is checked."""
    limit = () if only is None else (f"--contract={only}",)
    script = "import sys; from importlinter.cli import lint_imports_command as run; run()"
    answer = subprocess.run(
        [sys.executable, "-c", script, "--no-logo", f"--cache-dir={copy / 'cache'}", *limit],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": ":".join(str(copy / name) for name in FOLDERS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Contracts: " in answer.stdout, answer.stdout + answer.stderr
    lines = " ".join(answer.stdout.split())
    return {name for name, title in _titles(copy).items() if f"{title} BROKEN" in lines}


def _titles(copy: Path) -> dict[str, str]:
    found, name = {}, ""
    for line in (copy / ".importlinter").read_text().splitlines():
        if line.startswith("[importlinter:contract:"):
            name = line.removeprefix("[importlinter:contract:").rstrip("]")
        elif line.startswith("name = ") and name:
            found[name] = line.removeprefix("name = ")
    return found
