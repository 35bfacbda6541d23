from __future__ import annotations

import asyncio

import pytest

from cleaner_env.sandbox import Limits, Sandbox, shared_sandbox


async def episode(sandbox: Sandbox, number: int) -> str | None:
    session = await sandbox.aopen()
    with session:
        await session.arun(f"n = [{number}]")
        await session.arun("n.append(0); 1 / 0")
        return (await session.arun("n")).value


def test_sixty_four_sessions_in_one_event_loop(isolated) -> None:
    async def together() -> list[str | None]:
        return await asyncio.gather(*(episode(isolated, number) for number in range(64)))

    assert asyncio.run(together()) == [f"[{number}]" for number in range(64)]


def test_slow_cells_do_not_hold_up_the_event_loop_or_each_other(isolated) -> None:
    """More of them wait than the loop's own pool has threads: were they to share it, none could give the sign."""

    async def together() -> set[str]:
        sessions = await asyncio.gather(*(isolated.aopen() for _ in range(40)))
        slow = [
            asyncio.create_task(session.arun("import time; time.sleep(60)", limits=Limits(60))) for session in sessions[1:]
        ]
        await asyncio.sleep(0.1)
        assert (await sessions[0].arun("1 + 1", limits=Limits(60))).value == "2"
        for task in slow:
            assert not task.done()
            task.cancel()
        results = await asyncio.gather(*slow, return_exceptions=True)
        for session in sessions:
            session.close()
        return {type(result).__name__ for result in results}

    assert asyncio.run(together()) == {"CancelledError"}


def test_a_cancelled_cell_is_killed_and_leaves_nothing(session, processes, marker, eventually) -> None:
    async def cancel() -> str | None:
        await session.arun("a = [1]")
        code = f"import subprocess\na.append(2)\nsubprocess.run(['sleep', '{marker}'])"
        task = asyncio.create_task(session.arun(code, limits=Limits(60)))
        while not processes(f"sleep {marker}"):
            await asyncio.sleep(0.02)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(task, 0.05)
        return (await session.arun("a")).value

    assert asyncio.run(cancel()) == "[1]"
    assert eventually(lambda: processes(f"sleep {marker}") == [])


def test_a_borrowed_sandbox_opens_sessions_as_well() -> None:
    with shared_sandbox("local") as sandbox:
        assert asyncio.run(episode(sandbox, 5)) == "[5]"
