"""The command of a replica with runtime VLLM."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from evenkeel_cli.manifest import Manifest, parse_manifest
from evenkeel_cli.up.engines import Engines, real, real_replica
from evenkeel_cli.up.errors import FleetError
from evenkeel_contract.engineflags import OWNED_FLAGS
from evenkeel_contract.vllm import vllm_kv_events_flag

from tests.unit.evenkeel_cli.test_up_sglang import PLACE

FILE = """\
apiVersion: evenkeel.dev/v1alpha1
kind: FairInferenceService
metadata: {name: sample}
spec:
  model: {source: "hf://some/tiny@v2", servedName: m}
  engine: {runtime: VLLM, replicas: 2, gpu: {count: 2}, args: [--max-num-seqs=9]}
  scheduling: {replicaPolicy: VTC, clientQuantum: 123}
"""


def manifest() -> Manifest:
    return parse_manifest(FILE.encode(), "f.yaml")


def test_a_replica_on_the_cpu_gets_the_flags_of_the_spec() -> None:
    spec = manifest().service.spec
    found = real_replica(spec, interpreter="py", model="some/tiny", inherited={})
    program = found.at(PLACE)
    assert (program.interpreter, program.module) == ("py", "vllm.entrypoints.cli.main")
    assert program.probe_url == "http://127.0.0.1:1234/health"
    assert program.arguments == (
        "serve",
        "some/tiny",
        "--revision=v2",
        "--served-model-name=m",
        "--tensor-parallel-size=1",
        "--shutdown-timeout=60",
        "--scheduler-cls=evenkeel_vllm.scheduler.FairScheduler",
        "--enable-prompt-tokens-details",
        "--prefix-caching-hash-algo=sha256_cbor",
        "--block-size=32",
        "--dtype=float32",
        "--enforce-eager",
        "--distributed-executor-backend=uni",
        "--kv-cache-memory-bytes=67108864",
        "--max-num-seqs=9",  # the spec's, and last
        "--host=127.0.0.1",
        "--port=1234",
        vllm_kv_events_flag(host="127.0.0.1", port=91, replay_port=92),
    )
    assert '"endpoint":"tcp://[::ffff:127.0.0.1]:91"' in program.arguments[-1]
    assert '"enable_kv_cache_events":true' in program.arguments[-1]
    assert program.environment["EVENKEEL_REPLICA_POLICY"] == "VTC"
    assert program.environment["EVENKEEL_CLIENT_QUANTUM"] == "123"
    assert program.environment["EVENKEEL_REPORTS_PORT"] == "5678"
    assert program.environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert "VLLM" in found.summary()


def test_each_replica_has_its_own_gpu_and_vllm_chooses_pages_and_memory() -> None:
    spec = manifest().service.spec
    gpus = ("0", "1", "2", "3")
    found = real_replica(spec, interpreter="py", model="some/tiny", gpus=gpus, inherited={})
    program = found.at(PLACE)
    assert "--tensor-parallel-size=2" in program.arguments
    assert program.environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    flags = {argument.partition("=")[0] for argument in program.arguments}
    assert flags.isdisjoint({"--block-size", "--enforce-eager", "--kv-cache-memory-bytes"})
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in program.environment
    free = {"serve", "some/tiny", "--revision", "--max-num-seqs"}
    assert flags - free <= set(OWNED_FLAGS)


def test_an_environment_without_vllm_or_plug_in_is_refused_with_the_remedy(
    tmp_path: Path,
) -> None:
    with pytest.raises(FleetError, match=r"there is no environment with VLLM .*`make vllm`"):
        real(manifest(), Engines(vllm=tmp_path / "none"))
    with pytest.raises(FleetError, match=r"lacks vllm.*; `make vllm` creates a complete"):
        real(manifest(), Engines(vllm=Path(sys.executable)))
