"""What `evenkeel up` says of an edit that it applied."""

from __future__ import annotations

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


def test_many_changes_are_counted() -> None:
    more = "".join(f", {{name: c{n}}}" for n in range(6))
    after = FILE.replace(", {name: batch}", f", {{name: batch}}{more}")
    assert edited(parsed(FILE), parsed(after)).endswith("tenant ads.clients.c3 added, and 2 more")
