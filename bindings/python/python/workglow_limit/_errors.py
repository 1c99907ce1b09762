"""Exceptions. A denial is not an exception: it is a Decision or None."""


class LimitError(Exception):
    """The base class of all errors of this library. Errors can be pickled and copied, with their attributes."""

    #: The error's name, the same in every language, such as "invalid_argument".
    code: str
    #: The error's number: negative, stable, never reused.
    number: int


class InvalidArgument(LimitError, ValueError):
    """A parameter is outside its range. Nothing was created or changed."""


class WeightExceedsCapacity(LimitError, ValueError):
    """The weight exceeds what the limit can ever grant at once."""


class InvalidUrl(LimitError, ValueError):
    """The store's address is not valid."""


class UnknownLimit(LimitError, LookupError):
    """No policy is declared under this name in this store."""


class KindMismatch(LimitError):
    """The name is already declared as another kind of limiter."""


class ForeignPermit(LimitError, ValueError):
    """The permit belongs to another limiter."""


class Unsupported(LimitError):
    """This limiter or store does not support the operation."""


class LeaseLost(LimitError):
    """The lease has ended. Another start may hold its units."""


class StoreClosed(LimitError):
    """The store was closed by Store.close(). Make another Store of its address to use it again."""


class StoreError(LimitError, OSError):
    """The store could not be reached, read or written."""


class NotAStore(StoreError):
    """The file at the store's path is not a store. It was not changed."""


class UnsupportedVersion(StoreError):
    """The store was written by a version that this version cannot read. It was not changed."""


class UnsupportedFileSystem(StoreError):
    """The store is on a file system that is not local."""


class StoreTimeout(StoreError):
    """The store was busy for longer than its timeout, or its server did not answer in time."""


class StoreFull(StoreError):
    """The store has no free space for another key or limit."""


class Damaged(StoreError):
    """The store's data are inconsistent: another program or the disk changed its files."""


class AcquireTimeout(LimitError, TimeoutError):
    """The limit could not admit the start before the timeout. The caller holds nothing."""

    code: str = "acquire_timeout"
    number: int = -18
    #: The key of the start; None if it had none.
    key: str | None
    #: The seconds after which a retry may succeed.
    retry_after: float


# Tracebacks and pickles have the names that programs import.
for _value in list(globals().values()):
    if isinstance(_value, type):
        _value.__module__ = "workglow_limit"
