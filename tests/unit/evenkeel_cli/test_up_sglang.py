"""The command of a replica with runtime SGLang."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from evenkeel_cli.manifest import parse_manifest
from evenkeel_cli.up.engines import (
    Engines,
    RealReplica,
    find_interpreter,
    gpus_here,
    model_of,
    real,
    real_replica,
)
from evenkeel_cli.up.errors import FleetError
from evenkeel_cli.up.replicas import ReplicaAddress
from evenkeel_contract.engineflags import OWNED_FLAGS
from evenkeel_contract.render import kv_events_flag
from evenkeel_contract.spec.model import Model
from evenkeel_contract.spec.resources import ServiceSpec

FILE = """\
apiVersion: evenkeel.dev/v1alpha1
kind: FairInferenceService
metadata: {name: sample}
spec:
  model: {source: "file:///models/tiny", servedName: m}
  engine: {runtime: SGLang, replicas: 2, gpu: {count: 2}, args: [--max-total-tokens=99]}
  scheduling: {replicaPolicy: LPM, clientQuantum: 123}
"""
PLACE = ReplicaAddress(
    name="replica-1",
    host="127.0.0.1",
    http_port=1234,
    reports_port=5678,
    kv_events_port=91,
    kv_replay_port=92,
)


def spec(*changes: tuple[str, str]) -> ServiceSpec:
    text = FILE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_manifest(text.encode(), "f.yaml").service.spec


def replica(found: ServiceSpec, *gpus: str, model: str = "/models/tiny") -> RealReplica:
    return real_replica(found, interpreter="py", model=model, gpus=gpus, inherited={})


def test_a_replica_on_the_cpu_gets_the_flags_of_the_spec() -> None:
    program = replica(spec()).at(PLACE)

    assert (program.interpreter, program.module) == ("py", "sglang.launch_server")
    assert program.probe_url == "http://127.0.0.1:1234/ready"
    assert program.arguments == (
        "--model-path=/models/tiny",
        "--served-model-name=m",
        "--tensor-parallel-size=1",
        "--schedule-policy=evenkeel-lpm",
        "--enable-metrics",
        "--enable-cache-report",
        "--sleep-on-idle",
        "--page-size=16",
        "--device=cpu",
        "--attention-backend=torch_native",
        "--sampling-backend=pytorch",
        "--grammar-backend=none",
        "--dtype=float32",
        "--max-total-tokens=16384",
        "--max-total-tokens=99",  # the spec's, and last
        "--host=127.0.0.1",
        "--port=1234",
        kv_events_flag(host="127.0.0.1", port=91, replay_port=92),
    )
    assert program.environment["EVENKEEL_CLIENT_QUANTUM"] == "123"
    assert program.environment["EVENKEEL_REPORTS_PORT"] == "5678"
    assert program.environment["SGLANG_USE_CPU_ENGINE"] == "1"
    assert program.environment["HF_HUB_OFFLINE"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in program.environment


def test_adapters_are_flags_of_every_replica(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    listed = f'{{name: a, source: "file://{tmp_path}"}}, {{name: b/c, source: hf://org/lora}}'
    with_adapters = spec(("servedName: m}", f"servedName: m, adapters: [{listed}]}}"))
    flags = (
        "--enable-lora",
        "--max-loras-per-batch=8",
        "--lora-paths",
        f"a={tmp_path}",
        "b/c=org/lora",
    )
    on_cpu, on_gpus = replica(with_adapters), replica(with_adapters, "0", "1", "2", "3")
    for command in (on_cpu, on_gpus):
        start = command.arguments.index("--enable-lora")
        assert command.arguments[start : start + 5] == flags
        assert command.arguments[start + 5].startswith("--")
    assert "--lora-backend=torch_native" in on_cpu.arguments
    assert "--lora-backend=torch_native" not in on_gpus.arguments
    # One of them is fetched.
    assert "HF_HUB_OFFLINE" not in dict(on_cpu.environment)


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ("pvc://claim/x", "exists in a cluster only; use file"),
        ("file:///nowhere", "is not the folder of an adapter: it has no adapter_config.json"),
    ],
)
def test_an_adapter_that_no_replica_could_load_is_reported(source: str, want: str) -> None:
    listed = f'[{{name: a, source: "{source}"}}]'
    with pytest.raises(FleetError, match=rf"^spec\.model\.adapters\[0\]\.source: .*{want}"):
        replica(spec(("servedName: m}", f"servedName: m, adapters: {listed}}}")))


def test_replicas_do_not_share_gpus() -> None:
    command = replica(spec(), "0", "1", "2", "3")
    visible = [
        command.at(replace(PLACE, name=name)).environment["CUDA_VISIBLE_DEVICES"]
        for name in ("replica-0", "replica-1", "replica-2")
    ]
    assert visible == ["0,1", "2,3", "0,1"]
    assert "--tensor-parallel-size=2" in command.arguments
    assert "--device=cpu" not in command.arguments
    assert "SGLANG_USE_CPU_ENGINE" not in dict(command.environment)


def test_too_few_gpus_are_reported_with_a_remedy() -> None:
    with pytest.raises(FleetError, match=r"is 4, and this machine has 3 GPUs; .*--device=cpu"):
        replica(spec(), "0", "1", "2")


def test_a_device_of_the_spec_stays() -> None:
    command = replica(spec(("--max-total-tokens=99", "--device=xpu")))
    assert "--device=cpu" not in command.arguments
    assert command.arguments[-1] == "--device=xpu"


def test_a_new_quantum_replaces_replicas_and_a_router_setting_does_not() -> None:
    before = replica(spec())
    assert replica(spec(("clientQuantum: 123", "clientQuantum: 124"))) != before
    assert replica(spec(("clientQuantum: 123", "clientQuantum: 123, workerQuantum: 7"))) == before


def test_a_model_of_the_hub_has_its_revision_and_its_token() -> None:
    found = spec(("file:///models/tiny", "hf://org/model@main"))
    command = real_replica(found, interpreter="py", model="org/model", token="secret", inherited={})
    assert {"--model-path=org/model", "--revision=main"} <= set(command.arguments)
    environment = dict(command.environment)
    assert environment["HF_TOKEN"] == "secret"
    assert "HF_HUB_OFFLINE" not in environment


def test_the_number_of_threads_comes_from_the_environment() -> None:
    command = real_replica(
        spec(), interpreter="py", model="/m", inherited={"OMP_NUM_THREADS": "8", "OTHER": "x"}
    )
    environment = dict(command.environment)
    assert environment["OMP_NUM_THREADS"] == "8"
    assert "OTHER" not in environment


def test_every_flag_that_evenkeel_sets_is_forbidden_in_the_spec() -> None:
    free = {"--revision", "--sleep-on-idle", "--max-total-tokens"}
    cpu = {"--device", "--attention-backend", "--sampling-backend", "--grammar-backend", "--dtype"}
    used = {flag.split("=")[0] for flag in replica(spec()).arguments}
    assert used - free - cpu <= set(OWNED_FLAGS)


def test_the_model_comes_from_the_spec_or_the_option(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert model_of(Model(source="hf://org/model@v1"), None) == "org/model"
    assert model_of(Model(source=f"file://{tmp_path}"), None) == str(tmp_path)
    assert model_of(Model(source="pvc://claim/x"), tmp_path) == str(tmp_path)
    with pytest.raises(FleetError, match=r"spec\.model\.source: /nowhere is not the folder of a"):
        model_of(Model(source="file:///nowhere"), None)
    with pytest.raises(FleetError, match=r"--model: /nowhere is not the folder of a model"):
        model_of(Model(source="hf://org/model"), Path("/nowhere"))
    with pytest.raises(FleetError, match=r"pvc://claim/x exists in a cluster only"):
        model_of(Model(source="pvc://claim/x"), None)


def test_an_environment_without_the_engine_is_reported_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"no environment with SGLang at .*`make sglang`"):
        find_interpreter(tmp_path / "none")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert find_interpreter(tmp_path) == tmp_path / "bin" / "python"
    assert find_interpreter(Path(sys.executable)) == Path(sys.executable)
    manifest = parse_manifest(FILE.encode(), "f.yaml")
    with pytest.raises(FleetError, match=r"lacks sglang.*`make sglang` creates"):
        real(manifest, Engines(environment=Path(sys.executable)))


def test_only_visible_gpus_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 5")
    assert gpus_here() == ("2", "5")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus_here() == ()
