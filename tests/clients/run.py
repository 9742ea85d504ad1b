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
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from evenkeel_cli.up.ports import free_port

from tests.clients.table import Cell, write_table

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
BIN: Final = ROOT / ".venv-clients" / "bin"
MODEL: Final = "fair"
START_LIMIT_S: Final = 900.0
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
    with tempfile.TemporaryDirectory() as folder, _fleet(Path(folder), target) as addresses:

        def run(program: Program) -> list[Cell]:
            return _run(program, addresses, target, given.flows)

        with ThreadPoolExecutor(3) as pool:
            cells = [cell for found in pool.map(run, programs) for cell in found]
    failed = [cell for cell in cells if cell.passed is False]
    print(f"{len(cells)} flows, {len(failed)} failed")
    if not given.only and not given.flows:
        write_table(ROOT / "docs" / "reference" / "clients.md", target.name, cells)
    return 1 if failed or not cells else 0


def _manifest(target: Target) -> str:
    service = {
        "apiVersion": "evenkeel.dev/v1alpha1",
        "kind": "FairInferenceService",
        "metadata": {"name": "clients"},
        "spec": {
            "model": {"source": "hf://org/model", "servedName": MODEL},
            "engine": dict(target.runtime),
            "router": {"replicas": 1, "limits": {"maxBodySize": "64Ki"}},
        },
    }
    limits = {"requestsPerMinute": 20, "burst": 1}
    names = [program.name for program in PROGRAMS]
    tenants = [_tenant(name) for name in names]
    tenants += [_tenant(f"{name}-limited", limits=limits) for name in names]
    keys = {one["metadata"]["name"]: f"sk-{one['metadata']['name']}" for one in tenants}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "keys"},
        "stringData": keys,
    }
    return yaml.safe_dump_all([service, *tenants, secret], sort_keys=False)


def _tenant(name: str, **spec: Any) -> dict[str, Any]:
    key = {"name": "key", "client": "app", "secretRef": {"name": "keys", "key": name}}
    return {
        "apiVersion": "evenkeel.dev/v1alpha1",
        "kind": "InferenceTenant",
        "metadata": {"name": name},
        "spec": {"clients": [{"name": "app"}], "apiKeys": [key], **spec},
    }


@contextmanager
def _fleet(folder: Path, target: Target) -> Iterator[dict[str, str]]:
    """`evenkeel up`, ready; yields the addresses that programs need."""
    file = folder / "fleet.yaml"
    file.write_text(_manifest(target))
    traffic, probe, admin = (free_port("127.0.0.1") for _ in range(3))
    ports = (f"--port={traffic}", f"--probe-port={probe}", f"--admin-port={admin}")
    command = (
        str(Path(sys.executable).with_name("evenkeel")),
        "up",
        str(file),
        *ports,
        *target.arguments,
    )
    log = folder / "up.log"
    with log.open("wb") as output:
        up = subprocess.Popen(
            [*command, f"--state-dir={folder / 'state'}"],
            cwd=ROOT,
            env={**os.environ, **target.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{traffic}"
        _wait(url, up, log)
        yield {"CLIENTS_URL": url, "CLIENTS_METRICS": f"http://127.0.0.1:{probe}/metrics"}
    finally:
        up.terminate()
        up.wait(60)


def _wait(url: str, up: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while "Try it:" not in log.read_text():
        if up.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the fleet did not start:\n{log.read_text()}")
        time.sleep(0.2)
    with urllib.request.urlopen(f"{url}/health"):
        pass


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
