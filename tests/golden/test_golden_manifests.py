"""The objects of the samples, whole: a change of any of them is seen in review, and restarts pods.

`EVENKEEL_WRITE_GOLDEN=1 python -m pytest tests/golden/test_golden_manifests.py` writes the files anew.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from evenkeel_operator.desired import build_all

from tests.support.build_contexts import sample_context, with_apis

GOLDEN = Path(__file__).parent / "operator"


@pytest.mark.parametrize("sample", ["simulator", "gpu", "vllm"])
def test_the_objects_of_a_sample_are_as_they_were(sample: str) -> None:
    context = with_apis(sample_context(f"{sample}.yaml"))
    got = yaml.safe_dump_all(
        build_all(context, replicas=context.spec.initial_replicas), sort_keys=False, width=120
    )
    path = GOLDEN / f"{sample}.yaml"
    if "EVENKEEL_WRITE_GOLDEN" in os.environ:
        path.write_text(got)
    assert got == path.read_text()
