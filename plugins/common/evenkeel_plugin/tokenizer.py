"""The tokenizer's files of an engine, from where the engine itself has loaded them: a folder, or Hugging Face's cache."""

from __future__ import annotations

from pathlib import Path

from evenkeel_contract.promptfacts import FILES


def tokenizer_files(source: str, revision: str | None) -> dict[str, bytes]:
    """Content by name of the files of a folder, or of a repository in Hugging Face's cache."""
    paths = {name: _file_path(source, name, revision) for name in FILES}
    return {name: path.read_bytes() for name, path in paths.items() if path is not None}


def _file_path(source: str, name: str, revision: str | None) -> Path | None:
    folder = Path(source)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(source, name, revision=revision)
    return Path(cached) if isinstance(cached, str) else None
