"""The buffers of the operator's TLS connections: asyncio has no setting for them, so their size is set in its class."""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol

import pytest
from evenkeel_operator.app import TLS_BUFFER_BYTES


async def test_a_connection_reads_into_as_much_as_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SSLProtocol, "max_size", TLS_BUFFER_BYTES)
    loop, context = asyncio.get_running_loop(), ssl.create_default_context()
    made = SSLProtocol(loop, asyncio.Protocol(), context, None, call_connection_made=False)
    assert len(made.get_buffer(1)) == TLS_BUFFER_BYTES
    made._get_app_transport()._closed = True
