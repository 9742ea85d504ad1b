"""Who a request belongs to."""

import hashlib

import pytest
from evenkeel_contract.key import decode
from evenkeel_contract.routerconfig import (
    Anonymous,
    ApiKeyConfig,
    CacheSharing,
    ClientConfig,
    TenancyConfig,
    TenantConfig,
)
from evenkeel_fairshare.ledger import Seed
from evenkeel_router.api.claims import Claims
from evenkeel_router.api.errors import Outcome, Refusal
from evenkeel_router.api.identity import UNPAID, Client, Directory, Paid, tenant_identity
from evenkeel_router.api.proxies import Proxies

HEADER = "x-evenkeel-client"
TRUSTED, STRANGER = "10.0.0.7", "203.0.113.9"


def directory(
    *,
    keys: bool = True,
    anonymous: Anonymous = Anonymous.REJECT,
    sharing: CacheSharing = CacheSharing.TENANT,
    salt_key: str = "secret",
) -> Directory:
    digest = hashlib.sha256(b"sk-1").hexdigest()
    acme = TenantConfig(
        namespace="ns",
        name="acme",
        weight=2,
        default_client_weight=5,
        clients=(ClientConfig(name="chat", weight=3),),
        api_keys=(ApiKeyConfig(name="k", client="chat", sha256=digest),) if keys else (),
    )
    elsewhere = TenantConfig(namespace="far", name="other")
    tenancy = TenancyConfig(
        anonymous=anonymous,
        trusted_proxies=("10.0.0.0/8",),
        tenants=(acme, elsewhere),
        cache_sharing=sharing,
    )
    return Directory(tenancy, namespace="ns", salt_key=salt_key)


def claims(
    *authorization: str,
    keys: tuple[str, ...] = (),
    named: tuple[str, ...] = (),
    peer: str = STRANGER,
) -> Claims:
    return Claims(authorization, keys, [(HEADER, value) for value in named], peer)


def identified(claims_: Claims, directory_: Directory | None = None) -> Client:
    return (directory_ or directory()).identify(claims_)


def refused(claims_: Claims, directory_: Directory | None = None) -> tuple[Outcome, str]:
    with pytest.raises(Refusal) as caught:
        identified(claims_, directory_)
    return caught.value.outcome, caught.value.code


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_an_api_key_names_its_client(scheme: str) -> None:
    client = identified(claims(f"{scheme} sk-1"))
    assert (client.identity, client.tenant_identity, client.weight) == (
        "ns/acme/chat",
        "ns/acme",
        6,
    )
    key = decode(client.key)
    assert (key.identity, key.tenant_weight, key.client_weight) == ("ns/acme/chat", 2, 3)
    retried = decode(client.keyed(Seed(-5.0, 0.0), Paid(True, 7)))
    assert (retried.seed, retried.retried_by_fleet, retried.paid_output_tokens) == (-5, True, 7)
    assert decode(client.keyed(Seed(0.0, 3.0), Paid(True))).tenant_seed == 3
    assert client.keyed(Seed(0.0, 0.0), UNPAID) == client.key


@pytest.mark.parametrize("value", ["Bearer sk-2", "Bearer ", "Bearer", "sk-1", "Basic sk-1", ""])
def test_an_unknown_key_is_refused_even_with_anonymous_access(value: str) -> None:
    shared = directory(anonymous=Anonymous.SHARE)
    want = (Outcome.UNAUTHENTICATED, "invalid_api_key")
    assert refused(claims(value), shared) == want
    assert refused(claims(value, named=("acme",), peer=TRUSTED), shared) == want


def test_a_key_counts_in_each_of_its_headers() -> None:
    assert identified(claims(keys=("sk-1",))).identity == "ns/acme/chat"
    assert identified(claims("Bearer sk-1", keys=("sk-1", "sk-1"))).identity == "ns/acme/chat"
    assert refused(claims(keys=("sk-2",))) == (Outcome.UNAUTHENTICATED, "invalid_api_key")


def test_two_keys_that_differ_are_refused() -> None:
    want = (Outcome.INVALID_REQUEST, "duplicate_header")
    assert refused(claims("Bearer sk-1", keys=("sk-2",))) == want
    assert refused(claims(keys=("sk-1", "sk-2"))) == want


def test_a_key_is_stronger_than_a_header() -> None:
    assert (
        identified(claims("Bearer sk-1", named=("other",), peer=TRUSTED)).identity == "ns/acme/chat"
    )


def test_without_any_api_key_the_authorization_header_is_no_claim() -> None:
    keyless = directory(keys=False, anonymous=Anonymous.SHARE)
    assert identified(claims("Bearer whatever"), keyless).identity == "ns/anonymous/anonymous"
    named = claims("Bearer whatever", named=("acme/x",), peer=TRUSTED)
    assert identified(named, keyless).identity == "ns/acme/x"


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("acme", "ns/acme/default"),
        ("acme/chat", "ns/acme/chat"),
        ("acme/new", "ns/acme/new"),
        ("far/other/x", "far/other/x"),
    ],
)
def test_a_trusted_proxy_names_tenant_and_client(value: str, want: str) -> None:
    names = directory()
    for _ in range(2):  # read, and remembered
        client = identified(claims(named=(value,), peer=TRUSTED), names)
        assert client.identity == want
    assert client.weight == {"ns/acme/chat": 6}.get(want, 10 if "acme" in want else 1)


