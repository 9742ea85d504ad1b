"""For LiteLLM's proxy: two teams without a database, and a guard of the headers that name team and user."""

from __future__ import annotations

import hmac
from typing import Any

from fastapi import HTTPException, Request
from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy._types import UserAPIKeyAuth

KEYS = {"sk-research": ("research", "ann"), "sk-batch": ("batch", "bob")}
PREFIX = "x-litellm-user_api_key_"


async def authenticate(_request: Request, api_key: str) -> UserAPIKeyAuth:
    """Whom a key belongs to."""
    for key, (team, user) in KEYS.items():
        if hmac.compare_digest(key, api_key):
            return UserAPIKeyAuth(api_key=api_key, team_id=team, team_alias=team, user_id=user)
    raise HTTPException(401, "unknown key")


class Guard(CustomLogger):
    """LiteLLM passes its clients' headers on, and replaces only those for which the key has a value.

    Without this class, a client whose key has no team could name any team.
    """

    async def async_pre_call_hook(
        self, user_api_key_dict: UserAPIKeyAuth, cache: Any, data: dict[str, Any], call_type: str
    ) -> dict[str, Any]:
        """Remove the names that the key does not have."""
        headers = data.get("headers") or {}
        for name in [name for name in headers if name.lower().startswith(PREFIX)]:
            if getattr(user_api_key_dict, name.lower().removeprefix(PREFIX), None) is None:
                del headers[name]
        return data


guard = Guard()
