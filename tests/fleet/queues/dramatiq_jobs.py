import time

import dramatiq
import work
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage

if work.BROKER.startswith("redis"):
    # Messages in the memory of a killed worker, also delayed ones, are redelivered after 10 s, not a minute.
    broker = RedisBroker(url=work.BROKER, heartbeat_timeout=10_000, maintenance_chance=1_000_000)
else:
    broker = RabbitmqBroker(url=work.BROKER)
dramatiq.set_broker(broker)
broker.add_middleware(CurrentMessage())


def attempts():
    return CurrentMessage.get_current_message().options.get("retries", 0)


if work.WHO == "ours":
    from workglow_limit.dramatiq import Limits, limited

    broker.add_middleware(Limits())

    @dramatiq.actor
    @limited(work.limiter(), key=work.key, on_limited=lambda sent, why: work.limited(sent.args[0], why))
    def job(name):
        work.started(name, attempts())
        work.until_told(name)

else:
    from dramatiq.rate_limits import WindowRateLimiter
    from dramatiq.rate_limits.backends import RedisBackend

    LIMITER = WindowRateLimiter(RedisBackend(url=work.REDIS), "fleet", limit=work.LIMIT, window=work.WINDOW)

    @dramatiq.actor(max_retries=None, min_backoff=500, max_backoff=2000)
    def job(name):
        a = time.monotonic_ns()
        with LIMITER.acquire(raise_on_failure=False) as acquired:
            if not acquired:
                work.note("limited")
                raise dramatiq.RateLimitExceeded("fleet")
            work.started(name, attempts(), a)
            work.until_told(name)


@dramatiq.actor
def free(name):
    work.started(name, attempts())
    work.until_told(name)


if __name__ == "__main__":
    for kind, name in work.wanted():
        globals()[kind].send(name)