@pytest.mark.parametrize("peer", [STRANGER, "", "not an address", "::ffff:203.0.113.9"])
def test_an_identity_header_from_anybody_else_counts_as_not_sent(peer: str) -> None:
    spoof = claims(named=("acme/chat",), peer=peer)
    assert refused(spoof) == (Outcome.UNAUTHENTICATED, "missing_api_key")
    shared = directory(anonymous=Anonymous.SHARE)
    assert identified(spoof, shared).identity == "ns/anonymous/anonymous"
    assert shared.spoofed(spoof)
    assert not shared.spoofed(claims(named=("acme/chat",), peer=TRUSTED))
    assert not shared.spoofed(claims(peer=peer))


def test_an_ipv4_proxy_is_trusted_through_an_ipv6_socket_too() -> None:
    proxies = Proxies(("10.0.0.0/8", "fe80::/10"))
    assert proxies.trusts("::ffff:10.1.2.3")
    assert proxies.trusts("fe80::1%eth0")
    assert not proxies.trusts("::ffff:11.1.2.3")


def test_addresses_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenkeel_router.api.proxies._MAX_REMEMBERED", 2)
    proxies = Proxies(("10.0.0.0/8",))
    peers = [f"10.0.0.{n}" for n in range(9)] + [f"11.0.0.{n}" for n in range(9)]
    assert [proxies.trusts(peer) for peer in peers] == [True] * 9 + [False] * 9
    assert len(proxies._known) <= 2


def test_an_unknown_tenant_is_forbidden() -> None:
    want = (Outcome.FORBIDDEN, "unknown_tenant")
    assert refused(claims(named=("nobody",), peer=TRUSTED)) == want
    assert refused(claims(named=("elsewhere/acme/chat",), peer=TRUSTED)) == want


@pytest.mark.parametrize(
    "value",
    [
        "",
        "/",
        "acme/",
        "/acme",
        "a/b/c/d",
        "ac me",
        "acme\x01",
        "acmé",
        "acme\udcff",
        "acme/" + "x" * 300,
    ],
)
def test_an_identity_header_of_another_shape_is_refused(value: str) -> None:
    assert refused(claims(named=(value,), peer=TRUSTED)) == (
        Outcome.INVALID_REQUEST,
        "invalid_header",
    )


def test_two_headers_that_name_the_sender_are_refused_from_anybody() -> None:
    want = (Outcome.INVALID_REQUEST, "duplicate_header")
    assert refused(claims("Bearer sk-1", "Bearer sk-1")) == want
    assert refused(claims("Bearer sk-1", named=("acme", "acme"))) == want
    assert refused(claims(named=("acme", "other"), peer=TRUSTED)) == want


def test_a_tenant_called_anonymous_sets_the_weight_of_anonymous_requests() -> None:
    tenancy = TenancyConfig(
        anonymous=Anonymous.SHARE,
        tenants=(TenantConfig(namespace="ns", name="anonymous", weight=4),),
    )
    client = Directory(tenancy, namespace="ns").identify(claims())
    assert (client.identity, client.weight) == ("ns/anonymous/anonymous", 4)


def test_what_proxies_name_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenkeel_router.api.identity._MAX_REMEMBERED", 2)
    names = directory()
    first = identified(claims(named=("acme/0",), peer=TRUSTED), names)
    for n in range(1, 4):
        identified(claims(named=(f"acme/{n}",), peer=f"10.0.0.{n}"), names)
    again = identified(claims(named=("acme/0",), peer=TRUSTED), names)
    assert again == first
    assert again is not first


def test_the_identity_of_a_tenant_is_escaped() -> None:
    assert tenant_identity(TenantConfig(namespace="n s", name="a/b")) == "n%20s/a%2Fb"


@pytest.mark.parametrize(
    ("sharing", "salts"),
    [(CacheSharing.SERVICE, 1), (CacheSharing.TENANT, 2), (CacheSharing.CLIENT, 3)],
)
def test_clients_within_the_border_share_a_salt(sharing: CacheSharing, salts: int) -> None:
    """By key, by header, declared or not: the border alone decides."""
    there = directory(sharing=sharing)
    named = [
        identified(claims(named=(name,), peer=TRUSTED), there).cache_salt
        for name in ("acme/chat", "acme/batch", "far/other/chat")
    ]
    assert identified(claims("Bearer sk-1"), there).cache_salt == named[0]
    assert len(set(named)) == salts
    assert all(named) is (sharing is not CacheSharing.SERVICE)


def test_a_salt_needs_the_secret_and_is_the_same_at_every_router() -> None:
    one, same, other = (
        identified(claims("Bearer sk-1"), directory(salt_key=key)).cache_salt
        for key in ("secret", "secret", "another")
    )
    assert one == same != other
    assert "acme" not in one
