"""The text the demo models learn from: six small tasks, each with a ladder of difficulty.

An *instance* is one problem (digits, bindings, a string). It is written as a *line*: one or
more `Ask`s, each some given text and the answer that follows it, either direct or worked out.
Lines of one kind are packed under a header into a document, and a prompt is a document that
stops before its last answer.
"""

import hashlib
import random
from dataclasses import dataclass
from string import ascii_lowercase

NAMES = ["Ann", "Bob", "Cid", "Dan", "Eve", "Fay", "Gus", "Hal", "Ida", "Jim", "Kay", "Leo", "Mia", "Ned", "Pam", "Roy"]
THINGS = ["apples", "books", "cards", "coins", "eggs", "pens"]
GAINS = ["gets", "finds", "buys"]
LOSSES = ["loses", "sells", "gives"]

ALL_SEEN_BELOW = 1000
"""Kinds of problem with fewer instances than this are trained on whole: nothing is held out."""


@dataclass(frozen=True)
class Rung:
    """One step of a task's ladder: `difficulty` is what is reported, `size` how big it is."""

    difficulty: int
    size: int


@dataclass(frozen=True)
class Ask:
    """Given text, the answer after it, and whether it is as hard as its rung says."""

    text: str
    answer: str
    counts: bool = True


class Task:
    """A kind of problem: how to draw one, name it and write it down."""

    name: str
    header: str
    called: str  # its name in lists, with the difficulty and a plural's "s"
    ladder: tuple[Rung, ...]
    worked_ladder: tuple[Rung, ...]

    def title(self, difficulty: int) -> str:
        """The task's name in lists."""
        return self.called.format(difficulty, s="s" * (difficulty > 1))

    def population(self, rung: Rung) -> int:
        """The number of different instances."""
        raise NotImplementedError

    def draw(self, rng: random.Random, rung: Rung) -> tuple:
        """A random instance."""
        raise NotImplementedError

    def key(self, instance: tuple) -> str:
        """A name for the instance, the same for all ways of writing the same problem."""
        return repr(instance)

    def line(self, instance: tuple, worked: bool, rng: random.Random, asks: int = 1) -> list[Ask]:
        """The instance as text; tasks with several questions to ask take up to `asks`."""
        raise NotImplementedError

    def rungs(self, worked: bool) -> tuple[Rung, ...]:
        """The ladder of the direct or of the worked-out format."""
        return self.worked_ladder if worked else self.ladder

    def measured(self, worked: bool = False) -> dict[int, Rung]:
        """For each difficulty the largest rung: the one accuracies are reported for."""
        return {rung.difficulty: rung for rung in self.rungs(worked)}

    def heading(self, worked: bool) -> str:
        """First line of a document."""
        return f"{self.header}{', step by step' if worked else ''}:\n"

    def all_seen(self, rung: Rung) -> bool:
        """Whether there are too few instances to hold any out."""
        return self.population(rung) < ALL_SEEN_BELOW

    def is_held_out(self, instance: tuple, rung: Rung) -> bool:
        """Whether the instance falls into the tenth that training never sees."""
        digest = hashlib.blake2b(f"{self.name} {self.key(instance)}".encode(), digest_size=8)
        return not self.all_seen(rung) and int.from_bytes(digest.digest()) % 10 == 0

    def sample(self, rng: random.Random, rung: Rung, held_out: bool = False) -> tuple:
        """A random instance for training or, with `held_out`, one that training never sees."""
        held_out = held_out and not self.all_seen(rung)
        while True:
            instance = self.draw(rng, rung)
            if self.is_held_out(instance, rung) == held_out:
                return instance


def _ladder(*pairs: int | tuple[int, int]) -> tuple[Rung, ...]:
    return tuple(Rung(*p) if isinstance(p, tuple) else Rung(p, p) for p in pairs)


class SumMod10(Task):
    """Sums of k digits modulo 10; worked out: the running totals."""

    name, header, called = "sum_mod10", "Sums mod 10", "Sum of {} digits mod 10"
    ladder = worked_ladder = _ladder(2, 3, 4, 5, 6)

    def population(self, rung):
        return 10**rung.size

    def draw(self, rng, rung):
        return tuple(rng.randrange(10) for _ in range(rung.size))

    def key(self, instance):
        return repr(sorted(instance))

    def line(self, instance, worked, rng, asks=1):
        totals = [str(sum(instance[:k]) % 10) for k in range(2, len(instance) + 1)]
        answer = "; ".join(totals) if worked else totals[-1]
        return [Ask(" + ".join(map(str, instance)) + " = ", answer)]


class Addition(Task):
    """Sums of two n-digit numbers; worked out: the column totals with carry, from the right."""

    name, header, called = "addition", "Sums", "Sum of two {}-digit numbers"
    ladder = worked_ladder = _ladder(1, 2, 3)

    def population(self, rung):
        return self._numbers(rung)[1] ** 2

    def draw(self, rng, rung):
        first, count = self._numbers(rung)
        return first + rng.randrange(count), first + rng.randrange(count)

    def key(self, instance):
        return repr(sorted(instance))

    def line(self, instance, worked, rng, asks=1):
        a, b = instance
        steps, carry = [], 0
        for column in range(len(str(a)) if worked else 0):
            carry += a // 10**column % 10 + b // 10**column % 10
            steps.append(str(carry))
            carry //= 10
        return [Ask(f"{a} + {b} = ", "; ".join([*steps, str(a + b)]))]

    @staticmethod
    def _numbers(rung: Rung) -> tuple[int, int]:
        first = 0 if rung.size == 1 else 10 ** (rung.size - 1)
        return first, 10**rung.size - first


