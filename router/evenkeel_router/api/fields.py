"""The fields of bodies that a client may send to an engine, by API, and why others are kept out.

A field passes because it is listed here. One that is not listed is taken out of the body, so that a new version of an
engine opens nothing. `allowFields` of the configuration lets one pass. tests/sglang and tests/vllm read the engines' own request
models, and OpenAI's and Anthropic's clients, and fail for a field that is neither in `OPEN` nor in `CLOSED`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final


def _names(*lines: str) -> frozenset[str]:
    return frozenset(" ".join(lines).split())


_SAMPLING: Final = _names(
    "temperature top_p top_k min_p frequency_penalty presence_penalty repetition_penalty logit_bias seed stop",
    "stop_token_ids stop_regex no_stop_trim include_stop_str_in_output ignore_eos min_tokens bad_words allowed_token_ids",
    "skip_special_tokens spaces_between_special_tokens use_beam_search length_penalty repetition_detection",
    "response_format regex ebnf json_schema structured_outputs",
    # vLLM before 0.12
    "guided_json guided_regex guided_choice guided_grammar guided_whitespace_pattern",
)
"""How tokens are chosen."""
FREQUENT: Final = _names(
    "temperature top_p top_k stop seed user frequency_penalty presence_penalty response_format tool_choice parallel_tool_calls",
    "ignore_eos min_tokens encoding_format dimensions system metadata",
)
"""What many bodies have of the fields that the router only lists."""
_GENERATING: Final = _SAMPLING | _names(
    "model stream stream_options n max_tokens user echo logprobs prompt_logprobs logprob_token_ids",
    "truncate_prompt_tokens truncation_side add_special_tokens thinking_token_budget stream_interval lora_path",
    "return_hidden_states return_routed_experts routed_experts_start_len routed_experts_prompt_start",
    "return_cached_tokens_details return_spec_tokens_details return_tokens_as_token_ids return_token_ids",
    "return_token_offsets mm_payload return_mm_kwargs images_config mm_processor_kwargs",
)
"""What completions and chats share."""
_OPENAI: Final = _names(
    "metadata parallel_tool_calls prompt_cache_key prompt_cache_retention reasoning_effort safety_identifier service_tier",
    "store tool_choice tools top_logprobs verbosity",
)
"""What OpenAI's client sends for chats and responses, whether or not an engine reads it."""
_CHAT_TEMPLATE: Final = _names(
    "add_generation_prompt continue_final_message add_special_tokens chat_template chat_template_kwargs",
    "media_io_kwargs mm_processor_kwargs",
)
"""How a conversation becomes a prompt."""
_TOOLS_OF_MESSAGES: Final = _names(
    "model messages system tools tool_choice thinking output_config betas cache_control context_management",
    "chat_template_kwargs speed",
)
_POOLED: Final = _CHAT_TEMPLATE | _names(
    "model user truncate_prompt_tokens truncation_side padding use_activation normalize input messages",
)
_PAIRS: Final = _names(
    "model user truncate_prompt_tokens truncation_side padding use_activation mm_processor_kwargs",
    "max_tokens_per_query max_tokens_per_doc instruction chat_template_kwargs",
)
_ENCODING: Final = _names("encoding_format embed_dtype endianness dimensions")
_TOKENIZE: Final = _CHAT_TEMPLATE | _names(
    "model user prompt messages tools tool_choice reasoning_effort return_token_strs",
)
_AUDIO: Final = _names(
    "file model user language prompt response_format temperature stream stream_include_usage",
    "stream_continuous_usage_stats hotwords use_beam_search n length_penalty include_stop_str_in_output top_p top_k",
    "min_p seed frequency_penalty repetition_penalty presence_penalty max_completion_tokens to_language",
)

