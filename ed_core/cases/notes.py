"""A stranger's Markdown as HTML that can do nothing: no tags of its own, no pictures, no script behind a link.
Torch-free."""

from __future__ import annotations

from functools import lru_cache

from markdown_it import MarkdownIt


@lru_cache(maxsize=1)
def _reader() -> MarkdownIt:
    """CommonMark with tables. HTML is text; pictures are off, because showing one asks another server for it; links of
    a kind that runs code are refused by the library and stay text."""
    reader = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable("table").disable("image")
    reader.add_render_rule("link_open", _link)
    return reader


def _link(self, tokens, at, options, env) -> str:
    """Links tell nobody where they were clicked, and open elsewhere."""
    tokens[at].attrSet("rel", "noopener noreferrer nofollow")
    tokens[at].attrSet("target", "_blank")
    return self.renderToken(tokens, at, options, env)


def to_html(notes: str) -> str:
    """The notes as HTML."""
    return _reader().render(notes)
