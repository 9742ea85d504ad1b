"""What `evenkeel up` says of an edit that it applied."""

from __future__ import annotations

from pathlib import Path

import pytest
from evenkeel_cli.manifest import Manifest, parse_manifest
from evenkeel_cli.up.edited import edited

FILE = """\
apiVersion: evenkeel.dev/v1alpha1
kind: FairInferenceService
metadata: {name: sample}
spec:
  model: {source: hf://org/model}
  engine: {runtime: Simulator, replicas: 2}
---
apiVersion: evenkeel.dev/v1alpha1
kind: InferenceTenant
metadata: {name: ads}
spec:
  weight: 1
  clients: [{name: chat, weight: 1}, {name: batch}]
  apiKeys: [{name: k, client: chat, secretRef: {name: keys, key: chat}}]
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {chat: sk-chat}
"""


TWO_MODELS = (Path(__file__).parents[3] / "examples" / "two-models.yaml").read_text()


def parsed(text: str) -> Manifest:
    return parse_manifest(text.encode(), "f.yaml")


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        ("replicas: 2", "replicas: 3", "spec.engine.replicas 2 → 3"),
        ("{name: chat, weight: 1}", "{name: chat, weight: 3}", "tenant ads.clients.chat.weight 1 → 3"),
        (", {name: batch}", "", "tenant ads.clients.batch removed"),
        (", {name: batch}", ", {name: batch}, {name: dev}", "tenant ads.clients.dev added"),
        ("sk-chat", "sk-other", "keys"),
        ("metadata: {name: sample}", "metadata: {name: sample}  # x", "nothing that the fleet uses"),
    ],
)  # fmt: skip
def test_an_applied_edit_names_what_changed(old: str, new: str, want: str) -> None:
    assert edited(parsed(FILE), parsed(FILE.replace(old, new))) == want


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        ("replicas: 2", "replicas: 3", "service llama-70b.engine.replicas 2 → 3"),
        ("replicas: 1", "replicas: 2", "service llama-8b.engine.replicas 1 → 2"),
        ("  models:", "  shareAcross: Gateway\n  models:", "gateway.shareAcross None → Gateway"),
        ("[gpt-4o]", "[gpt-4o, big]", "gateway.models"),
        ("requestsPerMinute: 6000", "requestsPerMinute: 9", "tenant research.limits.requestsPerMinute 6000 → 9"),
    ],
)  # fmt: skip
def test_an_edit_of_a_gateway_names_what_changed_in_which_service(
    old: str, new: str, want: str
) -> None:
    assert edited(parsed(TWO_MODELS), parsed(TWO_MODELS.replace(old, new))) == want


def test_many_changes_are_counted() -> None:
    more = "".join(f", {{name: c{n}}}" for n in range(6))
    after = FILE.replace(", {name: batch}", f", {{name: batch}}{more}")
    assert edited(parsed(FILE), parsed(after)).endswith("tenant ads.clients.c3 added, and 2 more")
