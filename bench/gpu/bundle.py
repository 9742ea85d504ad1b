"""Builds what a GPU machine without network lacks: `python -m bench.gpu.bundle [--out .gpu]`.

The machine has Python 3.12 and torch 2.11 for CUDA 13. The result is `site.tar.xz`, packages to put on the path, and `model/`, the shape of
Llama-3.1-8B with a small tokenizer. Nothing is compiled. Wheels come from the package index by name, versions from
`plugins/sglang/cpu/` and `constraints.txt`. Needs pip, xz, strip (binutils) and the model of `make sglang`.

Of SGLang's kernels only those of Hopper are taken, without FlashAttention 3, which the Triton backend does not need. `sglang-kernel` 0.4.5
is the newest that loads under torch 2.11. SGLang 0.5.16, which was built for it, lies beside the newest as `fallback/`. It is changed in one
thing: it may register models that the machine's newer transformers has too.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SITE: Final = "site.tar.xz"
FALLBACK: Final = "fallback"
"""Folder of the site with `FALLBACK_SGLANG`; on the path before the site, it hides the newest."""
CARRY_MIB: Final = 64.0
"""The most that travels to the machine at once, the tracked files of the repository included."""

_KERNEL: Final = "sglang-kernel==0.4.5"
FALLBACK_SGLANG: Final = "sglang==0.5.16"
_VERSIONS: Final = (
    "plugins/sglang/cpu/requirements.txt",
    "plugins/sglang/cpu/engine.txt",
    "constraints.txt",
)
_NEEDED: Final = """
sglang
fastapi starlette uvicorn pydantic pydantic-core annotated-types typing-inspection opentelemetry-api orjson pyzmq msgspec
python-multipart setproctitle pybase64 partial-json-parser interegular jsonschema jsonschema-specifications referencing rpds-py
dill compressed-tensors loguru openai openai-harmony distro jiter sniffio llguidance xgrammar apache-tvm-ffi watchfiles zstandard
blobfile gguf anthropic docstring-parser soundfile cffi pycparser
aiohttp aiohappyeyeballs aiosignal attrs frozenlist httptools multidict propcache redis xxhash yarl
"""
"""SGLang, what it imports and a machine with torch and transformers does not have, and what the harness and the router import."""
_PLATFORMS: Final = (
    *(f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 26, 24, 17)),
    *("manylinux2014_x86_64", "manylinux1_x86_64"),
)
_LEFT_OUT: Final = (
    *("sglang/multimodal_gen/*", "sglang/test/*", "*.data/*"),
    *(f"sglang/srt/rust_extensions/_{part}*" for part in ("bench", "server", "grpc", "multimodal")),
)
_KERNEL_FILES: Final = (
    *("sgl_kernel/*.py", "sgl_kernel/sm90/*.so", "sgl_kernel/spatial_ops*.so"),
    "sglang_kernel*.dist-info/*",
)
_DISPLAY: Final = """\
class _Shown:
    def __init__(self, data=None, *a, **k): self.data = data
HTML = Markdown = JSON = _Shown
def display(*a, **k): pass
def clear_output(*a, **k): pass
"""
_PLUG_IN: Final[Mapping[str, str]] = {
    "METADATA": "Metadata-Version: 2.1\nName: evenkeel-llm\nVersion: 0\n",
    "entry_points.txt": "[sglang.srt.plugins]\nevenkeel = evenkeel_sglang.plugin:register\n",
}
"""The plug-in's entry point; its code travels with the repository."""
LLAMA_8B: Final[Mapping[str, object]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "initializer_range": 0.02,
}
_TOKENIZER: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


class BundleError(RuntimeError):
    """The bundle cannot be built; the message names what is missing."""


def pins(names: Iterable[str], texts: Iterable[str]) -> list[str]:
    """`name==version` of each, from the first of these requirement files that has it; raises `BundleError`."""
    found: dict[str, str] = {}
    for text in texts:
        for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", text, re.MULTILINE):
            found.setdefault(name.lower().replace("_", "-"), version)
    missing = [name for name in names if name not in found]
    if missing:
        raise BundleError(f"no version of {', '.join(missing)} in {', '.join(_VERSIONS)}")
    return [f"{name}=={found[name]}" for name in names]


