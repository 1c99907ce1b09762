"""What can go wrong. A denial is not an error: it is a Decision, or None."""


class LimitError(Exception):
    """The base of all errors of this library. They can be pickled and copied, with their attributes."""

    #: The error's name, the same in every language, such as "invalid_argument".
    code: str
    #: The error's number: negative, stable, never reused.
    number: int


class InvalidArgument(LimitError, ValueError):
    """A parameter is outside its range. Nothing was created or changed."""


class WeightExceedsCapacity(LimitError, ValueError):
    """More units were asked for at once than the limit could ever grant."""


class InvalidUrl(LimitError, ValueError):
    """The store's address cannot be understood."""


class UnknownLimit(LimitError, LookupError):
    """No policy is declared under this name in this store."""


class KindMismatch(LimitError):
    """The name is declared already, as another kind of limiter."""


class ForeignPermit(LimitError, ValueError):
    """The permit was not given by this limiter."""


class Unsupported(LimitError):
    """What was asked makes no sense for this limiter, or for this store."""


class LeaseLost(LimitError):
    """The lease has ended: its units may be another start's by now."""


class StoreError(LimitError, OSError):
    """The store could not be reached, read or written."""


class NotAStore(StoreError):
    """The file at the store's path is something else. It was not touched."""


class UnsupportedVersion(StoreError):
    """The store was written by a version that this one cannot read. It was not touched."""


class UnsupportedFileSystem(StoreError):
    """The store must be on a local file system, and this one is not."""


class StoreTimeout(StoreError):
    """The store was busy for longer than its timeout."""


class StoreFull(StoreError):
    """The store has no room for another key or limit."""


class Damaged(StoreError):
    """What is in the store makes no sense: somebody else wrote to its files, or the disk did."""


class AcquireTimeout(LimitError, TimeoutError):
    """There was no room before the waiter's time was up. Nothing is held."""

    code: str = "acquire_timeout"
    number: int = -18
    #: After this long there may be room, in seconds.
    retry_after: float
