"""The endpoints that do not generate: probes, information on the replica, and control.

Differences from SGLang, on purpose: `/health` does not generate a token (as with SGLang's
`SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=false`), and `/pause_generation` knows the modes `abort` and
`in_place`, not `retract`.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec
from aiohttp import web

from evenkeel_simulator.server import error_bodies
from evenkeel_simulator.server.bodies import BadRequest, decode
from evenkeel_simulator.server.handlers import REPLICA, native_refusal, read_body
from evenkeel_simulator.server.replica import Replica

SGLANG_VERSION: Final = "0.5.23"
"""The SGLang version with these wire formats."""

_STARTED_S: Final = int(time.time())


async def ready(http: web.Request) -> web.Response:
    """`GET /ready`: whether the replica takes new requests."""
    return web.Response(status=200 if http.app[REPLICA].is_ready else 503)


async def health(http: web.Request) -> web.Response:
    """`GET /health`: whether the server works and is not about to end."""
    return web.Response(status=200 if http.app[REPLICA].is_healthy else 503)


async def metrics(http: web.Request) -> web.Response:
    """`GET /metrics`."""
    return web.Response(
        body=http.app[REPLICA].metrics.expose(),
        headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
    )


async def models(http: web.Request) -> web.Response:
    """`GET /v1/models`."""
    replica = http.app[REPLICA]
    adapters = [_adapter_card(replica, name) for name in replica.settings.adapters]
    return _json({"object": "list", "data": [_model_card(replica), *adapters]})


async def model(http: web.Request) -> web.Response:
    """`GET /v1/models/{model}`."""
    replica = http.app[REPLICA]
    name = http.match_info["model"]
    if name == replica.settings.model:
        return _json(_model_card(replica))
    error = {
        "message": f"The model '{name}' does not exist",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    return _json({"error": error}, status=404)


async def model_info(http: web.Request) -> web.Response:
    """`GET /model_info`."""
    name = http.app[REPLICA].settings.model
    return _json(
        {
            "model_path": name,
            "served_model_name": name,
            "tokenizer_path": name,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "has_image_understanding": True,
            "has_audio_understanding": True,
        }
    )


async def server_info(http: web.Request) -> web.Response:
    """`GET /server_info`: of SGLang's hundreds of fields, those a router or an operator reads."""
    replica = http.app[REPLICA]
    settings = replica.settings
    loads = replica.engine.loads()
    return _json(
        {
            "model_path": settings.model,
            "served_model_name": settings.model,
            "tokenizer_path": settings.model,
            "host": settings.host,
            "port": settings.port,
            "schedule_policy": settings.replica_policy.lower(),
            "page_size": settings.page_size,
            "context_length": settings.context_tokens,
            "dp_size": 1,
            "tp_size": 1,
            "max_total_num_tokens": loads.capacity_tokens,
            "max_running_requests": settings.engine.max_running,
            "enable_cache_report": settings.cache_report,
            "kv_events": _describe_events(replica),
            "internal_states": [
                {
                    "last_gen_throughput": replica.metrics.last.gen_throughput,
                    "effective_max_running_requests_per_dp": settings.engine.max_running,
                }
            ],
            "version": SGLANG_VERSION,
            "frontend": "python",
        }
    )


