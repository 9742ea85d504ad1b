"""The audit log: a line for each fact, and few lines for many refusals."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from evenkeel_contract.revocations import Revocation
from evenkeel_contract.routerconfig import TenancyConfig
from evenkeel_contract.signedkeys import SignedKeysConfig, SigningKeyConfig
from evenkeel_router.api.signed_keys import CredentialRefused
from evenkeel_router.request.audit import Audit

from tests.support.routers import KEY, sha256, tenancy


class World:
    """An audit and its clock."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "evenkeel_router.request.audit")
        self.now_s = 0.0
        self.audit = Audit(lambda: self.now_s)
        self._records = caplog.records

    def lines(self) -> list[str]:
        found = [record.getMessage() for record in self._records]
        self._records.clear()
        return found


def refusal(whose: str = "ns/ads/ann", reason: str = "expired") -> CredentialRefused:
    return CredentialRefused(reason, "details", whose=whose)


def test_refusals_of_one_identity_are_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(caplog)
    for _ in range(5):
        world.audit.refused(refusal(), "10.0.0.1")
    world.audit.refused(refusal(reason="revoked"), "10.0.0.1")
    world.audit.refused(refusal(whose=""), "10.0.0.2")
    assert [line.split(":")[0] for line in world.lines()] == [
        "refused a credential of ns/ads/ann",
        "refused a credential of ns/ads/ann",
        "refused a credential of address 10.0.0.2",
    ]
    world.now_s = 60.0
    world.audit.refused(refusal(), "10.0.0.1")
    (line,) = world.lines()
    assert "(4 more since the last line)" in line
    assert world.audit.refused_by_reason == {"expired": 7, "revoked": 1}


def test_what_is_remembered_of_refusals_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    world = World(caplog)
    for number in range(1200):
        world.audit.refused(refusal(whose=""), f"10.0.{number // 250}.{number % 250}")
    assert len(world.audit._lines) == 1000


def test_a_changed_configuration_is_a_line_for_each_credential(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(caplog)
    signed = SignedKeysConfig(keys=(SigningKeyConfig(id="2026-11", secret="s" * 32),))
    before, after = TenancyConfig(), tenancy(signed_keys=signed, trusted_proxies=("10.0.0.0/8",))
    world.audit.configured(before, after)
    assert world.lines() == [
        "added kind=tenant name=ns/acme",
        f"added kind=key name=ns/acme/chat: k {sha256(KEY)[:8]}",
        "added kind=signing key name=2026-11",
        "added kind=trusted proxy name=10.0.0.0/8",
    ]
    world.audit.configured(after, replace(after, signed_keys=None))
    assert world.lines() == ["removed kind=signing key name=2026-11"]
    world.audit.configured(after, after)
    assert world.lines() == []


def test_a_revocation_is_a_line_with_its_author(caplog: pytest.LogCaptureFixture) -> None:
    world = World(caplog)
    world.audit.revoked([Revocation("id-1", 1, 2)], "router r1")
    assert world.lines() == ["revoked subject=id-1 until=2 by=router r1"]
    world.audit.revoked([Revocation("id-2", 1, 2)], "an administrator")
    assert caplog.records[0].fields == {
        "audit": "revoked",
        "subject": "id-2",
        "until": 2,
        "by": "an administrator",
    }
