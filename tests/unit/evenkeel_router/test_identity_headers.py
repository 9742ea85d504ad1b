"""Whom the headers of a trusted proxy name."""

from __future__ import annotations

from typing import Any

import pytest
from evenkeel_contract.identityheaders import (
    PRESETS,
    UNDECLARED,
    IdentityHeader,
    IdentityPreset,
    UndeclaredTenants,
    expanded,
)
from evenkeel_contract.key import decode
from evenkeel_contract.routerconfig import (
    Anonymous,
    ApiKeyConfig,
    TenancyConfig,
    TenantConfig,
    TenantLimits,
)
from evenkeel_router.api.errors import Outcome, Refusal
from evenkeel_router.api.identity import Client, Directory
from evenkeel_router.api.local_directory import LocalDirectory
from multidict import CIMultiDict

from tests.support.routers import sha256

TRUSTED, STRANGER = "10.0.0.7", "203.0.113.9"
TEAM, USER = "x-litellm-user_api_key_team_alias", "x-litellm-user_api_key_user_id"
LITELLM = IdentityHeader(preset=IdentityPreset.LITELLM)
WEBUI = IdentityHeader(preset=IdentityPreset.OPEN_WEBUI)
ACCEPT, SHARE = UndeclaredTenants.ACCEPT, UndeclaredTenants.SHARE


def directory(*entries: IdentityHeader, **changes: Any) -> Directory:
    acme = TenantConfig(
        namespace="ns", name="acme", weight=2, limits=TenantLimits(max_concurrent=3)
    )
    given: dict[str, Any] = {
        "trusted_proxies": ("10.0.0.0/8",),
        "tenants": (acme,),
        "identity_headers": entries or None,
    }
    return Directory(TenancyConfig(**(given | changes)), namespace="ns")


def identified(from_: Directory, headers: Any, peer: str = TRUSTED) -> Client:
    return from_.identify(from_.claims_of(CIMultiDict(headers), peer))


def refused(from_: Directory, headers: Any, peer: str = TRUSTED) -> tuple[Outcome, str]:
    with pytest.raises(Refusal) as caught:
        identified(from_, headers, peer)
    return caught.value.outcome, caught.value.code


MISSING = (Outcome.UNAUTHENTICATED, "missing_api_key")


def test_headers_of_a_proxy_name_tenant_and_client() -> None:
    client = identified(directory(LITELLM), {TEAM.upper(): "acme", USER: "ann"})
    assert (client.identity, client.tenant_weight) == ("ns/acme/ann", 2)
    assert identified(directory(LITELLM), {TEAM: "acme"}).identity == "ns/acme/default"
    assert identified(directory(LITELLM), {TEAM: "acme", USER: ""}).identity == "ns/acme/default"


def test_the_same_headers_of_another_peer_are_ignored() -> None:
    headers = {TEAM: "acme", USER: "ann"}
    assert refused(directory(LITELLM), headers, STRANGER) == MISSING
    shared = directory(LITELLM, anonymous=Anonymous.SHARE)
    assert identified(shared, headers, STRANGER) is shared.anonymous
    assert shared.spoofed(shared.claims_of(CIMultiDict(headers), STRANGER))


def test_a_client_without_a_tenant_has_the_default_tenant_or_no_identity() -> None:
    assert refused(directory(LITELLM), {USER: "ann"}) == MISSING
    entry = IdentityHeader(preset=IdentityPreset.LITELLM, default_tenant="acme")
    assert identified(directory(entry), {USER: "ann"}).identity == "ns/acme/ann"
    webui = directory(WEBUI, undeclared_tenants=ACCEPT)
    client = identified(webui, {"X-OpenWebUI-User-Email": "ann@example.com"})
    assert client.identity == "ns/open-webui/ann%40example.com"


def test_the_first_entry_that_names_a_tenant_decides() -> None:
    both = directory(LITELLM, WEBUI, undeclared_tenants=ACCEPT)
    headers = {"x-openwebui-user-email": "bob", TEAM: "acme", USER: "ann"}
    assert identified(both, headers).identity == "ns/acme/ann"
    del headers[TEAM]
    assert identified(both, headers).identity == "ns/open-webui/bob"


def test_headers_of_the_router_itself_do_not_count_beside_configured_ones() -> None:
    # A proxy that passes on headers of its clients would let them choose their tenant.
    assert refused(directory(LITELLM), {"x-evenkeel-client": "acme"}) == MISSING
    both = identified(directory(LITELLM), {"x-evenkeel-client": "other", TEAM: "acme"})
    assert both.tenant == "acme"


def test_a_configured_header_decides_before_the_key_of_its_proxy() -> None:
    key = ApiKeyConfig(name="k", client="chat", sha256=sha256("sk-1"))
    owner = TenantConfig(namespace="ns", name="owner", api_keys=(key,))
    acme = TenantConfig(namespace="ns", name="acme")
    keyed = directory(LITELLM, tenants=(owner, acme))
    for sent in ("Bearer sk-1", "Bearer of-litellm"):
        assert identified(keyed, {"Authorization": sent, TEAM: "acme"}).tenant == "acme"
    direct = {"Authorization": "Bearer sk-1", TEAM: "acme"}
    assert identified(keyed, direct, STRANGER).tenant == "owner"
    unknown = {"Authorization": "Bearer of-litellm", TEAM: "acme"}
    assert refused(keyed, unknown, STRANGER) == (Outcome.UNAUTHENTICATED, "invalid_api_key")


