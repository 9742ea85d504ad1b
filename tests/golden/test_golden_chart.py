"""The rendered chart, whole (but for the CRDs, which are in crds/): a change of any object is seen in review.

`EVENKEEL_WRITE_GOLDEN=1 python -m pytest tests/golden/test_golden_chart.py` writes the files anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.helm import REGISTRY, rendered

GOLDEN = Path(__file__).parent / "chart"
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": {
        "replicas": 3,
        "images": {"registry": REGISTRY, "pullPolicy": "Always", "pullSecrets": ["registry"]},
        "watchNamespaces": ["team-a", "team-b"],
        "allowPrometheus": ["http://prometheus.monitoring:9090"],
        "metrics": {
            "scraperNamespaceLabels": {"kubernetes.io/metadata.name": "monitoring"},
            "labels": {"release": "prometheus"},
            "runbooks": "https://runbooks.example.com/evenkeel/",
            "podMonitor": {"enabled": True},
            "prometheusRule": {"enabled": True},
            "plain": {"enabled": True, "namespace": "monitoring"},
        },
        "serviceAccount": {"annotations": {"a": "b"}},
        "podLabels": {"team": "platform"},
        "podAnnotations": {"c": "d"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
    },
}


@pytest.mark.parametrize("name", VALUES)
def test_the_rendered_chart_is_as_it_was(name: str) -> None:
    objects = rendered(**VALUES[name], crds={"enabled": False})
    got = yaml.safe_dump_all(objects, sort_keys=False, width=120)
    path = GOLDEN / f"{name}.yaml"
    if "EVENKEEL_WRITE_GOLDEN" in os.environ:
        path.write_text(got)
    assert got == path.read_text()
