"""The command line. Everything refused ends with exit code 2 and one sentence."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import traceback
from hashlib import sha256
from io import TextIOWrapper
from pathlib import Path

import typer

from .. import disk
from ..errors import EffectiveDepthError
from ..models import permits
from ..settings import current
from . import cases, fits, measure, models, studies

LOG = "shell.log"  # in the cache's folder: tracebacks of internal errors
STORED = "stopped; finished prompts are in the store, and the same command continues from there."
RESUMED = "stopped; the same command continues from what was finished."
STOPPED = {"run": STORED, "fit": RESUMED, "study": RESUMED, "reproduce": RESUMED, "claims": RESUMED, "card": RESUMED}

app = typer.Typer(
    help="Effective depth of language models, from the shell.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for module in (models, measure, fits, studies, cases):
    module.register(app)


def main(words: list[str] | None = None) -> int:
    """Return the exit code of a command line, `sys.argv`'s unless given."""
    atexit.register(gc.freeze)  # skips the collector's last look at everything torch holds: a second
    words = (sys.argv[1:] if words is None else words) or ["--help"]
    try:
        try:
            return _main(words)
        finally:
            print(end="", flush=True)  # a failing pipe shows here, not while Python ends
    except BrokenPipeError:  # the reader has gone, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as the shell reports a command that SIGPIPE ended
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _refuse(f"The output cannot be written: {error.strerror or error}.")


def _main(words: list[str]) -> int:
    try:
        command = typer.main.get_command(app)
        return command.main(args=words, prog_name="effective-depth", standalone_mode=False) or 0
    except typer.TyperException as error:
        return _refuse(" ".join(error.format_message().replace("Value error, ", "").split()))
    except EffectiveDepthError as error:
        return _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        stopped = STOPPED.get(words[0], "stopped.")
        print(f"ed_core: {'stopped; nothing was stored.' if '--no-cache' in words else stopped}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        raise
    except Exception as error:
        return _internal_error(error, any(word.split("=")[0] == "--out" for word in words))


def _refuse(why: str) -> int:
    print(f"ed_core: {why}", file=sys.stderr)
    return 2


def _internal_error(error: Exception, has_out: bool) -> int:
    """Print one sentence: what the machine lacks, else where the traceback was logged (shown with `ED_DEBUG`).
    `has_out`: whether the command was given an --out."""
    file = getattr(error, "filename", None)
    in_cache = not has_out or (file and disk.moves(Path(str(file))) == "ED_CACHE")
    if lacks := disk.lacks(error, "ED_CACHE" if in_cache else "--out"):
        return _refuse(lacks)
    if os.environ.get("ED_DEBUG", "") not in ("", "0"):
        traceback.print_exception(error)
        return 70
    text = "".join(traceback.format_exception(error))
    id = sha256(text.encode(errors="replace")).hexdigest()[:8]
    try:
        where = f"see {disk.log(LOG, f'{id}{os.linesep}{text}{os.linesep}', current().cache)} under {id}"
    except (OSError, EffectiveDepthError):
        where = f"the log could not be written ({id})"
    print(f"ed_core: internal error; {where}, or set ED_DEBUG=1 to see it here.", file=sys.stderr)
    return 70


def shell() -> int:
    """`main` with the rights of somebody who has a shell on this machine. Characters that the terminal's encoding
    lacks are escaped."""
    permits.as_owner()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return main()
