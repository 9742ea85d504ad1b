"""The values of Secrets that a service or a gateway names: used only where their owners allow it by the label."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from evenkeel_contract.render import CredentialSecrets
from evenkeel_contract.signedkeys import salvage_signing_keys
from evenkeel_contract.spec.federation import FederationSecrets, secrets_of
from evenkeel_contract.spec.gateway import FairInferenceGateway
from evenkeel_contract.spec.parts import SecretKeyRef
from evenkeel_contract.spec.resources import FairInferenceService
from evenkeel_contract.tokenissuers import NO_KEY_SET, is_key_set
from evenkeel_kube.client import KubeClient

from evenkeel_operator.core import reasons
from evenkeel_operator.core.objects import entries_of
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.tenants import NamedSecret, lacks_label


class SecretValues:
    """Reads them, or says why they cannot be used."""

    def __init__(
        self, client: KubeClient, named: Callable[[str, str], Awaitable[NamedSecret | None]]
    ) -> None:
        """`named`: a Secret by namespace and name, without its values; its changes trigger passes from then on."""
        self._client = client
        self._named = named

    async def redis_url(self, service: FairInferenceService) -> str | Note | None:
        """The address of store Redis; None if it is not used; a note if its Secret cannot be used."""
        redis = service.spec.router.state.redis
        if redis is None:
            return None
        return await self.entry(service.metadata.namespace, redis.url_secret_ref)

    async def cells(self, service: FairInferenceService) -> FederationSecrets | Note | None:
        """The token and the certificates of other cells; None without any, a note if a Secret with them cannot be used."""
        federation = service.spec.federation
        if federation is None:
            return None
        found: list[str] = []
        for name, ref, is_usable, problem in secrets_of(federation):
            entry = await self._usable(service.metadata.namespace, ref, is_usable, problem)
            if isinstance(entry, Note):
                return Note(entry.reason, f"spec.federation.{name}: {entry.message}")
            found.append(entry)
        return FederationSecrets(*found)

    async def external_key(self, service: FairInferenceService) -> str | Note | None:
        """The bearer key of engines that another owner made; None if they need none, a note if its Secret cannot be used."""
        external = service.spec.engine.pods_of_others
        if external is None or external.api_key_secret_ref is None:
            return None
        return await self.entry(service.metadata.namespace, external.api_key_secret_ref)

    async def credentials(
        self, service: FairInferenceService | FairInferenceGateway
    ) -> tuple[CredentialSecrets, tuple[Note, ...]]:
        """What the Secrets of `spec.tenancy` contain, and why some of them cannot be used."""
        namespace, tenancy = service.metadata.namespace, service.spec.tenancy
        notes: list[Note] = []
        signing: Mapping[str, str] = {}
        if tenancy.signed_keys is not None:
            path = "spec.tenancy.signedKeys.secretRef"
            found = await self._signing_keys(namespace, tenancy.signed_keys.secret_ref.name)
            if isinstance(found, Note):
                notes.append(Note(found.reason, f"{path}: {found.message}"))
            else:
                signing = found
        key_sets: dict[tuple[str, str], str] = {}
        for index, issuer in enumerate(tenancy.jwt):
            if (ref := issuer.secret_ref) is not None:
                entry = await self._usable(namespace, ref, is_key_set, NO_KEY_SET)
                if isinstance(entry, Note):
                    path = f"spec.tenancy.jwt[{index}].secretRef"
                    notes.append(Note(entry.reason, f"{path}: {entry.message}"))
                else:
                    key_sets[ref.name, ref.key] = entry
        return CredentialSecrets(signing, key_sets), tuple(notes)

    async def _signing_keys(self, namespace: str, name: str) -> Mapping[str, str] | Note:
        """Id → signing key; a note if the Secret must not be used, or has an entry that is no signing key."""
        named = await self._named(namespace, name)
        if named is not None and not named.labelled:
            return Note(reasons.SECRET_NOT_LABELLED, lacks_label(name))
        entries = entries_of(await self._client.get("Secret", namespace, name))
        keys: dict[str, str] = {}
        for id_, value in entries.items():
            with suppress(UnicodeDecodeError):
                keys[id_] = value.decode().strip()
        found, faults = salvage_signing_keys(keys)
        if faults or not found:
            message = f"Secret {name} has no usable signing key: {faults[0] if faults else 'it is empty'}."
            return Note(reasons.SECRET_MISSING, message)
        return found

    async def entry(self, namespace: str, ref: SecretKeyRef) -> str | Note:
        """The value of a Secret's entry, without white space at both ends; a note if it is missing or must not be used."""
        named = await self._named(namespace, ref.name)
        if named is not None and not named.labelled:
            return Note(reasons.SECRET_NOT_LABELLED, lacks_label(ref.name))
        secret = await self._client.get("Secret", namespace, ref.name)
        found = entries_of(secret).get(ref.key, b"")
        with suppress(UnicodeDecodeError):
            if value := found.decode().strip():
                return value
        return Note(reasons.SECRET_MISSING, f"Secret {ref.name} has no entry {ref.key}.")

    async def _usable(
        self, namespace: str, ref: SecretKeyRef, is_usable: Callable[[str], bool], problem: str
    ) -> str | Note:
        """Like `entry`, but a value that is not usable is a note with its problem."""
        entry = await self.entry(namespace, ref)
        if isinstance(entry, Note) or is_usable(entry):
            return entry
        return Note(reasons.SECRET_MISSING, f"Entry {ref.key} of Secret {ref.name} {problem}.")
