"""`python3 bytecode.py FOLDER INSTALLED`: bytecode for all modules in FOLDER, which will be installed as INSTALLED.

What `compileall` does, but the same bytes each time. Its files differ from run to run, since how marshal shares
objects depends on reference counts; version 2 of the format shares nothing. They are never checked against the
time of a source file (PEP 552), so that times may be set to zero too.
"""

from __future__ import annotations

import importlib.util
import marshal
import sys
from pathlib import Path

UNCHECKED_HASH = (1).to_bytes(4, "little")


def main(folder: Path, installed: Path) -> None:
    for path in sorted(folder.rglob("*.py")):
        source = path.read_bytes()
        try:
            code = compile(source, str(installed / path.relative_to(folder)), "exec")
        except (
            SyntaxError,
            ValueError,
        ):  # a template, say; Python itself would say so at its import
            continue
        target = Path(importlib.util.cache_from_source(str(path)))
        target.parent.mkdir(exist_ok=True)
        header = importlib.util.MAGIC_NUMBER + UNCHECKED_HASH + importlib.util.source_hash(source)
        target.write_bytes(header + marshal.dumps(code, 2))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
