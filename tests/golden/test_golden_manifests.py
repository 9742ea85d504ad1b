"""The objects of the samples, whole: a change of any of them is seen in review, and restarts pods.

`EVENKEEL_WRITE_GOLDEN=1 python -m pytest tests/golden/test_golden_manifests.py` writes the files anew.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from evenkeel_contract.gateway import parse_gateway
from evenkeel_operator.core.fill import Fill
from evenkeel_operator.core.objects import OPTIONAL_KINDS
from evenkeel_operator.core.records import Credentials, EngineKey
from evenkeel_operator.core.sharding import Layout
from evenkeel_operator.desired import build_all
from evenkeel_operator.manifests.gateway import build_gateway, gateway_context

from tests.support.build_contexts import DEFAULTS, document, sample_context, with_apis

GOLDEN = Path(__file__).parent / "operator"


@pytest.mark.parametrize("sample", ["simulator", "gpu", "vllm"])
def test_the_objects_of_a_sample_are_as_they_were(sample: str) -> None:
    context = with_apis(sample_context(f"{sample}.yaml"))
    got = yaml.safe_dump_all(
        build_all(context, replicas=context.spec.initial_replicas), sort_keys=False, width=120
    )
    _is_as_it_was(got, sample)


def test_the_objects_of_a_model_in_a_bucket_are_as_they_were() -> None:
    """The Job of a new model and the engines that read its files, as they are together during the rollout."""
    context = with_apis(sample_context("bucket.yaml"))
    fill = Fill(service=context.service, is_filled=True, keeps="0123456789abcdef")
    got = build_all(replace(context, fill=fill), replicas=2)
    _is_as_it_was(yaml.safe_dump_all(got, sort_keys=False, width=120), "bucket")


def test_the_objects_of_a_gateway_are_as_they_were() -> None:
    plain = document("gateway.yaml")
    gateway, faults = parse_gateway(plain)
    assert gateway is not None, faults
    context = gateway_context(
        gateway,
        uid=plain["metadata"]["uid"],
        layout=Layout("sha256:0"),
        defaults=DEFAULTS,
        apis=OPTIONAL_KINDS,
    )
    credentials = Credentials("token", (EngineKey("key"),))
    built = build_gateway(context, credentials, host_taken=False)
    _is_as_it_was(yaml.safe_dump_all(built, sort_keys=False, width=120), "gateway")


def _is_as_it_was(got: str, name: str) -> None:
    path = GOLDEN / f"{name}.yaml"
    if "EVENKEEL_WRITE_GOLDEN" in os.environ:
        path.write_text(got)
    assert got == path.read_text()
