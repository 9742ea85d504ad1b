"""Runs the programs of others against `evenkeel up`, and writes the table of docs/reference/clients.md.

`make test-clients` calls it. Each program is a client in an environment of its own (`.venv-clients`, `node/node_modules`),
and reports one JSON line for each flow. The exit status is 1 if a flow failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.clients.fleet import MODEL, ROOT, documents, fleet, tenant
from tests.clients.table import Cell, write_table

HERE: Final = Path(__file__).parent
BIN: Final = ROOT / ".venv-clients" / "bin"
PROGRAM_LIMIT_S: Final = 1800.0


@dataclass(frozen=True, slots=True)
class Program:
    """A program that reports flows. It is also the name of its tenant, and with `-limited` of another one."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]


def _python(name: str, **environment: str) -> Program:
    script = HERE / f"{name}_python.py"
    return Program(name, (str(BIN / "python"), str(script)), environment)


def _node(name: str) -> Program:
    return Program(f"{name}-node", (str(BIN / "node"), str(HERE / "node" / f"{name}.mjs")), {})


PROGRAMS: Final = (
    _python("openai", PYTHONPATH=str(ROOT / ".venv-clients" / "openai-newest")),
    _node("openai"),
    _python("anthropic"),
    _node("ai-sdk"),
    _python("litellm"),
    _python("langchain"),
    _python("llm"),
    _python("loads"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What answers the requests."""

    name: str
    runtime: Mapping[str, Any]
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to that of its processes."""


TARGETS: Final = {
    "simulator": Target(
        name="simulator", runtime={"runtime": "Simulator", "replicas": 2, "args": ["--speed=4"]}
    ),
    "sglang": Target(
        name="sglang",
        runtime={
            "runtime": "SGLang",
            "replicas": 1,
            "args": [
                "--grammar-backend=xgrammar",
                "--tool-call-parser=pythonic",  # it leaves a required call to the grammar
                # Otherwise a random model writes spaces without end.
                "--constrained-json-disable-any-whitespace",
            ],
        },
        arguments=("--sglang=.venv-sglang", "--model=.venv-sglang/model"),
        environment={"SGLANG_TOOL_STRICT_LEVEL": "2"},  # arguments match the schema in every API
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=TARGETS, default="simulator")
    parser.add_argument("--only", nargs="*", help="names of programs; the table is not written")
    parser.add_argument("--flows", default="", help="names with commas; the table is not written")
    given = parser.parse_args()
    target = TARGETS[given.target]
    programs = [one for one in PROGRAMS if not given.only or one.name in given.only]
    with (
        tempfile.TemporaryDirectory() as folder,
        fleet(Path(folder), _documents(target), target.arguments, target.environment) as running,
    ):
        addresses = {"CLIENTS_URL": running.url, "CLIENTS_METRICS": running.metrics}

        def run(program: Program) -> list[Cell]:
            return _run(program, addresses, target, given.flows)

        with ThreadPoolExecutor(3) as pool:
            cells = [cell for found in pool.map(run, programs) for cell in found]
    failed = [cell for cell in cells if cell.passed is False]
    print(f"{len(cells)} flows, {len(failed)} failed")
    if not given.only and not given.flows:
        write_table(ROOT / "docs" / "reference" / "clients.md", target.name, cells)
    return 1 if failed or not cells else 0


def _documents(target: Target) -> list[dict[str, Any]]:
    limits = {"requestsPerMinute": 20, "burst": 1}
    names = [program.name for program in PROGRAMS]
    tenants = [tenant(name) for name in names]
    tenants += [tenant(f"{name}-limited", limits=limits) for name in names]
    return documents(target.runtime, {"limits": {"maxBodySize": "64Ki"}}, tenants)


def _run(program: Program, addresses: Mapping[str, str], target: Target, flows: str) -> list[Cell]:
    """Run a program; what it reported."""
    environment = {
        **os.environ,
        **addresses,
        **program.environment,
        "CLIENTS_KEY": f"sk-{program.name}",
        "CLIENTS_LIMITED_KEY": f"sk-{program.name}-limited",
        "CLIENTS_TENANTS": f"{program.name},{program.name}-limited",
        "CLIENTS_MODEL": MODEL,
        "CLIENTS_TARGET": target.name,
        "CLIENTS_FLOWS": flows,
        "NO_PROXY": "127.0.0.1",
        "HF_HUB_OFFLINE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    started = time.monotonic()
    done = subprocess.run(
        program.command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROGRAM_LIMIT_S,
        check=False,
    )
    cells = [Cell(**json.loads(line)) for line in done.stdout.splitlines() if line[:1] == "{"]
    for cell in cells:
        if cell.passed is False:
            print(f"FAILED {cell.client}, {cell.api}, {cell.flow}:\n{cell.detail}")
    print(f"{program.name}: {len(cells)} flows in {time.monotonic() - started:.0f} s", flush=True)
    if done.returncode:
        raise SystemExit(f"{program.name} failed:\n{done.stdout}\n{done.stderr}")
    return cells


if __name__ == "__main__":
    sys.exit(main())
