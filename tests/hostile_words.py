"""Prompts, titles and notes that nobody means well with: markup, templates, control characters, reordering, and far too
much of anything.

Everything that could run calls `RAN`; a browser in which it does shows `window.__ran`. Seeded.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

RAN = "window.__ran=(window.__ran||0)+1"
OUTSIDE = "http://outside.invalid/x"  # asked for by nothing that is shown rightly

MARKUP = (
    "<script>{run}</script>",
    "</script><script>{run}</script>",
    "<img src=x onerror='{run}'>",
    "<svg/onload={run}>",
    "<svg><script>{run}</script></svg>",
    "<iframe srcdoc='<script>parent.{run}</script>'></iframe>",
    "<body onload={run}>",
    "<details open ontoggle={run}>x</details>",
    "<a href='javascript:{run}'>click</a>",
    "<math><mi xlink:href='javascript:{run}'>x</mi></math>",
    "<style>*{{display:none}}</style>",
    "<style>@import '{out}'</style>",
    "<link rel=stylesheet href={out}>",
    "<meta http-equiv=refresh content='0;url={out}'>",
    "<base href='{out}'>",
    "<form action={out}><button autofocus onfocus={run}>x</button></form>",
    "<video><source onerror='{run}'></video>",
    "<object data='{out}'></object>",
    "<img src={out}>",
    "<input autofocus onfocus='{run}'>",
    "<marquee onstart='{run}'>x</marquee>",
    "--><script>{run}</script><!--",
    "]]><script>{run}</script>",
    "<noscript><p title='</noscript><img src=x onerror={run}>'>",
    "<template><script>{run}</script></template>",
    "<plaintext>",
    "<!--",
    "<table><td><svg onload={run}>",
    "<textarea></textarea><script>{run}</script>",
    "<title></title><img src=x onerror={run}>",
    "&lt;script&gt;{run}&lt;/script&gt;",
    "&#60;script&#62;{run}&#60;/script&#62;",
    "\\u003cscript\\u003e{run}\\u003c/script\\u003e",
    '"><script>{run}</script>',
    "'><img src=x onerror={run}>",
    "`;{run};`",
    "'-({run})-'",
    '";{run};//',
    "<scr<script>ipt>{run}</scr</script>ipt>",
    "<IMG SRC=JaVaScRiPt:{run}>",
    "<svg><animate onbegin='{run}' attributeName=x dur=1s>",
    '<b><a href="data:text/html,<script>{run}</script>">x</a></b>',
)
MARKDOWN = (
    "[x](javascript:{run})",
    "![x](javascript:{run})",
    "![x]({out})",
    '[x]({out} "onmouseover={run}")',
    "[x]: javascript:{run}\n[x]",
    "<javascript:{run}>",
    "[a](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](vbscript:{run})",
    "# heading\n\n---\n\n| a | b |\n|---|---|\n| <img src=x onerror={run}> | c |",
    "```html\n<script>{run}</script>\n```",
    ":red[x] :material/delete: :streamlit: $\\href{{javascript:{run}}}{{x}}$",
    "$$\\htmlData{{a={run}}}{{x}}$$",
    "$\\includegraphics{{{out}}}$",
    "[^1]\n\n[^1]: <script>{run}</script>",
    "* " * 400,
    "[" * 3000,
    "> " * 800,
    "![" * 1500,
    "`" * 2000,
    "**" * 1500,
    "<" * 3000,
    "(" * 2000 + ")" * 2000,
    "\\" * 3000,
    "- a\n" * 900,
    "#" * 500,
)
TEMPLATES = (
    "{{{{constructor.constructor('{run}')()}}}}",
    "${{{run}}}",
    "#{{{run}}}",
    "<%= {run} %>",
    "{{% include '/etc/passwd' %}}",
    "{{{{ config.items() }}}}",
    "%(x)s %s %n %d",
    "{{0.__class__.__mro__}}",
    "{{x!r:>{{y}}}}",
    "%{{customdata[0]}} %{{z}} <extra></extra>",
    "<extra><script>{run}</script></extra>",
    "%{{text}}<br>%{{x}}",
    "$(touch x)",
    "`touch x`",
    "; rm -rf x #",
    "' || touch x || '",
    "'; DROP TABLE cases; --",
    "\\N{{BULLET}} \\x00 \\u0000",
    '=HYPERLINK("{out}")',
    "=cmd|' /C calc'!A0",
    "@SUM(1+1)",
    "../../../../etc/passwd",
    "file:///etc/passwd",
    "__proto__",
    "constructor",
    "null",
    "NaN",
    "undefined",
    "-0",
    "1e999",
    "[object Object]",
    "True",
    "''",
    '""',
)
CHARACTERS = (
    "\u202egnp.exe\u202c",
    "\u2066\u2067abc\u2069\u2069",
    "\u200f\u05d0\u05d1\u05d2 abc \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "\u0627\u0644\u0633\u0644\u0627\u0645 123 \u05e9\u05dc\u05d5\u05dd",
    "\x00",
    "\x1b[2J\x1b]0;x\x07",
    "\x7f\x80\x9f",
    "\ud800",
    "\ufeff\ufffe\uffff",
    "\u2028\u2029",
    "a\u0300" * 300,
    "Z" + "\u0334\u0351\u0347" * 200,
    "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 60,
    "\U000e0041\U000e0042",
    "\ufdfd" * 60,
    "\u3000\u00a0\u2003",
    "\u200b" * 500,
    "\r\n\r\r\n",
    "\t" * 200,
    "\u0000".join("abc"),
    "\U0001d4d0\U0001d4d1",
    "\ue000\uf8ff",
    "\u1160\u3164\uffa0",
    "Ａ" * 200,
    "ſK",
    "İı",
    "ß" * 200,
    "𒐫" * 100,
    "﷽" * 100,
    "꧅" * 100,
)
LENGTHS = (1, 41, 199, 200, 201, 4_000, 19_999, 20_001, 300_000)
KINDS = ("title", "notes", "prompt", "tag")


def words(n: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """`n` pairs of where (`KINDS`, in turn) and what: each of the lists above as it is, then mixtures, embedded in
    innocent text, and lengths."""
    rng = random.Random(seed)
    listed = [text.format(run=RAN, out=OUTSIDE) for text in (*MARKUP, *MARKDOWN, *TEMPLATES)] + [*CHARACTERS]
    for number in range(n):
        kind, turn = KINDS[number % len(KINDS)], number // len(KINDS)
        if turn < len(listed):
            text = listed[turn]
        elif turn % 5 == 0:
            text = rng.choice(listed)[:50] or "x"
            text = (text * (1 + rng.choice(LENGTHS) // len(text)))[: rng.choice(LENGTHS)]
        else:
            text = rng.choice(("", "5 + 7 = ", "What is ", "\n")).join(
                rng.choice(listed)[:400] for _ in range(rng.choice((1, 2, 3)))
            )
            text = f"{rng.choice(('', 'A sum ', 'q='))}{text}{rng.choice(('', ' 12', '?'))}"
        yield kind, text
