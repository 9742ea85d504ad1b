"""Tokens of issuers: whom they name, and each way in which one is no token of the issuer."""

from __future__ import annotations

import hmac
import json
import time
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from evenkeel_contract.revocations import Revocation, RevocationList
from evenkeel_contract.tokenissuers import GroupRule, TokenIssuerConfig
from evenkeel_router.api.signed_keys import CredentialRefused
from evenkeel_router.api.token_keys import KeySetError, KeySets, KeysWanted, read_key_set
from evenkeel_router.api.tokens import MAX_TOKEN, Tokens
from joserfc.jwk import OctKey, OKPKey

from tests.support import issuers
from tests.support.issuers import AUDIENCE, ISSUER, claims, ec, key_set, rsa

URL = "https://login.example.com/keys"
NOW = time.time()
HOUR = 3600


def token(key: Any, *algorithm: str, header: Any = None, **changes: Any) -> str:
    times = {"iat": NOW, "exp": NOW + 600}
    return issuers.token(key, *algorithm, header=header, **(times | changes))


def config(**changes: Any) -> TokenIssuerConfig:
    given: dict[str, Any] = {
        "issuer": ISSUER, "audience": AUDIENCE, "jwks_URL": URL, "tenant_claim": "team",
    }  # fmt: skip
    return TokenIssuerConfig(**(given | changes))


def tokens(*configs: TokenIssuerConfig, keys: str | None = None, **given: Any) -> Tokens:
    sets = KeySets()
    sets.put(URL, read_key_set(keys or key_set(rsa("a"), ec("e"))))
    revocations = given.get("revocations") or RevocationList()
    return Tokens(configs or (config(),), sets, revocations, namespace="ns")


def named(text: str, verifier: Tokens | None = None, now_s: float = NOW) -> tuple[str, str]:
    found, _ = (verifier or tokens()).verified(text, now_s)
    return found.tenant, found.client


def reason(text: str, verifier: Tokens | None = None, now_s: float = NOW) -> str:
    with pytest.raises(CredentialRefused) as caught:
        named(text, verifier, now_s)
    assert text not in caught.value.detail
    return caught.value.reason


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256"])
def test_a_token_names_tenant_and_client(algorithm: str) -> None:
    assert named(token(rsa("a"), algorithm)) == ("acme", "ann")


@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")  # its new name is Ed25519 (RFC 9864)
def test_other_types_of_keys_sign_with_their_own_algorithms() -> None:
    assert named(token(ec("e"), "ES256")) == ("acme", "ann")
    edwards = OKPKey.generate_key("Ed25519", {"kid": "o"})
    verifier = tokens(keys=json.dumps({"keys": [edwards.as_dict(private=False)]}))
    assert named(token(edwards, "EdDSA"), verifier) == ("acme", "ann")


def test_a_token_without_a_key_id_is_tried_with_each_key() -> None:
    text = token(rsa("a"), header={"alg": "RS256"})
    assert named(text, tokens(keys=key_set(rsa("b"), ec("e"), rsa("a")))) == ("acme", "ann")
    assert reason(text, tokens(keys=key_set(rsa("b")))) == "bad_signature"


def unsigned(header: Any, payload: Any, signature: str = "") -> str:
    parts = (
        urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
        for part in (header, payload)
    )
    return ".".join((*parts, signature))


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "", None, 5, ["RS256"]])
def test_an_unsigned_token_is_refused(algorithm: Any) -> None:
    for kid in ("a", None):
        header = {"alg": algorithm} | ({} if kid is None else {"kid": kid})
        assert reason(unsigned(header, claims())) in ("algorithm", "malformed")


def test_a_mac_by_the_public_key_is_refused() -> None:
    public = rsa("a").as_pem(private=False)
    for secret in (public, public.strip(), json.dumps(rsa("a").as_dict(private=False)).encode()):
        for kid in ({"kid": "a"}, {}):
            signed = unsigned({"alg": "HS256", **kid}, claims()).removesuffix(".")
            mac = hmac.digest(secret, signed.encode(), "sha256")
            signature = urlsafe_b64encode(mac).rstrip(b"=").decode()
            assert reason(f"{signed}.{signature}") == "algorithm"


