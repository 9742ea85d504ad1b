"""Asks engines which model they serve (`GET /v1/models`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
import msgspec
from evenkeel_contract.routerconfig import ReplicaConfig

PATH: Final = "/v1/models"
ANSWER_LIMIT_S: Final = 5.0
BETWEEN_S: Final = 1.0
REPORT_EVERY: Final = 10
"""Rounds without an answer between two lines about it."""
SGLANG: Final = "sglang"
"""The value of `owned_by` in SGLang's list of models."""


class ModelsError(Exception):
    """The engines cannot be used together; the message gives the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class ModelNames:
    """The names that requests may send as `model`."""

    model: str
    aliases: tuple[str, ...] = ()
    """Other names that engines accept as they are."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters that the engine wants as `model:adapter`."""


class Card(msgspec.Struct, frozen=True):
    """One entry of the list, without the fields that nothing reads."""

    id: str
    parent: str | None = None
    """The model of an adapter."""
    owned_by: str | None = None


class _List(msgspec.Struct, frozen=True):
    data: tuple[Card, ...]


def names_of(cards: Sequence[Card]) -> ModelNames | None:
    """The names in an engine's list; None if it has no model.

    SGLang answers the name of an adapter alone with the model itself, so its adapters need the prefix. vLLM knows them by name.
    """
    models = [card.id for card in cards if card.parent is None]
    if not models:
        return None
    below = [card for card in cards if card.parent is not None]
    adapters = tuple(sorted(card.id for card in below if card.owned_by == SGLANG))
    others = [card.id for card in below if card.owned_by != SGLANG]
    return ModelNames(models[0], tuple(models[1:] + sorted(others)), adapters)


async def ask_models(
    replicas: Sequence[ReplicaConfig], *, report: Callable[[str], None]
) -> ModelNames:
    """The names that engines serve, once the first of them answers. Raises `ModelsError`.

    `report` gets a line from time to time while no engine answers.
    """
    rounds = 0
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=ANSWER_LIMIT_S)
    ) as session:
        while True:
            found = await asyncio.gather(*(_ask(session, replica) for replica in replicas))
            known = [(replica, one) for replica, one in zip(replicas, found, strict=True)]
            answers = [(replica, one) for replica, one in known if isinstance(one, ModelNames)]
            if answers:
                return _agreed(answers)
            if rounds % REPORT_EVERY == 0:
                reasons = "; ".join(f"{replica.name}: {one}" for replica, one in known)
                report(f"waiting for the first replica that answers GET {PATH} ({reasons})")
            rounds += 1
            await asyncio.sleep(BETWEEN_S)


def _agreed(answers: Sequence[tuple[ReplicaConfig, ModelNames]]) -> ModelNames:
    first, names = answers[0]
    for replica, other in answers:
        if other.model != names.model:
            raise ModelsError(
                f"{first.name} serves {names.model!r} and {replica.name} serves {other.model!r}; "
                "list each model with its engines under `models` in a file, or give the name that both know with --model"
            )
    return names


async def _ask(session: aiohttp.ClientSession, replica: ReplicaConfig) -> ModelNames | str:
    """The names that an engine serves, or why they are not known. Raises `ModelsError`."""
    headers = {} if replica.api_key is None else {"Authorization": f"Bearer {replica.api_key}"}
    try:
        async with session.get(replica.url + PATH, headers=headers) as response:
            if response.status in (401, 403):
                raise ModelsError(
                    f"{replica.name} refuses the router's key (status {response.status}); "
                    "give it with --replica-key, or as apiKey of the replica in the file"
                )
            if response.status != 200:
                return f"status {response.status}"
            cards = msgspec.json.decode(await response.read(), type=_List).data
    except TimeoutError:
        return "no answer in time"
    except (aiohttp.ClientError, OSError) as error:
        return str(error) or type(error).__name__
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return f"the answer is not a list of models: {error}"
    return names_of(cards) or "the list of models is empty"
