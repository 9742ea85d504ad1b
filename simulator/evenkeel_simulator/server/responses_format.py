"""Answers of `/v1/responses`, whole and streamed, as SGLang 0.5.23 writes them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evenkeel_simulator.server import wire
from evenkeel_simulator.server.ask import Ask
from evenkeel_simulator.server.served import ServedRequest
from evenkeel_simulator.server.speech import Delta


class Responses:
    """Answers of `/v1/responses`. There is one choice; each text and each tool call is an item of the output."""

    opens_early = False

    def __init__(self, ask: Ask, echoed: dict[str, Any], head: wire.Head) -> None:
        self._ask = ask
        self._echoed = echoed
        self._head = head
        self._events = 0
        self._open: int | None = None  # index of the open item

    def body(self, requests: Sequence[ServedRequest]) -> bytes:
        return wire.encode(self._response(requests[0]))

    def news(self, request: ServedRequest, start: int) -> bytes:
        events = []
        if not self._events:
            for name in ("response.created", "response.in_progress"):
                events.append(self._event(name, response=self._response(request, begins=True)))
        logprobs = self._logprobs(request, start)
        for delta in request.speech.deltas(start, request.output_tokens):
            events += self._opening(request, delta)
            place = {"item_id": _item_id(request, delta.call), "output_index": self._open}
            if delta.call is not None:
                name = "response.function_call_arguments.delta"
                if delta.text:
                    events.append(self._event(name, **place, delta=delta.text))
                continue
            events.append(
                self._event(
                    "response.output_text.delta",
                    **place,
                    content_index=0,
                    delta=delta.text,
                    logprobs=logprobs or [],
                )
            )
        return b"".join(events)

    def closing(self, requests: Sequence[ServedRequest]) -> bytes:
        (request,) = requests
        response = self._response(request)
        return b"".join(
            (
                *self._closing(request),
                self._event(f"response.{response['status']}", response=response),
            )
        )

    # Events of items

    def _opening(self, request: ServedRequest, delta: Delta) -> list[bytes]:
        """The events that begin the item of `delta`, after the end of the one before; none where it is open."""
        index = delta.call or 0
        if index == self._open:
            return []
        events = self._closing(request)
        self._open = index
        if delta.call is not None:
            item = _call_item(request, index, delta.name or "", "", status="in_progress")
            return [
                *events,
                self._event("response.output_item.added", output_index=index, item=item),
            ]
        item = _message_item(request, [], status="in_progress")
        return [
            *events,
            self._event("response.output_item.added", output_index=index, item=item),
            self._event(
                "response.content_part.added",
                item_id=item["id"],
                output_index=index,
                content_index=0,
                part=_text_content("", None),
            ),
        ]

    def _closing(self, request: ServedRequest) -> list[bytes]:
        if self._open is None:
            return []
        index, self._open = self._open, None
        item = self._output(request)[index]
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "function_call":
            arguments = {"name": item["name"], "arguments": item["arguments"]}
            ends = [self._event("response.function_call_arguments.done", **place, **arguments)]
        else:
            (content,) = item["content"]
            place["content_index"] = 0
            said = {"text": content["text"], "logprobs": []}
            ends = [
                self._event("response.output_text.done", **place, **said),
                self._event("response.content_part.done", **place, part=content),
            ]
        return [*ends, self._event("response.output_item.done", output_index=index, item=item)]

    def _event(self, name: str, /, **fields: Any) -> bytes:
        content = {"type": name, "sequence_number": self._events, **fields}
        self._events += 1
        return wire.named_event(name, content)

    # The whole

    def _response(self, request: ServedRequest, *, begins: bool = False) -> dict[str, Any]:
        status = "in_progress" if begins else _status(request)
        echoed = self._echoed
        return {
            "id": request.id if request.id.startswith("resp_") else f"resp_{request.id}",
            "object": "response",
            "created_at": self._head.created,
            "model": self._head.model,
            "output": [] if begins else self._output(request),
            "status": status,
            "usage": None if begins else self._usage(request),
            "error": {"code": "server_error", "message": request.finish.message}
            if status == "failed" and request.finish
            else None,
            "incomplete_details": {"reason": "max_output_tokens"}
            if status == "incomplete"
            else None,
            "reasoning": {"effort": None, "summary": None},
            **echoed,
        }

    def _output(self, request: ServedRequest) -> list[dict[str, Any]]:
        """The items so far."""
        status = "incomplete" if _status(request) == "incomplete" else "completed"
        calls = request.tool_calls()
        if calls:
            last = len(calls) - 1
            return [
                _call_item(
                    request,
                    number,
                    name,
                    arguments,
                    status=status if number == last else "completed",
                )
                for number, (name, arguments) in enumerate(calls)
            ]
        content = _text_content(request.text(), self._logprobs(request, 0))
        return [_message_item(request, [content], status=status)]

    def _logprobs(self, request: ServedRequest, start: int) -> list[Any] | None:
        found = wire.chat_logprobs(request, self._ask.top_logprobs, start)
        return None if found is None else found["content"]

    def _usage(self, request: ServedRequest) -> dict[str, Any]:
        done = request.output_tokens
        return {
            "input_tokens": request.input_tokens,
            "input_tokens_details": {
                "cached_tokens": request.cached_tokens if self._head.cache_report else 0,
                "cache_write_tokens": 0,
            },
            "output_tokens": done,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": request.input_tokens + done,
        }


def _status(request: ServedRequest) -> str:
    reason = request.finish_reason
    return {"length": "incomplete", "abort": "failed"}.get(reason or "stop", "completed")


def _message_item(
    request: ServedRequest, content: list[dict[str, Any]], *, status: str
) -> dict[str, Any]:
    return {
        "id": _item_id(request, None),
        "content": content,
        "role": "assistant",
        "status": status,
        "type": "message",
        "phase": "final_answer",
    }


def _text_content(text: str, logprobs: list[Any] | None) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


def _call_item(
    request: ServedRequest, number: int, name: str, arguments: str, *, status: str
) -> dict[str, Any]:
    return {
        "arguments": arguments,
        "call_id": request.call_id(number),
        "name": name,
        "type": "function_call",
        "id": _item_id(request, number),
        "status": status,
    }


def _item_id(request: ServedRequest, call: int | None) -> str:
    if call is None:
        return f"msg_{request.id.removeprefix('resp_')}"
    return f"fc_{request.call_id(call).removeprefix('call_')}"
