"""Signed keys of clients, verified without a list of them (contract `signedkeys`).

Why a credential is refused goes to the log and to a metric. The sender gets the same message for all reasons.
"""

from __future__ import annotations

from typing import Final

from evenkeel_contract.revocations import RevocationList
from evenkeel_contract.signedkeys import (
    KeyFault,
    SignedKey,
    SignedKeyError,
    SignedKeysConfig,
    verify,
)

from evenkeel_router.api.errors import Outcome, Refusal
from evenkeel_router.api.own_keys import USE_S, KeyUses, is_own

LEEWAY_S: Final = 60
"""How far the clocks of two machines may differ."""


class CredentialRefused(Refusal):
    """A key or token is not valid here."""

    def __init__(
        self, reason: str, detail: str, *, whose: str = "", unavailable: bool = False
    ) -> None:
        """`unavailable`: the credential may be valid, but cannot be checked now."""
        if unavailable:
            message = (
                "The router cannot check the credential at the moment. Send the request again."
            )
            code, outcome = "identity_unavailable", Outcome.UNAVAILABLE
        else:
            message = "The API key is unknown to this service."
            code, outcome = "invalid_api_key", Outcome.UNAUTHENTICATED
        super().__init__(outcome, message, code=code, retry_after_s=5.0 if unavailable else None)
        self.reason = reason
        """One word, the label of a metric."""
        self.detail = detail
        """Details of the reason; they go to the log only."""
        self.whose = whose
        """Identity that the credential names, where its signature is valid; empty otherwise."""


class SignedKeys:
    """The signing keys of a service and the revocations in force."""

    def __init__(
        self, config: SignedKeysConfig, revocations: RevocationList, uses: KeyUses
    ) -> None:
        self._secrets = {key.id: key.secret for key in config.keys}
        self._max_lifetime_s = config.max_lifetime_s
        self._revocations = revocations
        self._uses = uses

    def verified(self, text: str, now_s: float) -> tuple[SignedKey, float]:
        """(what a valid key says, the time until which it need not be verified again); raises `CredentialRefused`."""
        try:
            key = verify(text, self._secrets)
        except SignedKeyError as error:
            raise CredentialRefused(error.fault.value, str(error)) from error
        fault, detail = self._fault(key, now_s)
        if fault is not None:
            raise CredentialRefused(fault.value, f"key {key.id}: {detail}", whose=key.identity)
        ends_s = float(key.expires_s)
        if is_own(key.id):
            self._uses.used(key.id, now_s)
            ends_s = min(ends_s, now_s + USE_S)  # the next verification notes the next use
        return key, ends_s

    def _fault(self, key: SignedKey, now_s: float) -> tuple[KeyFault | None, str]:
        """(why a key that was signed here is not valid, details)."""
        if now_s >= key.expires_s:
            return KeyFault.EXPIRED, f"it ended {now_s - key.expires_s:.0f} s ago"
        if now_s < key.issued_s - LEEWAY_S:
            return KeyFault.NOT_YET, f"it begins in {key.issued_s - now_s:.0f} s: compare clocks"
        lifetime_s = key.expires_s - key.issued_s
        if lifetime_s > self._max_lifetime_s:
            return (
                KeyFault.TOO_LONG,
                f"it lives {lifetime_s} s; maxLifetime is {self._max_lifetime_s} s",
            )
        if self._revocations.revokes(key):
            return KeyFault.REVOKED, "it or its identity is revoked"
        return None, ""
