"""Waiting in an event loop. Imported at the first use, because asyncio takes longer to import than everything else."""

from __future__ import annotations

import asyncio

from ._native import Permit, Waiter


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
