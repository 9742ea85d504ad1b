"""Stands in for SGLang's GPU kernels, which it imports always and, serving a Llama on the CPU, never calls.

Every name can be imported; calling one raises. SGLang's LoRA layers ask for pinned memory, which only exists beside a GPU: without
one, torch gives them ordinary memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

import torch

MAKERS = ("arange", "empty", "tensor", "zeros")


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: object, **kwargs: object) -> NoReturn:
        raise RuntimeError(f"sgl_kernel.{name}: there are no GPU kernels here, only their names")

    return missing


def without_pinning(make: Callable[..., Any]) -> Callable[..., Any]:
    """`make` without its argument `pin_memory`."""

    @wraps(make)
    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        return make(*args, **kwargs)

    return made


if not torch.cuda.is_available():
    torch.Tensor.pin_memory = lambda tensor, *device: tensor
    for maker in MAKERS:
        setattr(torch, maker, without_pinning(getattr(torch, maker)))