COMPLETIONS: Final = _GENERATING | _names("prompt best_of suffix prompt_embeds")
CHAT: Final = (
    _GENERATING
    | _OPENAI
    | _CHAT_TEMPLATE
    | _names(
        "messages max_completion_tokens documents reasoning thinking include_reasoning separate_reasoning stream_reasoning",
        "audio function_call functions modalities prediction web_search_options task",
        "return_prompt_token_ids return_prompt_text return_meta_info return_input_ids_in_sglext return_output_ids_in_sglext",
        "return_sampling_mask sampling_logprobs_mode return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64",
        "max_dynamic_patch min_dynamic_patch use_audio_in_video video_config",
    )
)
RESPONSES: Final = (
    _SAMPLING
    | _OPENAI
    | _names(
        "model input instructions max_output_tokens max_tool_calls stream stream_options include reasoning text truncation",
        "user include_reasoning chat_template_kwargs media_io_kwargs mm_processor_kwargs mm_payload return_mm_kwargs",
        "enable_response_messages previous_input_messages",
        # Read by the router, which refuses what needs a stored response.
        "background conversation previous_response_id prompt",
    )
)
MESSAGES: Final = _TOOLS_OF_MESSAGES | _names(
    "user max_tokens metadata stop_sequences stream temperature top_k top_p service_tier inference_geo mm_payload",
    "return_mm_kwargs",
)
COUNT_TOKENS: Final = MESSAGES
EMBEDDINGS: Final = (
    _POOLED | _ENCODING | _names("lora_path embed_override_token_id embed_overrides")
)
CLASSIFY: Final = _POOLED
NATIVE_CLASSIFY: Final = _POOLED | _names(
    "text input_ids input_embeds image_data video_data audio_data modalities sampling_params dimensions lora_path",
    "embed_override_token_id embed_overrides return_pooled_hidden_states return_prompt_token_ids is_cross_encoder_request",
)
POOLING: Final = _POOLED | _ENCODING | _names("task data")
RERANK: Final = _PAIRS | _names(
    "query documents top_n return_documents instruct rank_fields max_chunks_per_doc",
)
SCORE: Final = _PAIRS | _names(
    "query items queries documents data_1 data_2 text_1 text_2 label_token_ids apply_softmax item_first temperature",
    "embed_override_token_id query_embed_overrides item_embed_overrides return_token_logprobs",
    "return_pooled_hidden_states score_extraction_token",
)
TOKENIZE: Final = _TOKENIZE
DETOKENIZE: Final = _names("model user tokens skip_special_tokens")
TRANSCRIPTIONS: Final = _AUDIO | _names(
    "timestamp_granularities timestamp_granularities[] chunking_strategy include include[] known_speaker_names",
    "known_speaker_names[] known_speaker_references known_speaker_references[]",
)
TRANSLATIONS: Final = _AUDIO
GENERATE: Final = _names(
    "text input_ids input_embeds image_data video_data audio_data use_audio_in_video video_config modalities",
    "sampling_params return_logprob logprob_start_len top_logprobs_num token_ids_logprob return_sampling_mask",
    "sampling_logprobs_mode return_text_in_logprobs return_flat_raw_top_logprobs return_flat_raw_output_top_logprobs",
    "return_flat_raw_top_logprobs_b64 stream return_hidden_states return_routed_experts routed_experts_start_len",
    "return_indexer_topk lora_path require_reasoning max_thinking_tokens return_bytes return_entropy",
    "return_prompt_token_ids max_dynamic_patch min_dynamic_patch image_max_dynamic_patch video_max_dynamic_patch",
    "images_config mm_processor_kwargs user",
)

OPEN: Final[Mapping[str, frozenset[str]]] = {
    "/v1/completions": COMPLETIONS,
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": COUNT_TOKENS,
    "/v1/embeddings": EMBEDDINGS,
    **dict.fromkeys(("/v1/rerank", "/rerank", "/v2/rerank"), RERANK),
    **dict.fromkeys(("/v1/score", "/score"), SCORE),
    "/v1/classify": CLASSIFY,
    "/classify": NATIVE_CLASSIFY,
    "/pooling": POOLING,
    "/v1/audio/transcriptions": TRANSCRIPTIONS,
    "/v1/audio/translations": TRANSLATIONS,
    **dict.fromkeys(("/tokenize", "/v1/tokenize"), TOKENIZE),
    **dict.fromkeys(("/detokenize", "/v1/detokenize"), DETOKENIZE),
    "/generate": GENERATE,
}
"""Path → the fields that pass."""
NESTED: Final[Mapping[str, frozenset[str]]] = {
    "stream_options": _names("include_usage continuous_usage_stats include_obfuscation"),
    "sampling_params": _names(
        "max_new_tokens min_new_tokens stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty",
        "presence_penalty repetition_penalty n beam_width json_schema regex ebnf structural_tag ignore_eos logit_bias",
        "skip_special_tokens spaces_between_special_tokens no_stop_trim stream_interval sampling_seed ebnf_full_assistant",
    ),
}
"""Members whose own members an engine reads one by one → those that pass."""

