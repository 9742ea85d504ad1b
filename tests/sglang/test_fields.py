"""The fields of SGLang's request models, and of OpenAI's and Anthropic's clients in its environment, are all classified by the router."""

from __future__ import annotations

import pytest
from evenkeel_router.api import fields

from tests.sglang.engine import ENVIRONMENT, installed
from tests.support.listed_fields import Names, names_of, unclassified

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

OPENAI = "sglang.srt.entrypoints.openai.protocol"
ANTHROPIC = "sglang.srt.entrypoints.anthropic.protocol"
STRUCTS = "sglang.srt.managers.io_struct"
MODELS = {
    "/v1/completions": [f"{OPENAI}:CompletionRequest"],
    "/v1/chat/completions": [f"{OPENAI}:ChatCompletionRequest"],
    "/v1/responses": [f"{OPENAI}:ResponsesRequest"],
    "/v1/messages": [f"{ANTHROPIC}:AnthropicMessagesRequest"],
    "/v1/messages/count_tokens": [f"{ANTHROPIC}:AnthropicCountTokensRequest"],
    "/v1/embeddings": [f"{OPENAI}:EmbeddingRequest"],
    "/v1/rerank": [f"{OPENAI}:V1RerankReqInput"],
    "/v1/score": [f"{OPENAI}:ScoringRequest"],
    "/v1/classify": [f"{OPENAI}:ClassifyRequest"],
    "/classify": [f"{STRUCTS}:EmbeddingReqInput"],
    "/v1/audio/transcriptions": [
        "sglang.srt.entrypoints.http_server:openai_v1_audio_transcriptions"
    ],
    "/tokenize": [f"{OPENAI}:TokenizeRequest"],
    "/detokenize": [f"{OPENAI}:DetokenizeRequest"],
    "/generate": [f"{STRUCTS}:GenerateReqInput"],
    "stream_options": [f"{OPENAI}:StreamOptions"],
    "sampling_params": ["sglang.srt.sampling.sampling_params:SamplingParams"],
}
CLIENTS = {
    "/v1/completions": ["openai.types.completion_create_params:CompletionCreateParams"],
    "/v1/chat/completions": ["openai.types.chat.completion_create_params:CompletionCreateParams"],
    "/v1/responses": ["openai.types.responses.response_create_params:ResponseCreateParams"],
    "/v1/embeddings": ["openai.types.embedding_create_params:EmbeddingCreateParams"],
    "/v1/audio/transcriptions": [
        "openai.types.audio.transcription_create_params:TranscriptionCreateParams"
    ],
    "/v1/audio/translations": [
        "openai.types.audio.translation_create_params:TranslationCreateParams"
    ],
    "/v1/messages": ["anthropic.types.beta.message_create_params:MessageCreateParams"],
    "/v1/messages/count_tokens": [
        "anthropic.types.beta.message_count_tokens_params:MessageCountTokensParams"
    ],
}


@pytest.fixture(scope="module")
def engines_names() -> Names:
    return names_of(installed() / "bin/python", MODELS, ENVIRONMENT)


def test_every_field_of_sglangs_requests_is_classified(engines_names: Names) -> None:
    assert unclassified(engines_names) == {}


def test_every_field_that_stock_clients_send_is_classified() -> None:
    assert unclassified(names_of(installed() / "bin/python", CLIENTS, ENVIRONMENT)) == {}


def test_a_field_that_leaves_the_list_is_missed(
    engines_names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(fields.CLOSED, "bootstrap_room")  # type: ignore[arg-type]
    monkeypatch.setitem(fields.OPEN, "/tokenize", fields.OPEN["/tokenize"] - {"prompt"})  # type: ignore[index]
    missed = unclassified({path: engines_names[path] for path in ("/v1/messages", "/tokenize")})
    assert missed == {"/v1/messages": ["bootstrap_room"], "/tokenize": ["prompt"]}
