"""The folder of one model on the volume, with a mark when all files are there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from evenkeel_contract.downloads import Progress

from evenkeel_operator.download.sources import DownloadError, Item, Source

MARK: Final = ".evenkeel-complete"
"""File of a folder that has all files."""
THREADS: Final = 8


class Folder:
    """The files of one source."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.items: Sequence[Item] = ()
        """All files of the source, once they are listed."""

    @property
    def is_complete(self) -> bool:
        """Whether an earlier download ended."""
        return (self._path / MARK).is_file()

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(item.size for item in self.items)

    @property
    def progress(self) -> Progress:
        """What is written, partial files included."""
        return Progress(written=sum(map(_size, self._path.rglob("*"))), total=self.total)

    def download(self, source: Source) -> None:
        """Write what is missing, then the mark. Raises `DownloadError`, and `OSError` of the volume."""
        self._path.mkdir(parents=True, exist_ok=True)
        self.items = source.items()
        self._check_room()
        with ThreadPoolExecutor(THREADS) as threads:
            tasks = [threads.submit(source.fetch, item, self._path) for item in self.items]
            try:
                for task in tasks:
                    task.result()
            except (DownloadError, OSError):
                threads.shutdown(cancel_futures=True)
                raise
        source.finish(self.items, self._path)
        mark = {"files": len(self.items), "bytes": self.total}
        (self._path / MARK).write_text(json.dumps(mark))

    def _check_room(self) -> None:
        missing, free = self.total - self.progress.written, shutil.disk_usage(self._path).free
        if missing > free:
            raise DownloadError(
                f"{missing / 1e9:.1f} GB are missing, and the volume has {free / 1e9:.1f} GB free; increase its size"
            )


def _size(file: Path) -> int:
    try:
        return file.stat().st_size if file.is_file() else 0
    except OSError:  # it got another name meanwhile
        return 0


def remove_others(folder: Path, *, keep: Collection[str]) -> list[str]:
    """Remove the folders beside `folder` that are not in `keep`; their names."""
    siblings = folder.parent.iterdir() if folder.parent.is_dir() else ()
    gone = sorted(one.name for one in siblings if one != folder and one.name not in keep)
    for name in gone:
        shutil.rmtree(folder.parent / name)
    return gone
