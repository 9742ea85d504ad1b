"""`evenkeel keys`: new keys from each kind of file, and what it says of a bad one."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

import pytest
from evenkeel_cli.main import build
from evenkeel_contract.signedkeys import SignedKey, verify
from typer.testing import CliRunner, Result

SECRETS = {"2026-11": "o" * 32, "2026-12": "n" * 32}
ROUTE = {
    "replicas": [{"url": "http://127.0.0.1:1"}],
    "tenants": [{"name": "ads"}],
    "signedKeys": {"keys": [{"id": id_, "secret": secret} for id_, secret in SECRETS.items()]},
    "state": {"revocations": "/tmp/r"},
}
SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "llm-signing", "namespace": "team-ml"},
    "data": {id_: b64encode(f"{text}\n".encode()).decode() for id_, text in SECRETS.items()},
}
OTHER = {"kind": "Secret", "metadata": {"name": "ads-keys"}, "stringData": {"chat": "x" * 40}}
SERVICE = {
    "kind": "FairInferenceService",
    "metadata": {"name": "llm", "namespace": "team-ml"},
    "spec": {"tenancy": {"signedKeys": {"secretRef": {"name": "llm-signing"}}}},
}
NAMED = ("--tenant", "ads", "--client", "ann")


def run(*words: str, given: str | None = None) -> Result:
    return CliRunner().invoke(build(["keys"]), ["keys", *words], input=given)


def created(*words: str, given: str | None = None) -> SignedKey:
    found = run("create", *words, given=given)
    assert found.exit_code == 0, found.output
    (key,) = found.stdout.split()
    return verify(key, SECRETS)


@pytest.fixture
def route(tmp_path: Path) -> str:
    file = tmp_path / "route.yaml"
    file.write_text(json.dumps(ROUTE))
    return str(file)


def test_a_key_of_the_file_of_a_router(route: str) -> None:
    key = created("--from", route, *NAMED, "--expires", "12h", "--max-concurrent", "3")
    assert (key.identity, key.signer, key.max_concurrent) == ("default/ads/ann", "2026-12", 3)
    assert key.expires_s - key.issued_s == 12 * 3600
    older = created("--from", route, "--tenant", "ads", "--signer", "2026-11")
    assert (older.signer, older.client) == ("2026-11", "default")
    assert older.expires_s - older.issued_s == 90 * 24 * 3600
    assert older.id != key.id


def test_a_key_of_a_secret_as_kubectl_prints_it() -> None:
    key = created("--from", "-", *NAMED, given=json.dumps(SECRET))
    assert key.identity == "team-ml/ads/ann"


def test_a_key_of_the_file_of_a_fleet(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("---\n".join(json.dumps(one) + "\n" for one in (OTHER, SERVICE, SECRET)))
    key = created("--from", str(file), *NAMED, "--namespace", "far")
    assert (key.namespace, key.signer) == ("far", "2026-12")


def test_a_key_that_the_routers_of_its_file_would_refuse_is_not_created(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"

    def refused(*documents: object, words: tuple[str, ...]) -> str:
        file.write_text("---\n".join(json.dumps(one) + "\n" for one in documents))
        found = run("create", "--from", str(file), *words)
        assert (found.exit_code, found.stdout) == (1, "")
        return " ".join(found.stderr.split())

    nobody = ("--tenant", "nobody")
    assert "has no tenant 'nobody'" in refused(ROUTE, words=nobody)
    signed = dict(ROUTE["signedKeys"], maxLifetimeS=3600)  # type: ignore[call-overload]
    assert "maxLifetime" in refused({**ROUTE, "signedKeys": signed}, words=NAMED)
    of_gateway = {"signedKeys": {"secretRef": {"name": "llm-signing"}, "maxLifetime": "720h"}}
    gateway = {"kind": "FairInferenceGateway", "spec": {"tenancy": of_gateway}}
    assert "30d; use a shorter --expires" in refused(gateway, SECRET, words=NAMED)
    for accepted in ("Accept", "Share"):
        file.write_text(json.dumps({**ROUTE, "undeclaredTenants": accepted}))
        assert created("--from", str(file), *nobody).tenant == "nobody"
    assert created("--from", str(file), *NAMED, "--expires", "366d").tenant == "ads"


def test_what_a_key_says_can_be_read(route: str) -> None:
    found = json.loads(run("create", "--from", route, *NAMED, "--json").stdout)
    shown = run("show", "--json", given=f"{found['key']}\n")
    assert json.loads(shown.stdout) == {
        name: value for name, value in found.items() if name != "key"
    }
    assert "default/ads/ann" in run("show", given=found["key"]).stdout
    assert run("show", given="sk-1").exit_code == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (NAMED, "--from FILE"),
        (("--from", "ROUTE"), "--tenant NAME"),
        (("--from", "ROUTE", *NAMED, "--expires", "soon"), "30m, 12h or 90d"),
        (("--from", "ROUTE", *NAMED, "--expires", "9999d"), "at most 3660d"),
        (("--from", "ROUTE", *NAMED, "--signer", "x"), "2026-11, 2026-12"),
        (("--from", "ROUTE", "--tenant", "x" * 254), "tenant"),
        (("--from", "/nowhere", *NAMED), "cannot be read"),
    ],
)
def test_what_is_wrong_is_named(route: str, words: tuple[str, ...], text: str) -> None:
    found = run("create", *(route if word == "ROUTE" else word for word in words))
    assert found.exit_code == 1
    assert text in " ".join(found.stderr.split())


@pytest.mark.parametrize("data", [{"kind": "Secret", "data": {"a": "%"}}, {"replicas": []}, OTHER])
def test_files_without_signing_keys_are_refused(tmp_path: Path, data: object) -> None:
    file = tmp_path / "f.yaml"
    if data is OTHER:
        data = {**OTHER, "stringData": {"chat": "short"}}
    file.write_text(json.dumps(data))
    found = run("create", "--from", str(file), *NAMED)
    assert found.exit_code == 1
    assert "short" not in found.stderr


def test_a_revocation_names_a_key_or_an_identity() -> None:
    for words in ((), ("--id", "a", "--tenant", "b")):
        found = run("revoke", *words, "--url", "http://127.0.0.1:1")
        assert (found.exit_code, "revoke needs" in found.stderr) == (1, True)
    found = run("revoke", "--id", "a", "--url", "http://127.0.0.1:1")
    assert "does not answer" in " ".join(found.stderr.split())
