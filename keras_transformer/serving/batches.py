"""`Batches`: joins requests that arrive together, so that a model answers them at once."""

import asyncio
import collections
import contextlib
import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from keras_transformer.serving.models import Columns
from keras_transformer.serving.protocol import RequestError
from keras_transformer.serving.server_settings import ServerSettings


@dataclasses.dataclass(frozen=True, eq=False)
class _Request:
    columns: Columns
    num_rows: int
    shape: Any  # only requests of equal shapes are joined
    arrival: float
    answer: asyncio.Future


class Batches:
    """The requests to one function from `Columns` to `Columns`, which is called in an executor."""

    def __init__(
        self,
        function: Callable[[Columns], Columns],
        executor: ThreadPoolExecutor,
        settings: ServerSettings,
    ):
        self._function, self._executor, self._settings = function, executor, settings
        self._waiting: collections.deque[_Request] = collections.deque()
        self._tasks: set[asyncio.Task] = set()
        self._full = asyncio.Event()
        self.num_waiting = 0  # rows

    async def answer(self, columns: Columns) -> Columns:
        """Returns the outputs for a request; raises a `RequestError` if too many rows wait."""
        settings, loop = self._settings, asyncio.get_running_loop()
        sizes = {array.shape[:1] for array in columns.values()}
        if can_join := len(sizes) == 1 and () not in sizes:
            [[num_rows]] = sizes
        else:
            num_rows = 1
        if num_rows > settings.max_queue_size:
            rule = f"A request may have at most {settings.max_queue_size:,} rows"
            raise RequestError(f"{rule}. Received: {num_rows:,}")
        if self.num_waiting + num_rows > settings.max_queue_size:
            rule = f"The queue is full: {settings.max_queue_size:,} rows"
            raise RequestError(rule, 503)
        shape = sorted((n, a.shape[1:]) for n, a in columns.items()) if can_join else object()
        request = _Request(columns, num_rows, shape, loop.time(), loop.create_future())
        self._waiting.append(request)
        self.num_waiting += num_rows
        if self.num_waiting >= settings.max_batch_size:
            self._full.set()
        if len(self._tasks) < (settings.streams or 1):
            task = loop.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await request.answer

    async def _work(self):
        while self._waiting:
            if self.num_waiting < self._settings.max_batch_size:
                self._full.clear()
                end = self._waiting[0].arrival + self._settings.batch_timeout_ms / 1_000
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(end):
                        await self._full.wait()
            if batch := self._take():
                await self._compute(batch)

    def _take(self) -> list[_Request]:
        """Removes the requests of the next batch from the queue and returns them."""
        batch: list[_Request] = []
        num_rows, most = 0, self._settings.max_batch_size
        while self._waiting:
            request = self._waiting[0]
            fits = num_rows + request.num_rows <= most
            if batch and not (fits and request.shape == batch[0].shape):
                break
            self._waiting.popleft()
            self.num_waiting -= request.num_rows
            if not request.answer.done():  # somebody still waits for it
                batch.append(request)
                num_rows += request.num_rows
        return batch

    async def _compute(self, batch):
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._executor, self._answers, batch)
        except Exception as error:
            if len(batch) == 1:
                answers = [error]
            else:  # A request that fails must not fail the others.
                for request in batch:
                    await self._compute([request])
                return
        for request, answer in zip(batch, answers, strict=True):
            if not request.answer.done():
                failed = isinstance(answer, Exception)
                (request.answer.set_exception if failed else request.answer.set_result)(answer)

    def _answers(self, batch):
        """Returns the outputs of each request; called in a thread."""
        if len(batch) == 1:
            return [self._function(batch[0].columns)]
        names = batch[0].columns
        outputs = self._function(
            {name: np.concatenate([request.columns[name] for request in batch]) for name in names}
        )
        ends = np.cumsum([request.num_rows for request in batch])
        wrong = {name: array.shape for name, array in outputs.items() if len(array) != ends[-1]}
        if wrong:
            raise ValueError(f"Outputs of {ends[-1]} rows have other numbers of rows: {wrong}")
        parts = {name: np.split(array, ends[:-1]) for name, array in outputs.items()}
        return [{name: part[index] for name, part in parts.items()} for index in range(len(batch))]
