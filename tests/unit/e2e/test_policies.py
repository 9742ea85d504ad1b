"""The judge of NetworkPolicies."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.policies import Pod, allows


def test_every_kind_of_rule_is_judged_as_kubernetes_says() -> None:
    a, b = Pod("n", {"app": "a"}, {"team": "x"}), Pod("m", {"app": "b"}, {"team": "y"})

    def policy(*ingress: dict[str, Any], selector: dict[str, Any] | None = None) -> dict[str, Any]:
        spec = {"podSelector": selector or {}, "policyTypes": ["Ingress"], "ingress": [*ingress]}
        return {"metadata": {"namespace": "n"}, "spec": spec}

    def ok(*policies: dict[str, Any], port: int = 80) -> bool:
        return allows(policies, source=b, target=a, port=port)

    assert ok()
    assert not ok(policy())
    assert ok(policy({}))
    assert ok(policy(selector={"matchLabels": {"app": "other"}}))
    assert ok(policy({"ports": [{"port": 80}]}))
    assert not ok(policy({"ports": [{"port": 81}]}))
    assert ok(policy({"ports": [{"port": 79, "endPort": 81}]}))
    assert not ok(policy({"from": [{"podSelector": {}}]}))  # of the policy's namespace
    assert ok(policy({"from": [{"namespaceSelector": {"matchLabels": {"team": "y"}}}]}))
    both = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "a"}}}
    assert not ok(policy({"from": [both]}))
    assert ok(policy(), policy({}))  # what any of them allows


def test_what_is_not_judged_is_refused_rather_than_guessed() -> None:
    pod = Pod("n", {}, {})
    for rule in ({"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}, {"ports": [{"port": "http"}]}):
        policy = {"metadata": {"namespace": "n"}, "spec": {"podSelector": {}, "ingress": [rule]}}
        with pytest.raises(ValueError, match="not judged"):
            allows([policy], source=pod, target=pod, port=80)
