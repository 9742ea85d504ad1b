"""What the operator generates: the engines' keys and the routers' admin token, and how they are exchanged.

A rotation keeps the old engine key until no engine uses it. Meanwhile routers have both keys, and a label of each
engine pod names the key it uses. No request fails.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from evenkeel_contract.names import GROUP
from evenkeel_contract.routerconfig import RouterConfig

from evenkeel_operator.core.objects import Object, annotations_of

ROTATE_ANNOTATION: Final = f"{GROUP}/rotate"
"""On a FairInferenceService: a new value requests new keys. On the Secret: the value for which its keys were
generated."""
CURRENT_ANNOTATION: Final = f"{GROUP}/engine-key"
TOKEN_ENTRY: Final = "admin-token"
KEY_PREFIX: Final = "engine-key-"


@dataclass(frozen=True, slots=True)
class EngineKey:
    """A key of the engines."""

    key: str

    @property
    def id(self) -> str:
        """Distinguishes keys without revealing them: 32 of 256 bits of a hash."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class Credentials:
    """The contents of the Secret."""

    admin_token: str
    engine_keys: tuple[EngineKey, ...]
    """Engines are started with the last key."""
    rotation: str = ""
    """The annotation's value for which they were generated."""

    def __repr__(self) -> str:
        return f"Credentials(engine_keys={[key.id for key in self.engine_keys]})"

    @property
    def current(self) -> EngineKey:
        return self.engine_keys[-1]

    @property
    def admin_token_sha256(self) -> str:
        return hashlib.sha256(self.admin_token.encode()).hexdigest()


def next_credentials(
    stored: Credentials | None,
    *,
    rotation: str,
    old_keys_are_in_use: bool,
    fresh: Callable[[], str],
) -> Credentials:
    """The Secret's wanted contents: the present ones, unless they are missing or a rotation was requested."""
    if stored is None:
        return Credentials(fresh(), (EngineKey(fresh()),), rotation)
    if rotation != stored.rotation:
        # A second rotation during a rotation keeps all keys: engines may still use the oldest one.
        keys = (*stored.engine_keys, EngineKey(fresh()))
        return Credentials(fresh(), keys, rotation)
    if len(stored.engine_keys) > 1 and not old_keys_are_in_use:
        return replace(stored, engine_keys=(stored.current,))
    return stored


def read_credentials(secret: Object | None) -> Credentials | None:
    """From the Secret; None if it is missing or incomplete, so that it is generated again."""
    if secret is None:
        return None
    data = {name: _decode(value) for name, value in (secret.get("data") or {}).items()}
    token = data.get(TOKEN_ENTRY)
    current = annotations_of(secret).get(CURRENT_ANNOTATION, "")
    keys = [
        EngineKey(value)
        for name, value in sorted(data.items())
        if name.startswith(KEY_PREFIX) and value
    ]
    keys = [key for key in keys if f"{KEY_PREFIX}{key.id}" in data]
    newest = [key for key in keys if key.id == current]
    if not token or not newest:
        return None
    older = [key for key in keys if key.id != current]
    rotation = annotations_of(secret).get(ROTATE_ANNOTATION, "")
    return Credentials(token, (*older, *newest), rotation)


def recovered(config: RouterConfig | None, *, rotation: str) -> Credentials | None:
    """From the routers' configuration, if the Secret was deleted: new keys would cut off running engines."""
    if config is None or config.cluster is None or config.state.peer_token is None:
        return None
    keys = tuple(EngineKey(key.key) for key in config.cluster.api_keys)
    return Credentials(config.state.peer_token, keys, rotation) if keys else None


def _decode(value: object) -> str:
    try:
        return b64decode(str(value), validate=True).decode()
    except ValueError:
        return ""
