"""What to train on next: every ladder opens rung by rung, and what is not mastered comes more often."""

import random
from dataclasses import asdict, dataclass

from .tasks import TASKS, Rung, Task

MASTERED = 0.8
FLOOR = 0.08
MEMORY = 0.99
FIRST = 5.0
"""Weight of first rungs not yet mastered: matching is learned all at once, after many questions."""


@dataclass
class Progress:
    """Running accuracy on one rung, from zero: a rung must earn it. Once mastered, the next is open."""

    accuracy: float = 0.0
    mastered: bool = False

    def update(self, right: int, asked: int) -> None:
        """Count some answers, the newest weighing most."""
        if not asked:
            return
        memory = MEMORY**asked
        self.accuracy = memory * self.accuracy + (1 - memory) * right / asked
        self.mastered |= self.accuracy >= MASTERED


@dataclass(frozen=True)
class Lesson:
    """One rung of one task in one format: the kind of line a document is made of."""

    task: Task
    rung: Rung
    worked: bool

    @property
    def name(self) -> str:
        """A key for logs and checkpoints."""
        form = "worked" if self.worked else "direct"
        return f"{self.task.name} {form} {self.rung.difficulty}/{self.rung.size}"


class Curriculum:
    """The ladders of all tasks in both formats, and how far each has been climbed."""

    def __init__(self):
        self.ladders = [
            [Lesson(task, rung, worked) for rung in task.rungs(worked)]
            for task in TASKS.values()
            for worked in (False, True)
            if task.rungs(worked)
        ]
        self.progress = {lesson.name: Progress() for ladder in self.ladders for lesson in ladder}

    def open_lessons(self) -> list[Lesson]:
        """Of each ladder the rungs up to the first that was never mastered."""
        lessons = []
        for ladder in self.ladders:
            for lesson in ladder:
                lessons.append(lesson)
                if not self.progress[lesson.name].mastered:
                    break
        return lessons

    def choose(self, rng: random.Random, count: int) -> list[Lesson]:
        """Lessons for a batch, drawn by how much each has left to learn."""
        lessons = self.open_lessons()
        return rng.choices(lessons, [self._weight(lesson) for lesson in lessons], k=count)

    def _weight(self, lesson: Lesson) -> float:
        progress = self.progress[lesson.name]
        first = lesson.rung == lesson.task.ladder[0] and not progress.mastered
        return (FLOOR + 1 - progress.accuracy) * (FIRST if first else 1.0)

    def state(self) -> dict:
        """All progress as plain data."""
        return {name: asdict(progress) for name, progress in self.progress.items()}

    def restore(self, state: dict) -> None:
        """Take up progress saved by `state`."""
        self.progress |= {name: Progress(**state[name]) for name in self.progress.keys() & state}
