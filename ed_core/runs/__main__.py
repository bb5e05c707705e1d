"""`python -m ed_core.runs FOLDER`: the process of a run that the browser began, under the settings' permits."""

from __future__ import annotations

import atexit
import gc
import sys
from pathlib import Path

from ..errors import EffectiveDepthError
from . import launch
from .execute import execute
from .run import FAILED, Statuses


def main(folder: Path) -> int:
    """Wait for the turn of the folder's run, and carry it out."""
    atexit.register(gc.freeze)  # as the shell does: Python ends a second earlier
    spec, statuses = launch.Run(folder).spec, Statuses(folder)
    if spec is None:
        statuses.add(
            FAILED, message=f"{launch.FILE} holds no run that this version of the program reads; begin it again."
        )
        return 2
    try:
        with statuses.of_trouble():
            launch.wait(spec, statuses)
        return execute(spec, folder, statuses)
    except EffectiveDepthError as error:
        print(f"ed_core: {error}", file=sys.stderr)
        return 2
    finally:
        launch.leave()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
