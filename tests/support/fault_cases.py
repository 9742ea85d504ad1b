"""Objects with faults that only the operator finds: what CEL cannot afford, and what it cannot know.

One table, read by unit tests and by e2e; those that the API server refuses already are in `crd_cases`.
"""

from __future__ import annotations

from typing import Final

from tests.support.crd_documents import (
    EXTERNAL,
    SERVICE,
    SHARED_SECRET,
    Document,
    changed,
    faults_of,
)

_SNIPPET: Final = "nginx.ingress.kubernetes.io/configuration-snippet"
_TEMPLATE: Final = "spec.engine.template"


def _container(**fields: object) -> Document:
    return changed(SERVICE, {f"{_TEMPLATE}.spec": {"containers": [{"name": "engine", **fields}]}})


def _alert_label(name: str) -> Document:
    return changed(SERVICE, {"spec.slo.alertLabels": {name: "x"}})


def _deep(levels: int) -> Document:
    inner: Document = {}
    for _ in range(levels):
        inner = {"a": inner}
    return changed(SERVICE, {f"{_TEMPLATE}.spec": inner})


_DEEP: Final = _deep(100)


FOUND_BY_THE_OPERATOR: Final[dict[str, tuple[Document, str]]] = {
    "one key for two clients": (SHARED_SECRET, "spec.apiKeys[1].secretRef"),
    "an alert's label that is no name": (_alert_label("1st"), "spec.slo.alertLabels['1st']"),
    "an alert's label of ours": (_alert_label("severity"), "spec.slo.alertLabels['severity']"),
    "an annotation of ours": (
        changed(SERVICE, {"spec.exposure.ingress.annotations": {"evenkeel.dev/digest": "x"}}),
        "spec.exposure.ingress.annotations['evenkeel.dev/digest']",
    ),
    "a label of all generated objects": (
        changed(SERVICE, {"spec.exposure.ingress.labels": {"app.kubernetes.io/part-of": "x"}}),
        "spec.exposure.ingress.labels['app.kubernetes.io/part-of']",
    ),
    "an annotation that is configuration text": (
        changed(SERVICE, {"spec.exposure.ingress.annotations": {_SNIPPET: "return 200;"}}),
        f"spec.exposure.ingress.annotations['{_SNIPPET}']",
    ),
    "arguments by the back door": (
        _container(args=["--tp=8"]),
        f"{_TEMPLATE}.spec.containers[0].args",
    ),
    "an image by the back door": (_container(image="x"), f"{_TEMPLATE}.spec.containers[0].image"),
    "another command": (_container(command=["sh"]), f"{_TEMPLATE}.spec.containers[0].command"),
    "a variable that bypasses the policy": (
        _container(env=[{"name": "SGLANG_RUST_SERVER", "value": "1"}]),
        f"{_TEMPLATE}.spec.containers[0].env[0]",
    ),
    "a variable of ours": (
        changed(SERVICE, {f"{_TEMPLATE}.spec": {"env": [{"name": "EVENKEEL_REJOIN"}]}}),
        f"{_TEMPLATE}.spec.env[0]",
    ),
    "a template that is nested too deeply": (_DEEP, faults_of(_DEEP)[0].path),
    "a template of external engines": (
        changed(EXTERNAL, {f"{_TEMPLATE}.spec": {"nodeSelector": {"g": "h"}}}),
        _TEMPLATE,
    ),
    "a label of ours": (
        changed(SERVICE, {f"{_TEMPLATE}.metadata": {"labels": {"evenkeel.dev/service": "x"}}}),
        f"{_TEMPLATE}.metadata.labels",
    ),
}
"""Case → the object and the path of its one fault. The API server takes it."""