_PLACE: Final = "chooses the engine's process, or one that it fetches from"
_ORDER: Final = "changes the order of the engine's queue"
_IDENTITY: Final = "names another client, request or session"
_CACHE: Final = "splits or joins the engine's caches"
_CODE: Final = "is an argument of code that the engine's owner loaded"
_WATCH: Final = "changes what the engine logs, measures or traces"
_OWNER: Final = "is a decision of the service's owner"
_UNREAD: Final = "replaces the prompt that the router reads"
_INNER: Final = "is the engine's own, between its processes"
_ELSEWHERE: Final = "makes a server call others, or use what it stored"

CLOSED: Final[Mapping[str, str]] = {
    "background": _INNER,
    "billing_policy": _OWNER,
    "bootstrap_host": _PLACE,
    "bootstrap_pair_key": _PLACE,
    "bootstrap_port": _PLACE,
    "bootstrap_room": _PLACE,
    "cache_salt": _CACHE,
    "compaction": _ELSEWHERE,
    "container": _ELSEWHERE,
    "conversation_id": _IDENTITY,
    "custom_labels": _WATCH,
    "custom_logit_processor": _CODE,
    "custom_params": _CODE,
    "data_parallel_rank": _PLACE,
    "decision_layout": _INNER,
    "decode_tp_size": _PLACE,
    "diagnostics": _WATCH,
    "disagg_prefill_dp_rank": _PLACE,
    "ec_transfer_params": _PLACE,
    "encoder_urls": _PLACE,
    "external_trace_header": _WATCH,
    "extra_key": _CACHE,
    "fallback_credit_token": _OWNER,
    "fallbacks": _OWNER,
    "http_worker_ipc": _PLACE,
    "input_ids": _UNREAD,
    "is_normalized": _INNER,
    "kv_hints": _CACHE,
    "kv_transfer_params": _PLACE,
    "log_metrics": _WATCH,
    "lora_id": _IDENTITY,
    "mcp_servers": _ELSEWHERE,
    "mm_content_hashes": _CACHE,
    "mm_hashes": _CACHE,
    "multi_item_delimiter_indices": _INNER,
    "need_wait_for_mm_inputs": _INNER,
    "no_logs": _WATCH,
    "num_items_assigned": _INNER,
    "positional_embed_overrides": _INNER,
    "priority": _ORDER,
    "received_time": _WATCH,
    "request_id": _IDENTITY,
    "rid": _IDENTITY,
    "routed_dp_rank": _PLACE,
    "routing_key": _IDENTITY,
    "session_id": _IDENTITY,
    "session_params": _IDENTITY,
    "stop_regex_max_len": _INNER,
    "stop_regex_strs": _INNER,
    "stop_str_max_len": _INNER,
    "stop_strs": _INNER,
    "thread": _ELSEWHERE,
    "token_indices_to_pool": _INNER,
    "user_profile_id": _IDENTITY,
    "uuid": _CACHE,
    "vllm_xargs": _CODE,
    "watermark": _OWNER,
    "watermarking": _OWNER,
    "workspace_id": _IDENTITY,
}
"""Fields that engines or clients know and that are kept out, with the reason. A field may be open in one API (`input_ids` on
`/generate`, `background` of responses, which the router reads) and closed in another."""
_OTHER: Final = "other"
_MEMBERS: Final = frozenset({"", "messages", *NESTED})
"""Where a removed field can stand."""
_WORD: Final = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}")
_SHOWN: Final = 8


def metric_name(field: str) -> str:
    """The name of a removed field in metrics: its own if engines or clients know it, else `other`."""
    member, _, name = field.rpartition(".")
    return field if name in CLOSED and member in _MEMBERS else _OTHER


def shown(removed: tuple[str, ...]) -> str:
    """Removed fields as the answer names them: as many as fit a header, without names that a header cannot hold."""
    words = [name for name in removed[:_SHOWN] if _WORD.fullmatch(name)]
    return ", ".join(words if len(words) == len(removed) else [*words, "..."])
