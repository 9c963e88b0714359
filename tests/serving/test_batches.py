"""Requests are joined, and every one gets its own rows, whatever happens to the others."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from keras_transformer.serving import ServerSettings
from keras_transformer.serving.batches import Batches
from keras_transformer.serving.protocol import RequestError
from tests.serving.echo import Echo, Slow


def run(function, test, **settings):
    async def main():
        settings_ = ServerSettings(**{"streams": 1, "batch_timeout_ms": 0, **settings})
        with ThreadPoolExecutor(settings_.streams) as threads:
            batches = Batches(function, threads, settings_)
            return await asyncio.wait_for(test(batches), 60)

    return asyncio.run(main())


def ask(batches, *texts):
    return asyncio.ensure_future(batches.answer({"text": [text.encode() for text in texts]}))


def answers(outputs):
    return [text.decode() for text in outputs["upper"]]


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def test_requests_that_wait_are_joined_up_to_the_size():
    function = Slow()

    async def test(batches):
        first = ask(batches, "a")
        await until(function.began.is_set)
        others = [ask(batches, *texts) for texts in ("bc", "d", "efg", "hijkl", "m", "")]
        await until(lambda: batches.num_waiting == 12)
        function.opened.set()
        results = [answers(outputs) for outputs in await asyncio.gather(first, *others)]
        assert results == [["A"], ["B", "C"], ["D"], ["E", "F", "G"], [*"HIJKL"], ["M"], []]
        assert batches.num_waiting == 0

    run(function, test, max_batch_size=4)
    # In order; the one of five rows is larger than a batch and stands alone.
    assert function.batches == [1, 3, 3, 5, 1]


def test_a_request_that_comes_as_the_work_ends_is_computed():
    async def test(batches):
        first = ask(batches, "a")
        while not batches._tasks:
            await asyncio.sleep(0)
        [task] = batches._tasks
        while not task.done():
            await asyncio.sleep(0)
        assert answers(await batches.answer({"text": [b"b"]})) == ["B"]
        assert answers(await first) == ["A"]

    run(Echo(), test)


def test_no_request_gets_the_rows_of_another():
    random_numbers = random.Random(3)

    async def client(batches, name):
        for number in range(40):
            texts = [f"{name}-{number}-{i}" for i in range(random_numbers.randrange(5))]
            assert answers(await ask(batches, *texts)) == [text.upper() for text in texts]
            await asyncio.sleep(random_numbers.random() / 1_000)

    async def test(batches):
        await asyncio.gather(*[client(batches, f"client{number}") for number in range(30)])

    function = Echo()
    run(function, test, streams=3, max_batch_size=16, batch_timeout_ms=1)
    assert max(function.batches) > 4  # they were joined


@pytest.mark.parametrize("is_random, sizes", [(False, [16] * 4), (True, [64])])
def test_streams_without_work_share_a_request(is_random, sizes):
    class Ragged(Echo):
        def __call__(self, texts):
            outputs = super().__call__(texts)
            width = max(map(len, texts["text"]))
            letters = [[text[i : i + 1] for i in range(width)] for text in texts["text"]]
            return {**outputs, "letters": np.array(letters, object)}

    function = Ragged()
    function.is_random = is_random
    texts = [chr(97 + number % 26) * (1 + number // 9) for number in range(64)]

    async def test(batches):
        outputs = await ask(batches, *texts)
        assert answers(outputs) == [text.upper() for text in texts]
        assert outputs["size"].tolist() == list(map(len, texts))
        assert [b"".join(row).decode() for row in outputs["letters"]] == texts
        assert outputs["letters"].shape == (64, 8)
        assert answers(await ask(batches, *texts[:9])) == [text.upper() for text in texts[:9]]
        with pytest.raises(RuntimeError):
            await ask(batches, "fail", *texts)
        assert batches.num_waiting == 0

    run(function, test, streams=4, max_queue_size=99)
    assert function.batches[: len(sizes) + 1] == [*sizes, 9]


def test_a_request_that_fails_does_not_fail_the_others():
    function = Slow()

    async def test(batches):
        first = ask(batches, "a")
        await until(function.began.is_set)
        others = [ask(batches, text) for text in ("b", "fail", "c")]
        await until(lambda: batches.num_waiting == 3)
        function.opened.set()
        outcomes = await asyncio.gather(first, *others, return_exceptions=True)
        assert isinstance(outcomes.pop(2), RuntimeError)
        assert [answers(outputs) for outputs in outcomes] == [["A"], ["B"], ["C"]]

    run(function, test)


def test_a_full_queue_refuses_and_goes_on():
    function = Slow()

    async def test(batches):
        first = ask(batches, "a")
        await until(function.began.is_set)
        waiting = ask(batches, "b", "c")
        with pytest.raises(RequestError, match="The queue is full: 2 texts wait") as error:
            await ask(batches, "d", "e")
        assert error.value.status == 503
        with pytest.raises(RequestError, match="at most 3 texts. Received: 4") as error:
            await ask(batches, *"defg")
        assert error.value.status == 400
        function.opened.set()
        await asyncio.gather(first, waiting)
        assert answers(await ask(batches, "d", "e")) == ["D", "E"]

    run(function, test, max_queue_size=3)
