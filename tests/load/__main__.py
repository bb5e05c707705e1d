"""Serve the app in a process of its own, send visitors, and print how that went: `make load`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil
from hosted_app import Hosted, hosted, until

from load.session import Session
from load.visitors import ALONE, BESIDE, CANCEL, MODELS, PAGE, READ, STORED, Board, store, visitors

TARGETS = {PAGE: (0.25, 1.0), ALONE: (1.5, 5.0), BESIDE: (2.5, 8.0), CANCEL: (None, 1.0)}  # seconds, p50 and p99
CROWD, CROWDED = 60, (None, 2.0)  # so many readers, and what a page may then take
WRONG = ("error", "lost", "wrong owner", "stale result")
MOST_SECONDS, MOST_SESSIONS = 7200, 200  # bounds of a load test
EVERY = 5.0  # seconds between two looks at the server
ROUNDS = 3  # of one visitor through all stored pages, to see what a page costs
REST = 0.2  # seconds after a page in which the server ends what belongs to it


class Look(NamedTuple):
    """What the server takes at a moment."""

    at: float  # seconds
    own: float  # MB of memory that is its own
    mapped: float  # MB of files: the results' database counts for every connection, and lies in memory once at most
    descriptors: int
    cpu: float  # seconds


@dataclass
class Server:
    """What the server's process takes, from time to time."""

    process: psutil.Process
    seen: list[Look] = field(default_factory=list)
    page: float | None = None  # CPU seconds for a stored page, of a visitor who is alone
    ours: float = 0.0  # share of a core that the visitors take, whom this process plays

    @property
    def cpu(self) -> float:
        used = self.process.cpu_times()
        return used.user + used.system

    def look(self, start: float) -> None:
        with self.process.oneshot():
            memory, descriptors = self.process.memory_info(), self.process.num_fds()
            own, mapped = (memory.rss - memory.shared) / 1e6, memory.shared / 1e6
            self.seen.append(Look(time.monotonic() - start, own, mapped, descriptors, self.cpu))

    def worker(self) -> psutil.Process | None:
        children = self.process.children(recursive=True)
        return next((p for p in children if "ed_core.service.worker" in " ".join(p.cmdline())), None)


