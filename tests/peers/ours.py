"""A pytest plugin that replaces memory:// in the tests of Flask-Limiter and slowapi by a store of ours."""

import time

import workglow_limit.limits_storage
from limits._storage_scheme import SCHEMES
from workglow_limit import ManualClock


class Followed(workglow_limit.limits_storage.WorkglowStorage):
    """A clock that follows time.time, which these tests move. A store's own clock cannot be moved."""

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
