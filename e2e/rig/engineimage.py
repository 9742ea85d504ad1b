"""The image of the real engine, for a cluster without GPUs: that of `make sglang`, with this tree's plug-in.

`images/sglang.Dockerfile` as it is, over a base that holds the environment's packages and the tiny model instead of the
public image, which cannot be pulled here. Four gigabytes, so it is made only when asked for, and loaded into one node.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Final

from e2e.rig.errors import NotHereError
from e2e.rig.images import BUILDING, REGISTRY, TAG, archive, digest
from e2e.rig.layout import REPOSITORY
from e2e.rig.processes import succeeds
from images import base
from images.cache import one_at_a_time
from images.commands import run

IMAGE: Final = f"{REGISTRY}/sglang:{TAG}"
MODEL_PATH: Final = "/models/tiny"
"""Where the model is, in the image."""
_BASE: Final = f"{REGISTRY}/sglang-base"
_PYTHON: Final = "python3.11"  # of Debian, and so of the base
_RECIPE: Final = ("images/sglang.Dockerfile", "images/project.py", ".dockerignore", "pyproject.toml")  # fmt: skip
_FOLDERS: Final = ("fairshare", "contract", "plugins/common", "plugins/sglang")
# The plug-in is what the recipe brings. Without a GPU, nothing ever loads the others: CUDA's compilers and the kernels
# that cuDNN and cuSOLVER look up as they are called for, a gigabyte of them.
_LEFT_OUT: Final = """\
**/__pycache__
**/evenkeel*
**/_evenkeel*
**/*.a
**/libcudnn_*
**/libcusolver*
**/libnvrtc*.alt*
**/ptxas*
"""
_CONTAINERFILE: Final = f"""\
ARG BASE
FROM ${{BASE}}
COPY lib/{_PYTHON}/site-packages /usr/local/lib/{_PYTHON}/dist-packages
COPY --chmod=755 model {MODEL_PATH}
"""


@one_at_a_time(BUILDING)
def engine_archive(environment: Path) -> Path:
    """An archive of `IMAGE`, from the folder that `make sglang` fills. Raises `NotHereError`."""
    if (environment / "shared").exists():  # the packages that checkouts share
        environment = (environment / "shared").resolve()
    packages = environment / "lib" / _PYTHON / "site-packages"
    if not packages.exists():
        raise NotHereError(f"{environment} is not of {_PYTHON}, which the base image has")
    under = _base(environment, packages)
    return archive(
        IMAGE,
        REPOSITORY,
        containerfile=REPOSITORY / "images" / "sglang.Dockerfile",
        key=under + digest(REPOSITORY, (*_RECIPE, *_FOLDERS)),
        arguments=(f"--build-arg=BASE={under}", "--timestamp=0"),
    )


def _base(environment: Path, packages: Path) -> str:
    """The image with the engine's packages; again only when others are there."""
    listed = sorted(path.name for path in packages.glob("*.dist-info"))
    model = (environment / "model" / "config.json").read_text()
    recipe = f"{base.build(base.ENGINE)}{listed}{model}{_LEFT_OUT}{_CONTAINERFILE}"
    name = f"{_BASE}:{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"
    if not succeeds("buildah", "inspect", "--type=image", name):
        print(f"building image {name} …", flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            file, ignored = Path(temporary, "Containerfile"), Path(temporary, "ignored")
            file.write_text(_CONTAINERFILE)
            ignored.write_text(_LEFT_OUT)
            run("buildah", "build", "--timestamp=0", f"--build-arg=BASE={base.ENGINE.name}",
                "--file", file, "--ignorefile", ignored, "--tag", name, environment)  # fmt: skip
    return name