def test_keys_for_macs_are_never_read_from_an_address() -> None:
    mac = OctKey.generate_key(256, {"kid": "m"})
    published = json.dumps({"keys": [mac.as_dict()]})
    assert reason(token(mac, "HS256"), tokens(keys=published)) == "unknown_issuer_key"
    given = tokens(config(jwks_URL=None, jwks=published))
    assert named(token(mac, "HS256"), given) == ("acme", "ann")


def test_keys_in_the_header_of_a_token_are_not_used() -> None:
    stranger = rsa("b")
    for more in (
        {"jwk": stranger.as_dict(private=False)},
        {"jku": "http://127.0.0.1:1/keys"},
        {"x5u": "http://127.0.0.1:1/keys"},
    ):
        header = {"alg": "RS256", "kid": "a", **more}
        assert reason(token(stranger, header=header)) in ("bad_signature", "malformed")


def test_a_key_counts_only_for_its_own_algorithm_and_use() -> None:
    only = {**rsa("a").as_dict(private=False), "alg": "RS512"}
    verifier = tokens(keys=json.dumps({"keys": [only]}))
    assert named(token(rsa("a"), "RS512"), verifier) == ("acme", "ann")
    assert reason(token(rsa("a"), "RS256"), verifier) == "algorithm"
    encrypts = {**rsa("a").as_dict(private=False), "use": "enc"}
    assert reason(token(rsa("a")), tokens(keys=json.dumps({"keys": [encrypts]}))) == (
        "unknown_issuer_key"
    )


def test_a_changed_token_has_a_bad_signature() -> None:
    head, payload, signature = token(rsa("a")).split(".")
    other = unsigned({}, claims(team="search")).split(".")[1]
    assert reason(f"{head}.{other}.{signature}") == "bad_signature"
    assert reason(f"{head}.{payload}.{signature[:-8]}AAAAAAAA") == "bad_signature"
    assert reason(f"{head}.{payload}.") == "bad_signature"


def test_an_unknown_key_is_wanted_from_the_issuer() -> None:
    with pytest.raises(KeysWanted) as caught:
        named(token(rsa("b")))
    assert (caught.value.url, caught.value.status) == (URL, 401)
    empty = Tokens((config(),), KeySets(), RevocationList(), namespace="ns")
    with pytest.raises(KeysWanted) as caught:
        named(token(rsa("a")), empty)
    assert (caught.value.reason, caught.value.status) == ("no_issuer_keys", 503)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"aud": "other"}, "wrong_audience"),
        ({"aud": None}, "wrong_audience"),
        ({"aud": ["a", "b"]}, "wrong_audience"),
        ({"iss": "https://evil.example.com"}, "unknown_issuer"),
        ({"iss": None}, "unknown_issuer"),
        ({"exp": None}, "no_expiry"),
        ({"exp": "9999999999"}, "no_expiry"),
        ({"exp": True}, "no_expiry"),
        ({"nbf": "soon"}, "malformed"),
        ({"team": None}, "no_tenant"),
        ({"team": ""}, "no_tenant"),
        ({"team": "a\x00b"}, "no_tenant"),
        ({"team": "x" * 254}, "no_tenant"),
        ({"team": {"name": "acme"}}, "no_tenant"),
        ({"sub": None}, "no_client"),
        ({"sub": ["ann"]}, "no_client"),
    ],
)
def test_a_token_with_other_claims_is_refused(changes: dict[str, Any], why: str) -> None:
    assert reason(token(rsa("a"), **changes)) == why


def test_one_of_several_audiences_is_enough() -> None:
    assert named(token(rsa("a"), aud=["web", AUDIENCE])) == ("acme", "ann")


def test_clocks_may_differ_by_the_leeway_and_no_more() -> None:
    text = token(rsa("a"), exp=NOW + 600, iat=NOW)
    assert named(text, now_s=NOW + 659)
    assert reason(text, now_s=NOW + 661) == "expired"
    assert named(text, now_s=NOW - 59)
    assert reason(text, now_s=NOW - 61) == "not_yet_valid"
    strict = tokens(config(leeway_s=0))
    assert reason(text, strict, NOW + 600) == "expired"


