"""What the browser does for the app: Ctrl+Enter in the prompt presses Run, figures are drawn for paper, and no
translator touches what a model reads or writes; and a button that shows the page's link."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

import streamlit as st

from ed_ui import session

CARRIED = "Opens this view in a fresh session: model, prompt, parameters, and the run where it is stored here."
NOT_CARRIED = (
    "Not the prompt: a text never enters a link, and this one is neither bundled nor stored. Once it has run "
    "alone, the link names the run."
)

# Where tokens, prompts and predictions are; the figures say so themselves.
VERBATIM = "code, pre, .ed-paper, .stApp :is(textarea, input), .st-key-headline, [class*=st-key-token-box]"
SCRIPT = """(() => {
const verbatim = '%s';
const when = (ready, then, tries = 100) => ready() ? then() : tries && setTimeout(when, 100, ready, then, tries - 1);
if (!window.edBrowser) {
  window.edBrowser = true;
  const idle = () => document.querySelector('.stApp').dataset.testScriptState === 'notRunning';
  let press = 0;
  addEventListener('keydown', event => {
    if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey)) return;
    if (!event.target.closest?.('.st-key-prompt-box')) return;
    const run = () => document.querySelector('.stElementContainer[class*=st-key-run-] button');
    // the last press alone, and none once something else was pressed: one that waited on would undo a Cancel
    const mine = ++press, over = () => mine !== press;
    // not before what was typed has come back: a press sent earlier would bring along what it replaced
    setTimeout(when, 150, () => over() || run() && !run().disabled && idle(), () => over() || run().click(), 100);
  }, true);
  addEventListener('pointerdown', event => { press += Boolean(event.target.closest('button')); }, true);
  const print = on => {
    const all = document.documentElement.classList;
    all.toggle('ed-dark', on && getComputedStyle(document.querySelector('.stApp')).colorScheme === 'dark');
    all.toggle('ed-print', on);
    for (const chart of window.edCursor ? window.edCursor.charts : []) chart.fit();
  };
  // what opens over the page lies outside the app, and takes its colours from the document
  const app = document.querySelector('.stApp');
  const follow = () => { document.documentElement.style.colorScheme = getComputedStyle(app).colorScheme; };
  follow();
  new MutationObserver(follow).observe(app, {attributeFilter: ['class']});
  const mark = () => document.querySelectorAll(verbatim).forEach(one => { one.translate = false; });
  new MutationObserver(mark).observe(document.body, {childList: true, subtree: true});
  mark();
  addEventListener('beforeprint', () => print(true));
  addEventListener('afterprint', () => print(false));
}
})()"""


def listen() -> None:
    """At the end of every run: run the script."""
    st.html(f"<script>{SCRIPT % VERBATIM}</script>", unsafe_allow_javascript=True)


def share(row, prompt: bool = True):
    """A button at the end of a row that shows the link to what is on the screen; returns its box. `prompt`: whether the
    page is about the prompt in the box, unless the link names others."""
    box = row.popover("Share", icon=":material/share:", type="tertiary", key="share")
    session.current().share = box.empty(), prompt
    say_link()
    return box


def say_link() -> None:
    """Show the link as it is now: when the button is drawn, and when a whole page has written its parameters."""
    known = session.current()
    if known.share is None:
        return
    place, prompt = known.share
    with place.container():
        st.markdown("**Link** on this computer")
        query = f"?{urlencode(known.link.values)}" if known.link.values else ""
        st.code(f"{known.link.base}{known.link.page or ''}{query}", language=None, wrap_lines=True)
        st.caption(CARRIED if names_prompt(known.link.values, prompt) else NOT_CARRIED)


def names_prompt(values: Mapping[str, str], prompt: bool) -> bool:
    """Whether a link names what its page is about."""
    prompts = values.get("prompts")
    if prompts in ("pasted", "lines"):
        return False
    first = not prompt or prompts == "bundled" or "run" in values or "example" in values
    return first and (values.get("compare") != "prompts" or "second_run" in values or "second_example" in values)
