"""Sends requests of one sentence each from several clients, which wait for their answers.

Usage: serving_clients.py PORT PATH SENTENCES CLIENTS REQUESTS [WARM-UP]

SENTENCES is a JSON file of `{"text": [...], "translation": [...]}`. Prints the throughput, the 50th
and 99th percentile of the times, and the number of answers that are not the translation.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import numpy as np

HEAD = "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"


class Client(asyncio.Protocol):
    """One connection; `ask` sends the next request as soon as an answer is complete."""

    def __init__(self, work):
        self.work, self.buffer = work, b""

    def connection_made(self, transport):
        self.transport = transport
        self.ask()

    def ask(self):
        self.number = self.work.next_number()
        if self.number is None:
            self.transport.close()
            return
        self.start = time.perf_counter()
        self.transport.write(self.work.requests[self.number % len(self.work.requests)])

    def data_received(self, data):
        self.buffer += data
        head, separator, body = self.buffer.partition(b"\r\n\r\n")
        if separator and len(body) >= int(head.lower().split(b"content-length: ")[1].split()[0]):
            self.buffer = b""
            self.work.note(self.number, time.perf_counter() - self.start, head, body)
            self.ask()

    def connection_lost(self, error):
        self.work.leave()


class Work:
    """The requests, who asks the next one, and the times of the answers."""

    def __init__(self, path, sentences, num_clients, num_requests):
        bodies = [json.dumps({"instances": [text]}).encode() for text in sentences["text"]]
        heads = [HEAD.format(path=path, length=len(body)).encode() for body in bodies]
        self.requests = [head + body for head, body in zip(heads, bodies, strict=True)]
        self.expected, self.num_requests = sentences["translation"], num_requests
        self.num_sent, self.num_clients, self.answers = 0, num_clients, []
        self.done = asyncio.Event()

    def next_number(self):
        if self.num_sent == self.num_requests:
            return None
        self.num_sent += 1
        return self.num_sent - 1

    def note(self, number, seconds, head, body):
        self.answers.append((number, seconds, head, body))

    def leave(self):
        self.num_clients -= 1
        if not self.num_clients:
            self.done.set()

    def wrong(self):
        """Returns how many answers are not the expected translation."""
        wrong = 0
        for number, _, head, body in self.answers:
            is_answer = head.startswith(b"HTTP/1.1 200")
            row = json.loads(body)["predictions"][0] if is_answer else None
            answer = row["translation"] if isinstance(row, dict) else row
            wrong += answer != self.expected[number % len(self.expected)]
        return wrong


async def main(port, path, sentences, num_clients, num_requests):
    sentences = json.loads(Path(sentences).read_text("utf-8"))
    work = Work(path, sentences, int(num_clients), int(num_requests))
    loop = asyncio.get_running_loop()
    start = time.perf_counter()
    for _ in range(int(num_clients)):
        await loop.create_connection(lambda: Client(work), "127.0.0.1", int(port))
    await work.done.wait()
    seconds = time.perf_counter() - start
    times = np.array([answer[1] for answer in work.answers]) * 1_000
    result = {
        "answers": len(times),
        "sentences_per_second": len(times) / seconds,
        "p50_ms": float(np.percentile(times, 50)),
        "p99_ms": float(np.percentile(times, 99)),
        "wrong": work.wrong(),
        "client_cpu": time.process_time() / seconds,
    }
    print(json.dumps(result))


asyncio.run(main(*sys.argv[1:]))
