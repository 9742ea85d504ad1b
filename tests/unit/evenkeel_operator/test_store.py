"""The operator's memory: which resources an event concerns, and what it leaves behind."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from evenkeel_operator.cluster.store import SERVICE, TENANT, Hashes, Key, Store
from evenkeel_operator.core.objects import Ref, ref_of
from evenkeel_operator.core.tenants import NamedSecret, read_secret

S, T = Key(SERVICE, "n", "s"), Key(TENANT, "n", "t")


def item(kind: str, name: str, *, version: int = 1, **metadata: Any) -> dict[str, Any]:
    found = {"name": name, "namespace": "n", "resourceVersion": str(version), **metadata}
    return {"kind": kind, "metadata": found}


def child(*, version: int = 1, label: str | None = "s", owner: str | None = "s") -> dict[str, Any]:
    labels = {"evenkeel.dev/service": label} if label else {}
    owners = [{"kind": SERVICE, "name": owner, "uid": "u", "controller": True}] if owner else []
    return item("Service", "s-engine", version=version, labels=labels, ownerReferences=owners)


def secret(*, version: int = 1, **keys: str) -> dict[str, Any]:
    data = {name: b64encode(key.encode()).decode() for name, key in keys.items()}
    return item("Secret", "keys", version=version) | {"data": data}


def test_a_new_service_wakes_itself_and_tenants_but_its_status_only_itself() -> None:
    store = Store()
    store.see(None, TENANT, item(TENANT, "t"))
    assert store.see(None, SERVICE, item(SERVICE, "s", generation=1)) == {S}  # no pass has run
    for kind in (SERVICE, TENANT):
        store.named(kind, "n").finish(store.named(kind, "n").items.values())
    assert store.see("MODIFIED", TENANT, item(TENANT, "t", version=2, generation=2)) == {S, T}
    said = item(SERVICE, "s", generation=1) | {"status": {"replicas": 1}}
    assert store.see("MODIFIED", SERVICE, said) == {S}
    assert store.see("MODIFIED", SERVICE, item(SERVICE, "s", generation=2)) == {S}
    chosen = item(SERVICE, "s", version=3, generation=3) | {
        "spec": {"tenancy": {"selector": {"matchLabels": {"a": "b"}}}}
    }
    assert store.see("MODIFIED", SERVICE, chosen) == {S, T}
    assert store.see("DELETED", SERVICE, item(SERVICE, "s", version=4, generation=3)) == {S, T}
    assert store.named(SERVICE, "n").items == {}


def test_a_namespace_that_is_made_again_has_nothing_of_the_first() -> None:
    def namespace(uid: str, **metadata: str) -> dict[str, Any]:
        return {"kind": "Namespace", "metadata": {"name": "n", "uid": uid, **metadata}}

    for gone in (True, False):  # the watch may have missed the deletion
        store = Store()
        store.see(None, "Namespace", namespace("first"))
        store.see(None, SERVICE, item(SERVICE, "s", version=7))
        store.see(None, TENANT, item(TENANT, "t"))
        other = store.see(
            None, SERVICE, {"kind": SERVICE, "metadata": {"name": "s", "namespace": "m"}}
        )
        store.remember_secret("n", "keys", secret(a="1"), asked=store.expect_secret("n", "keys"))
        store.see("ADDED", "Service", child())
        if gone:
            leaves = namespace("first", deletionTimestamp="2026-01-31T12:00:00Z")
            assert store.see("MODIFIED", "Namespace", leaves) == frozenset()
            assert store.see("DELETED", "Namespace", leaves) == {S, T}
            assert store.terminating == {"n"}
        found = store.see("ADDED", "Namespace", namespace("second"))
        assert found == (frozenset() if gone else {S, T})
        assert store.terminating == set()
        assert store.keys_anywhere(SERVICE, TENANT) == other
        assert store.children(S).items == {}
        assert store.secrets() == frozenset()
        assert store.see("ADDED", SERVICE, item(SERVICE, "s", version=1)) >= {S}


def test_a_child_is_known_by_its_owner_or_its_label_whichever_was_changed() -> None:
    store = Store()
    assert store.see("ADDED", "Service", child()) == {S}
    assert store.see("MODIFIED", "Service", child()) == frozenset()  # the echo of our own write
    changed = store.see("MODIFIED", "Service", child(version=2, label="x"))
    assert changed == {S, Key(SERVICE, "n", "x")}
    assert store.see("MODIFIED", "Service", child(version=3, owner=None)) == {S}
    assert store.see("MODIFIED", "Service", child(version=4, owner=None, label=None)) == frozenset()
    assert store.see("DELETED", "Service", child(version=5)) == {S}
    assert store.children(S).items == {}


def test_managed_fields_are_not_kept() -> None:
    store, one = Store(), child()
    one["metadata"]["managedFields"] = [{"manager": "x"}] * 10
    store.see("ADDED", "Service", one)
    kept = store.children(S).items[Ref("Service", "s-engine")]
    assert "managedFields" not in kept["metadata"]


def test_what_happens_while_a_list_is_on_its_way_is_not_undone_by_it() -> None:
    table = Store().named(TENANT, "n")
    table.see(item(TENANT, "stays", version=1), gone=False)
    table.begin()
    table.see(item(TENANT, "changes", version=7), gone=False)
    table.see(item(TENANT, "goes", version=8), gone=True)
    table.see(item(TENANT, "comes", version=9), gone=False)
    assert not table.is_listed
    table.finish(
        [
            item(TENANT, "stays", version=2),
            item(TENANT, "changes", version=3),
            item(TENANT, "goes", version=4),
        ]
    )
    assert table.is_listed
    versions = {name: one["metadata"]["resourceVersion"] for name, one in table.items.items()}
    assert versions == {"stays": "2", "changes": "7", "comes": "9"}


def test_a_list_takes_away_what_a_watch_did_not_tell_to_be_gone() -> None:
    table = Store().named(TENANT, "n")
    table.see(item(TENANT, "gone"), gone=False)
    table.begin()
    table.finish([])
    assert table.items == {}


def naming(version: int = 1) -> dict[str, Any]:
    key = {"name": "a", "client": "c", "secretRef": {"name": "keys", "key": "a"}}
    spec = {"clients": [{"name": "c"}], "apiKeys": [key]}
    head = {"apiVersion": "evenkeel.dev/v1alpha1", "spec": spec}
    return item(TENANT, "t", version=version) | head


def test_of_secrets_only_named_ones_leave_something_and_that_is_hashes() -> None:
    store = Store()
    store.see(None, SERVICE, item(SERVICE, "s"))
    store.roster("n").put(naming())
    assert store.see(None, "Secret", secret(a="key")) == frozenset()
    assert store.hashes("n", "keys") is None
    assert store.secrets() == frozenset()
    asked = store.expect_secret("n", "keys")
    store.remember_secret("n", "keys", None, asked=asked)
    assert store.hashes("n", "keys") == Hashes(0, None)
    assert store.take_touched("n") == {"keys"}
    assert store.see("ADDED", "Secret", item("Secret", "keys", version=2)) == {S, T}
    assert store.hashes("n", "keys") is None  # an event has no contents
    asked = store.expect_secret("n", "keys")
    store.remember_secret("n", "keys", secret(version=2, a="key"), asked=asked)
    found = store.hashes("n", "keys")
    assert found is not None
    assert found.secret is not None
    assert len(found.secret.hashes["a"]) == 64
    assert not found.secret.labelled
    assert store.see("MODIFIED", "Secret", item("Secret", "keys", version=2)) == frozenset()
    assert store.see("DELETED", "Secret", item("Secret", "keys", version=5)) == {S, T}
    assert store.hashes("n", "keys") == Hashes(5, None)


def test_a_secret_that_changes_while_it_is_read_is_read_again() -> None:
    store = Store()
    asked = store.expect_secret("n", "keys")
    assert store.hashes("n", "keys") is None
    store.see("MODIFIED", "Secret", item("Secret", "keys", version=5))
    store.remember_secret("n", "keys", secret(version=4, a="old"), asked=asked)
    assert store.hashes("n", "keys") is None
    again = store.expect_secret("n", "keys")
    store.remember_secret("n", "keys", secret(version=6, a="new"), asked=again)
    assert store.hashes("n", "keys") == Hashes(6, read_secret(secret(a="new")))
    again = store.expect_secret("n", "keys")
    store.remember_secret("n", "keys", None, asked=again)  # its end was missed
    found = store.hashes("n", "keys")
    assert found is not None
    assert found.secret is None


def test_a_secret_that_is_no_base64_or_empty_holds_no_key() -> None:
    store = Store()
    odd = item("Secret", "keys") | {"data": {"a": "%", "b": ""}}
    store.remember_secret("n", "keys", odd, asked=store.expect_secret("n", "keys"))
    assert store.hashes("n", "keys") == Hashes(1, NamedSecret({}, labelled=False))


def test_only_pods_that_may_need_an_action_are_kept() -> None:
    def pod(name: str, version: int, **ready: str) -> dict[str, Any]:
        labels = {"evenkeel.dev/service": "s", "evenkeel.dev/component": "engine"}
        conditions = [{"type": kind, "status": status} for kind, status in ready.items()]
        gates = [{"conditionType": "evenkeel.dev/InRotation"}]
        found = item("Pod", name, version=version, labels=labels)
        return found | {"spec": {"readinessGates": gates}, "status": {"conditions": conditions}}

    store = Store()
    assert store.see("ADDED", "Pod", pod("a", 1)) == frozenset()
    assert store.see("MODIFIED", "Pod", pod("a", 2, ContainersReady="True")) == {S}
    assert store.see("MODIFIED", "Pod", pod("a", 3, ContainersReady="True", X="1")) == frozenset()
    noted = store.pods_to_check(S)
    assert noted == {"a": 3}
    # While they are listed, another one comes up: that must not be forgotten with the first.
    assert store.see("MODIFIED", "Pod", pod("b", 5, ContainersReady="True")) == {S}
    store.note_checked_pods(S, noted, still=())
    assert store.pods_to_check(S) == {"b": 5}
    store.note_checked_pods(S, store.pods_to_check(S), still={"b", "c"})
    assert set(store.pods_to_check(S)) == {"b", "c"}
    assert store.see("DELETED", "Pod", pod("b", 6)) == {S}
    assert store.see("DELETED", "Pod", pod("d", 7, ContainersReady="True")) == frozenset()
    store.forget(S)
    assert store.pods_to_check(S) == {}


def test_a_pod_wakes_its_service_when_a_container_ends_and_recovers() -> None:
    def pod(version: int, component: str = "router", **container: Any) -> dict[str, Any]:
        labels = {"evenkeel.dev/service": "s", "evenkeel.dev/component": component}
        found = item("Pod", "a", version=version, labels=labels)
        return found | {"status": {"containerStatuses": [{"name": "c", **container}]}}

    ended = {"terminated": {"exitCode": 1}}
    for component in ("router", "engine"):
        store = Store()
        assert store.see("ADDED", "Pod", pod(1, component)) == frozenset()
        assert store.see("MODIFIED", "Pod", pod(2, component, state=ended)) == {S}
        again = pod(3, component, state={"running": {}}, lastState=ended)
        assert store.see("MODIFIED", "Pod", again) == frozenset()
        well = pod(4, component, state={"running": {}}, lastState=ended, ready=True)
        assert store.see("MODIFIED", "Pod", well) == {S}
        assert store.see("MODIFIED", "Pod", pod(5, component, state=ended)) == {S}
        assert store.see("DELETED", "Pod", pod(6, component, state=ended)) == {S}
        assert store.pods_to_check(S) == {}


def test_the_event_of_an_own_write_needs_no_pass_before_the_answer_either() -> None:
    for made in (item("Secret", "s-router", labels={"evenkeel.dev/service": "s"}), child()):
        store, woken = Store(), list[Key]()
        store.children(S).finish([made])
        written, later = (
            {**made, "metadata": {**made["metadata"], "resourceVersion": version}}
            for version in ("2", "3")
        )
        with store.writing(S, ref_of(made), woken.append):
            assert store.see("MODIFIED", made["kind"], written) == frozenset()
            store.children(S).put(written)
        assert woken == []
        assert store.take_stale(S) == frozenset()
        with store.writing(S, ref_of(made), woken.append):  # somebody else writes meanwhile
            store.see("MODIFIED", made["kind"], later)
            store.children(S).put(written)
        assert woken == [S]
        with store.writing(S, ref_of(made), woken.append):
            store.see("DELETED", made["kind"], later)
        assert woken == [S, S]
        assert store.children(S).items == {}
        assert store.see("ADDED", made["kind"], made) == {S}
