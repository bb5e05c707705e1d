"""The command line under test: what it writes, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ed_core.cli import main
from ed_core.prompts import to_jsonl
from ed_core.types import Prompt


def arrays(file) -> dict[str, np.ndarray]:
    with np.load(file, allow_pickle=False) as data:
        return {name: data[name] for name in data.files}


def wrote(
    folder: Path, prompts: Sequence[Prompt], *words: str, given: Sequence[str] = (), model: str | Path = "ed-demo-8"
) -> dict[str, np.ndarray]:
    """What `run` with these words writes of these prompts; `given`: PROBE.PARAMETER=VALUE."""
    folder.mkdir(exist_ok=True)
    asked, out = folder / "p.jsonl", folder / "r.npz"
    asked.write_text(to_jsonl(prompts), encoding="utf-8")
    sets = [word for one in given for word in ("--set", one)]
    assert main(["run", *words, "--model", str(model), "--prompts", str(asked), "--out", str(out), *sets]) == 0
    return arrays(out)


def refused(capsys, argv: Sequence[str], *words: str) -> None:
    """With exit code 2 and one sentence, which holds these words."""
    assert main([str(one) for one in argv]) == 2
    said = capsys.readouterr().err
    assert said.startswith("ed_core: ") and said.count("\n") == 1, said
    assert all(word in said for word in words), said
