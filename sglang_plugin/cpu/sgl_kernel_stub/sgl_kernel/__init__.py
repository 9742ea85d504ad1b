"""Stands in for SGLang's GPU kernels, which it imports always and, serving a Llama on the CPU, never calls.

Every name can be imported; calling one raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: object, **kwargs: object) -> NoReturn:
        raise RuntimeError(f"sgl_kernel.{name}: there are no GPU kernels here, only their names")

    return missing
