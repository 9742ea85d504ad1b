"""An issuer of tokens, node-oidc-provider: people log in at it, and its tokens open the fleet while its keys change."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx
from joserfc.jwk import ECKey

from tests.clients.fleet import MODEL, Fleet, documents, fleet, tenant
from tests.clients.programs.check import LIMIT_S, Found, Place, Program
from tests.clients.programs.environment import node_packages
from tests.support.ports import free_ports

HERE: Final = Path(__file__).parent / "issuer"
AUDIENCE, OTHER = "https://llm.example.com", "https://wiki.example.com"
PEOPLE: Final = {"ann": ["all-staff", "research"], "bob": ["visitors"]}
"""Person → groups."""
TOKEN_S: Final = 60
"""How long a token is valid."""
LEEWAY_S: Final = 1
KEYS_S: Final = 60.0
"""The router reads the issuer's keys at most every ten seconds."""
METRICS_S: Final = 60.0
_PAGES: Final = 12
"""Most pages of a login."""


@dataclass(frozen=True, slots=True)
class Issuer:
    """An issuer that `run` starts, and starts again with other keys."""

    folder: Path
    port: int

    @property
    def url(self) -> str:
        """Its address, which is its name."""
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def run(self, *keys: ECKey) -> Iterator[None]:
        """The issuer with these keys, of which the first one signs. Its documentation changes keys with a restart."""
        shutil.copy(HERE / "provider.mjs", self.folder)
        given, secrets = self.folder / "issuer.json", self.folder / "keys.json"
        given.write_text(json.dumps({"port": self.port, "tokenS": TOKEN_S, "people": PEOPLE}))
        of = {"alg": "ES256", "use": "sig"}
        secrets.write_text(
            json.dumps({"keys": [{**one.as_dict(private=True), **of} for one in keys]})
        )
        log = self.folder / "issuer.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["node", "provider.mjs", given, secrets],
                cwd=self.folder,
                stdout=output,
                stderr=output,
            )
        try:
            limit_s = time.monotonic() + LIMIT_S
            while "ready" not in log.read_text():
                assert process.poll() is None and time.monotonic() < limit_s, log.read_text()
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait(30)

    def published(self) -> Mapping[str, Any]:
        """What it says of itself (OpenID Connect Discovery)."""
        found: Mapping[str, Any] = httpx.get(
            f"{self.url}/.well-known/openid-configuration", trust_env=False
        ).json()
        return found

    def token(self, person: str, audience: str = AUDIENCE) -> str:
        """A token for a service, after a login in a browser: authorization code with PKCE (RFC 7636) and a resource (RFC 8707)."""
        verifier, back = "v" * 64, f"{self.url}/back"
        digest = hashlib.sha256(verifier.encode()).digest()
        at = self.published()
        with httpx.Client(trust_env=False) as browser:
            answer = browser.get(
                at["authorization_endpoint"],
                params={
                    "client_id": "chat",
                    "redirect_uri": back,
                    "response_type": "code",
                    "scope": "openid use",
                    "resource": audience,
                    "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
                    "code_challenge_method": "S256",
                },
            )
            code = _code(browser, answer, back, person)
            given = {
                "grant_type": "authorization_code",
                "client_id": "chat",
                "code": code,
                "code_verifier": verifier,
                "redirect_uri": back,
                "resource": audience,
            }
            answer = browser.post(at["token_endpoint"], data=given)
            assert answer.status_code == 200, answer.text
            return str(answer.json()["access_token"])


def _code(browser: httpx.Client, answer: httpx.Response, back: str, person: str) -> str:
    """Follow redirects and fill in forms, as a person does."""
    for _ in range(_PAGES):
        if answer.is_redirect:
            where = str(answer.url.join(answer.headers["location"]))
            if where.startswith(back):
                [code] = parse_qs(urlsplit(where).query)["code"]
                return code
            answer = browser.get(where)
            continue
        form = re.search(r'<form[^>]* action="([^"]+)"', answer.text)
        kind = re.search(r'name="prompt" value="(\w+)"', answer.text)
        assert form is not None and kind is not None, answer.text
        filled = {"prompt": kind[1], "login": person, "password": "any"}
        answer = browser.post(str(answer.url.join(form[1])), data=filled)
    raise AssertionError("the login does not end")


@contextmanager
def _fleet(folder: Path, issuer: Issuer) -> Iterator[Fleet]:
    """A fleet that accepts the issuer's tokens."""
    given = documents({"runtime": "Simulator", "replicas": 1}, {}, [tenant("research")])
    given[0]["spec"]["tenancy"] = {
        "jwt": [
            {
                "issuer": issuer.url,
                "audience": AUDIENCE,
                "jwksURL": issuer.published()["jwks_uri"],
                "tenantOf": [{"group": "research", "tenant": "research"}],
                "allowedTenants": ["research"],
                "leeway": f"{LEEWAY_S}s",
            }
        ]
    }
    with fleet(folder / "fleet", given) as running:
        yield running


