"""The command line. Everything refused ends with exit code 2 and one sentence."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from io import TextIOWrapper

import typer

from .. import disk
from ..errors import EffectiveDepthError
from ..models import permits
from . import cases, fits, measure, models, studies
from .options import grouped

STORED = "stopped; finished prompts are in the store, and the same command continues from there."
RESUMED = "stopped; the same command continues from what was finished."
STOPPED = {"run": STORED, "fit": RESUMED, "study": RESUMED, "reproduce": RESUMED, "claims": RESUMED, "card": RESUMED}
INTERRUPTED = 130  # what typer returns after Ctrl-C

app = typer.Typer(
    help="Effective depth of language models, from the shell.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
case = typer.Typer(help="Case studies: list, show, export, import, delete.")
app.add_typer(case, name="case")
for group, commands in (
    (app, (models.models, models.fetch, models.estimate)),
    (app, (measure.run, measure.verify, measure.cache, measure.settings, measure.app_, fits.fit)),
    (app, (studies.study, studies.reproduce, studies.claims, studies.card, cases.publish)),
    (case, (cases.list_, cases.show, cases.export, cases.import_, cases.delete)),
):
    for command in commands:
        group.command(command.__name__.rstrip("_"))(grouped(command))


def main(words: list[str] | None = None) -> int:
    """Return the exit code of a command line, `sys.argv`'s unless given as `words`."""
    atexit.register(gc.freeze)  # skips the collector's last look at everything torch holds: a second
    words = (sys.argv[1:] if words is None else words) or ["--help"]
    try:
        code = typer.main.get_command(app).main(args=words, prog_name="effective-depth", standalone_mode=False)
        print(end="", flush=True)  # a failing pipe shows here, not while Python ends
        if code == INTERRUPTED:
            stopped = "stopped; nothing was stored." if "--no-cache" in words else STOPPED.get(words[0], "stopped.")
            print(f"ed_core: {stopped}", file=sys.stderr)
        return code or 0
    except typer.TyperException as error:
        return _refuse(" ".join(error.format_message().replace("Value error, ", "").split()))
    except EffectiveDepthError as error:
        return _refuse(str(error))
    except BrokenPipeError:  # the reader has gone, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as the shell reports a command that SIGPIPE ended
    except Exception as error:
        if lacks := disk.lacks(error, "--out or ED_CACHE"):
            return _refuse(lacks)
        if isinstance(error, OSError) and error.filename:
            return _refuse(f"{error.filename}: {disk.why(error, '--out or ED_CACHE')}")
        raise


def _refuse(why: str) -> int:
    """Print why a command is refused, and return its exit code, 2."""
    print(f"ed_core: {why}", file=sys.stderr)
    return 2


def shell() -> int:
    """Run `main` with the rights of somebody who has a shell on this machine, and return its exit code. Characters that
    the terminal's encoding lacks are escaped."""
    permits.as_owner()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return main()