def test_values_are_one_name_whatever_they_contain() -> None:
    any_ = directory(LITELLM, undeclared_tenants=ACCEPT)
    client = identified(any_, {TEAM: "Ads / Europe;w=9", USER: "a/b ü"})
    assert client.identity == "ns/Ads%20%2F%20Europe%3Bw%3D9/a%2Fb%20%C3%BC"
    assert client.key.count(";") == 2


@pytest.mark.parametrize("value", ["a\x00b", "a\x7f", "\udce9", "x" * 254, "ü" * 127])
def test_values_that_are_no_names_are_refused(value: str) -> None:
    any_ = directory(LITELLM, undeclared_tenants=ACCEPT)
    want = (Outcome.INVALID_REQUEST, "invalid_header")
    assert refused(any_, {TEAM: value}) == want
    assert refused(any_, {TEAM: "acme", USER: value}) == want


def test_names_that_are_too_long_together_are_refused() -> None:
    any_ = directory(LITELLM, undeclared_tenants=ACCEPT)
    long = {TEAM: "ü" * 126, USER: "ü" * 126}
    assert refused(any_, long) == (Outcome.INVALID_REQUEST, "invalid_header")


def test_a_header_that_comes_twice_is_refused() -> None:
    pairs = [(TEAM, "acme"), (TEAM, "other")]
    want = (Outcome.INVALID_REQUEST, "duplicate_header")
    assert refused(directory(LITELLM), pairs) == want
    assert refused(directory(LITELLM), pairs, STRANGER) == MISSING


def test_undeclared_tenants_are_refused_by_default() -> None:
    want = (Outcome.FORBIDDEN, "unknown_tenant")
    assert refused(directory(LITELLM), {TEAM: "new"}) == want
    assert refused(directory(), {"x-evenkeel-client": "new"}) == want


def test_accepted_tenants_have_the_default_weight_and_no_limits() -> None:
    any_ = directory(LITELLM, undeclared_tenants=ACCEPT, undeclared_tenant_weight=5)
    new, other = (identified(any_, {TEAM: name}) for name in ("new", "other"))
    assert (new.identity, new.tenant_weight) == ("ns/new/default", 5)
    assert new.limits is other.limits
    assert new.limits == TenantLimits()
    declared = identified(any_, {TEAM: "acme"})
    assert (declared.tenant_weight, declared.limits.max_concurrent) == (2, 3)


def test_undeclared_tenants_may_share_one_tenant() -> None:
    shared = directory(LITELLM, undeclared_tenants=SHARE, undeclared_tenant_weight=5)
    client = identified(shared, {TEAM: "new", USER: "ann"})
    assert (client.identity, client.tenant_weight) == (f"ns/{UNDECLARED}/new", 5)
    declared = TenantConfig(namespace="ns", name=UNDECLARED, weight=7)
    named = directory(LITELLM, undeclared_tenants=SHARE, tenants=(declared,))
    assert identified(named, {TEAM: "new"}).tenant_weight == 7


def test_tenants_of_other_namespaces_are_never_accepted_undeclared() -> None:
    any_ = directory(undeclared_tenants=ACCEPT)
    assert identified(any_, {"x-evenkeel-client": "new/ann"}).identity == "ns/new/ann"
    want = (Outcome.FORBIDDEN, "unknown_tenant")
    assert refused(any_, {"x-evenkeel-client": "far/new/ann"}) == want


def test_every_preset_names_a_tenant() -> None:
    assert set(PRESETS) == set(IdentityPreset)
    for preset in IdentityPreset:
        for names in expanded([IdentityHeader(preset=preset)]):
            assert names.tenant or names.default_tenant


def test_fields_of_an_entry_replace_those_of_its_preset() -> None:
    entry = IdentityHeader(preset=IdentityPreset.LITELLM, tenant="X-LiteLLM-user_api_key_org_alias")
    (names,) = expanded([entry])
    assert (names.tenant, names.client) == ("x-litellm-user_api_key_org_alias", USER)


def test_what_is_remembered_of_named_clients_is_bounded() -> None:
    any_ = directory(LITELLM, undeclared_tenants=ACCEPT)
    for number in range(10_050):
        identified(any_, {TEAM: f"t{number}"})
    assert len(any_._by_name) == 10_000


def test_keys_in_one_of_several_services_have_the_weights_there() -> None:
    everywhere = directory(LITELLM, undeclared_tenants=ACCEPT, anonymous=Anonymous.SHARE)
    senders: tuple[dict[str, str], ...] = ({TEAM: "acme"}, {TEAM: "new"}, {})
    before = [identified(everywhere, one) for one in senders]
    weights = {"ns/acme": 0.125, "ns/new": 1.5, "ns/anonymous": 0.5}
    here = LocalDirectory(everywhere, weights)
    found = [identified(here, one) for one in senders]
    assert [one.tenant_weight for one in found] == [0.125, 1.5, 0.5]
    assert [decode(one.key).tenant_weight for one in found] == [0.125, 1.5, 0.5]
    assert found[2] is here.anonymous
    # Admission compares the limits of a tenant by `is`, and the other directory has the weights that it had.
    assert [one.limits is old.limits for one, old in zip(found, before, strict=True)][:2] == [
        True
    ] * 2
    assert [identified(everywhere, one) for one in senders] == before
