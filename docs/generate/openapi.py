"""openapi.yaml: the HTTP API of a router, from its tables of endpoints, errors and admin messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
import yaml
from evenkeel_contract.adminstate import (
    ACTIVATION_PATH,
    REPLICAS_PATH,
    STATE_PATH,
    ActivationState,
    ReplicasState,
    RouterState,
)
from evenkeel_contract.ledgerwire import LEDGER_PATH
from evenkeel_contract.limitswire import LIMITS_PATH
from evenkeel_contract.names import ADMIN_PORT, PROBE_PORT, REQUEST_ID_HEADER, TRAFFIC_PORT
from evenkeel_contract.placeswire import PLACES_PATH
from evenkeel_router.api.endpoints import MODELS, Endpoint
from evenkeel_router.api.errors import Dialect, Outcome
from evenkeel_router.request.own_answers import HEALTH
from evenkeel_router.request.own_keys import PATH as KEYS

from docs.generate.pages import NOTE, code, page, table

_TEXT: Final = {"type": "string"}
_REF: Final = "#/components/{}/{}"
_FIELDS: Final[Mapping[Endpoint, tuple[str, ...]]] = {
    Endpoint.COMPLETIONS: ("model", "prompt", "max_tokens", "stream"),
    Endpoint.CHAT: ("model", "messages", "max_tokens", "max_completion_tokens", "stream"),
    Endpoint.RESPONSES: ("model", "input", "max_output_tokens", "stream"),
    Endpoint.MESSAGES: ("model", "messages", "max_tokens", "stream"),
    Endpoint.COUNT_TOKENS: ("model", "messages"),
    Endpoint.EMBEDDINGS: ("model", "input"),
    Endpoint.RERANK: ("model", "query", "documents"),
    Endpoint.BARE_RERANK: ("model", "query", "documents"),
    Endpoint.V2_RERANK: ("model", "query", "documents"),
    Endpoint.SCORE: ("model",),
    Endpoint.BARE_SCORE: ("model",),
    Endpoint.CLASSIFY: ("model", "input"),
    Endpoint.BARE_CLASSIFY: ("model", "input", "text"),
    Endpoint.POOLING: ("model", "input"),
    Endpoint.TRANSCRIPTIONS: ("model", "file", "stream"),
    Endpoint.TRANSLATIONS: ("model", "file", "stream"),
    Endpoint.TOKENIZE: ("model", "prompt"),
    Endpoint.V1_TOKENIZE: ("model", "prompt"),
    Endpoint.DETOKENIZE: ("model", "tokens"),
    Endpoint.V1_DETOKENIZE: ("model", "tokens"),
    Endpoint.GENERATE: ("text", "input_ids", "sampling_params", "lora_path", "stream"),
}
_KINDS: Final[Mapping[str, dict[str, Any]]] = {
    "model": {**_TEXT, "description": "The served model, or `model:adapter`."},
    "stream": {"type": "boolean", "description": "Whether the answer is a stream of events."},
    "max_tokens": {"type": "integer", "minimum": 0},
    "max_completion_tokens": {"type": "integer", "minimum": 0},
    "max_output_tokens": {"type": "integer", "minimum": 0},
    "messages": {"type": "array", "items": {"type": "object"}},
    "documents": {"type": "array", "items": {}},
    "tokens": {"type": "array", "items": {"type": "integer"}},
    "lora_path": _TEXT,
    "sampling_params": {"type": "object"},
}
_ENGINES: Final = "The router passes other fields on if they are listed in reference/fields.md; the engine defines them."


def document() -> dict[str, Any]:
    """The document, version 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Evenkeel router",
            "version": "v1",
            "summary": "The HTTP API of a router.",
            "description": "The inference endpoints have the bodies of OpenAI, Anthropic and SGLang. Only the fields that "
            "the router reads are listed.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [_server(TRAFFIC_PORT, "traffic")],
        "paths": {path: {"summary": summary, **item} for path, summary, item in _paths()},
        "components": {
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "API key of a client."},
                "keyHeader": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "JWT",
                    "description": "Token of an issuer.",
                },
                "adminToken": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Token of the admin port.",
                },
            },
            "headers": {REQUEST_ID_HEADER: {"schema": _TEXT, "description": "Id of the request."}},
            "responses": dict(_errors()),
            "schemas": _schemas(),
        },
    }


