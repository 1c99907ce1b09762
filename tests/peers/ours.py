"""A plugin of pytest: what the tests of Flask-Limiter and slowapi keep in memory:// is kept in a Store of ours."""

import time

from limits._storage_scheme import SCHEMES

import workglow_limit.limits_storage
from workglow_limit import ManualClock


class Followed(workglow_limit.limits_storage.WorkglowStorage):
    """These tests move time.time, so our clock goes with it. A Store's own cannot be moved."""

    STORAGE_SCHEME = None

    def __init__(self, uri, *args, **options):
        self.clock, self.seen = ManualClock(), time.time()
        super().__init__("workglow+memory:", *args, clock=self.clock, **options)

    def _limiter_now(self, *policy):
        now = time.time()
        if now > self.seen:
            self.clock.advance(now - self.seen)
        self.seen = now
        return self.made(*policy)

    @property
    def _limiter(self):
        return self._limiter_now

    @_limiter.setter
    def _limiter(self, made):
        self.made = made


SCHEMES["memory"] = Followed
