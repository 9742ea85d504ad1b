"""What a replica is sent of a request."""

from __future__ import annotations

from typing import Final

from evenkeel_contract.names import (
    ADAPTER_HEADER,
    CLIENT_KEY_HEADER,
    REQUEST_ID_HEADER,
    SESSION_HEADER,
)
from multidict import istr

from evenkeel_router.api.inference import with_client_key
from evenkeel_router.request.request_state import AdmittedRequest, RequestState
from evenkeel_router.transport.client_request import Request
from evenkeel_router.transport.upstream import Outgoing

_TRACE_HEADERS: Final = (istr("traceparent"), istr("tracestate"))


def outgoing_of(
    request_state: RequestState, admitted: AdmittedRequest, request: Request, key: str
) -> Outgoing:
    """What is sent: the client's body, the client key, and the request's origin."""
    inference = admitted.inference
    headers = [(REQUEST_ID_HEADER, request_state.request_id)]
    if admitted.endpoint.api.key_in_body:
        body = with_client_key(inference.body, key)
    else:
        body = inference.body
        headers += ((CLIENT_KEY_HEADER, key), (SESSION_HEADER, key))
    if inference.adapter is not None:
        headers.append((ADAPTER_HEADER, inference.adapter))
    for name in _TRACE_HEADERS:
        value = request.headers.get(name)
        if value is not None and value.isascii() and value.isprintable():
            headers.append((name, value))
    return Outgoing(request_state.path, headers, body, inference.content_type)
