"""Services as the operator's builders see them, from the samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from evenkeel_contract.validate import parse_service
from evenkeel_operator.core.objects import OPTIONAL_KINDS
from evenkeel_operator.core.records import ANY_URL, Defaults
from evenkeel_operator.core.sharding import Layout
from evenkeel_operator.manifests.context import BuildContext

SAMPLES = Path(__file__).parents[2] / "crds" / "samples"

DEFAULTS = Defaults(
    version="1.0.0",
    router_image="evenkeel/router:1.0.0",
    sglang_image="evenkeel/engine:1.0.0",
    vllm_image="evenkeel/vllm:1.0.0",
    simulator_image="evenkeel/engine:1.0.0",
    download_image="evenkeel/operator:1.0.0",
    prometheus_urls=(ANY_URL,),
)


def document(sample: str) -> dict[str, Any]:
    """A sample as plain data, in a namespace, as an API server would give it."""
    found: dict[str, Any] = yaml.safe_load((SAMPLES / sample).read_text())
    found["metadata"] |= {"namespace": "team-ml", "uid": "00000000-0000-4000-8000-000000000001"}
    return found


def subject_of(plain: dict[str, Any], *, apis: frozenset[str] = frozenset()) -> BuildContext:
    """A document, ready to be built. Raises `AssertionError` with its faults."""
    service, faults = parse_service(plain)
    assert service is not None, [str(fault) for fault in faults]
    return BuildContext(
        service=service,
        uid=plain["metadata"]["uid"],
        engine_image="evenkeel/engine:1.0.0",
        engine_key_id="0a1b2c3d",
        layout=Layout("sha256:0"),
        defaults=DEFAULTS,
        apis=apis,
    )


def sample_context(sample: str, **spec: Any) -> BuildContext:
    """A sample with parts of its spec exchanged, as plain data."""
    plain = document(sample)
    plain["spec"] |= spec
    return subject_of(plain)


def with_apis(context: BuildContext) -> BuildContext:
    """On a cluster that has all optional APIs."""
    return replace(context, apis=OPTIONAL_KINDS)
