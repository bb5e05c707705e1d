"""A user's message through a model's chat template. The template is a stranger's program: the library's sandbox runs it
in a separate Python process, with limits of time and memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from .. import untrusted
from ..errors import PromptError, one_line
from ..machine import limit_memory

DAY = datetime(2024, 7, 26)  # today for a template that writes the date: Llama 3.2's own default
DATED = f"The chat template writes today's date; it is always {DAY:%d %B %Y} here, so that a prompt keeps its tokens."
FORMAT = re.compile(r"strftime_now\(\s*(['\"])(.*?)\1\s*\)")
TOO_LONG = 3  # exit code
PROGRAM = "from ed_core.models.chat import main; main()"
SENTINEL = "zqxj 7405"  # a text that is in no template
PARTS = re.compile(r"""['"]type['"]: ?['"]text['"]""")  # as of a list of parts that was taken for a string


def render(template: str, text: str, special_tokens: Mapping[str, str], most: int) -> tuple[str, list[str]]:
    """Return one user message written through a chat template, and notes on what the template did to the text. `most`:
    the characters that it may write. The content is passed as a string, and as a list of parts where the text does not
    arrive. `PromptError` where it does not arrive at all, and where the template fails."""
    given = {"template": template, "text": text, "tokens": dict(special_tokens)}
    paths = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(given).encode(),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    if done.returncode == TOO_LONG:
        raise PromptError(_unusable(f"it takes more than {untrusted.TEMPLATE_SECONDS:g} s"))
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise PromptError(_unusable(f"its process ended early (exit code {done.returncode})")) from None
    if "why" in answer:
        raise PromptError(_unusable(answer["why"]))
    written: str = answer["written"]
    if len(written) > most:
        raise PromptError(_unusable(f"it writes more than {most} characters"))
    notes = [DATED] if FORMAT.search(template) else []
    if text in written:
        return written, notes
    if text.strip() in written:
        return written, [*notes, "The chat template removes spaces or line breaks around the text."]
    return written, [*notes, "The chat template changes the text (its capitals or its spaces)."]


def _unusable(why: str) -> str:
    """Return the message of a `PromptError`: the reason `why` the model's chat template cannot be used."""
    return f"The chat template of this model cannot be used: {why}; use the prompt as raw text instead."


def arrives(text: str, written: str) -> bool:
    """Return whether a rendered chat contains the user's text, capitals and spaces aside."""
    return "".join(text.split()).casefold() in "".join(written.split()).casefold()


def main() -> None:
    """Read a template, a text and special tokens as JSON from stdin; write the chat, or why it failed, to stdout."""
    given = json.load(sys.stdin)
    from transformers.utils.chat_template_utils import render_jinja_template

    timer = threading.Timer(untrusted.TEMPLATE_SECONDS, os._exit, (TOO_LONG,))
    timer.daemon = True
    timer.start()
    limit_memory(untrusted.TEMPLATE_MEMORY)
    template, text = given["template"], given["text"]
    dates = {form: DAY.strftime(form) for _, form in FORMAT.findall(template)}
    clock = "{%- macro strftime_now(form) -%}{{ ed_dates.get(form, form) }}{%- endmacro %}{{ '' }}" if dates else ""

    def written(content: str | list[dict[str, str]]) -> str:
        rendered: Any = render_jinja_template(
            conversations=[[{"role": "user", "content": content}]],
            chat_template=clock + template,
            add_generation_prompt=True,
            ed_dates=dates,
            **given["tokens"],
        )
        return str(rendered[0][0])

    answer = {}
    for form in (str, lambda text: [{"type": "text", "text": text}]):
        try:
            sample, chat = written(form(SENTINEL)), written(form(text))
            if arrives(SENTINEL, sample) and not PARTS.search(sample) and arrives(text, chat):
                answer = {"written": chat}
                break
        except MemoryError:
            answer = {"why": "it takes too much memory"}
        except Exception as error:  # whatever a stranger's program provokes inside the library
            answer = {"why": one_line(error)}
    json.dump(answer or {"why": "the user's text does not appear in what it writes"}, sys.stdout)
