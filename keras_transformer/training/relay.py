"""A program that passes bytes on between clients and an address, and keeps its clients at the end.

JAX aborts a process with pages of messages when it loses the connection to process 0. Behind a
relay it does not lose it, and `ProcessGroup` can say in a line what has happened. The relay is a
process, because JAX holds Python's lock while it connects.

Usage: relay.py HOST PORT; prints its own port, and ends with the end of standard input.
"""

import asyncio
import contextlib
import os
import sys


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while content := await reader.read(2**16):
            writer.write(content)
            await writer.drain()


async def main(host: str, port: str) -> None:
    async def relay(reader, writer):
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))
        await asyncio.Event().wait()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)  # without messages about what is still running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
