"""What the browser keeps and does for the app: a prompt that was typed survives a reload (in this tab alone, never in
the link or on the server), Ctrl+Enter in it presses Run, a page that ended in an error of Streamlit's own script is
loaded again, a card that was closed stays so until it is asked for, and figures are drawn anew for paper; and a button
that shows its address."""

from __future__ import annotations

import json

import streamlit as st

from ed_ui import inputs, session, streamlit_edges

CARRIED = "Opens this view in a fresh session: model, prompt, parameters, and the run where it is stored here."
NOT_CARRIED = (
    "Not the prompt: a text never enters a link, and this one is neither bundled nor stored. Once it has run "
    "alone, the link names the run."
)

_mount = streamlit_edges.component("link", streamlit_edges.script("link.js", "picture.js"))

SCRIPT = """(() => {
const [typed, answered, fresh, welcomed, asked] = %s;
window.edTold = [typed, answered];
if (typed && (answered || !window.edAnswer)) document.documentElement.classList.remove('ed-bringing');
const box = kind => document.querySelector(`.st-key-prompt-box ${kind}`);
const idle = () => document.querySelector('.stApp').dataset.testScriptState === 'notRunning';
const put = (element, value) => {
  if (element.value !== value) {
    Object.getOwnPropertyDescriptor(Object.getPrototypeOf(element), 'value').set.call(element, value);
    element.dispatchEvent(new Event('input', {bubbles: true}));
  }
  setTimeout(() => element.dispatchEvent(new FocusEvent('focusout', {bubbles: true})));
};
const both = () => box('textarea') && box('input');  // each is there when its own script has come
const held = mine => JSON.stringify([box('textarea').value, mine ? box('input').value : '']);
const save = (mine = true) => { if (both() && !window.edBringing) sessionStorage.edPrompt = held(mine); };
const when = (ready, then, tries = 100) => ready() ? then() : tries && setTimeout(when, 100, ready, then, tries - 1);
if (!window.edBrowser) {
  window.edBrowser = true;
  // an error inside Streamlit's script takes the whole page away for good: load it again, once a minute at most
  setInterval(() => {
    if (document.querySelector('.stApp') || Date.now() - (sessionStorage.edEnded || 0) < 60000) return;
    sessionStorage.edEnded = Date.now();
    location.reload();
  }, 1000);
  let press = 0;
  const inBox = event => event.target.closest && event.target.closest('.st-key-prompt-box');
  // the answer of the example that is typed over is not the answer of what is typed
  addEventListener('input', event => inBox(event) && save(window.edTold[0] || event.target.matches('input')), true);
  addEventListener('keydown', event => {
    if (!inBox(event) || event.key !== 'Enter' || !(event.ctrlKey || event.metaKey)) return;
    const run = () => document.querySelector('[class*=st-key-run-row] button');
    // the last press alone, and none once something else was pressed: one that waited on would undo a Cancel
    const mine = ++press, over = () => mine !== press;
    // not before what was typed has come back: a press sent earlier would bring along what it replaced
    setTimeout(when, 150, () => over() || run() && !run().disabled && idle(), () => over() || run().click(), 100);
  }, true);
  addEventListener('pointerdown', event => { press += Boolean(event.target.closest('button')); }, true);
  const kept = sessionStorage.edPrompt && JSON.parse(sessionStorage.edPrompt);
  // again until the app says that it has both, or somebody does something: while the page is being drawn a box may be
  // replaced, or keep what was put into it to itself, and take nothing else any more
  const enough = () => { window.edBringing = window.edAnswer = false; };
  // until the app has it the page is about another prompt, and hidden but for the inputs
  const others = '.ed-bringing .st-key-page { visibility: hidden }' +
    '.ed-bringing :is(.st-key-home-top, .st-key-asked, .st-key-run-row) { visibility: visible }';
  document.head.appendChild(document.createElement('style')).textContent = others;
  const hide = () => {
    document.documentElement.classList.add('ed-bringing');
    setTimeout(when, 5000, idle, () => document.documentElement.classList.remove('ed-bringing'), 600);
  };
  const bring = tries => {
    const [text, answer] = [box('textarea'), box('input')], [hasText, hasAnswer] = window.edTold;
    if (!window.edBringing || !text || !answer || !tries) return enough();
    if (text.value !== kept[0] || !hasText) put(text, kept[0], hide());
    else if (kept[1] && (answer.value !== kept[1] || !hasAnswer)) put(answer, kept[1], hide());
    else return enough();
    setTimeout(when, 300, idle, () => bring(tries - 1));
  };
  window.edBringing = Boolean(kept && fresh && kept[0].trim());
  window.edAnswer = window.edBringing && Boolean(kept[1]);
  for (const by of ['pointerdown', 'keydown']) addEventListener(by, enough, {capture: true, once: true});
  if (window.edBringing) setTimeout(when, 0, both, () => bring(10));
  else delete sessionStorage.edPrompt;
  const print = on => {
    const all = document.documentElement.classList;
    all.toggle('ed-dark', on && getComputedStyle(document.querySelector('.stApp')).colorScheme === 'dark');
    all.toggle('ed-print', on);
    for (const chart of window.edCursor ? window.edCursor.charts : []) chart.fit();
  };
  // what opens over the page stands outside the app, and takes its colours from the document
  const app = document.querySelector('.stApp');
  const follow = () => { document.documentElement.style.colorScheme = getComputedStyle(app).colorScheme; };
  follow();
  new MutationObserver(follow).observe(app, {attributeFilter: ['class']});
  addEventListener('beforeprint', () => print(true));
  addEventListener('afterprint', () => print(false));
  if (localStorage.edWelcomed) document.documentElement.classList.add('ed-welcomed');
} else if (typed) setTimeout(when, 100, idle, save);  // once the boxes hold what this run put into them
else if (!window.edBringing) delete sessionStorage.edPrompt;
const said = () => document.querySelector('.st-key-headline');
when(said, () => { said().tabIndex = 0; }, 50);  // it scrolls, so the keyboard must reach it
if (welcomed) localStorage.edWelcomed = 1;
if (asked) document.documentElement.classList.remove('ed-welcomed');
})()"""


def listen() -> None:
    """At the end of every run: tell the browser whether what stands in the prompt's box was typed, and whether there is
    an answer."""
    typed = bool(inputs.value("text", "")) and not inputs.value("example", "")
    known = session.current()
    answered = bool(inputs.value("answer", ""))
    told = json.dumps([typed, answered, known.link.open, known.welcomed, known.asked_what])
    st.html(f"<script>{SCRIPT % told}</script>", unsafe_allow_javascript=True)


def share(row, prompt: bool = True) -> None:
    """A button at the end of a row that shows the link to what is on the screen. The browser reads it from its own
    address: a part of a page that runs by itself cannot safely write into what stands outside of it. `prompt`: whether
    the page is about the prompt in the box, unless the address says that it is about others."""
    with row.popover("Link", icon=":material/link:", type="tertiary", key="share"):
        _mount(key="share-link", data={"whole": CARRIED, "partly": NOT_CARRIED, "prompt": prompt})
