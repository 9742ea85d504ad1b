"""The fields of vLLM's request models are all classified by the router."""

from __future__ import annotations

from pathlib import Path

import pytest
from evenkeel_router.api import fields

from tests.support.listed_fields import Names, names_of, unclassified

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

AT = "vllm.entrypoints"
RERANK = [f"{AT}.pooling.scoring.protocol:RerankRequest"]
SCORE = [f"{AT}.pooling.scoring.protocol:ScoreRequest"]
MODELS = {
    "/v1/completions": [f"{AT}.openai.completion.protocol:CompletionRequest"],
    "/v1/chat/completions": [f"{AT}.openai.chat_completion.protocol:ChatCompletionRequest"],
    "/v1/responses": [f"{AT}.openai.responses.protocol:ResponsesRequest"],
    "/v1/messages": [f"{AT}.anthropic.protocol:AnthropicMessagesRequest"],
    "/v1/messages/count_tokens": [f"{AT}.anthropic.protocol:AnthropicCountTokensRequest"],
    "/v1/embeddings": [f"{AT}.pooling.embed.protocol:EmbeddingRequest"],
    "/v1/rerank": RERANK,
    "/rerank": RERANK,
    "/v2/rerank": RERANK,
    "/v1/score": SCORE,
    "/score": SCORE,
    "/classify": [f"{AT}.pooling.classify.protocol:ClassificationRequest"],
    "/pooling": [f"{AT}.pooling.pooling.protocol:PoolingRequest"],
    "/v1/audio/transcriptions": [
        f"{AT}.speech_to_text.transcription.protocol:TranscriptionRequest"
    ],
    "/v1/audio/translations": [f"{AT}.speech_to_text.translation.protocol:TranslationRequest"],
    "/tokenize": [f"{AT}.serve.tokenize.protocol:TokenizeRequest"],
    "/detokenize": [f"{AT}.serve.tokenize.protocol:DetokenizeRequest"],
    "stream_options": [f"{AT}.generate.base.protocol:StreamOptions"],
}
ENVIRONMENT = {"VLLM_TARGET_DEVICE": "cpu"}


@pytest.fixture(scope="module")
def names(environment: Path) -> Names:
    return names_of(environment / "bin/python", MODELS, ENVIRONMENT)


def test_every_field_of_vllms_requests_is_classified(names: Names) -> None:
    assert unclassified(names) == {}


def test_a_field_that_leaves_the_list_is_missed(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(fields.CLOSED, "kv_transfer_params")  # type: ignore[arg-type]
    monkeypatch.setitem(fields.OPEN, "/rerank", fields.OPEN["/rerank"] - {"top_n"})  # type: ignore[index]
    missed = unclassified({path: names[path] for path in ("/v1/messages", "/rerank")})
    assert missed == {"/v1/messages": ["kv_transfer_params"], "/rerank": ["top_n"]}