@dataclass(frozen=True, slots=True)
class _Service:
    """What is asked of the fleet."""

    fleet: Fleet
    http: httpx.Client

    def status(self, token: str) -> int:
        """The status of a request with a token."""
        messages = [{"role": "user", "content": "hello"}]
        return self.http.post(
            f"{self.fleet.url}/v1/chat/completions",
            json={"model": MODEL, "max_tokens": 1, "messages": messages},
            headers={"Authorization": f"Bearer {token}"},
        ).status_code

    def refusal(self, token: str) -> tuple[int, str]:
        """The status, and the reason by the router's metrics, which are a few seconds old."""
        before, status = self._refused(), self.status(token)
        until_s = time.monotonic() + METRICS_S
        while time.monotonic() < until_s:
            grown = [reason for reason, n in self._refused().items() if n > before.get(reason, 0)]
            if grown:
                return status, ", ".join(grown)
            time.sleep(0.2)
        return status, ""

    def _refused(self) -> dict[str, float]:
        pattern = r'^evenkeel_router_credentials_refused_total\{[^}]*reason="([^"]*)"[^}]*\} (\S+)$'
        page = self.http.get(self.fleet.metrics).text
        return {name: float(n) for name, n in re.findall(pattern, page, re.MULTILINE)}

    def clients(self) -> str:
        """Clients that sent requests."""
        page = self.http.get(self.fleet.metrics).text
        pattern = r'^evenkeel_router_requests?_total\{[^}]*client="([^"]+)"[^}]*tenant="([^"]+)"[^}]*\} (\S+)$'
        found = re.findall(pattern, page, re.MULTILINE)
        return ", ".join(sorted({f"{of}/{name}" for name, of, n in found if float(n)}))


def _provider(place: Place) -> Iterator[Found]:
    packages = node_packages(HERE)
    (place.folder / "node_modules").symlink_to(packages / "node_modules")
    [port] = free_ports(1)
    issuer = Issuer(place.folder, port)
    old, new = (ECKey.generate_key("P-256", {"kid": kid}) for kid in ("old", "new"))
    name = f"node-oidc-provider {_version(packages)}"
    with ExitStack() as stack:
        http = stack.enter_context(httpx.Client(trust_env=False, timeout=30.0))
        with issuer.run(old):
            at = _Service(stack.enter_context(_fleet(place.folder, issuer)), http)
            first = issuer.token("ann")
            first_s = time.monotonic()  # the token ends before first_s + TOKEN_S
            status, clients = at.status(first), at.clients()
            yield Found(
                program=name,
                check="a person logs in; a group in the token names the tenant",
                passed=(status, clients) == (200, "research/ann"),
                figure=f"{status}, client {clients}",
            )
            for check, token, reason in (
                ("a person without a group of the rules", issuer.token("bob"), "no_tenant"),
                ("a token for another service", issuer.token("ann", OTHER), "wrong_audience"),
                ("a token with a changed signature", _changed(first), "bad_signature"),
            ):
                refusal = at.refusal(token)
                yield Found(
                    program=name,
                    check=check,
                    passed=refusal == (401, reason),
                    figure=f"{refusal[0]}, `{refusal[1]}`",
                )
        with issuer.run(new, old):
            second = issuer.token("ann")
            until_s = time.monotonic() + KEYS_S
            while (status := at.status(second)) != 200 and time.monotonic() < until_s:
                time.sleep(0.2)
            statuses = at.status(first), status
            yield Found(
                program=name,
                check="another key signs, the former is still published: tokens of both",
                passed=statuses == (200, 200),
                figure=f"{statuses[0]} and {statuses[1]}",
            )
            time.sleep(max(0.0, first_s + TOKEN_S + 2 * LEEWAY_S - time.monotonic()))
            refusal, status = at.refusal(first), at.status(issuer.token("ann"))
            yield Found(
                program=name,
                check="the first token has expired; a new one",
                passed=(*refusal, status) == (401, "expired", 200),
                figure=f"{refusal[0]}, `{refusal[1]}`; {status}",
            )


def _changed(token: str) -> str:
    """The token with another signature."""
    head, claims, signature = token.split(".")
    return f"{head}.{claims}.{'A' if signature[0] != 'A' else 'B'}{signature[1:]}"


def _version(packages: Path) -> str:
    described = packages / "node_modules" / "oidc-provider" / "package.json"
    return str(json.loads(described.read_text())["version"])


PROGRAMS: Final = (Program("node-oidc-provider", _provider, needs="node"),)
