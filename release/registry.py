"""A registry without TLS and without passwords, for trials: Debian's `docker-registry` with its contents in one folder."""

from __future__ import annotations

from pathlib import Path


def written(folder: Path, address: str) -> Path:
    """The configuration of a registry that listens at `address` (host:port), in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.yml"
    config.write_text(
        "version: 0.1\n"
        "log: {level: warn, accesslog: {disabled: true}}\n"
        f"storage: {{filesystem: {{rootdirectory: '{folder.resolve()}/data'}}}}\n"
        f"http: {{addr: '{address}'}}\n"
    )
    return config
