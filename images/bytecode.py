"""`python3 bytecode.py FOLDER INSTALLED` writes bytecode for the modules in FOLDER, which are installed as INSTALLED.

Unlike `compileall` it writes the same bytes in every run. The current marshal format shares objects by their reference
counts, which differ between runs, so this uses version 2, which shares none. Python does not compare these files with the
times of the sources (PEP 552), so the image may set all times to zero.
"""

from __future__ import annotations

import importlib.util
import marshal
import sys
from pathlib import Path

# Flags of PEP 552: bit 0 is set, the pyc has a hash; bit 1 is not, Python does not check it.
UNCHECKED_HASH = (1).to_bytes(4, "little")


def main(folder: Path, installed: Path) -> None:
    for path in sorted(folder.rglob("*.py")):
        source = path.read_bytes()
        try:
            code = compile(source, str(installed / path.relative_to(folder)), "exec")
        except (SyntaxError, ValueError):  # a template, for example; its import would fail too
            continue
        target = Path(importlib.util.cache_from_source(str(path)))
        target.parent.mkdir(exist_ok=True)
        header = importlib.util.MAGIC_NUMBER + UNCHECKED_HASH + importlib.util.source_hash(source)
        target.write_bytes(header + marshal.dumps(code, 2))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
