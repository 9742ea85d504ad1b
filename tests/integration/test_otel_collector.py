"""Traces of `evenkeel up` arrive in a real OpenTelemetry Collector, which Go builds once (two minutes)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.integration.test_up_command import FILE, Up
from tests.support.ports import free_ports
from tests.support.routers import PATIENCE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("source_path")]

VERSION: Final = "v0.150.0"
RECIPE: Final = Path(__file__).parents[1] / "support/otelcol.yaml"
KEPT: Final = Path.home() / f".cache/evenkeel/otelcol-{VERSION}"
BUILD_S: Final = 900
CLIENT_TRACE: Final = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(scope="module")
def program() -> Path:
    """The collector; built where it is not yet."""
    built = KEPT / "otelcol"
    if not built.exists():
        if shutil.which("go") is None:
            pytest.skip("needs Go, to build the collector")
        KEPT.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(RECIPE, KEPT / "builder.yaml")
        builder = f"go.opentelemetry.io/collector/cmd/builder@{VERSION}"
        done = subprocess.run(
            ["go", "run", builder, "--config", "builder.yaml"],
            cwd=KEPT, env=os.environ | {"CGO_ENABLED": "0"}, timeout=BUILD_S, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"the collector cannot be built here: {done.stderr[-300:]}")
    return built


@contextmanager
def collecting(program: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """(address, what it prints) of a running collector."""
    (port,) = free_ports(1)
    (folder / "collector.yaml").write_text(
        f"receivers: {{otlp: {{protocols: {{http: {{endpoint: '127.0.0.1:{port}'}}}}}}}}\n"
        "exporters: {debug: {verbosity: detailed}}\n"
        "service:\n"
        "  telemetry: {metrics: {level: none}}\n"
        "  pipelines: {traces: {receivers: [otlp], exporters: [debug]}}\n"
    )
    printed = folder / "collector.log"
    with printed.open("wb") as output:
        process = subprocess.Popen(
            [program, "--config", "file:collector.yaml"], cwd=folder, stdout=output, stderr=output
        )
    try:
        yield f"http://127.0.0.1:{port}", printed
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def spans(printed: Path) -> list[dict[str, str]]:
    """Name, trace, parent and attributes of each span in the output of the debug exporter."""
    found = []
    for text in re.split(r"^Span #\d+$", printed.read_text(), flags=re.MULTILINE)[1:]:
        head = dict(re.findall(r"^ {4}(Trace ID|Parent ID|ID|Name) *: (\S.*)$", text, re.MULTILINE))
        found.append(head | dict(re.findall(r"-> ([\w.]+): \w+\((.*)\)$", text, re.MULTILINE)))
    return found


@pytest.mark.timeout(BUILD_S + 120)
async def test_a_request_to_a_fleet_is_a_trace_in_the_collector(
    program: Path, tmp_path: Path
) -> None:
    with collecting(program, tmp_path) as (url, printed):
        (tmp_path / "fleet.yaml").write_text(
            FILE.replace(
                "scheduling:",
                f"router: {{tracing: {{endpoint: '{url}', clientNames: Plain}}}}\n  scheduling:",
            )
        )
        up = Up(tmp_path)
        try:
            up.until_ready()
            async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
                answer = await client.post(
                    f"{up.url}/v1/completions",
                    json={"model": "m", "prompt": "word " * 99, "max_tokens": 5, "stream": True},
                    headers={
                        "Authorization": "Bearer sk-chat",
                        "traceparent": f"00-{CLIENT_TRACE}-b7ad6b7169203331-01",
                    },
                )
            assert answer.status_code == 200
            await until(
                lambda: any(one["Name"] == "POST /v1/completions" for one in spans(printed)),
                "the trace in the collector",
            )
        finally:
            up.process.kill()
            up.process.wait()
    found = {one["Name"]: one for one in spans(printed)}
    root, forward = found["POST /v1/completions"], found["text_completion m"]
    assert found.keys() >= {"identify", "parse", "admit", "select", "account"}
    assert {one["Trace ID"] for one in found.values()} == {CLIENT_TRACE}
    assert root["Parent ID"] == "b7ad6b7169203331"
    assert {one["Parent ID"] for one in found.values() if one is not root} == {root["ID"]}
    assert root["http.response.status_code"] == "200"
    assert root["evenkeel.client"].endswith("/chat")
    assert forward["gen_ai.usage.output_tokens"] == "5"
