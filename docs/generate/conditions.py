"""The page of conditions and reasons, from the operator's constants and the comments beside them."""

from __future__ import annotations

import inspect
import io
import tokenize
from collections.abc import Iterator, Mapping
from typing import Final

from evenkeel_contract.spec.gateway import GatewayCondition
from evenkeel_contract.spec.resources import ServiceCondition, TenantCondition
from evenkeel_operator.core import reasons

from docs.generate.pages import bullets, code, page

_TRUE: Final[Mapping[ServiceCondition | TenantCondition | GatewayCondition, str]] = {
    ServiceCondition.READY: "A router and an engine are ready.",
    ServiceCondition.ENGINES_READY: "All desired engine pods are ready.",
    ServiceCondition.ROUTER_READY: "All desired router pods are ready.",
    ServiceCondition.SCALING_ACTIVE: "The built-in scaler has measurements.",
    ServiceCondition.PROGRESSING: "A rollout is in progress.",
    ServiceCondition.DEGRADED: "A part of the spec is not fulfilled.",
    ServiceCondition.PLUGIN_INACTIVE: "An engine does not fit the plug-in, so that routers order its queue.",
    ServiceCondition.MODEL_CACHED: "The volume that a Job fills has all files of the newest model. Absent without such a volume.",
    ServiceCondition.SPEC_VALID: "The newest spec is valid. If False, the last valid spec is in use.",
    ServiceCondition.RECONCILING: "The newest spec is being applied (kstatus).",
    ServiceCondition.STALLED: "The newest spec is invalid, or its rollout is stuck (kstatus). The service may still answer.",
    TenantCondition.READY: "The routers of its services accept its API keys.",
    TenantCondition.SPEC_VALID: "The newest spec is valid. If False, routers keep the last valid configuration.",
    TenantCondition.STALLED: "Routers reject the newest spec or a key until a spec or a Secret changes (kstatus). A Secret that is missing may still come.",
    GatewayCondition.READY: "A router is ready, and serves a model.",
    GatewayCondition.MODELS_READY: "Every model of the spec is served.",
    GatewayCondition.ROUTER_READY: "All desired router pods are ready.",
    GatewayCondition.DEGRADED: "A part of the spec is not fulfilled.",
    GatewayCondition.SPEC_VALID: "The newest spec is valid. If False, the objects stay as they are.",
    GatewayCondition.RECONCILING: "A rollout of routers is in progress, or a service of the spec is not there yet (kstatus).",
    GatewayCondition.STALLED: "The newest spec is invalid or contradicts another resource, or its rollout is stuck (kstatus). The routers may still answer.",
}


def pages() -> Iterator[tuple[str, str]]:
    """Path and text of the page."""
    intro = (
        "The conditions of a resource, its events, and `status.scaling`. "
        "`kubectl describe fis NAME` shows them with a message. [Objects of a service](operator.md) has the background."
    )
    yield (
        "reference/conditions.md",
        page(
            "Conditions and reasons",
            intro,
            "## Conditions of a FairInferenceService",
            "A condition is True in this case:",
            _conditions(ServiceCondition),
            "## Conditions of an InferenceTenant",
            _conditions(TenantCondition),
            "## Conditions of a FairInferenceGateway",
            _conditions(GatewayCondition),
            "## Reasons",
            "The headings name the conditions in which a reason appears first.",
            *_sections(),
        ),
    )


def _conditions(kind: type[ServiceCondition | TenantCondition | GatewayCondition]) -> str:
    return bullets(f"**{one.value}**: {_TRUE[one]}" for one in kind)


def _sections() -> Iterator[str]:
    for section, found in listed().items():
        yield f"### {section}"
        yield bullets(f"{code(name)}: {meaning}." for name, meaning in found)


def listed() -> Mapping[str, list[tuple[str, str]]]:
    """Heading → reasons with their meanings, in the order of the source. Every reason has a meaning."""
    source = inspect.getsource(reasons)
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found: dict[str, list[tuple[str, str]]] = {}
    heading = ""
    for number, line in enumerate(source.splitlines(), 1):
        if line.startswith("# "):
            heading = comments[number]
        elif ': Final = "' in line:
            name = getattr(reasons, line.partition(":")[0])
            found.setdefault(heading, []).append((name, comments.get(number, "")))
    return found
