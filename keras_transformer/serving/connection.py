"""`Connection`: a connection of uvicorn, with limits for what the server does not see."""

import math
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
        self._num_bytes: float = 0
        self._limit_time()

    def on_message_begin(self):
        self._timer.cancel()
        self._num_bytes = 0
        self._limit_time()
        super().on_message_begin()

    def on_headers_complete(self):
        self._timer.cancel()
        self._num_bytes = -math.inf
        super().on_headers_complete()

    def data_received(self, data):
        self._num_bytes += len(data)
        super().data_received(data)
        if self._num_bytes > _MOST_BYTES:
            self.transport.write(_TOO_LONG)
            self.transport.close()

    def pause_writing(self):
        super().pause_writing()
        self._limit_time()

    def resume_writing(self):
        self._timer.cancel()
        super().resume_writing()

    def _limit_time(self):
        seconds = self.config.timeout_graceful_shutdown or 0
        self._timer = self.loop.call_later(seconds, self.transport.abort)
