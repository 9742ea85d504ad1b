"""A template laid over generated pods: as Kubernetes' strategic merge would."""

from __future__ import annotations

from typing import Any

import pytest
from evenkeel_operator.manifests.context import merge

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "maps merge, the overlay wins": (
        {"a": {"x": 1, "y": 1}},
        {"a": {"y": 2, "z": 3}},
        {"a": {"x": 1, "y": 2, "z": 3}},
    ),
    "null takes away": ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
    "containers merge by name, new ones are added": (
        {"containers": [{"name": "engine", "image": "i"}]},
        {"containers": [{"name": "side", "image": "s"}, {"name": "engine", "tty": True}]},
        {
            "containers": [
                {"name": "engine", "image": "i", "tty": True},
                {"name": "side", "image": "s"},
            ]
        },
    ),
    "an environment variable is exchanged as a whole": (
        {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
        {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]},
        {
            "env": [
                {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}},
                {"name": "B", "value": "2"},
            ]
        },
    ),
    "a volume has one source": (
        {"volumes": [{"name": "cache", "emptyDir": {}}]},
        {"volumes": [{"name": "cache", "hostPath": {"path": "/models"}}]},
        {"volumes": [{"name": "cache", "hostPath": {"path": "/models"}}]},
    ),
    "tolerations add up": (
        {"tolerations": [{"key": "a"}]},
        {"tolerations": [{"key": "b"}]},
        {"tolerations": [{"key": "a"}, {"key": "b"}]},
    ),
    "a list without a key is replaced": (
        {"command": ["a"]},
        {"command": ["b"]},
        {"command": ["b"]},
    ),
    "entries without their key are replaced too, not an error": (
        {"env": [{"name": "A"}]},
        {"env": [{"value": "x"}]},
        {"env": [{"value": "x"}]},
    ),
}


@pytest.mark.parametrize(("base", "over", "want"), CASES.values(), ids=CASES.keys())
def test_merging(base: dict[str, Any], over: dict[str, Any], want: dict[str, Any]) -> None:
    before = repr(base), repr(over)
    assert merge(base, over) == want
    assert (repr(base), repr(over)) == before
