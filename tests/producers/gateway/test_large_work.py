"""Work on something large is done beside the loop, and never left behind."""

import asyncio
import threading

import pytest

from producers.gateway.large_work import HUGE_BYTES, LARGE_BYTES, Turn, run_in_thread_if_large


def test_large_work_is_done_in_another_thread() -> None:
    async def threads() -> list[bool]:
        sizes = (LARGE_BYTES - 1, LARGE_BYTES, HUGE_BYTES)
        found = [await run_in_thread_if_large(size, threading.current_thread) for size in sizes]
        return [thread is threading.current_thread() for thread in found]

    assert asyncio.run(threads()) == [True, False, False]


@pytest.mark.parametrize("size", [LARGE_BYTES, HUGE_BYTES])
def test_who_is_cancelled_waits_for_the_end_of_the_work(size: int) -> None:
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert may_end.wait(60)
        ended.set()

    async def cancel() -> bool:
        task = asyncio.create_task(run_in_thread_if_large(size, work))
        assert await asyncio.to_thread(began.wait, 60)
        task.cancel()
        await asyncio.sleep(0.05)
        waited = not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return waited and ended.is_set()

    assert asyncio.run(cancel())


def test_work_on_what_is_huge_is_done_one_after_the_other() -> None:
    working: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        working.append(number)
        most.append(len(working))
        working.remove(number)

    async def all_at_once() -> None:
        jobs = (run_in_thread_if_large(HUGE_BYTES, work, number) for number in range(20))
        await asyncio.gather(*jobs)

    asyncio.run(all_at_once())
    assert most == [1] * 20


def test_who_has_many_pieces_to_do_lets_others_have_the_loop() -> None:
    done: list[str] = []

    async def many() -> None:
        turn = Turn()
        while "other" not in done:
            done.append("piece")
            if turn.is_over:
                await turn.give_way()

    async def other() -> None:
        done.append("other")

    async def both() -> None:
        await asyncio.gather(many(), other())

    asyncio.run(both())
    assert done[-1] == "other"
