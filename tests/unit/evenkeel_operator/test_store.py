"""The operator's memory: which resources an event concerns, and what it leaves behind."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from evenkeel_operator.cluster.store import SERVICE, TENANT, Key, Store
from evenkeel_operator.core.objects import Ref

S, T = Key(SERVICE, "n", "s"), Key(TENANT, "n", "t")


def item(kind: str, name: str, *, version: int = 1, **metadata: Any) -> dict[str, Any]:
    found = {"name": name, "namespace": "n", "resourceVersion": str(version), **metadata}
    return {"kind": kind, "metadata": found}


def child(*, version: int = 1, label: str | None = "s", owner: str | None = "s") -> dict[str, Any]:
    labels = {"evenkeel.dev/service": label} if label else {}
    owners = [{"kind": SERVICE, "name": owner, "uid": "u", "controller": True}] if owner else []
    return item("Service", "s-engine", version=version, labels=labels, ownerReferences=owners)


def secret(**keys: str) -> dict[str, Any]:
    data = {name: b64encode(key.encode()).decode() for name, key in keys.items()}
    return item("Secret", "keys") | {"data": data}


def test_a_new_service_concerns_itself_and_tenants_but_its_status_only_itself() -> None:
    store = Store()
    store.see(None, TENANT, item(TENANT, "t"))
    assert store.see(None, SERVICE, item(SERVICE, "s", generation=1)) == {S, T}
    said = item(SERVICE, "s", generation=1) | {"status": {"replicas": 1}}
    assert store.see("MODIFIED", SERVICE, said) == {S}
    assert store.see("MODIFIED", SERVICE, item(SERVICE, "s", generation=2)) == {S, T}
    assert store.see("DELETED", SERVICE, item(SERVICE, "s", generation=2)) == {S, T}
    assert store.service(S) is None


def test_a_child_is_known_by_its_owner_or_its_label_whichever_was_changed() -> None:
    store = Store()
    assert store.see(None, "Service", child()) == {S}  # not listed yet: look
    store.remember_children(S, [])
    assert store.see("ADDED", "Service", child()) == {S}
    assert store.see("MODIFIED", "Service", child()) == frozenset()  # the echo of our own write
    changed = store.see("MODIFIED", "Service", child(version=2, label="x"))
    assert changed == {S, Key(SERVICE, "n", "x")}
    assert store.see("MODIFIED", "Service", child(version=3, owner=None)) == {S}
    assert store.see("MODIFIED", "Service", child(version=4, owner=None, label=None)) == frozenset()
    assert store.see("DELETED", "Service", child(version=5)) == {S}
    assert store.children(S) == {}


def test_managed_fields_are_not_kept() -> None:
    store = Store()
    store.remember_children(S, [child() | {"spec": {}}])
    one = child(version=2)
    one["metadata"]["managedFields"] = [{"manager": "x"}] * 10
    store.see("MODIFIED", "Service", one)
    children = store.children(S)
    assert children is not None
    assert "managedFields" not in children[Ref("Service", "s-engine")]["metadata"]


def test_of_secrets_only_named_ones_leave_something_and_that_is_hashes() -> None:
    store = Store()
    store.see(None, SERVICE, item(SERVICE, "s"))
    store.see(None, TENANT, item(TENANT, "t"))
    assert store.see(None, "Secret", secret(a="key")) == frozenset()
    assert store.hashes("n", "keys") == (False, None)
    store.remember_secret("n", "keys", None)
    assert store.see("ADDED", "Secret", secret(a="key")) == {S, T}
    assert store.see("MODIFIED", "Secret", secret(a="key")) == frozenset()
    known, hashes = store.hashes("n", "keys")
    assert known
    assert hashes is not None
    assert len(hashes["a"]) == 64
    assert store.see("DELETED", "Secret", secret(a="key")) == {S, T}
    assert store.hashes("n", "keys") == (True, None)


def test_a_secret_that_is_no_base64_or_empty_holds_no_key() -> None:
    store = Store()
    store.remember_secret("n", "keys", item("Secret", "keys") | {"data": {"a": "%", "b": ""}})
    assert store.hashes("n", "keys") == (True, {})