@pytest.mark.parametrize(("off_s", "why"), [(HOUR, "expired"), (-HOUR, "not_yet_valid")])
def test_a_clock_that_is_off_by_an_hour_is_named_in_the_log(off_s: int, why: str) -> None:
    with pytest.raises(CredentialRefused) as caught:
        named(token(rsa("a")), now_s=NOW + off_s)
    assert caught.value.reason == why
    assert "compare the clocks" in caught.value.detail
    assert "clock" not in str(caught.value)


def test_the_time_at_which_a_token_ends_includes_the_leeway() -> None:
    assert tokens().verified(token(rsa("a"), exp=NOW + 600), NOW)[1] == NOW + 660


@pytest.mark.parametrize(
    "text",
    ["a.b.c", "..", "eyJ.eyJ.x", "eyJhbGciOiJSUzI1NiJ9.W10.x", unsigned({}, [1]), unsigned([], {})],
)
def test_what_is_no_token_is_refused(text: str) -> None:
    assert reason(text) in ("malformed", "unknown_issuer", "wrong_audience")


def test_huge_tokens_are_refused_before_they_are_read() -> None:
    assert reason(token(rsa("a"), more="x" * MAX_TOKEN)) == "too_long"
    deep = "[" * 3000 + "]" * 3000
    payload = urlsafe_b64encode(b'{"a":' + deep.encode() + b"}").rstrip(b"=").decode()
    assert reason(f"{unsigned({'alg': 'RS256'}, {}).split('.')[0]}.{payload}.x") in (
        "malformed",
        "too_long",
    )


def test_groups_name_the_tenant_before_a_claim_does() -> None:
    rules = (GroupRule(group="ml", tenant="research"), GroupRule(group="all", tenant="staff"))
    verifier = tokens(config(tenant_of=rules))
    assert named(token(rsa("a"), groups=["all", "ml"]), verifier)[0] == "research"
    assert named(token(rsa("a"), groups=["all"]), verifier)[0] == "staff"
    assert named(token(rsa("a"), groups="ml"), verifier)[0] == "research"
    assert named(token(rsa("a"), groups=["other"]), verifier)[0] == "acme"
    only = tokens(config(tenant_of=rules, tenant_claim=None))
    assert reason(token(rsa("a"), groups=["other"]), only) == "no_tenant"


def test_claims_may_lie_in_objects_and_have_dots() -> None:
    inside = tokens(config(tenant_claim="org.name", client_claim="https://example.com/user"))
    changes = {"org": {"name": "acme"}, "https://example.com/user": 7}
    assert named(token(rsa("a"), **changes), inside) == ("acme", "7")


def test_an_issuer_may_name_only_its_tenants() -> None:
    verifier = tokens(config(allowed_tenants=("acme",)))
    assert named(token(rsa("a")), verifier) == ("acme", "ann")
    with pytest.raises(CredentialRefused) as caught:
        named(token(rsa("a"), team="search"), verifier)
    assert (caught.value.reason, caught.value.whose) == ("tenant_not_allowed", "ns/search/ann")


def test_issuers_are_told_apart_by_issuer_and_audience() -> None:
    two = tokens(config(), config(audience="batch", tenant_claim="batch_team"))
    assert named(token(rsa("a"), aud="batch", batch_team="night"), two) == ("night", "ann")


def test_tokens_of_a_revoked_identity_are_refused() -> None:
    revocations = RevocationList()
    revocations.merge([Revocation("ns/acme", int(NOW) + 1, int(NOW) + HOUR)], NOW)
    verifier = tokens(revocations=revocations)
    assert reason(token(rsa("a"), iat=NOW), verifier) == "revoked"
    assert reason(token(rsa("a"), iat=None), verifier) == "revoked"
    assert named(token(rsa("a"), iat=NOW + 2), verifier) == ("acme", "ann")


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"keys": []}', b'{"keys": [1]}', b'{"keys": 5}', b"x" * 300_000]
)
def test_what_is_no_key_set_is_refused(data: bytes) -> None:
    with pytest.raises(KeySetError):
        read_key_set(data)


def test_keys_that_cannot_be_used_do_not_hide_the_others() -> None:
    bad = [{"kty": "RSA", "kid": "x"}, {"kty": "new", "kid": "y"}, {"kid": "z"}]
    keys = json.dumps({"keys": [*bad, rsa("a").as_dict(private=False)]})
    assert named(token(rsa("a")), tokens(keys=keys)) == ("acme", "ann")
