"""What this engine tokenizes prompts with, for routers in tokens mode (contract `promptfacts`).

Read when the first router asks. Files come from where the engine itself has loaded them: a folder, or Hugging Face's cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evenkeel_contract.promptfacts import TEMPLATE_FILE, PromptFacts, facts_of
from evenkeel_plugin.tokenizer import tokenizer_files


def prompt_facts(server_args: Any) -> PromptFacts:
    """The facts of an engine with these arguments (`sglang.srt.server_args.ServerArgs`). Never raises."""
    page_tokens, files = 1, {}
    try:
        page_tokens = int(server_args.page_size or 1)
        files = _files(server_args.tokenizer_path or server_args.model_path, server_args)
        trouble = _trouble(server_args, files)
    except (
        AttributeError,
        ImportError,
        OSError,
        ValueError,
    ) as error:  # another version's arguments
        trouble = f"the tokenizer of this engine is unknown: {error}"
    return facts_of({} if trouble else files, page_tokens=page_tokens, trouble=trouble)


def _files(source: str, server_args: Any) -> dict[str, bytes]:
    found = tokenizer_files(source, server_args.revision)
    template = server_args.chat_template
    if template and Path(template).is_file():
        found[TEMPLATE_FILE] = Path(template).read_bytes()
    return found


def _trouble(server_args: Any, files: dict[str, bytes]) -> str:
    template = server_args.chat_template
    if server_args.skip_tokenizer_init:
        return "the engine has no tokenizer (--skip-tokenizer-init)"
    if "EAGLE" in str(server_args.speculative_algorithm or "").upper():
        return "pages are of pairs of tokens (--speculative-algorithm)"
    if template and not Path(template).is_file():
        return f"the chat template is one of SGLang's own (--chat-template={template})"
    if not files:
        return (
            f"{server_args.tokenizer_path or server_args.model_path} has no tokenizer's files here"
        )
    return ""
