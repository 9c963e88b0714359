"""Starts a server, and sends it requests from several clients, which wait for their answers.

Usage: serving_load.py TEXTS SECONDS REQUESTS LOADS COMMAND...

TEXTS is a file of serving_texts.py. LOADS are numbers of clients, such as `1,8,64x8`: the last are
64 clients with 8 sentences in each request. Every load ends after SECONDS or REQUESTS. Prints the
throughput, also for each second of the processors, the percentiles of the times, the number of
answers that are not the translation in TEXTS, and the memory of the server.
"""

import asyncio
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HEAD = "POST /v1/models/model:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n"


class Client(asyncio.Protocol):
    """One connection, which sends its next request as soon as an answer is complete."""

    def __init__(self, load):
        self.load, self.buffer = load, b""

    def connection_made(self, transport):
        self.transport = transport
        self.ask()

    def ask(self):
        self.number = self.load.next_number()
        if self.number is None:
            self.transport.close()
            return
        self.start = time.perf_counter()
        self.transport.write(self.load.requests[self.number % len(self.load.requests)])

    def data_received(self, data):
        self.buffer += data
        head, separator, body = self.buffer.partition(b"\r\n\r\n")
        if separator and len(body) == int(re.search(rb"(?i)content-length: (\d+)", head)[1]):
            self.buffer = b""
            self.load.answers.append((self.number, time.perf_counter() - self.start, body))
            self.ask()

    def connection_lost(self, error):
        self.load.leave()


class Load:
    """The requests of some clients, and their answers: number, seconds and body."""

    def __init__(self, texts, num_clients, per_request, seconds, num_requests):
        starts = range(0, len(texts["text"]) - per_request + 1, per_request)
        self.requests, self.expected, self.answers = [], [], []
        for start in starts:
            chosen = slice(start, start + per_request)
            body = json.dumps({"instances": texts["text"][chosen]}).encode()
            self.requests.append(HEAD.format(len(body)).encode() + body)
            self.expected.append(texts["translation"][chosen])
        self.num_clients, self.per_request, self.num_sent = num_clients, per_request, 0
        self.end, self.num_requests = time.perf_counter() + seconds, num_requests
        self.done = asyncio.Event()

    def next_number(self):
        if self.num_sent == self.num_requests or time.perf_counter() > self.end:
            return None
        self.num_sent += 1
        return self.num_sent - 1

    def leave(self):
        self.num_clients -= 1
        if not self.num_clients:
            self.done.set()

    def wrong(self):
        wrong = 0
        for number, _, body in self.answers:
            rows = json.loads(body).get("predictions", [])
            expected = self.expected[number % len(self.expected)]
            wrong += [row["translation"] for row in rows] != expected
        return wrong

    async def run(self, port, cpu_seconds):
        """Returns the figures of this load."""
        loop, start, cpu_start = asyncio.get_running_loop(), time.perf_counter(), cpu_seconds()
        for _ in range(self.num_clients):
            await loop.create_connection(lambda: Client(self), "127.0.0.1", port)
        await self.done.wait()
        seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu_start
        sentences = len(self.answers) * self.per_request
        times = np.array([answer[1] for answer in self.answers]) * 1_000
        return {
            "requests": len(times),
            "sentences_per_second": sentences / seconds,
            "sentences_per_cpu_second": sentences / cpu,
            "p50_ms": float(np.percentile(times, 50)),
            "p99_ms": float(np.percentile(times, 99)),
            "wrong": self.wrong(),
        }


def main(texts, seconds, num_requests, loads, *command):
    texts = json.loads(Path(texts).read_text("utf-8"))
    server = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True)
    log = []
    for line in server.stderr:
        log.append(line)
        if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
            break
    else:
        raise SystemExit("".join(log))
    port = int(found[1])

    def cpu_seconds():  # of the server and of the clients
        fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100 + time.process_time()

    def memory():
        status = Path(f"/proc/{server.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024

    results = []
    try:
        asyncio.run(Load(texts, 8, 1, 5.0, 200).run(port, cpu_seconds))  # warms up
        for text in loads.split(","):
            num_clients, _, per_request = text.partition("x")
            limits = float(seconds), int(num_requests)
            load = Load(texts, int(num_clients), int(per_request or 1), *limits)
            found = asyncio.run(load.run(port, cpu_seconds))
            results.append({**found, "memory_mb": memory()})
    finally:
        server.terminate()
        server.wait()
    print(json.dumps({"loads": results}))


main(*sys.argv[1:])
