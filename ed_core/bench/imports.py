"""A thousand bundles that nobody should open, imported into one folder: each is refused or read as exactly the
original, in bounded memory.

The bundles are made by a process of its own, so that its memory is not counted; this one reads them from files, as the
app would."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

from ..cases import bundle, case_study
from ..cases.kept import Kept
from ..errors import ImportRefused
from ..results.lookup import EXAMPLES
from ..results.wire import unpack
from . import Row
from .hostile import handmade, mutated

IMPORTS = int(os.environ.get("ED_BENCH_IMPORTS", "1000"))
PROBES = ("layer_skip", "contributions", "continuation")
MEMORY = 60  # MiB above what importing the good one takes


def good() -> case_study.Case:
    """A case study of shipped results."""
    results = {r.request.probe: r for r in (unpack(file.read_bytes()) for file in sorted(EXAMPLES.glob("*.npz")))}
    return case_study.make(
        "Good", [results[probe] for probe in PROBES], notes="n" * 500, tags=["a"], now=1e9, id="goodgoodgo"
    )


def make(folder: Path, n: int) -> None:
    """Write `n` hostile bundles: all that are made by hand, then damaged ones."""
    data = bundle.encode(good())
    by_hand = list(islice(handmade(data), n))
    for i, (_, hostile) in enumerate([*by_hand, *mutated(data, n - len(by_hand))]):
        (folder / f"{i:05}.edcase").write_bytes(hostile)


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        bundles, root = Path(folder, "bundles"), Path(folder, "cache")
        bundles.mkdir()
        subprocess.run([sys.executable, "-m", __name__, str(bundles), str(IMPORTS)], check=True)
        return rows(*run(sorted(bundles.iterdir()), Kept(root, shipped=None)))


def run(files: list[Path], kept: Kept) -> tuple[Counter, float, float]:
    """What became of them; the growth of this process' peak memory in MiB, and the longest time one took."""
    one = good()
    bundle.drawable(bundle.encode(one))  # imports and caches
    before, slowest = _peak(), 0.0
    seen: Counter = Counter()
    for file in files:
        begin = time.monotonic()
        try:
            taken, _ = kept.take_in(file.read_bytes())
            seen["read as it was" if replace(taken, id=one.id) == one else f"read as something else: {file.name}"] += 1
        except ImportRefused as error:
            seen[
                "refused" if "\n" not in str(error) and len(str(error)) < 500 else f"refused at length: {file.name}"
            ] += 1
        except Exception as error:  # noqa: BLE001 (what is measured is that there is none)
            seen[f"crashed on {file.name} with {type(error).__name__}: {error}"] += 1
        slowest = max(slowest, time.monotonic() - begin)
    left = [f.name for f in kept.root.rglob("*") if f.is_file() and f.name not in (".lock", f"{one.id}.edcase")]
    seen["left behind"] = len(left)
    return seen, _peak() - before, slowest


def rows(seen: Counter, grown: float, slowest: float) -> list[Row]:
    bad = {what: n for what, n in seen.items() if what not in ("refused", "read as it was") and n}
    n = sum(seen.values()) - seen["left behind"]
    told = (
        ", ".join(f"{count} {what}" for what, count in bad.items())
        or f"{seen['refused']} refused, {seen['read as it was']} exactly the original"
    )
    return [
        Row(f"{n} hostile imports: crashes, wrong reads, files left behind", told, "none", not bad),
        Row(
            "their peak memory above that of a good import; the slowest one",
            f"{grown:.0f} MiB; {slowest:.2f} s",
            f"<= {MEMORY} MiB",
            grown <= MEMORY,
        ),
    ]


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]))
