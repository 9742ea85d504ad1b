"""Two teams for LiteLLM's proxy without a database: two keys, each with its team and user."""

from __future__ import annotations

import hmac

from fastapi import HTTPException, Request
from litellm.proxy._types import UserAPIKeyAuth

KEYS = {"sk-research": ("research", "ann"), "sk-batch": ("batch", "bob")}


async def authenticate(_request: Request, api_key: str) -> UserAPIKeyAuth:
    """Whom a key belongs to."""
    for key, (team, user) in KEYS.items():
        if hmac.compare_digest(key, api_key):
            return UserAPIKeyAuth(api_key=api_key, team_id=team, team_alias=team, user_id=user)
    raise HTTPException(401, "unknown key")