def share(values: list[float], part: float) -> float:
    """The smallest value that so large a part of all does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(part * 1000) * len(ordered) // 1000) - 1)]


def row(name: str, values: list[float], target: tuple[float | None, float]) -> str:
    """One line of the table."""
    if not values:
        return f"| {name} | 0 | – | – | – | not measured |"
    found = [share(values, part) for part in (0.5, 0.99)]
    asked = " / ".join("–" if one is None else f"{one:g}" for one in target)
    met = all(one is None or value <= one for value, one in zip(found, target, strict=True))
    figures = " | ".join(f"{value:.2f}" for value in (*found, max(values)))
    return f"| {name} | {len(values)} | {figures} | {asked} s{'' if met else ', **missed**'} |"


def table(board: Board, server: Server, readers: int) -> str:
    """What was measured, against what is asked."""
    targets = TARGETS | ({PAGE: CROWDED} if readers >= CROWD else {})
    lines = ["| what | n | p50 s | p99 s | most s | asked |", "|---|---|---|---|---|---|"]
    lines += [row(name, board.took[name], target) for name, target in targets.items() if board.took[name]]
    lines += ["", "| what | seen | asked |", "|---|---|---|"]
    lines += [
        f"| {kind} | {len(board.wrong[kind])} | 0{'' if not board.wrong[kind] else ', **missed**'} |" for kind in WRONG
    ]
    lines += [f"| runs to the end; told that their worker died, and again | {board.done}; {board.died} | – |"]
    if server.seen:
        n, some = len(server.seen), max(1, len(server.seen) // 10)
        early, late = server.seen[n // 5 :][:some], server.seen[-some:]
        first, last = (median(look.own for look in looks) for looks in (early, late))
        span = f"{early[0].at / 60:.0f} to {late[-1].at / 60:.0f} min"
        lines += [
            f"| memory of the server, {span} | {first:.0f} to {last:.0f} MB ({last / first - 1:+.0%}) | "
            "± 10 % in an hour |"
        ]
        mapped = [look.mapped for look in server.seen]
        lines += [f"| and in mapped files, once for every connection | {min(mapped):.0f} to {max(mapped):.0f} MB | – |"]
        lines += [f"| descriptors, {span} | {early[0].descriptors} to {late[-1].descriptors} | – |"]
        began, ended = server.seen[0], server.seen[-1]
        busy = (ended.cpu - began.cpu) / max(ended.at - began.at, 1e-9)
        lines += [f"| the server's share of a core; that of the visitors | {busy:.0%}; {server.ours:.0%} | – |"]
    if server.page is not None:
        lines += [f"| CPU of the server for a stored page, one visitor | {server.page * 1000:.0f} ms | – |"]
    return "\n".join(lines)


def curve(server: Server, points: int = 20) -> str:
    """Memory and descriptors over time."""
    step = max(1, len(server.seen) // points)
    rows = [
        f"{look.at / 60:6.1f} min {look.own:7.0f} MB {look.mapped:5.0f} MB mapped {look.descriptors:5d} descriptors"
        for look in server.seen[::step]
    ]
    return "\n".join(rows)


async def cost(address: str, server: Server) -> float:
    """CPU seconds that a stored page takes the server, of one visitor who goes through all of them and is alone: a
    measure that hardly depends on what else this machine does. Pages opened for the first time are not counted."""
    async with Session(address, "", f"model={MODELS[0]}&example={STORED[0]}") as session:
        for page in READ:
            await session.open(page)
        await asyncio.sleep(REST)
        before = server.cpu
        for page in ROUNDS * READ:
            await session.open(page)
        await asyncio.sleep(REST)
        return (server.cpu - before) / (ROUNDS * len(READ))


async def load(
    app: Hosted, seconds: float, readers: int, prompters: int, sweepers: int, kill_every: float = 0.0
) -> tuple[Board, Server]:
    """Send visitors for so long. What they look at is computed before, and not counted."""
    before = Board(time.monotonic() + MOST_SECONDS)
    await store(app.address, before)
    server = Server(psutil.Process(app.process.pid))
    server.page = await cost(app.address, server)
    board = Board(time.monotonic() + seconds, killing=kill_every > 0)
    board.wrong.update(before.wrong)
    start, used = time.monotonic(), time.process_time()

    async def watch() -> None:
        while True:
            server.look(start)
            await asyncio.sleep(EVERY)

    async def kill() -> None:
        while board.open:  # who is waiting then comes to an end
            await asyncio.sleep(kill_every)
            if board.open and (worker := server.worker()) is not None:
                worker.kill()

    beside = [asyncio.create_task(one()) for one in (watch, *[kill] * (kill_every > 0))]
    await asyncio.gather(*visitors(app.address, board, readers, prompters, sweepers))
    server.ours = (time.process_time() - used) / (time.monotonic() - start)
    for task in beside:
        task.cancel()
    return board, server


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m load", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--readers", type=int, default=14, help="go among stored pages")
    parser.add_argument("--prompters", type=int, default=4, help="run fresh prompts on Home")
    parser.add_argument("--sweeps", type=int, default=2, help="run long sweeps, and cancel some")
    parser.add_argument("--kill-worker-every", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--curve", action="store_true", help="print memory and descriptors over time too")
    asked = parser.parse_args(argv)
    seconds, sessions = asked.minutes * 60, asked.readers + asked.prompters + asked.sweeps
    if not 0 < seconds <= MOST_SECONDS or not 0 < sessions <= MOST_SESSIONS:
        parser.error(f"expected at most {MOST_SECONDS // 60} minutes and {MOST_SESSIONS} sessions, and some of both")
    with tempfile.TemporaryDirectory() as folder, hosted(Path(folder), OMP_NUM_THREADS=str(os.cpu_count())) as app:
        until(lambda: app.get("/ready")[0] == 200)
        print(f"{sessions} sessions for {asked.minutes:g} min; first what they read is computed", file=sys.stderr)
        counts = asked.readers, asked.prompters, asked.sweeps
        board, server = asyncio.run(load(app, seconds, *counts, asked.kill_worker_every))
        log = app.log.read_text(errors="replace")
    print(table(board, server, asked.readers))
    if asked.curve:
        print("\n" + curve(server))
    for kind, found in board.wrong.items():
        for one in found:
            print(f"{kind}: {one}")
    if board.wrong["error"]:
        print(log[-20_000:], file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
