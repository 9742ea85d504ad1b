"""Signing keys and issuers' keys from Secrets: what routers get, and what happens while a Secret cannot be used."""

from __future__ import annotations

import pytest
from evenkeel_operator.cluster.store import SERVICE

from tests.support.fake_cluster import FakeCluster
from tests.support.operator_lives import (
    KEY,
    Operator,
    cluster_with_the_sample,
    condition,
    secret,
    told,
)

MAP = ("ConfigMap", "team-ml", "simulated-revocations")
ISSUER = {"issuer": "https://login.example.com", "audience": "llm", "tenantClaim": "team"}
KEYS = '{"keys": [{"kty": "RSA", "kid": "a"}]}'


@pytest.fixture
def cluster() -> FakeCluster:
    """A service with signed keys and an issuer whose keys are in a Secret."""
    found = cluster_with_the_sample()
    found.objects[SERVICE, "team-ml", "simulated"]["spec"]["tenancy"] = {
        "signedKeys": {"secretRef": {"name": "signing"}},
        "jwt": [{**ISSUER, "secretRef": {"name": "issuer", "key": "jwks"}}],
    }
    return found


async def test_routers_get_the_keys_of_both_secrets_and_a_place_for_revocations(
    cluster: FakeCluster,
) -> None:
    cluster.put(secret("signing", a="a" * 32, b="b" * 32 + "\n"))
    cluster.put(secret("issuer", jwks=KEYS))
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    tenancy = told(cluster).tenancy
    assert tenancy.signed_keys is not None
    assert [(one.id, one.secret) for one in tenancy.signed_keys.keys] == [
        ("a", "a" * 32),
        ("b", "b" * 32),
    ]
    assert [one.jwks for one in tenancy.jwt or ()] == [KEYS]
    found = told(cluster).cluster
    assert found is not None
    assert found.revocations == MAP[2]
    rules = cluster.objects["Role", "team-ml", "simulated-router"]["rules"]
    assert {"get", "patch"} in [set(one["verbs"]) for one in rules if MAP[2] in str(one)]
    # What routers write there stays.
    cluster.objects[MAP] = {**cluster.objects[MAP], "data": {"x": "{}"}}
    cluster.writes.clear()
    await operator.make_pass(KEY)
    assert cluster.objects[MAP]["data"] == {"x": "{}"}
    assert cluster.writes == []


async def test_secrets_that_cannot_be_used_are_named_and_their_credentials_refused(
    cluster: FakeCluster,
) -> None:
    cluster.put(secret("signing", labelled=False, a="a" * 32))
    cluster.put(secret("issuer", jwks="not keys"))
    await Operator(cluster).make_pass(KEY)
    tenancy = told(cluster).tenancy
    assert (tenancy.signed_keys, tenancy.jwt) == (None, None)
    message = condition(cluster, "Degraded")["message"]
    assert "spec.tenancy.signedKeys.secretRef" in message
    assert "lacks the label" in message


@pytest.mark.parametrize(
    ("bad", "what"), [({"a": "short"}, "entry a"), ({}, "it is empty"), ({"a b": "x" * 32}, "a b")]
)
async def test_a_secret_without_usable_signing_keys_is_named(
    cluster: FakeCluster, bad: dict[str, str], what: str
) -> None:
    cluster.put(secret("signing", **bad))
    cluster.put(secret("issuer", jwks=KEYS))
    await Operator(cluster).make_pass(KEY)
    message = condition(cluster, "Degraded")["message"]
    assert what in message
    assert "short" not in message


async def test_routers_keep_the_keys_that_they_have_while_a_secret_is_gone(
    cluster: FakeCluster,
) -> None:
    cluster.put(secret("signing", a="a" * 32))
    cluster.put(secret("issuer", jwks=KEYS))
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    before = told(cluster).tenancy
    await operator.sees(cluster.put(secret("signing", labelled=False, a="c" * 32)))
    await operator.sees(cluster.put(secret("issuer", jwks="{}")))
    assert told(cluster).tenancy == before
    assert "Routers keep the keys" in condition(cluster, "Degraded")["message"]
    await operator.sees(cluster.put(secret("signing", c="c" * 32)))
    signed = told(cluster).tenancy.signed_keys
    assert signed is not None
    assert [one.id for one in signed.keys] == ["c"]


async def test_without_signed_keys_there_is_no_place_for_revocations(cluster: FakeCluster) -> None:
    cluster.put(secret("signing", a="a" * 32))
    cluster.put(secret("issuer", jwks=KEYS))
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    assert MAP in cluster.objects
    await operator.edit(SERVICE, "simulated", tenancy={})
    assert MAP not in cluster.objects
    found = told(cluster)
    assert found.cluster is not None
    assert (found.tenancy.signed_keys, found.tenancy.jwt, found.cluster.revocations) == (
        None,
        None,
        None,
    )
