"""Sources of a model's files. Errors of libraries become `DownloadError`, whose text a person reads in a condition.

Buckets are read by obstore, one compiled client for S3 and Google Cloud Storage that needs no further packages. s3fs with gcsfs
needs about forty; s5cmd and rclone would be images of others.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from obstore.store import ClientConfig, GCSStore, S3Store

CHUNK_BYTES = 1024**2
RETRIES = 10
"""Attempts of one request; then the pod starts again."""
OTHER_FORMATS: Final = (
    *("*.bin", "*.pth", "*.pt", "*.h5", "*.msgpack", "*.ot", "*.onnx", "*.tflite", "*.gguf"),
    "original/*",
)
"""Copies of the same weights in a repository of Hugging Face that has safetensors, which engines load."""
DEFAULT_REGION: Final = "us-east-1"
PARTIAL: Final = ".evenkeel-partial"
# A time in a message would change the status of the service with every attempt.
_NOISE: Final = re.compile(
    r"^Generic \w+ error: (Error performing \w+ request: )?| in [0-9.]+[mµn]?s\b"
)


class DownloadError(Exception):
    """Why files cannot be downloaded, in one line."""


@dataclass(frozen=True, slots=True)
class Item:
    """One file of a model."""

    path: str
    """Relative, with `/`."""
    size: int
    """Bytes."""
    version: str = ""
    """Changes with the content."""


class Source(Protocol):
    """Where files come from. All methods raise `DownloadError`, and `OSError` of the volume."""

    def items(self) -> Sequence[Item]:
        """All files; there is at least one."""

    def fetch(self, item: Item, folder: Path) -> None:
        """Write one file below a folder, or the rest of it."""

    def finish(self, items: Sequence[Item], folder: Path) -> None:
        """Give all files their names, and remove what else the download wrote."""


class Bucket:
    """A prefix of a bucket.

    A file keeps a name with its version until all are there, so that an interrupted download continues, and never mixes
    versions."""

    def __init__(self, source: str, store: S3Store | GCSStore) -> None:
        self._source = source
        self._store = store

    def items(self) -> Sequence[Item]:
        found = []
        try:
            for batch in self._store.list():
                for one in batch:
                    if not one["path"].endswith("/"):
                        version = one["e_tag"] or str(one["last_modified"])
                        found.append(Item(safe(one["path"]), one["size"], version))
        except DownloadError:
            raise
        except Exception as error:  # obstore's errors have no class in common
            raise DownloadError(f"{self._source} cannot be listed: {_words(error)}") from error
        if not found:
            raise DownloadError(f"{self._source} has no files")
        return found

    def fetch(self, item: Item, folder: Path) -> None:
        partial = _partial(item, folder)
        partial.parent.mkdir(parents=True, exist_ok=True)
        start = partial.stat().st_size if partial.is_file() else 0
        # At offsets, and not appended: two pods may write the same file for a moment, and they write the same bytes.
        with partial.open("r+b" if start else "wb") as file:
            file.seek(start)
            if start < item.size:
                self._append(item, file.write, start=start)
        written = partial.stat().st_size
        if written != item.size:
            partial.unlink()
            raise DownloadError(f"{item.path} has {written} bytes, and {item.size} were listed")

    def _append(self, item: Item, write: Any, *, start: int) -> None:
        try:
            answer = self._store.get(item.path, options={"range": {"offset": start}})
            for chunk in answer.stream(min_chunk_size=CHUNK_BYTES):
                write(chunk)
        except OSError as error:
            if error.errno is not None:  # of the volume; those of obstore have no number
                raise
            message = f"{self._source}: {item.path} cannot be read: {_words(error)}"
            raise DownloadError(message) from error
        except Exception as error:
            message = f"{self._source}: {item.path} cannot be read: {_words(error)}"
            raise DownloadError(message) from error

    def finish(self, items: Sequence[Item], folder: Path) -> None:
        for item in items:
            _partial(item, folder).rename(folder / item.path)
        for stale in folder.rglob(f"*{PARTIAL}"):
            stale.unlink()


def _partial(item: Item, folder: Path) -> Path:
    version = hashlib.sha256(item.version.encode()).hexdigest()[:12]
    return folder / f"{item.path}.{version}{PARTIAL}"


class Hub:
    """A repository of Hugging Face. Its library continues an interrupted download by itself."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._repository, _, revision = source.removeprefix("hf://").partition("@")
        self._revision: str | None = revision or None

    def items(self) -> Sequence[Item]:
        from huggingface_hub import HfApi

        try:
            found = HfApi().model_info(
                self._repository, revision=self._revision, files_metadata=True
            )
        except Exception as error:
            raise DownloadError(f"{self._source} cannot be listed: {_words(error)}") from error
        self._revision = found.sha  # all files are of one commit
        listed = [Item(safe(one.rfilename), one.size or 0) for one in found.siblings or ()]
        if any(one.path.endswith(".safetensors") for one in listed):
            listed = [one for one in listed if not any(fnmatch(one.path, p) for p in OTHER_FORMATS)]
        if not listed:
            raise DownloadError(f"{self._source} has no files")
        return listed

    def fetch(self, item: Item, folder: Path) -> None:
        from huggingface_hub import hf_hub_download

        try:
            hf_hub_download(self._repository, item.path, revision=self._revision, local_dir=folder)
        except Exception as error:
            message = f"{self._source}: {item.path} cannot be read: {_words(error)}"
            raise DownloadError(message) from error

    def finish(self, items: Sequence[Item], folder: Path) -> None:
        shutil.rmtree(folder / ".cache", ignore_errors=True)


def safe(path: str) -> str:
    """The path; raises `DownloadError` if it leads out of its folder. The owner of a bucket chooses the names in it."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise DownloadError(f"{path!r} is not a path below a folder")
    return "/".join(parts)


def source_of(
    source: str,
    *,
    endpoint: str = "",
    region: str = "",
    anonymous: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> Source:
    """The source of an `hf://`, `s3://` or `gs://` address. Credentials are in the environment. Raises `DownloadError`."""
    scheme, _, place = source.partition("://")
    if scheme == "hf":
        return Hub(source)
    if scheme not in ("s3", "gs"):
        raise DownloadError(f"{source} cannot be downloaded; use hf://, s3:// or gs://")
    from obstore.store import GCSStore, S3Store

    bucket, _, prefix = place.partition("/")
    config: dict[str, Any] = {
        "prefix": prefix.strip("/") or None,
        "retry_config": {"max_retries": RETRIES},
    }
    if anonymous:
        config["skip_signature"] = True
    # A file may take hours; a connection without bytes for a minute is dead.
    client: ClientConfig = {"timeout": "7days", "read_timeout": "60s"}
    if roots := environment.get("SSL_CERT_FILE"):
        client["root_certificate"] = Path(roots).read_bytes()
    try:
        if scheme == "gs":
            client["allow_http"] = True  # only the key of an account can name such an address
            return Bucket(source, GCSStore(bucket, client_options=client, **config))
        if endpoint:
            config["endpoint"] = endpoint
            client["allow_http"] = endpoint.startswith("http://")
        config["region"] = region or environment.get("AWS_REGION") or DEFAULT_REGION
        return Bucket(source, S3Store(bucket, client_options=client, **config))
    except Exception as error:
        raise DownloadError(f"{source}: {_words(error)}") from error


def _words(error: Exception) -> str:
    """The first line of a message: libraries append their requests."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return _NOISE.sub("", lines[0])[:300] if lines else type(error).__name__
