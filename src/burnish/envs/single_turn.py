"""One prompt, one reply: the environment of tasks whose answer is a single message."""

from __future__ import annotations

from burnish.core.protocols import Step
from burnish.core.types import Artifacts, Message, Task


class SingleTurn:
    """`reset` gives the task's prompt; the first `step` ends the episode without another word."""

    def __init__(self) -> None:
        self._waiting = False

    async def reset(self, task: Task, seed: int) -> Step:
        """The task's prompt; `seed` has nothing to decide here."""
        self._waiting = True
        return Step(task.prompt)

    async def step(self, message: Message) -> Step:
        """The end of the episode.

        Raises: RuntimeError where no reply is awaited (before `reset`, or after the one reply).
        """
        if not self._waiting:
            raise RuntimeError("single_turn takes one reply after each reset; call reset first")
        self._waiting = False
        return Step(done=True)

    async def finish(self) -> Artifacts:
        """Nothing: the reply itself is in the trajectory."""
        return Artifacts()

    async def close(self) -> None:
        """No reply is awaited any more; closing twice is harmless."""
        self._waiting = False
