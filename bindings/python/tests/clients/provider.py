"""A provider that keeps the published rules of OpenAI's and Anthropic's limits: buckets that refill evenly within a minute, by a clock
that the test moves. A request takes the most that it may use when it arrives, and a refused one takes nothing."""

import threading
from datetime import datetime, timedelta, timezone

EPOCH = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


class Bucket:
    def __init__(self, limit):
        self.limit = self.level = limit

    def refill(self, seconds):
        self.level = min(self.limit, self.level + self.limit * seconds / 60)

    @property
    def reset(self):
        """The seconds until it is full."""
        return (self.limit - self.level) * 60 / self.limit


class Provider:
    def __init__(self, requests=100, tokens=100_000):
        self.lock, self.now = threading.Lock(), 0.0
        self.buckets = {name: Bucket(tokens) for name in ("tokens", "input-tokens", "output-tokens")}
        self.buckets["requests"] = Bucket(requests)
        self.refused = 0
        self.before_answer = lambda: None  # Runs after a request was counted, and before the head of its response.

    def left(self, name):
        return int(self.buckets[name].level)

    def advance(self, seconds):
        with self.lock:
            self.now += seconds
            for bucket in self.buckets.values():
                bucket.refill(seconds)

    def spend(self, requests, tokens=0):
        """Others with the same key spend these."""
        with self.lock:
            self.take({"requests": requests, "tokens": tokens, "input-tokens": tokens, "output-tokens": tokens})

    def take(self, units):
        for name, count in units.items():
            self.buckets[name].level = max(0, self.buckets[name].level - count)

    def arrived(self, path, inputs, most):
        """Counts a request. Returns the headers of the response, and whether it is refused."""
        is_anthropic = path == "/v1/messages"
        tokens = {"input-tokens": inputs, "output-tokens": most} if is_anthropic else {"tokens": inputs + most}
        units = {"requests": 1, **tokens}
        with self.lock:
            is_refused = any(self.buckets[name].level < count for name, count in units.items())
            if is_refused:
                self.refused += 1
            else:
                self.take(units)
            headers = self.anthropic(units) if is_anthropic else self.openai(units)
        self.before_answer()
        if is_refused:
            headers |= {"retry-after": "7"} if is_anthropic else {"retry-after": "7", "retry-after-ms": "6500"}
        return headers, is_refused

    def openai(self, units):
        headers = {}
        for name in units:
            bucket = self.buckets[name]
            minutes, seconds = divmod(round(bucket.reset, 3), 60)
            headers[f"x-ratelimit-limit-{name}"] = str(bucket.limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(int(bucket.level))
            headers[f"x-ratelimit-reset-{name}"] = f"{int(minutes)}m{seconds:g}s"
        return headers

    def anthropic(self, units):
        headers = {"date": (EPOCH + timedelta(seconds=self.now)).strftime("%a, %d %b %Y %H:%M:%S GMT")}
        for name in units:
            bucket = self.buckets[name]
            at = EPOCH + timedelta(seconds=int(self.now + bucket.reset) + 1)
            remaining = int(bucket.level) if name == "requests" else round(bucket.level / 1000) * 1000
            headers[f"anthropic-ratelimit-{name}-limit"] = str(bucket.limit)
            headers[f"anthropic-ratelimit-{name}-remaining"] = str(remaining)
            headers[f"anthropic-ratelimit-{name}-reset"] = at.isoformat().replace("+00:00", "Z")
        return headers
