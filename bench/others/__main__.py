"""Load generators of others against a simulated fleet of `evenkeel up`: alone, and beside another tenant's flood.

    python -m bench.others aiperf|guidellm|inference-perf --venv VENV [--out bench/results]
    python -m bench.others --page [--out bench/results]

`VENV` has the program (`make others-aiperf` and so on install it). The program has a tenant of its own, and the flood another of equal
weight: 64 open requests of 1,000 input tokens. The program's own reports go to `others/` of `--out`, compressed, and its figures to
`others.md`; with `--page` the page is written from the reports again.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import msgspec
from evenkeel_cli.replay.sender import Sender, open_session
from evenkeel_cli.up import ports

from bench.gpu.engine import HOST, await_ready, launch
from bench.others.page import SETUPS, Facts, Setup, page
from bench.others.tools import TOOLS, Result, Target, Tool
from bench.versus.clients import Run
from bench.versus.workloads import BIG, CASES, ENGINES, PROFILE, SMALL, Case

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "bench" / "results"
MODEL: Final = "fair"
LIMIT_S: Final = 400.0
WARMUP_S: Final = 10.0
_START_S: Final = 120.0
_STOP_S: Final = 60.0
FLOOD: Final = Case(
    title="a flood",
    about="",
    crowds=tuple(crowd for crowd in CASES["flood"].crowds if crowd.team == BIG),
)


def fleet_file(setup: Setup) -> str:
    """The fleet, for `evenkeel up`."""
    tenants = "".join(
        f"""---
apiVersion: evenkeel.dev/v1alpha1
kind: InferenceTenant
metadata: {{name: {team}}}
spec:
  clients: [{{name: app}}]
  apiKeys: [{{name: key, client: app, secretRef: {{name: keys, key: {team}}}}}]
"""
        for team in (SMALL, BIG)
    )
    return f"""apiVersion: evenkeel.dev/v1alpha1