def text() -> str:
    """The file."""
    note = NOTE.removeprefix("<!-- ").removesuffix(" -->")
    return f"# {note}\n" + yaml.safe_dump(
        document(), sort_keys=False, width=110, allow_unicode=True
    )


def pages() -> Iterator[tuple[str, str]]:
    """The page that lists the paths, and the document itself."""
    intro = (
        "Every path of the HTTP API that a router serves. [openapi.yaml](openapi.yaml) is the same as an "
        "OpenAPI document. [The APIs](apis.md) has the rules, and [Errors](errors.md) the answers that are no success."
    )
    rows = [
        (
            code(path),
            ", ".join(m.upper() for m in item if m in ("get", "post", "put", "delete")),
            _port(item),
            summary,
        )
        for path, summary, item in _paths()
    ]
    yield (
        "reference/http-api.md",
        page("HTTP API", intro, table(("path", "method", "port", ""), rows)),
    )
    yield "reference/openapi.yaml", text()


def _port(item: Mapping[str, Any]) -> str:
    servers = item.get("servers")
    return str(TRAFFIC_PORT) if servers is None else servers[0]["url"].rpartition(":")[2]


def _server(port: int, what: str) -> dict[str, str]:
    return {"url": f"http://127.0.0.1:{port}", "description": f"The {what} port."}


def _paths() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for endpoint in Endpoint:
        operation = _inference(endpoint)
        methods = {method.lower(): operation for method in endpoint.api.methods}
        yield endpoint.value, _summary(endpoint), methods
    models = {"200": _json({"type": "object"}, "The model and its adapters.")}
    yield MODELS, "The model and its adapters.", _get(models, keyed=True)
    named = {"name": "name", "in": "path", "required": True, "schema": _TEXT}
    item = _get({"200": _json({"type": "object"}, "The model.")}, keyed=True)
    yield f"{MODELS}/{{name}}", "One model or adapter.", {**item, "parameters": [named]}
    yield from _own_keys()
    states = {
        "200": {"description": "Takes requests."},
        "503": {"description": "Starts or drains."},
    }
    yield HEALTH, "Whether the router takes requests.", _get(states)
    probes = {"servers": [_server(PROBE_PORT, "probe")]}
    yield "/livez", "Whether the process runs.", _get({"200": {"description": "It runs."}}) | probes
    yield "/readyz", "Whether the router takes requests.", _get(states) | probes
    scrape = {"200": {"description": "Text format.", "content": {"text/plain": {"schema": _TEXT}}}}
    yield "/metrics", "The metrics, for Prometheus.", _get(scrape) | probes
    yield from _admin()


