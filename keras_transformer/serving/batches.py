"""`Batches`: joins requests that arrive together, so that a model answers them at once."""

import asyncio
import collections
import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from keras_transformer.serving import ServerSettings
from keras_transformer.serving.protocol import RequestError

# The texts of each input of a signature, as many of each.
Texts = Mapping[str, list[bytes]]
# Each output has a row for each text.
Outputs = Mapping[str, np.ndarray]
# Minimum number of rows of each part of a request that several streams share.
_FEWEST_ROWS = 8
# Maximum number of pauses of `batch_timeout_ms` in which a batch waits for others.
_MAX_PAUSES = 10


class _Request(NamedTuple):
    texts: Texts
    num_rows: int
    answer: asyncio.Future


class Batches:
    """The requests to one function from `Texts` to `Outputs`, which threads call."""

    def __init__(
        self,
        function: Callable[[Texts], Outputs],
        threads: ThreadPoolExecutor,
        settings: ServerSettings,
    ):
        self._function, self._threads, self._settings = function, threads, settings
        self._streams = settings.streams or 1
        # Samples depend on the rows that are computed together.
        self._divides_requests = not getattr(function, "is_random", False)
        self._waiting: collections.deque[_Request] = collections.deque()
        self._tasks: set[asyncio.Task] = set()
        self._full = asyncio.Event()
        self._num_running = 0  # batches
        self._num_new = 0  # requests that arrived in the last pause
        self.num_waiting = 0  # rows

    async def answer(self, texts: Texts) -> Outputs:
        """Returns the outputs for a request; raises a `RequestError` if too many rows wait."""
        num_rows = len(next(iter(texts.values())))
        most = self._settings.max_queue_size
        if num_rows > most:
            rule = f"A request may have at most {most:,} texts"
            raise RequestError(f"{rule}. Received: {num_rows:,}")
        if self.num_waiting + num_rows > most:
            raise RequestError(f"The queue is full: {self.num_waiting:,} texts wait", 503)
        num_parts = min(self._streams - self._num_running, num_rows // _FEWEST_ROWS)
        if num_parts < 2 or not self._divides_requests:
            return await self._enqueue(texts, num_rows)
        size = -(-num_rows // num_parts)
        starts = range(0, num_rows, size)
        parts = [{name: rows[s : s + size] for name, rows in texts.items()} for s in starts]
        sizes = [min(size, num_rows - start) for start in starts]
        return _joined(await asyncio.gather(*map(self._enqueue, parts, sizes)))

    async def _enqueue(self, texts, num_rows):
        loop = asyncio.get_running_loop()
        request = _Request(texts, num_rows, loop.create_future())
        self._waiting.append(request)
        self.num_waiting += num_rows
        self._num_new += 1
        if self.num_waiting >= self._settings.max_batch_size:
            self._full.set()
        if len(self._tasks) < self._streams:
            self._tasks.add(task := loop.create_task(self._work()))
            task.add_done_callback(self._tasks.discard)
        return await request.answer

    async def _work(self):
        while self._waiting:
            await self._wait_for_others()
            if batch := self._take():
                self._num_running += 1
                await self._compute(batch)
                self._num_running -= 1
        # The callback comes later: a request that arrives before it would find no free stream.
        self._tasks.discard(asyncio.current_task())

    async def _wait_for_others(self):
        """Waits while requests keep arriving, for a limited time, until a batch is full."""
        pause = self._settings.batch_timeout_ms / 1_000
        for _ in range(_MAX_PAUSES if pause else 0):
            self._num_new = 0
            if self.num_waiting >= self._settings.max_batch_size:
                return
            self._full.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._full.wait()
            if not self._num_new:
                return

    def _take(self) -> list[_Request]:
        """Removes the requests of the next batch from the queue, and returns them."""
        batch: list[_Request] = []
        # Other streams without work take their share.
        share = -(-self.num_waiting // max(1, self._streams - self._num_running))
        room = min(self._settings.max_batch_size, share)
        while self._waiting and (not batch or self._waiting[0].num_rows <= room):
            request = self._waiting.popleft()
            self.num_waiting -= request.num_rows
            if not request.answer.done():  # Its client still waits.
                batch.append(request)
                room -= request.num_rows
        return batch

    async def _compute(self, batch):
        names = batch[0].texts
        joined = {name: [text for r in batch for text in r.texts[name]] for name in names}
        loop = asyncio.get_running_loop()
        try:
            outputs = await loop.run_in_executor(self._threads, self._function, joined)
        except Exception as error:
            if len(batch) > 1:  # One that fails must not fail the others.
                for request in batch:
                    await self._compute([request])
            elif not batch[0].answer.done():
                batch[0].answer.set_exception(error)
            return
        end = 0
        for request in batch:
            start, end = end, end + request.num_rows
            if not request.answer.done():
                rows = {name: array[start:end] for name, array in outputs.items()}
                request.answer.set_result(rows)


def _joined(answers):
    """Returns outputs with the rows of all answers, whose later axes have the largest size."""
    joined = {}
    for name in answers[0]:
        arrays = [answer[name] for answer in answers]
        sizes = np.max([array.shape[1:] for array in arrays], axis=0).astype(int)
        shape = sum(map(len, arrays)), *sizes
        padding = b"" if arrays[0].dtype == object else 0
        joined[name], end = np.full(shape, padding, arrays[0].dtype), 0
        for array in arrays:
            start, end = end, end + len(array)
            joined[name][(slice(start, end), *map(slice, array.shape[1:]))] = array
    return joined
