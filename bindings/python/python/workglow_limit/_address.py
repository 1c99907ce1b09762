"""The client of a request: its address, also behind declared proxies, and the key made of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple, Protocol

from ._derived import refuse

#: The name of a peer without an address, which is on a Unix socket.
UNIX = "unix"

#: The prefix of IPv4 clients behind a NAT64. Their own address is the last 32 bits (RFC 6052).
NAT64 = IPv6Network("64:ff9b::/96")

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_ELEMENTS = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*")+')
_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*(?:"([^"\\]*)"|([^\s;"]+))\s*(?=;|$)', re.IGNORECASE)


class Reader(Protocol):
    """Reads the requests of a framework."""

    def peer(self, request: Any) -> str | None:
        """Returns the address of the other end of the connection."""
        ...

    def header(self, request: Any, name: str) -> list[str]:
        """Returns the values of a header, one per line."""
        ...

    def path(self, request: Any) -> str: ...

    def user(self, request: Any) -> str | None:
        """Returns the authenticated user."""
        ...


def hashed(key: str) -> str:
    from hashlib import sha256

    return f"sha256:{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


class Host(NamedTuple):
    """An address, as keys name it."""

    key: str
    is_proxy: bool


class Addresses:
    """Identifies clients.

    trusted_proxies: the addresses and networks of proxies whose forwarding header is trusted, and "unix" for proxies on
        a Unix socket. Without any, the peer is the client, whatever the headers say.
    forwarded_header: the header that these proxies write, X-Forwarded-For or Forwarded. Only one is read, because
        proxies pass the other on unchanged from the client. It is read from the right. The client is the first address
        that is not a proxy's. An unreadable entry ends the search: the client is then the address read before it.
    ipv6_prefix: the number of leading bits that IPv6 addresses of one client have in common.
    """

    def __init__(self, reader: Reader, trusted_proxies: Any, forwarded_header: Any, ipv6_prefix: Any) -> None:
        if type(ipv6_prefix) is not int:
            raise TypeError(
                f"ipv6_prefix is {ipv6_prefix!r}: expected a whole number, not {type(ipv6_prefix).__name__}"
            )
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
        """Returns the key of a request. kind is "address", "user" or "header:NAME"."""
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
        # A value chosen by the client must not look like a key made here.
        return hashed(found) if found.startswith(("address:", "sha256:")) else found

    def address(self, request: Any) -> str:
        """Returns the client's address, as keys name it."""
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
        """Yields the addresses that the proxies report, the nearest first."""
        for line in reversed(self._reader.header(request, self._header)):
            yield from reversed(self._split(line))

    def _look_up(self, text: str | None) -> Host | None:
        """Returns the host of an address, or None if the text is not an address."""
        try:
            address = ip_address(bare(text or "").partition("%")[0])
        except ValueError:
            return None
        if isinstance(address, IPv6Address):
            address = IPv4Address(address.packed[12:]) if address in NAT64 else address.ipv4_mapped or address
        is_proxy = any(address in network for network in self._proxies)
        if isinstance(address, IPv6Address) and self._prefix < 128:
            return Host(str(ip_network((address, self._prefix), strict=False)), is_proxy)
        return Host(str(address), is_proxy)


def bare(text: str) -> str:
    """Returns an address without its port."""
    text = text.strip()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def split_list(line: str) -> list[str | None]:
    """Returns the addresses of X-Forwarded-For."""
    return [*line.split(",")]


def split_forwarded(line: str) -> list[str | None]:
    """Returns the addresses of Forwarded, with None for each unreadable element."""
    if '"' in _QUOTED.sub("", line):
        return [None]  # An unterminated quotation makes the rest ambiguous.
    found = [_FOR.findall(element.strip()) for element in _ELEMENTS.findall(line)]
    return [one[0][0] or one[0][1] if len(one) == 1 else None for one in found]


def networks(given: Any) -> tuple[bool, list[IPv4Network | IPv6Network]]:
    """Returns whether Unix sockets are trusted, and the trusted networks."""
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
