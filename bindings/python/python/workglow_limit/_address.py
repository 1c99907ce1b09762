"""Who has sent a request: its address, behind proxies that are declared, and the keys that are made of that."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple, Protocol

from ._derived import refuse

#: What a peer without an address is called: one on a Unix socket.
UNIX = "unix"

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_ELEMENTS = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*")+')
_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*(?:"([^"\\]*)"|([^\s;"]+))\s*(?=;|$)', re.IGNORECASE)


class Reader(Protocol):
    """How a framework's requests are read."""

    def peer(self, request: Any) -> str | None:
        """The address of the other end of the connection."""
        ...

    def header(self, request: Any, name: str) -> list[str]:
        """The values of a header, a line each."""
        ...

    def path(self, request: Any) -> str: ...

    def user(self, request: Any) -> str | None:
        """Who is authenticated."""
        ...


def hashed(key: str) -> str:
    from hashlib import sha256

    return f"sha256:{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


class Host(NamedTuple):
    """What is known of an address."""

    #: How keys call it.
    key: str
    is_proxy: bool


class Addresses:
    """Tells clients apart.

    trusted_proxies: the addresses and networks of proxies that say whom they forward, and "unix" for those on a Unix
        socket. Without any the peer's address counts, whatever headers say.
    forwarded_header: the one that these proxies write, X-Forwarded-For or Forwarded. Only one: they pass the other on as
        the client has sent it. It is read from the right, and the first address that is no proxy's is the client's. What
        cannot be read ends that: the client is the last that was.
    ipv6_prefix: IPv6 addresses that have so many bits in common are one client.
    """

    def __init__(self, reader: Reader, trusted_proxies: Any, forwarded_header: Any, ipv6_prefix: Any) -> None:
        if type(ipv6_prefix) is not int:
            raise TypeError(f"ipv6_prefix is {ipv6_prefix!r}: expected a whole number, not {type(ipv6_prefix).__name__}")
        if not 1 <= ipv6_prefix <= 128:
            raise refuse("ipv6_prefix", ipv6_prefix, "1 to 128")
        known = {"x-forwarded-for": split_list, "forwarded": split_forwarded}
        split = known.get(forwarded_header.lower()) if isinstance(forwarded_header, str) else None
        if split is None:
            raise refuse("forwarded_header", forwarded_header, '"X-Forwarded-For" or "Forwarded"')
        self._reader, self._header, self._split, self._prefix = reader, forwarded_header, split, ipv6_prefix
        self._trusts_unix, self._proxies = networks(trusted_proxies)
        self._known = lru_cache(4096)(self._look_up)

    def key(self, kind: str | None, request: Any) -> str | None:
        """The key of a request: of the kind "address", "user" or "header:NAME"."""
        if kind is None:
            return None
        if kind == "address":
            return self.address(request)
        if kind == "user":
            found = self._reader.user(request)
        else:
            values = self._reader.header(request, kind.removeprefix("header:"))
            found = ",".join(values) or None
        if found is None:
            return f"address:{self.address(request)}"
        # What clients choose must not look like what is made here.
        return hashed(found) if found.startswith(("address:", "sha256:")) else found

    def address(self, request: Any) -> str:
        """The client's address, as keys call it."""
        peer = self._reader.peer(request)
        host = self._known(peer) or Host(UNIX, self._trusts_unix)
        if host.is_proxy:
            for entry in self._entries(request):
                before = self._known(entry)
                if before is None:
                    break
                host = before
                if not host.is_proxy:
                    break
        return host.key

    def _entries(self, request: Any) -> Iterable[str | None]:
        """What the proxies say, the nearest first."""
        for line in reversed(self._reader.header(request, self._header)):
            yield from reversed(self._split(line))

    def _look_up(self, text: str | None) -> Host | None:
        """What is known of an address; None if it is none."""
        try:
            address = ip_address(bare(text or "").partition("%")[0])
        except ValueError:
            return None
        if isinstance(address, IPv6Address):
            address = address.ipv4_mapped or address
        is_proxy = any(address in network for network in self._proxies)
        if isinstance(address, IPv6Address) and self._prefix < 128:
            return Host(str(ip_network((address, self._prefix), strict=False)), is_proxy)
        return Host(str(address), is_proxy)


def bare(text: str) -> str:
    """An address without its port."""
    text = text.strip()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def split_list(line: str) -> list[str | None]:
    """The addresses of X-Forwarded-For."""
    return [*line.split(",")]


def split_forwarded(line: str) -> list[str | None]:
    """The addresses of Forwarded; None for what is none."""
    if '"' in _QUOTED.sub("", line):
        return [None]  # A quotation that does not end: nobody knows whose the rest is.
    found = [_FOR.findall(element.strip()) for element in _ELEMENTS.findall(line)]
    return [one[0][0] or one[0][1] if len(one) == 1 else None for one in found]


def networks(given: Any) -> tuple[bool, list[IPv4Network | IPv6Network]]:
    """Is a Unix socket trusted? And which networks are?"""
    expected = 'addresses and networks such as "10.0.0.0/8", or "unix"'
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
        raise TypeError(f"trusted_proxies is {given!r}: expected a list of {expected}, not {type(given).__name__}")
    items: list[Any] = list(given)
    found: list[IPv4Network | IPv6Network] = []
    for item in items:
        if item != UNIX:
            try:
                found.append(ip_network(item) if isinstance(item, str) else ip_network(None))  # type: ignore[arg-type]
            except ValueError as error:
                raise refuse("trusted_proxies", item, f"{expected} ({error})") from None
    return UNIX in items, found
