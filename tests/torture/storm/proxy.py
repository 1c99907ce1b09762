"""Connection paths to a server that delay, stop and break: a port of this machine for each site."""

import asyncio
import threading

PIECE = 65_536  # bytes


class Way:
    """The connection path between one site and the server."""

    def __init__(self):
        self.late = 0.0  # the delay of everything that is sent, in seconds
        self.is_open = True  # data sent while it is closed arrives when it is open again
        self.port = None
        self._connections = set()

    async def _pass(self, reader, writer):
        while piece := await reader.read(PIECE):
            await asyncio.sleep(self.late)
            while not self.is_open:
                await asyncio.sleep(0.005)
            writer.write(piece)
            await writer.drain()

    async def _carry(self, site, server):
        """Serves a connection until either end or a cut closes it."""
        both = [asyncio.create_task(self._pass(*ends)) for ends in ((site[0], server[1]), (server[0], site[1]))]
        self._connections.update(both)
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            self._connections.difference_update(both)
            for _, writer in (site, server):
                writer.transport.abort()

    def _cut(self):
        for task in self._connections:
            task.cancel()


class Proxy:
    """Returns `count` paths to the server at `address`: a host and a port, or the path of a socket. A thread serves them until the program ends."""

    def __init__(self, count, address):
        self.ways = [Way() for _ in range(count)]
        self.address = address
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    async def _listen(self):
        for way in self.ways:
            server = await asyncio.start_server(lambda *site, way=way: self._connect(way, site), "127.0.0.1", 0)
            way.port = server.sockets[0].getsockname()[1]

    async def _connect(self, way, site):
        try:
            address = self.address()
            is_socket = isinstance(address, str)
            server = await (asyncio.open_unix_connection(address) if is_socket else asyncio.open_connection(*address))
        except OSError:
            site[1].transport.abort()
            return
        await way._carry(site, server)

    def cut(self, way):
        """Breaks all connections of a path: data in flight is lost."""
        self._loop.call_soon_threadsafe(way._cut)
