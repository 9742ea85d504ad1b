"""The traffic port: routes requests by their path, and turns refusals and faults into answers.

Every request ends in `_finish`, once, and is counted and logged there. Checks of `/health` and of browsers (CORS) are
neither.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import secrets
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, TypeAlias

import msgspec
from evenkeel_contract.names import REQUEST_ID_HEADER
from evenkeel_fairshare.fleet.contract import NOTHING
from multidict import istr

from evenkeel_router.api.endpoints import (
    MODELS,
    dialect_of,
    endpoint_of,
    is_stored_response,
)
from evenkeel_router.api.errors import OURS, Outcome, Refusal, error_body, invalid
from evenkeel_router.api.responses import not_stored
from evenkeel_router.fleet.replicas import Replicas
from evenkeel_router.ledger.fairness import Fairness
from evenkeel_router.request import refusals
from evenkeel_router.request.intake import Intake
from evenkeel_router.request.pipeline import Pipeline
from evenkeel_router.request.request_state import RequestState
from evenkeel_router.request.totals import RequestTotals
from evenkeel_router.settings import Settings
from evenkeel_router.transport.bodies import INVALID_BODY
from evenkeel_router.transport.client_request import (
    JSON,
    Answer,
    CompleteReply,
    HttpSyntaxError,
    Request,
    TransferCodingError,
)

_log = logging.getLogger(__name__)
_ORIGIN: Final = istr("Origin")
_PREFLIGHT: Final = istr("Access-Control-Request-Method")
_REQUEST_ID: Final = istr(REQUEST_ID_HEADER)
_WELL_FORMED_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_HEALTH: Final = "/health"
_OTHER_PATH: Final = "other"  # a path that a client made up never becomes a label or a log field

INTERNAL: Final = "internal"
"""The label of a fault of this program, which is none of the outcomes."""


RequestSink: TypeAlias = Callable[[RequestState, float], None]
"""Takes a request that is over, and its duration in seconds."""


class Traffic:
    """Answers every request of the traffic port."""

    def __init__(
        self,
        settings: Settings,
        intake: Intake,
        pipeline: Pipeline,
        *,
        replicas: Replicas,
        totals: RequestTotals,
        fairness: Fairness,
        log: RequestSink,
    ) -> None:
        """`log` takes every request that is over."""
        self._settings = settings
        self._intake = intake
        self._pipeline = pipeline
        self._replicas = replicas
        self._totals = totals
        self._fairness = fairness
        self._log = log
        self._now = asyncio.get_running_loop().time
        self._id_prefix = secrets.token_hex(6)
        self._ids = itertools.count(1)
        self._started_unix = intake.started_unix

    async def handle(self, request: Request) -> Answer:
        """One request."""
        path = _path(request)
        endpoint = endpoint_of(path)
        if endpoint is None and path == _HEALTH and request.method in ("GET", "HEAD"):
            return self._health(request)
        request_state = RequestState(
            request_id=self._request_id(request),
            path=path if endpoint is not None or path == MODELS else _OTHER_PATH,
            started_s=self._now(),
        )
        cors = self._intake.cors
        if cors is not None and _ORIGIN in request.headers:
            origin = request.headers[_ORIGIN]
            if request.method == "OPTIONS" and _PREFLIGHT in request.headers:
                headers = cors.preflight(origin)
                return CompleteReply(request, status=200, body=b"", headers=headers)
            request_state.reply_headers += cors.headers(origin)
        try:
            if self._intake.draining:
                raise refusals.shutting_down()
            if endpoint is not None and request.method == "POST":
                return await self._pipeline.infer(request_state, request, endpoint)
            if is_stored_response(path):
                self._pipeline.identify(request_state, request)
                raise not_stored()
            return self._models(request_state, request, path)
        except Refusal as refusal:
            return self._refused(
                request_state, request, refusal, close=refusal.code == INVALID_BODY
            )
        except asyncio.CancelledError:
            request_state.client_left()
            raise
        except Exception as fault:  # noqa: BLE001 - logged and counted in `_fault`
            return self._fault(request_state, request, fault)
        finally:
            self._finish(request_state)

    def refuse(self, request: Request, error: BaseException) -> Answer:
        """Answer a request that is not HTTP, or whose handler raised an exception."""
        request_state = RequestState(
            request_id=next_id(self._id_prefix, self._ids), path=_OTHER_PATH, started_s=self._now()
        )
        if isinstance(error, HttpSyntaxError):
            answer = self._refused(request_state, request, _not_http(error), close=True)
            _log.debug("not HTTP", exc_info=error)
        else:
            answer = self._fault(request_state, request, error)
        self._finish(request_state)
        return answer

    def _health(self, request: Request) -> Answer:
        """Whether the router takes requests, for load balancers and clients; no credentials. As `/readyz`."""
        draining, in_sync = self._intake.draining, self._replicas.in_sync
        status = "draining" if draining else "ok" if in_sync else "starting"
        body = msgspec.json.encode({"status": status})
        return CompleteReply(request, status=200 if status == "ok" else 503, body=body)

    def _models(self, request_state: RequestState, request: Request, path: str) -> Answer:
        """What OpenAI's clients ask before anything else; raises `Refusal`."""
        name = path.removeprefix(MODELS).removeprefix("/") if path.startswith(MODELS) else None
        if name is None or request.method not in ("GET", "HEAD"):
            message = f"Unknown URL: {request.method} {path[:200]}."
            raise Refusal(Outcome.NOT_FOUND, message, code="unknown_url")
        self._pipeline.identify(request_state, request)
        config = self._settings.config
        model = {
            "id": config.model,
            "object": "model",
            "created": int(self._started_unix),
            "owned_by": config.namespace,
        }
        if name == "":
            answer: dict[str, object] = {"object": "list", "data": [model]}
        elif name in (config.model, _quoted(config.model)):
            answer = dict(model)
        else:
            message = f"The model {name[:200]!r} does not exist."
            raise Refusal(Outcome.NOT_FOUND, message, code="model_not_found", param="model")
        request_state.status = 200
        return self._whole(request_state, request, 200, msgspec.json.encode(answer))

    def _refused(
        self,
        request_state: RequestState,
        request: Request,
        refusal: Refusal,
        *,
        close: bool = False,
    ) -> Answer:
        request_state.outcome, request_state.status = refusal.outcome, refusal.status
        return self._whole(
            request_state,
            request,
            refusal.status,
            error_body(refusal, dialect_of(_path(request))),
            refusal.headers,
            close=close,
        )

    def _fault(self, request_state: RequestState, request: Request, fault: BaseException) -> Answer:
        """A fault of this program: the traceback goes to the log, not to the client."""
        _log.error("the router failed in request %s", request_state.request_id, exc_info=fault)
        self._totals.faults += 1
        request_state.status = 500
        refusal = Refusal(Outcome.REPLICA_FAILED, "Internal error of the router.", code=INTERNAL)
        body = error_body(refusal, dialect_of(_path(request)))
        return self._whole(request_state, request, 500, body, close=True)

    def _whole(
        self,
        request_state: RequestState,
        request: Request,
        status: int,
        body: bytes,
        headers: Sequence[tuple[str, str]] = (),
        *,
        close: bool = False,
    ) -> CompleteReply:
        headers = [*request_state.reply_headers, *headers]
        close = close or self._intake.draining
        return CompleteReply(
            request, status=status, body=body, content_type=JSON, headers=headers, close=close
        )

    def _finish(self, request_state: RequestState) -> None:
        """Count and log a request that is over."""
        totals, duration_s = request_state.totals, self._now() - request_state.started_s
        if request_state.outcome is not None:
            errors = self._totals.refused if totals is None else totals.errors
            errors[request_state.outcome] += 1
        if totals is not None and request_state.usage not in (None, NOTHING):
            first_s = request_state.first_byte_s
            ttft_s = None if first_s is None else first_s - request_state.started_s
            totals.ended(duration_s, ttft_s)
        client = request_state.client
        if client is not None and client.identity not in self._fairness.now.beyond_share:
            self._objective(request_state)
        self._log(request_state, duration_s)

    def _objective(self, request_state: RequestState) -> None:
        """A request of a client within its share: when its first token came, or that it never did through our fault."""
        seen = self._totals.within_share_ttft_s
        if request_state.first_byte_s is not None and request_state.usage not in (None, NOTHING):
            seen.observe(request_state.first_byte_s - request_state.started_s)
        elif request_state.first_byte_s is None and request_state.outcome in OURS:
            seen.never()

    def _request_id(self, request: Request) -> str:
        given = request.headers.get(_REQUEST_ID)
        if given is not None and _WELL_FORMED_ID.fullmatch(given):
            return given
        return next_id(self._id_prefix, self._ids)


def _path(request: Request) -> str:
    return request.target.partition("?")[0]


def _not_http(error: HttpSyntaxError) -> Refusal:
    if isinstance(error, TransferCodingError):
        return Refusal(
            Outcome.INVALID_REQUEST,
            f"The transfer coding {str(error)[:40]!r} is not supported; use chunked or Content-Length.",
            code="unsupported_transfer_encoding",
            param="transfer-encoding",
            status=HTTPStatus.NOT_IMPLEMENTED,
        )
    message = "The request is not valid HTTP; check its request line and its headers."
    return invalid(message, code="invalid_http")


def next_id(prefix: str, ids: itertools.count[int]) -> str:
    """A request id: unique among routers by its prefix, within one by its number."""
    return f"{prefix}-{next(ids):x}"


def _quoted(name: str) -> str:
    """A model's name as a client may spell it in a path."""
    return name.replace("/", "%2F")
