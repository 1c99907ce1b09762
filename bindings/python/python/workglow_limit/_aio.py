"""Waiting in an event loop. Imported at the first use, because asyncio takes longer to import than everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

from ._native import Permit, Waiter


class Acquiring(Coroutine[Any, Any, Permit]):
    """What acquire_async answers. Awaited, it is the permit; entered by `async with`, the permit that ends with the body."""

    __slots__ = "_permit", "_steps"

    def __init__(self, waiter: Waiter) -> None:
        self._steps = acquire(waiter)

    def __await__(self) -> Generator[Any, Any, Permit]:
        return self._steps.__await__()

    async def __aenter__(self) -> Permit:
        self._permit = await self._steps
        return self._permit

    async def __aexit__(self, *_exception: object) -> None:
        self._permit.complete()

    # Event loops make tasks only of what is a coroutine.

    def send(self, value: Any) -> Any:
        return self._steps.send(value)

    def throw(self, *exception: Any) -> Any:
        return self._steps.throw(*exception)

    def close(self) -> None:
        self._steps.close()


async def acquire(waiter: Waiter) -> Permit:
    """Takes the steps of a waiter and sleeps in between. A permit only comes from the last step, so whoever is
    cancelled while asleep holds none; a place is handed back."""
    if not waiter.is_open:
        await asyncio.to_thread(waiter.open)
    try:
        while True:
            answer = waiter.step()
            if isinstance(answer, Permit):
                return answer
            await asyncio.sleep(answer)
    except BaseException:
        waiter.give_up()
        raise