class WordProblem(Task):
    """Somebody's things after k gains and losses, 0 to 9 all the way; worked out: each total."""

    name, header, called = "word_problem", "Word problems", "Word problem of {} step{s}"
    ladder = worked_ladder = _ladder(1, 2, 3, 4)

    def population(self, rung):
        return 10 * 9**rung.size

    def draw(self, rng, rung):
        totals = [rng.randrange(10)]
        for _ in range(rung.size):
            totals.append(rng.choice([n for n in range(10) if n != totals[-1]]))
        return tuple(totals)

    def line(self, instance, worked, rng, asks=1):
        start, *totals = instance
        story = f"{rng.choice(NAMES)} has {start} {rng.choice(THINGS)}"
        for before, after in zip(instance, totals, strict=False):
            verb = rng.choice(GAINS if after > before else LOSSES)
            story += f", {verb} {abs(after - before)}"
        answer = "; ".join(map(str, totals)) if worked else str(totals[-1])
        return [Ask(f"{story}. That leaves ", answer)]


class _Chains(Task):
    """Facts that lead from one symbol to the next, in `size // difficulty` chains.

    A fact never comes before the one it leads to. The instance is the facts in their order;
    a question is open when its answer takes as many facts as the rung says.
    """

    def population(self, rung):
        return len(self.symbols) ** rung.size

    def _interleave(self, rng: random.Random, chains: list[list[str]]) -> tuple:
        """The facts (symbol, next) of all chains, each from its far end, shuffled together."""
        order = [i for i, chain in enumerate(chains) for _ in chain[1:]]
        rng.shuffle(order)
        ends = [len(chain) - 1 for chain in chains]
        facts = []
        for i in order:
            ends[i] -= 1
            facts.append((chains[i][ends[i]], chains[i][ends[i] + 1]))
        return tuple(facts)

    def _queries(self, instance: tuple, rng: random.Random, asks: int) -> list[tuple[list, bool]]:
        """Paths [symbol, next, ..., end]: one of the full length, which counts, then any others.

        The others make training denser. They do not count, for what was asked before helps them.
        """
        following = dict(instance)
        paths = []
        for symbol in following:
            path = [symbol]
            while path[-1] in following:
                path.append(following[path[-1]])
            paths.append(path)
        rng.shuffle(paths)
        others = [(path, False) for path in rng.choices(paths, k=asks - 1)]
        return [(max(paths, key=len), True), *others]


class LookupLetters(_Chains):
    """Variables set to a digit or to another variable; worked out: the chain of values."""

    name, header, called = "lookup", "Look up", "Look-up of {} hop{s}, letters"
    symbols = ascii_lowercase
    ladder = worked_ladder = _ladder((1, 3), (1, 6), (2, 4), (2, 6), (3, 6), (4, 8))

    def draw(self, rng, rung):
        letters = rng.sample(self.symbols, rung.size)
        count, length = rung.size // rung.difficulty, rung.difficulty
        values = rng.sample("0123456789", count)
        chains = [letters[i * length : (i + 1) * length] + [values[i]] for i in range(count)]
        return self._interleave(rng, chains)

    def line(self, instance, worked, rng, asks=1):
        given = "; ".join(f"{a}={b}" for a, b in instance)
        result = []
        for path, counts in self._queries(instance, rng, asks):
            answer = "=".join(path[1:]) if worked else path[-1]
            result.append(Ask(f"{given}; {path[0]}=", answer, counts))
            given = ""
        return result


class LookupNames(_Chains):
    """Who follows whom, told in a few facts; worked out: every name on the way."""

    name, header, called = "lookup_names", "Who follows whom", "Look-up of {} hop{s}, names"
    symbols = NAMES
    ladder = worked_ladder = _ladder((1, 3), (1, 6), (2, 4), (2, 6), (3, 6), (4, 8))

    def draw(self, rng, rung):
        count, length = rung.size // rung.difficulty, rung.difficulty + 1
        names = rng.sample(NAMES, count * length)
        return self._interleave(rng, [names[i * length : (i + 1) * length] for i in range(count)])

    def line(self, instance, worked, rng, asks=1):
        given = "Given " + ", ".join(f"{a} follows {b}" for a, b in instance) + ":"
        result = []
        for path, counts in self._queries(instance, rng, asks):
            text = f"{given} {path[0]} follows" + " one who follows" * (len(path) - 2)
            answer = " " + (" follows ".join(path[1:]) if worked else path[-1])
            result.append(Ask(text, answer, counts))
            given = ","
        return result


class Copy(Task):
    """Letters to be repeated; there is no worked-out format."""

    name, header, called = "copy", "Copy", "Copy {} letters"
    ladder, worked_ladder = _ladder(3, 6, 9, 12), ()

    def population(self, rung):
        return 26**rung.size

    def draw(self, rng, rung):
        return tuple(rng.sample(ascii_lowercase, rung.size))

    def line(self, instance, worked, rng, asks=1):
        letters = "".join(f" {letter}" for letter in instance)
        return [Ask(f"Say{letters}:", letters)]


TASKS: dict[str, Task] = {
    task.name: task for task in (SumMod10(), Addition(), WordProblem(), LookupLetters(), LookupNames(), Copy())
}
