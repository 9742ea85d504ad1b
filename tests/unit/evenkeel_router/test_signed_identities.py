"""Whom a signed key identifies, and when it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from evenkeel_contract.identityheaders import UndeclaredTenants
from evenkeel_contract.revocations import Revocation, RevocationList
from evenkeel_contract.routerconfig import ClientLimits, TenancyConfig, TenantConfig, TenantLimits
from evenkeel_contract.signedkeys import SignedKey, SignedKeysConfig, SigningKeyConfig, mint
from evenkeel_router.api.claims import Claims
from evenkeel_router.api.errors import Outcome, Refusal
from evenkeel_router.api.identity import Client, Directory
from evenkeel_router.api.signed_keys import CredentialRefused

from tests.unit.evenkeel_router.test_identity_headers import LITELLM, TEAM

SECRET, OLD = "s" * 32, "o" * 32
DAY_S = 24 * 3600
NOW_S = 1_800_000_000
RECORD = SignedKey("b", "id-1", "ns", "acme", "ann", NOW_S - DAY_S, NOW_S + DAY_S)


class World:
    """A directory and its clock."""

    def __init__(self, **changes: Any) -> None:
        signing = tuple(SigningKeyConfig(id=i, secret=s) for i, s in (("a", OLD), ("b", SECRET)))
        given: dict[str, Any] = {
            "tenants": (TenantConfig(namespace="ns", name="acme", weight=2),),
            "signed_keys": SignedKeysConfig(keys=signing, max_lifetime_s=10 * DAY_S),
        }
        self.now_s = float(NOW_S)
        self.revocations = RevocationList()
        self.directory = Directory(
            TenancyConfig(**(given | changes)),
            namespace="ns",
            revocations=self.revocations,
            clock=lambda: self.now_s,
        )

    def identified(self, key: str) -> Client:
        return self.directory.identify(Claims([f"Bearer {key}"]))

    def reason(self, key: str) -> str:
        with pytest.raises(CredentialRefused) as caught:
            self.identified(key)
        assert (caught.value.outcome, caught.value.code) == (
            Outcome.UNAUTHENTICATED,
            "invalid_api_key",
        )
        assert str(caught.value) == "The API key is unknown to this service."
        return caught.value.reason


def changed(**changes: Any) -> str:
    record = msgspec.structs.replace(RECORD, **changes)
    return mint(record, {"a": OLD, "b": SECRET}[record.signer])


def test_a_signed_key_names_a_client_that_is_in_no_list() -> None:
    client = World().identified(changed())
    assert (client.identity, client.tenant_weight) == ("ns/acme/ann", 2)
    assert World().directory.identify(Claims((), [changed()])).identity == "ns/acme/ann"


def test_keys_of_both_signing_keys_are_valid_during_a_rotation() -> None:
    world = World()
    assert world.identified(changed(signer="a")).identity == "ns/acme/ann"
    after = World(signed_keys=SignedKeysConfig(keys=(SigningKeyConfig(id="b", secret=SECRET),)))
    assert after.reason(changed(signer="a")) == "unknown_signer"
    assert after.identified(changed()).identity == "ns/acme/ann"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"expires_s": NOW_S}, "expired"),
        ({"issued_s": NOW_S + 3600, "expires_s": NOW_S + 7200}, "not_yet_valid"),
        ({"expires_s": NOW_S + 10 * DAY_S}, "too_long_lived"),
    ],
)
def test_keys_are_refused_outside_of_their_time(changes: dict[str, int], why: str) -> None:
    assert World().reason(changed(**changes)) == why


def test_a_key_that_was_accepted_ends_at_its_time() -> None:
    world, key = World(), changed()
    world.identified(key)
    world.now_s = RECORD.expires_s - 1.0
    world.identified(key)
    world.now_s += 1
    assert world.reason(key) == "expired"


def test_a_revocation_refuses_a_key_that_was_accepted() -> None:
    world, key = World(), changed()
    world.identified(key)
    world.revocations.merge([Revocation("ns/acme/ann", NOW_S, NOW_S + DAY_S)], world.now_s)
    world.directory.forget()
    assert world.reason(key) == "revoked"
    newer = changed(id="id-2", issued_s=NOW_S + 1)
    assert world.identified(newer).identity == "ns/acme/ann"


def test_what_is_refused_is_named_only_if_its_signature_is_valid() -> None:
    world = World()
    for key, whose in ((changed(expires_s=NOW_S), "ns/acme/ann"), (mint(RECORD, OLD), "")):
        with pytest.raises(CredentialRefused) as caught:
            world.identified(key)
        assert caught.value.whose == whose
        assert key not in caught.value.detail


def test_without_signing_keys_a_signed_key_is_unknown() -> None:
    keyless = World(signed_keys=None)
    with pytest.raises(Refusal, match="missing"):
        keyless.identified(changed())


def test_tenants_of_signed_keys_may_be_undeclared() -> None:
    with pytest.raises(Refusal) as caught:
        World().identified(changed(tenant="new"))
    assert caught.value.outcome is Outcome.FORBIDDEN
    world = World(undeclared_tenants=UndeclaredTenants.ACCEPT)
    assert world.identified(changed(tenant="new")).identity == "ns/new/ann"


def test_ceilings_of_a_key_are_limits_of_its_client() -> None:
    world = World()
    own = world.identified(changed(max_concurrent=2, requests_per_minute=60)).own_limits
    assert own == TenantLimits(max_concurrent=2, requests_per_minute=60)
    assert world.identified(changed()).own_limits is None


def test_a_ceiling_of_a_key_replaces_the_default_of_its_tenants_clients() -> None:
    default = ClientLimits(requests_per_minute=9, tokens_per_minute=99)
    acme = TenantConfig(namespace="ns", name="acme", limits=TenantLimits(default_client=default))
    world = World(tenants=(acme,))
    own = world.identified(changed(max_concurrent=2, requests_per_minute=60)).own_limits
    assert own == TenantLimits(max_concurrent=2, requests_per_minute=60, tokens_per_minute=99)
    plain = world.identified(changed()).own_limits
    assert plain == TenantLimits(requests_per_minute=9, tokens_per_minute=99)


def test_headers_of_a_proxy_decide_before_its_signed_key() -> None:
    world = World(identity_headers=(LITELLM,), trusted_proxies=("10.0.0.0/8",))
    named = Claims([f"Bearer {changed(expires_s=1)}"], (), [(TEAM, "acme")], "10.0.0.7")
    assert world.directory.identify(named).identity == "ns/acme/default"
    assert world.reason(changed(expires_s=1)) == "expired"


def test_what_is_remembered_of_keys_is_bounded() -> None:
    world = World()
    for number in range(10_010):
        world.identified(changed(id=f"k{number}"))
    assert len(world.directory._verified) == 10_000
    assert replace(world.identified(changed())).identity == "ns/acme/ann"
