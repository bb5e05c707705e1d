"""A stranger's Markdown as HTML that can do nothing: no tags of its own, no pictures, no script behind a link.
Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict


@lru_cache(maxsize=1)
def _reader() -> MarkdownIt:
    """CommonMark with tables. HTML is text; pictures are off, because showing one asks another server for it; links of
    a kind that runs code are refused by the library and stay text."""
    reader = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable("table").disable("image")
    reader.add_render_rule("link_open", _link)
    return reader


def _link(self: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: Any) -> str:
    """Links tell nobody where they were clicked, and open elsewhere."""
    tokens[at].attrSet("rel", "noopener noreferrer nofollow")
    tokens[at].attrSet("target", "_blank")
    return self.renderToken(tokens, at, options, env)


def to_html(notes: str) -> str:
    """The notes as HTML."""
    html: str = _reader().render(notes)
    return html