kind: FairInferenceService
metadata: {{name: others}}
spec:
  model: {{source: hf://others/{MODEL}, servedName: {MODEL}}}
  engine: {{runtime: Simulator, replicas: {ENGINES}, args: [--profile={PROFILE}]}}
  scheduling: {{replicaPolicy: {setup.replica_policy}, fleetPolicy: {setup.fleet_policy}}}
{tenants}---
apiVersion: v1
kind: Secret
metadata: {{name: keys}}
stringData: {{{SMALL}: {_key(SMALL)}, {BIG}: {_key(BIG)}}}
"""


def _key(team: str) -> str:
    return f"sk-{team}"


@contextmanager
def fleet(setup: Setup, folder: Path) -> Iterator[str]:
    """`evenkeel up`; its address."""
    file, log = folder / "fleet.yaml", folder / "up.log"
    file.write_text(fleet_file(setup))
    traffic, probe, admin = (ports.free_port(HOST) for _ in range(3))
    words = [f"--port={traffic}", f"--probe-port={probe}", f"--admin-port={admin}"]
    words.append(f"--state-dir={folder / 'state'}")
    program = str(Path(sys.executable).with_name("evenkeel"))
    process = launch((program, "up", str(file), *words), os.environ, log=log)
    try:
        await_ready(process, f"http://{HOST}:{probe}/readyz", log=log, limit_s=_START_S)
        yield f"http://{HOST}:{traffic}"
    finally:
        process.terminate()
        process.wait(_STOP_S)


@asynccontextmanager
async def flood(url: str) -> AsyncIterator[Run]:
    """The other tenant, from some seconds before the block until its end."""
    began_s = time.monotonic()

    def now() -> float:
        return time.monotonic() - began_s

    async with open_session() as session:
        sender = Sender(
            url=f"{url}/v1",
            model=MODEL,
            session=session,
            now=now,
            headers_of=lambda team: {"Authorization": f"Bearer {_key(team)}"},
        )
        run = Run(FLOOD, sender.send, now, LIMIT_S + WARMUP_S, 1)
        running = asyncio.create_task(run.run())
        try:
            await asyncio.sleep(WARMUP_S)
            yield run
        finally:
            running.cancel()
            await asyncio.wait([running])


async def run_tool(tool: Tool, venv: Path, to: Target) -> bytes:
    """The program's report; raises `RuntimeError` with the end of its output."""
    log = to.folder.with_suffix(".log")
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            str((venv / "bin" / tool.program).absolute()),
            *tool.words(to),
            cwd=to.folder,
            env={
                "PATH": f"{(venv / 'bin').absolute()}:/usr/bin:/bin",
                "HOME": str(to.folder.parent),
                "NO_PROXY": HOST,
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            await asyncio.wait_for(process.wait(), LIMIT_S)
        except TimeoutError:
            process.terminate()
            await process.wait()
    report = to.folder / tool.report
    if process.returncode or not report.exists():
        tail = log.read_text(errors="replace")[-3000:]
        raise RuntimeError(f"{tool.title} ended with {process.returncode}:\n{tail}")
    return report.read_bytes()


def measured(tool: Tool, setup: Setup, venv: Path, root: Path) -> tuple[bytes, float]:
    """The program's report, and the flood's answers per second while it ran."""
    to_folder = root / "tool"
    to_folder.mkdir(parents=True)
    with fleet(setup, root) as url:
        to = Target(
            url=url,
            model=MODEL,
            key=_key(SMALL),
            tokenizer=root.parent / "tokenizer",
            folder=to_folder,
        )
        return asyncio.run(_observed(tool, venv, to, flooded=setup.flood))


async def _observed(tool: Tool, venv: Path, to: Target, *, flooded: bool) -> tuple[bytes, float]:
    if not flooded:
        return await run_tool(tool, venv, to), 0.0
    async with flood(to.url) as run:
        before, began_s = len(run.seen), run.now()
        report = await run_tool(tool, venv, to)
        return report, (len(run.seen) - before) / (run.now() - began_s)


def measure(name: str, venv: Path, out: Path) -> None:
    """One program in each setup; its reports and the facts are kept."""
    tool, folder = TOOLS[name], out / "others" / name
    folder.mkdir(parents=True, exist_ok=True)
    before, answers = os.getloadavg()[0], {}
    with tempfile.TemporaryDirectory(prefix="others-") as place:
        root = Path(place)
        python, script = venv / "bin" / "python", Path(__file__).with_name("tokenizer.py")
        subprocess.run([python, script, ROOT / "docs", root / "tokenizer"], check=True)
        for key, setup in SETUPS.items():
            print(f"{tool.title}: {setup.title}", flush=True)
            report, answers[key] = measured(tool, setup, venv, root / key)
            found = tool.read(json.loads(report))
            print(f"  {found}", flush=True)
            clean = report.replace(str(root).encode(), b"")
            (folder / f"{key}.json.gz").write_bytes(gzip.compress(clean, mtime=0))
    facts = Facts(
        version=_said(
            str(python), "-c", f"import importlib.metadata as m; print(m.version('{name}'))"
        ),
        commit=_said("git", "rev-parse", "--short=8", "HEAD"),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        load_before=before,
        load_after=os.getloadavg()[0],
        flood_answers_per_s=answers,
    )
    (folder / "facts.json").write_bytes(
        msgspec.json.format(msgspec.json.encode(facts), indent=1) + b"\n"
    )


Kept = Mapping[str, tuple[Facts, Mapping[str, Result]]]


def kept(out: Path) -> Kept:
    """What was measured so far: program → its facts, and its figures in each setup."""
    found = {}
    for name, tool in TOOLS.items():
        folder = out / "others" / name
        if not (folder / "facts.json").exists():
            continue
        facts = msgspec.json.decode((folder / "facts.json").read_bytes(), type=Facts)
        reports = {key: gzip.decompress((folder / f"{key}.json.gz").read_bytes()) for key in SETUPS}
        found[name] = facts, {key: tool.read(json.loads(one)) for key, one in reports.items()}
    return found


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", choices=list(TOOLS))
    parser.add_argument("--venv", type=Path, help="environment with the program")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="only write the page again")
    options = parser.parse_args()
    if not options.page:
        if options.name is None or options.venv is None:
            parser.error("give the name of a program, and --venv; or use `make others-aiperf`")
        measure(options.name, options.venv.absolute(), options.out)
    (options.out / "others.md").write_text(page(kept(options.out)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
