"""Prompts with contents that are no plain text: what stands for them in the canonical text, and how they are counted."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from evenkeel_router.api.contents import MAX_NODES, MEDIA, PADDED
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.errors import Refusal
from evenkeel_router.api.inference import Inference

from tests.unit.evenkeel_router.test_inference import LIMITS

PIXELS = "data:image/png;base64," + base64.b64encode(b"\0" * 30_000).decode()
OTHER_PIXELS = PIXELS[:-4] + "AAAB"


def read(endpoint: Endpoint, body: dict[str, Any]) -> Inference:
    return endpoint.api.parse(json.dumps(body).encode(), LIMITS, "")


def chat(*parts: Any) -> Inference:
    return read(
        Endpoint.CHAT, {"model": "m", "messages": [{"role": "user", "content": list(parts)}]}
    )


def messages(*blocks: Any) -> Inference:
    given = [{"role": "user", "content": list(blocks)}]
    return read(Endpoint.MESSAGES, {"model": "m", "max_tokens": 9, "messages": given})


def responses(*items: Any) -> Inference:
    return read(Endpoint.RESPONSES, {"model": "m", "input": list(items)})


def text(of: str) -> dict[str, Any]:
    return {"type": "text", "text": of}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


DIFFERENT = {
    "image, inline": (chat(image(PIXELS)), chat(image(OTHER_PIXELS))),
    "image by URL": (chat(image("https://a.test/1.png")), chat(image("https://a.test/2.png"))),
    "detail of an image": tuple(
        chat({"type": "image_url", "image_url": {"url": "https://a.test/1", "detail": detail}})
        for detail in ("low", "high")
    ),
    "a text beside an image": tuple(
        chat({"type": "image_url", "text": "same", "image_url": {"url": url}})
        for url in ("https://a.test/1", "https://a.test/2")
    ),
    "file": tuple(
        chat({"type": "file", "file": {"filename": "a.pdf", "file_data": data}})
        for data in ("A" * 5000, "A" * 4999 + "B")
    ),
    "file by id": tuple(chat({"type": "file", "file": {"file_id": one}}) for one in ("1", "2")),
    "a part that nobody knows": tuple(
        chat({"type": "hologram", "hologram": {"data": one}}) for one in ("x", "y")
    ),
    "refusal": tuple(chat({"type": "refusal", "refusal": one}) for one in ("x", "y")),
    "a call's id": tuple(
        read(Endpoint.CHAT, {"model": "m", "messages": [
            {"role": "tool", "content": "1", "tool_call_id": one}]}) for one in ("x", "y")
    ),
    "reasoning": tuple(
        read(Endpoint.CHAT, {"model": "m", "messages": [
            {"role": "assistant", "content": "1", "reasoning": one}]}) for one in ("x", "y")
    ),
    "documents": tuple(
        read(Endpoint.CHAT, {"model": "m", "messages": [{"role": "user", "content": "1"}],
                             "documents": [{"text": one}]}) for one in ("x", "y")
    ),
    "Anthropic's document": tuple(
        messages({"type": "document", "source": {"type": "base64", "data": one}}, text("a"))
        for one in ("A" * 5000, "B" * 5000)
    ),
    "an image in a tool's result": tuple(
        messages({"type": "tool_result", "tool_use_id": "t", "content": [
            {"type": "image", "source": {"type": "base64", "data": one}}]})
        for one in ("A" * 5000, "B" * 5000)
    ),
    "redacted thoughts": tuple(
        messages({"type": "redacted_thinking", "data": one}) for one in ("x", "y")
    ),
    "a file of responses": tuple(
        responses({"role": "user", "content": [{"type": "input_file", "file_data": one}]})
        for one in ("A" * 5000, "B" * 5000)
    ),
    "a screenshot": tuple(
        responses({"type": "computer_call_output", "call_id": "c", "output": {
            "type": "computer_screenshot", "image_url": one}}) for one in (PIXELS, OTHER_PIXELS)
    ),
    "encrypted reasoning": tuple(
        responses({"type": "web_search_call", "action": {"query": one}}) for one in ("x", "y")
    ),
    "image_data": tuple(
        read(Endpoint.GENERATE, {"text": "a", "image_data": one}) for one in (PIXELS, OTHER_PIXELS)
    ),
    "embeds": tuple(
        read(Endpoint.COMPLETIONS, {"model": "m", "prompt": "a", "prompt_embeds": one})
        for one in ("AAAA", "BBBB")
    ),
    "suffix": tuple(
        read(Endpoint.COMPLETIONS, {"model": "m", "prompt": "a", "suffix": one}) for one in "xy"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DIFFERENT)
def test_two_different_contents_are_never_one_prefix(what: str) -> None:
    first, second = DIFFERENT[what]
    assert first.text != second.text


def test_contents_have_one_text_whatever_their_spacing() -> None:
    part = {"type": "hologram", "data": {"x": [1, 2], "y": None}}
    body = {"model": "m", "messages": [{"role": "user", "content": [part]}]}
    wide = Endpoint.CHAT.api.parse(json.dumps(body, indent=3).encode(), LIMITS, "")
    assert wide.text == chat(part).text


@pytest.mark.parametrize(
    "block",
    [
        {"type": "tool_result", "tool_use_id": "t", "content": "20 degrees"},
        {"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "Kiel"}},
        {"type": "image", "source": {"type": "base64", "data": "A" * 5000}},
    ],
)
def test_a_mark_of_the_cache_is_no_content(block: dict[str, Any]) -> None:
    """Agents mark the newest block, so the same block is without the mark in the next request."""
    marked = messages(block | {"cache_control": {"type": "ephemeral"}})
    assert marked.text == messages(block).text
    assert marked.prompt_bytes == messages(block).prompt_bytes


@pytest.mark.parametrize(
    ("inference", "kind", "items", "tokens"),
    [
        (chat(text("Hi"), image(PIXELS)), "image", 1, 1024),
        (chat(*[image("https://a.test/1")] * 200), "image_url", 200, 200 * 1024),
        (chat({"type": "input_audio", "input_audio": {"data": "A" * 42_700}}), "audio", 1, 100),
        (chat({"type": "audio_url", "audio_url": {"url": "https://a.test"}}), "audio_url", 1, 1500),
        (chat({"type": "file", "file": {"file_data": "A" * 5000}}), "file", 1, 4096),
        (chat({"type": "image_embeds", "image_embeds": "A" * 81_920}), "embeds", 1, 10),
        (messages({"type": "image", "source": {"type": "base64", "data": "A" * 2000}}), "image", 1, 1024),
        (responses({"role": "user", "content": [{"type": "input_image", "image_url": PIXELS}]}), "image", 1, 1024),
        (read(Endpoint.GENERATE, {"text": "a", "image_data": [PIXELS, PIXELS]}), "image", 2, 2048),
    ],
)  # fmt: skip
def test_media_are_counted_by_kind_and_not_as_text(
    inference: Inference, kind: str, items: int, tokens: float
) -> None:
    (media,) = inference.media
    assert (media.kind, media.items) == (kind, items)
    assert media.tokens == pytest.approx(tokens, rel=0.02)
    assert inference.prompt_bytes < 100


def test_a_document_of_text_is_text() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "word " * 1000}
    inference = messages({"type": "document", "source": source})
    assert inference.media == ()
    assert 5000 <= inference.prompt_bytes < 5200


def test_the_text_that_stands_for_media_is_bounded() -> None:
    parts = [image(f"https://a.test/{n}") for n in range(5000)]
    assert len(chat(*parts).text) < 4096 * (PADDED + 1) + 5000 * 64


def test_a_part_of_too_many_values_is_refused() -> None:
    with pytest.raises(Refusal, match="more than 65536 values"):
        chat({"type": "hologram", "data": [0] * MAX_NODES})


def test_every_kind_has_a_rule_for_its_url_or_is_inline() -> None:
    assert {kind for kind in MEDIA if f"{kind}_url" not in MEDIA and not kind.endswith("_url")} == {
        "embeds"
    }