async def loads(http: web.Request) -> web.Response:
    """`GET /v1/loads`."""
    if http.query.get("dp_rank", "0") != "0":
        body = error_bodies.error_body("dp_rank: there is only rank 0", kind="400", status=400)
        return web.Response(body=body, status=400, content_type="application/json")
    replica = http.app[REPLICA]
    now, last = replica.engine.loads(), replica.metrics.last
    uncached = sum(
        request.input_tokens - request.matched_tokens for request in replica.engine.policy.waiting()
    )
    load = {
        "timestamp": time.time(),
        "dp_rank": 0,
        "num_running_reqs": now.running,
        "num_waiting_reqs": now.waiting,
        "num_waiting_uncached_tokens": uncached,
        "num_used_tokens": now.used_tokens,
        "num_total_tokens": now.used_tokens + uncached,
        "num_active_tokens": now.used_tokens + uncached,
        "max_total_num_tokens": now.capacity_tokens,
        "max_running_requests": replica.settings.engine.max_running,
        "token_usage": now.used_tokens / now.capacity_tokens,
        "gen_throughput": last.gen_throughput,
        "cache_hit_rate": last.cache_hit_rate,
        "queues": {"waiting": now.waiting, "grammar": 0, "paused": 0, "retracted": 0},
    }
    return _json(
        {
            "timestamp": datetime.now(UTC).isoformat(),  # noqa: TID251 - as in SGLang
            "version": SGLANG_VERSION,
            "accelerator": None,
            "num_accelerators": 1,
            "loads": [load],
        }
    )


async def flush_cache(http: web.Request) -> web.Response:
    """`GET` or `POST /flush_cache`: only while nothing waits or runs."""
    if http.app[REPLICA].driver.flush():
        return web.Response(text="Cache flushed.\n")
    return web.Response(text="Flush cache failed: requests are waiting or running.\n", status=400)


class _Abort(msgspec.Struct):
    rid: str | None = None
    abort_all: bool = False


_abort: Final = msgspec.json.Decoder(_Abort)


async def abort_request(http: web.Request) -> web.Response:
    """`POST /abort_request`: one request by its `rid`, or all. An unknown one is no fault."""
    try:
        asked = decode(_abort, await read_body(http))
    except BadRequest as error:
        return native_refusal(error)
    driver = http.app[REPLICA].driver
    for request in driver.unfinished():
        if asked.abort_all or request.id == asked.rid:
            driver.abort(request, "Abort in waiting queue")
    return web.Response()


class _Pause(msgspec.Struct):
    mode: Literal["abort", "in_place"] = "abort"


_pause: Final = msgspec.json.Decoder(_Pause)


async def pause_generation(http: web.Request) -> web.Response:
    """`POST /pause_generation`: end all requests (`abort`) or suspend them (`in_place`); new ones wait."""
    try:
        asked = decode(_pause, await read_body(http) or b"{}")
    except BadRequest as error:
        return native_refusal(error)
    driver = http.app[REPLICA].driver
    driver.pause()
    if asked.mode == "abort":
        for request in driver.unfinished():
            driver.abort(request, "Generation paused")
    return _json({"message": "Generation paused successfully.", "status": "ok"})


async def continue_generation(http: web.Request) -> web.Response:
    """`POST /continue_generation`."""
    http.app[REPLICA].driver.resume()
    return _json({"message": "Generation continued successfully.", "status": "ok"})


def _model_card(replica: Replica) -> dict[str, Any]:
    name = replica.settings.model
    return {
        "id": name,
        "object": "model",
        "created": _STARTED_S,
        "owned_by": "sglang",
        "root": name,
        "parent": None,
        "max_model_len": replica.settings.context_tokens,
    }


def _adapter_card(replica: Replica, name: str) -> dict[str, Any]:
    base = {**_model_card(replica), "max_model_len": None}
    return base | {"id": name, "root": name, "parent": replica.settings.model}


def _describe_events(replica: Replica) -> dict[str, Any] | None:
    """Addresses for KV event subscribers, in SGLang's format."""
    publisher = replica.publisher
    if publisher is None:
        return None
    return {
        "publisher": "zmq",
        "endpoint_host": replica.settings.host,
        "endpoint_port_base": publisher.port,
        "topic": "",
        "block_size": replica.settings.page_size,
        "dp_size": 1,
        "replay_endpoint_port_base": publisher.replay_port,
    }


def _json(content: object, *, status: int = 200) -> web.Response:
    body = msgspec.json.encode(content)
    return web.Response(body=body, status=status, content_type="application/json")
