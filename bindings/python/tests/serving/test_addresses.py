"""The identification of clients behind declared proxies, whatever other headers contain."""

import httpx
import pytest
from servers import asgi
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from workglow_limit import RateLimiter, Store
from workglow_limit._address import Addresses
from workglow_limit.asgi import Limit, LimitMiddleware, Reader

PROXIES = ["10.0.0.0/8", "127.0.0.1", "2001:db8:ffff::/48", "unix"]


def address(peer, *lines, header="X-Forwarded-For", proxies=PROXIES, prefix=64):
    scope = {
        "client": peer and (peer, 4711),
        "headers": [(header.lower().encode(), line.encode("latin-1")) for line in lines],
    }
    return Addresses(Reader(), proxies, header, prefix).address(scope)


@pytest.mark.parametrize(
    "peer, lines, client",
    [
        ("203.0.113.7", [], "203.0.113.7"),
        ("203.0.113.7", ["198.51.100.1"], "203.0.113.7"),  # It is not a proxy, so its header is not trusted.
        ("10.1.1.1", [], "10.1.1.1"),
        ("10.1.1.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.1.1.1", ["1.2.3.4, 198.51.100.1"], "198.51.100.1"),  # The client itself sent 1.2.3.4.
        ("10.1.1.1", ["1.2.3.4, 198.51.100.1, 10.2.2.2"], "198.51.100.1"),
        ("10.1.1.1", ["1.2.3.4", "198.51.100.1", "10.2.2.2"], "198.51.100.1"),  # One line per proxy.
        ("10.1.1.1", ["10.3.3.3, 10.2.2.2"], "10.3.3.3"),
        ("10.1.1.1", ["198.51.100.1:5678"], "198.51.100.1"),
        ("10.1.1.1", ["1.2.3.4, nonsense, 10.2.2.2"], "10.2.2.2"),  # The last readable address.
        ("10.1.1.1", [""], "10.1.1.1"),
        ("10.1.1.1", ["1.2.3.4,"], "10.1.1.1"),
        ("10.1.1.1", ["\xff\xfe"], "10.1.1.1"),
        ("::ffff:10.1.1.1", ["::ffff:198.51.100.1"], "198.51.100.1"),
        ("64:ff9b::10.1.1.1", ["64:ff9b::198.51.100.1"], "198.51.100.1"),  # Behind a NAT64.
        ("64:ff9c::1", [], "64:ff9c::/64"),
        (None, ["198.51.100.1"], "198.51.100.1"),
        (None, [], "unix"),
        ("testclient", ["198.51.100.1"], "198.51.100.1"),  # A peer without an address is on a Unix socket.
        ("2001:db8:ffff::1", ["2001:db8:1:2:3:4:5:6"], "2001:db8:1:2::/64"),
        ("2001:db8:ffff::1", ["[2001:db8:1:2:ffff::1]:443"], "2001:db8:1:2::/64"),
        ("fe80::1%eth0", [], "fe80::/64"),
    ],
)
def test_forwarded_for(peer, lines, client):
    assert address(peer, *lines) == client


@pytest.mark.parametrize(
    "line, client",
    [
        ("for=198.51.100.1", "198.51.100.1"),
        ("for=1.2.3.4, for=198.51.100.1;proto=https;by=10.0.0.1", "198.51.100.1"),
        ('by=10.9.9.9;For="198.51.100.1:5678"', "198.51.100.1"),
        ('for="[2001:db8:1:2::3]:80"', "2001:db8:1:2::/64"),
        ("for=1.2.3.4, for=unknown", "10.1.1.1"),
        ("for=1.2.3.4, for=_hidden", "10.1.1.1"),
        ("for=1.2.3.4, proto=https", "10.1.1.1"),
        ("for=1.2.3.4;for=5.6.7.8", "10.1.1.1"),
        ('for="1.2.3.4, for=198.51.100.1', "10.1.1.1"),  # An unterminated quotation.
        ('x="a, for=1.2.3.4", for=198.51.100.1', "198.51.100.1"),
        ("", "10.1.1.1"),
    ],
)
def test_forwarded(line, client):
    assert address("10.1.1.1", line, header="Forwarded") == client


def test_only_the_declared_header_is_read():
    scope = {
        "client": ("10.1.1.1", 1),
        "headers": [(b"forwarded", b"for=1.2.3.4"), (b"x-forwarded-for", b"198.51.100.1")],
    }
    assert Addresses(Reader(), PROXIES, "X-Forwarded-For", 64).address(scope) == "198.51.100.1"


def test_prefixes_of_ipv6():
    addresses = ["2001:db8:1:2::1", "2001:db8:1:2:ffff::1", "2001:db8:1:3::1"]
    assert len({address(one) for one in addresses}) == 2
    assert len({address(one, prefix=48) for one in addresses}) == 1
    assert [address(one, prefix=128) for one in addresses] == addresses


def test_a_forged_header_has_no_effect():
    async def hello(request):
        return PlainTextResponse("hello")

    def app(**options):
        limiter = RateLimiter(Store("memory:"), "jobs", max_executions=2, window_size_in_seconds=60)
        app = Starlette(routes=[Route("/", hello)])
        app.add_middleware(LimitMiddleware, limits=[Limit(limiter, key="address")], **options)
        return app

    lies = [{"X-Forwarded-For": f"1.2.3.{n}"} for n in range(4)]
    with asgi(app()) as base:
        assert [httpx.get(base, headers=lie).status_code for lie in lies] == [200, 200, 429, 429]
    # Behind a proxy that appends the address it sees to the client's header.
    lies = [{"X-Forwarded-For": f"1.2.3.{n}, 198.51.100.1"} for n in range(4)]
    with asgi(app(trusted_proxies=["127.0.0.1"])) as base:
        assert [httpx.get(base, headers=lie).status_code for lie in lies] == [200, 200, 429, 429]
        assert httpx.get(base, headers={"X-Forwarded-For": "198.51.100.2"}).status_code == 200