def _own_keys() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Paths for keys that clients create."""
    refused = {
        name: answer
        for outcome in (Outcome.UNAUTHENTICATED, Outcome.FORBIDDEN, Outcome.NOT_FOUND)
        for name, answer in _ref(outcome).items()
    }

    def operation(description: str) -> dict[str, Any]:
        answers = {"200": _json({"type": "object"}, description), **refused}
        return {"security": [{"token": []}], "responses": answers}

    number = {"number": {"type": "integer", "minimum": 1, "default": 1}}
    body = {"content": {"application/json": {"schema": {"type": "object", "properties": number}}}}
    create = operation("The key.") | {"requestBody": body}
    item = {"get": operation("All keys of the client."), "post": create}
    yield KEYS, "Signed keys of the client that a token names.", item
    id_ = {"name": "id", "in": "path", "required": True, "schema": _TEXT}
    revoke = {"delete": operation("It is revoked."), "parameters": [id_]}
    yield f"{KEYS}/{{id}}", "Revokes a key of the client.", revoke


def _admin() -> Iterator[tuple[str, str, dict[str, Any]]]:
    own = {"servers": [_server(ADMIN_PORT, "admin")]}
    for path, cls, summary in (
        (STATE_PATH, RouterState, "Clients, replicas and the ledger."),
        (REPLICAS_PATH, ReplicasState, "The replicas only."),
        (ACTIVATION_PATH, ActivationState, "Whether a request waits for a first replica."),
    ):
        schema = {"$ref": _REF.format("schemas", cls.__name__)}
        item = _get({"200": _json(schema, summary)}, admin=True) | own
        if path == ACTIVATION_PATH:
            wanted = {"name": "wanted", "in": "query", "schema": {"type": "boolean"}}
            item["parameters"] = [
                wanted | {"description": "The answer waits until it differs from this value."}
            ]
        yield path, summary, item
    for path, summary in (
        (LEDGER_PATH, "Rows of the ledger, for other routers."),
        (LIMITS_PATH, "Parts of limits, for other routers."),
        (PLACES_PATH, "Places at engines, for other routers."),
    ):
        binary: dict[str, Any] = {"application/octet-stream": {}}
        operation = {
            "security": [{"adminToken": []}],
            "requestBody": {"required": True, "content": binary},
            "responses": {
                "200": {"description": summary, "content": binary},
                **_ref(Outcome.UNAUTHENTICATED),
            },
        }
        yield path, summary, {"post": operation} | own


def _summary(endpoint: Endpoint) -> str:
    owner = {Dialect.ANTHROPIC: "Anthropic's", Dialect.SGLANG: "SGLang's"}.get(
        endpoint.api.dialect, "OpenAI's"
    )
    own = ("rerank", "score", "classify", "pooling", "tokenize")
    if endpoint.value.endswith(own):
        owner = "The engines'"
    return f"{owner} `{endpoint.value.removeprefix('/v1').strip('/')}`."


def _inference(endpoint: Endpoint) -> dict[str, Any]:
    fields = {name: _KINDS.get(name, {}) for name in _FIELDS[endpoint]}
    if "file" in fields:
        fields["file"] = {"type": "string", "format": "binary"}
    schema = {
        "type": "object",
        "properties": fields,
        "additionalProperties": True,
        "description": _ENGINES,
    }
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if "stream" in fields:
        content["text/event-stream"] = {"schema": _TEXT}
    answer = {
        "description": "The engine's answer.",
        "headers": {REQUEST_ID_HEADER: {"$ref": _REF.format("headers", REQUEST_ID_HEADER)}},
        "content": content,
    }
    anthropic = "anthropic_" if endpoint.api.dialect is Dialect.ANTHROPIC else ""
    kind = "multipart/form-data" if endpoint.api.form else "application/json"
    return {
        "summary": _summary(endpoint),
        "security": _KEYS,
        "requestBody": {"required": True, "content": {kind: {"schema": schema}}},
        "responses": {"200": answer}
        | {
            str(one.status): {"$ref": _REF.format("responses", f"{anthropic}{one.value}")}
            for one in Outcome
            if one is not Outcome.CLIENT_GONE  # only logged
        },
    }


_KEYS: Final[list[dict[str, list[str]]]] = [{"key": []}, {"keyHeader": []}, {}]
"""A key in one of two headers, or none for anonymous requests and trusted proxies."""


def _get(
    responses: Mapping[str, Any], *, keyed: bool = False, admin: bool = False
) -> dict[str, Any]:
    security = _KEYS if keyed else [{"adminToken": []}] if admin else []
    refused = _ref(Outcome.UNAUTHENTICATED) if keyed or admin else {}
    return {"get": {"security": security, "responses": {**responses, **refused}}}


def _ref(outcome: Outcome) -> dict[str, Any]:
    return {str(outcome.status): {"$ref": _REF.format("responses", outcome.value)}}


def _json(schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _errors() -> Iterator[tuple[str, dict[str, Any]]]:
    for outcome in Outcome:
        if outcome is Outcome.CLIENT_GONE:
            continue
        for prefix, schema, kind in (
            ("", "Error", outcome.error_type),
            ("anthropic_", "AnthropicError", outcome.anthropic_type),
        ):
            answer = _json(
                {"$ref": _REF.format("schemas", schema)},
                f"{HTTPStatus(outcome.status).phrase}; type `{kind}`.",
            )
            if outcome.status in (429, 503):
                answer["headers"] = {"retry-after": {"schema": {"type": "integer", "minimum": 1}}}
            yield f"{prefix}{outcome.value}", answer


def _schemas() -> dict[str, Any]:
    _, found = msgspec.json.schema_components(
        (RouterState, ReplicasState, ActivationState), ref_template="#/components/schemas/{name}"
    )
    maybe = {"type": ["string", "null"]}
    error = {"message": _TEXT, "type": _TEXT, "param": maybe, "code": maybe}
    own = {
        "Error": _object(error=_object(**error)),
        "AnthropicError": _object(
            type={"const": "error"}, error=_object(type=_TEXT, message=_TEXT)
        ),
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))  # tuples are arrays
    return own | plain


def _object(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}
