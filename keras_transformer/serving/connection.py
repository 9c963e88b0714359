"""The connections and the server of uvicorn, with limits and an end that they do not have."""

import os
import socket
import threading

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_BYTES = 2**20
_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n\r\n"


class Connection(HttpToolsProtocol):
    """Ends if the head of a request is long or late, or if the client does not read its answer.

    uvicorn's time limit is for the pause between requests. With h11 it limits heads, but is slower.
    """

    def connection_made(self, transport):
        super().connection_made(transport)
        # asyncio sets it only where the protocol of the socket is written out.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._num_bytes = 0
        self._end_unless_after(self)

    def _end_unless_after(self, cycle):
        if self.cycle is cycle:  # There was no other request since the last look.
            self.transport.abort()
            return
        # Within half of this time the server answers a request.
        seconds = 2 * (self.config.timeout_graceful_shutdown or 0)
        self.loop.call_later(seconds, self._end_unless_after, self.cycle)

    def data_received(self, data):
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The parser skips the body of a request that offers HTTP/2, so it reads the request
            # again without the offer.
            # CONNECT is an offer too; it gets the error of another method that is not served.
            method = self.parser.get_method().replace(b"CONNECT", b"TRACE")
            headers = [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
            head = [b"%s %s HTTP/1.1" % (method, self.url), *headers, b"", b""]
            self.parser = httptools.HttpRequestParser(self)
            self.data_received(b"\r\n".join(head) + data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        is_in_head = self.cycle is None or self.cycle.response_complete
        self._num_bytes = self._num_bytes + len(data) if is_in_head else 0
        if self._num_bytes > _MOST_BYTES:
            self.transport.write(_TOO_LONG)
            self.transport.close()

    def on_headers_complete(self):
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self):
        if not self.parser.should_upgrade():
            super().on_message_complete()


class HttpServer(uvicorn.Server):
    """Ends the process a second after a second signal; `exit_status` is the status for it."""

    exit_status = 0

    def handle_exit(self, sig, frame):
        if self.should_exit:  # uvicorn looks for a second Ctrl-C only, and waits for threads.
            self.force_exit, self.exit_status = True, 128 + sig
            end = threading.Timer(1.0, os._exit, [self.exit_status])
            end.daemon = True
            end.start()
        super().handle_exit(sig, frame)
