"""`python -m evenkeel_sglang.check`: whether the installed SGLang fits the plug-in, place by place.

Exit code: 0 if each place fits and the version is tested, 1 if a place does not fit, 2 if the version is not tested.
"""

from __future__ import annotations

import sys

from evenkeel_sglang import seams


def lines() -> list[tuple[str, str]]:
    """(place in SGLang, why it does not fit or an empty text), of each place that the plug-in relies on."""
    found = [(seam.path, seams.misfits(seam)) for seam in (*seams.SEAMS, seams.KV_PUBLISH)]
    try:
        seams.matcher()
    except seams.SeamError as error:
        return [*found, (" or ".join(seams.MATCHERS), str(error))]
    return [*found, (" or ".join(seams.MATCHERS), "")]


def main() -> int:
    """Print the result; returns the exit code."""
    version = seams.installed()
    found = lines()
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


if __name__ == "__main__":
    sys.exit(main())
