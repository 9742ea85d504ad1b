"""What an engine tells of the way it makes tokens, by its arguments."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from evenkeel_contract.promptfacts import facts_of
from evenkeel_sglang.prompts import prompt_facts


def arguments(folder: Path, **changes: Any) -> SimpleNamespace:
    """Those of `sglang.srt.server_args.ServerArgs` that are looked at."""
    given: dict[str, Any] = {
        "model_path": str(folder),
        "tokenizer_path": str(folder),
        "revision": None,
        "page_size": 16,
        "chat_template": None,
        "skip_tokenizer_init": False,
        "speculative_algorithm": None,
    }
    return SimpleNamespace(**(given | changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    (tmp_path / "chat_template.jinja").write_bytes(b"own")
    (tmp_path / "model.safetensors").write_bytes(b"large")
    return tmp_path


FILES = {"tokenizer.json": b"{}", "chat_template.jinja": b"own"}


def test_the_files_of_the_tokenizers_folder_are_told_and_no_others(folder: Path) -> None:
    assert prompt_facts(arguments(folder)) == facts_of(FILES, page_tokens=16)
    assert prompt_facts(arguments(folder, tokenizer_path=None, page_size=None)) == facts_of(
        FILES, page_tokens=1
    )


def test_a_template_that_a_flag_names_goes_before_the_models(folder: Path) -> None:
    other = folder / "other.jinja"
    other.write_bytes(b"other")
    told = prompt_facts(arguments(folder, chat_template=str(other)))
    assert told.files["chat_template.jinja"] == b"other"


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({"chat_template": "chatml"}, "the chat template is one of SGLang's own"),
        ({"skip_tokenizer_init": True}, "the engine has no tokenizer"),
        ({"speculative_algorithm": "EAGLE3"}, "pages are of pairs of tokens"),
        ({"page_size": "wide"}, "the tokenizer of this engine is unknown"),
    ],
)
def test_a_reason_is_given_where_a_router_cannot_tokenize(
    folder: Path, changes: dict[str, Any], want: str
) -> None:
    told = prompt_facts(arguments(folder, **changes))
    assert told.trouble.startswith(want)
    assert not told.files


def test_a_folder_without_files_and_arguments_of_another_version_are_trouble(
    tmp_path: Path,
) -> None:
    assert "has no tokenizer's files here" in prompt_facts(arguments(tmp_path)).trouble
    other = arguments(tmp_path)
    del other.skip_tokenizer_init
    assert "is unknown" in prompt_facts(other).trouble
