"""For LiteLLM's proxy: whom a key belongs to, without a database. A team's key is its name, and so is its priority."""

from __future__ import annotations

from fastapi import HTTPException, Request
from litellm.proxy._types import UserAPIKeyAuth

TEAMS = ("small", "big")


async def authenticate(_request: Request, api_key: str) -> UserAPIKeyAuth:
    """A team's key."""
    if api_key not in TEAMS:
        raise HTTPException(401, "unknown key")
    return UserAPIKeyAuth(api_key=api_key, token=api_key, metadata={"priority": api_key})
