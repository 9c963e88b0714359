"""`Connection`: a connection of uvicorn, with limits for what the server does not see."""

import socket

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_BYTES = 2**20
_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n\r\n"


class Connection(HttpToolsProtocol):
    """Ends if the head of a request is long or late, or if the client does not read its answer."""

    def connection_made(self, transport):
        super().connection_made(transport)
        # asyncio sets it only where the protocol of the socket is written out.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._num_bytes = 0
        self._look_again()

    def _look_again(self):
        # Within half of this time the server answers a request.
        seconds = 2 * (self.config.timeout_graceful_shutdown or 0)
        self.loop.call_later(seconds, self._end_unless_after, self.cycle)

    def _end_unless_after(self, cycle):
        if self.cycle is cycle:  # no other request since the last look
            self.transport.abort()
        else:
            self._look_again()

    def data_received(self, data):
        super().data_received(data)
        is_in_head = self.cycle is None or self.cycle.response_complete
        self._num_bytes = self._num_bytes + len(data) if is_in_head else 0
        if self._num_bytes > _MOST_BYTES:
            self.transport.write(_TOO_LONG)
            self.transport.close()
