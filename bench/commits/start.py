"""start.py URL CALL STARTS AT_ONCE: makes starts in threads, or in the tasks of an event loop."""

import asyncio
import sys
import threading

from workglow_limit import Store

url, name, starts, at_once = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
limiter = Store(url, durability="commit").limiter("api", "100000/1h")
call = getattr(limiter, name)
assert limiter.try_acquire()


def thread():
    for _ in range(starts // at_once):
        assert call()


async def task():
    for _ in range(starts // at_once):
        assert await call()


async def main():
    await asyncio.gather(*(task() for _ in range(at_once)))


if name.endswith("_async"):
    asyncio.run(main())
else:
    threads = [threading.Thread(target=thread) for _ in range(at_once)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