def is_taken(wheel: str, name: str) -> bool:
    """Whether the file `name` of a wheel goes into the site."""
    if wheel.startswith("sglang_kernel-"):
        return any(fnmatch(name, pattern) for pattern in _KERNEL_FILES)
    return not any(fnmatch(name, pattern) for pattern in _LEFT_OUT)


def with_newer_transformers(text: str) -> str:
    """A module of SGLang in which a registration of a model may repeat one of transformers."""
    return re.sub(
        r"^(\s*Auto\w+\.register\((?!.*exist_ok).*)\)$",
        r"\1, exist_ok=True)",
        text,
        flags=re.MULTILINE,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; the exit status."""
    parser = argparse.ArgumentParser(prog="bench.gpu.bundle")
    parser.add_argument("--out", type=Path, default=ROOT / ".gpu")
    parser.add_argument("--tokenizer", type=Path, default=ROOT / ".venv-sglang/model")
    options = parser.parse_args(arguments)
    began_s = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            _build(Path(folder), options.out, options.tokenizer)
    except (BundleError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [ROOT / name for name in tracked.stdout.split("\0") if name]
    repository_mib = sum(path.stat().st_size for path in files if path.is_file()) / 2**20
    bundle_mib = sum(path.stat().st_size for path in options.out.rglob("*")) / 2**20
    print(
        f"{options.out}: {bundle_mib:.1f} MiB, with the repository's {repository_mib:.1f} "
        f"{bundle_mib + repository_mib:.1f} of {CARRY_MIB:g} MiB; {time.monotonic() - began_s:.0f} s"
    )
    return 0 if bundle_mib + repository_mib <= CARRY_MIB else 1


def _build(work: Path, out: Path, tokenizer: Path) -> None:
    missing = [name for name in _TOKENIZER if not (tokenizer / name).exists()]
    if missing:
        raise BundleError(f"{tokenizer} lacks {', '.join(missing)}: run `make sglang`")
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in _VERSIONS]
    site = work / "site"
    _download(work / "wheels", [_KERNEL, *pins(_NEEDED.split(), texts)])
    _download(work / "older", [FALLBACK_SGLANG])
    _unpack(work / "wheels", site)
    _unpack(work / "older", site / FALLBACK)
    for path in (site / FALLBACK).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if (replaced := with_newer_transformers(text)) != text:
            path.write_text(replaced, encoding="utf-8")
    (site / "IPython").mkdir()  # SGLang imports it at its top
    (site / "IPython/__init__.py").write_text(
        "version_info = (9, 0, 0)\ndef get_ipython(): return None\n"
    )
    (site / "IPython/display.py").write_text(_DISPLAY)
    (site / "evenkeel_llm-0.dist-info").mkdir()
    for name, text in _PLUG_IN.items():
        (site / "evenkeel_llm-0.dist-info" / name).write_text(text)
    libraries = [str(path) for path in site.rglob("*.so")]
    subprocess.run(["strip", "--strip-unneeded", *libraries], check=False, capture_output=True)
    model = out / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(LLAMA_8B, indent=1))
    for name in _TOKENIZER:
        shutil.copy(tokenizer / name, model / name)
    order = ("--sort=name", "--owner=0", "--group=0", "--mtime=@0")
    subprocess.run(["tar", "-C", site, *order, "-cf", work / "site.tar", "."], check=True)
    # Blocks, so that all cores of the machine unpack it.
    subprocess.run(["xz", "-6", "-T0", "--block-size=16MiB", work / "site.tar"], check=True)
    shutil.move(work / SITE, out / SITE)


def _download(folder: Path, requirements: Sequence[str]) -> None:
    version = ("--python-version", "3.12", "--implementation", "cp")
    abis = (part for abi in ("cp312", "abi3", "none") for part in ("--abi", abi))
    platforms = (part for platform in _PLATFORMS for part in ("--platform", platform))
    command = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
    target = ("--no-deps", "--only-binary=:all:", *version, *abis, *platforms, "-d", str(folder))
    subprocess.run([*command, *target, *requirements], check=True)


def _unpack(wheels: Path, site: Path) -> None:
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if is_taken(wheel.name, name)]
            archive.extractall(site, names)


if __name__ == "__main__":
    sys.exit(main())
