"""Evaluates NetworkPolicies, for clusters whose network plug-in does not enforce them. Pure.

https://kubernetes.io/docs/concepts/services-networking/network-policies/, ingress only: a pod that no policy selects
accepts everything; a selected pod accepts the traffic that any of its policies allows. A peer without a namespace
selector means the
policy's own namespace; an empty list of peers, or of ports, means all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from evenkeel_contract.decode import decode
from evenkeel_contract.render import selects
from evenkeel_contract.spec.resources import LabelSelector

Plain = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pod:
    """A sender or receiver."""

    namespace: str
    labels: Mapping[str, str]
    namespace_labels: Mapping[str, str]


def allows(policies: Iterable[Plain], *, source: Pod, target: Pod, port: int) -> bool:
    """Whether TCP from `source` may reach `port` of `target`."""
    about = [
        policy
        for policy in policies
        if policy["metadata"]["namespace"] == target.namespace
        and "Ingress" in policy["spec"].get("policyTypes", ["Ingress"])
        and _matches(policy["spec"].get("podSelector") or {}, target.labels)
    ]
    return not about or any(
        _covers(rule, port) and _lets_in(rule, source, policy["metadata"]["namespace"])
        for policy in about
        for rule in policy["spec"].get("ingress") or ()
    )


def _covers(rule: Plain, port: int) -> bool:
    ports = rule.get("ports")
    if any(isinstance(one.get("port"), str) for one in ports or ()):
        raise ValueError("named ports are not judged here")
    return not ports or any(
        one.get("protocol", "TCP") == "TCP"
        and one.get("port", port) <= port <= one.get("endPort", one.get("port", port))
        for one in ports
    )


def _lets_in(rule: Plain, source: Pod, own: str) -> bool:
    peers = rule.get("from")
    return not peers or any(_is_peer(peer, source, own) for peer in peers)


def _is_peer(peer: Plain, source: Pod, own: str) -> bool:
    if "ipBlock" in peer:
        raise ValueError("ipBlock is not judged here")
    if "namespaceSelector" in peer:
        inside = _matches(peer["namespaceSelector"] or {}, source.namespace_labels)
    else:
        inside = source.namespace == own
    return inside and _matches(peer.get("podSelector") or {}, source.labels)


def _matches(selector: Plain, labels: Mapping[str, str]) -> bool:
    read, faults = decode(LabelSelector, selector)
    if read is None:
        raise ValueError(f"a selector that is not understood: {faults}")
    return selects(read, labels)
