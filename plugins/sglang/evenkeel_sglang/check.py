"""`python -m evenkeel_sglang.check [FOLDER]`: whether SGLang fits the plug-in, place by place.

The installed one is imported. With FOLDER, the one whose package lies there is read as source, without its dependencies.

Exit code: 0 if each place fits and the version is tested, 1 if a place does not fit, 2 if the version is not tested.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from evenkeel_sglang import seams, sources


def lines(folder: Path | None = None) -> list[tuple[str, str]]:
    """(place in SGLang, why it does not fit or an empty text), of each place that the plug-in relies on."""
    if folder is not None:
        return list(sources.places(folder))
    return [*seams.places(), *((seam.path, seams.misfits(seam)) for seam in seams.OPTIONAL)]


def main(arguments: Sequence[str] = ()) -> int:
    """Print the result; returns the exit code."""
    folder = Path(arguments[0]) if arguments else None
    version = seams.installed() if folder is None else version_in(folder)
    found = lines(folder)
    text = [
        f"{'no ' if misfit else 'yes'}  {place}" + (f": {misfit}" if misfit else "")
        for place, misfit in found
    ]
    misfits = sum(bool(misfit) for _, misfit in found)
    tested = version in seams.TESTED
    text.append(
        f"SGLang {version}: {len(found) - misfits} of {len(found)} places fit; "
        f"this version is {'' if tested else 'not '}tested (tested: {', '.join(seams.TESTED)})"
    )
    sys.stdout.write("\n".join(text) + "\n")
    return 1 if misfits else 0 if tested else 2


def version_in(folder: Path) -> str:
    """The version of the package that lies in a folder."""
    (found,) = distributions(name="sglang", path=[str(folder)])
    return found.version


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
