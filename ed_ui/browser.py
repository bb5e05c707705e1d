"""What the browser keeps and hears for the app: a prompt that was typed survives a reload (in this tab alone, never in
the link or on the server), Ctrl+Enter in it presses Run, and a card that was closed stays closed."""

from __future__ import annotations

import json

import streamlit as st

from ed_ui import link, remembered, session

SCRIPT = """(() => {
const [typed, fresh, welcomed] = %s;
const box = kind => document.querySelector(`.st-key-prompt-box ${kind}`);
const put = (element, value) => {
  Object.getOwnPropertyDescriptor(Object.getPrototypeOf(element), 'value').set.call(element, value);
  element.dispatchEvent(new Event('input', {bubbles: true}));
  setTimeout(() => element.dispatchEvent(new FocusEvent('focusout', {bubbles: true})));
};
const held = () => JSON.stringify([box('textarea').value, box('input').value]);
const save = () => { if (box('textarea')) sessionStorage.edPrompt = held(); };
const when = (ready, then, tries = 100) => ready() ? then() : tries && setTimeout(when, 100, ready, then, tries - 1);
if (!window.edBrowser) {
  window.edBrowser = true;
  const inBox = event => event.target.closest && event.target.closest('.st-key-prompt-box');
  addEventListener('input', event => inBox(event) && save(), true);
  addEventListener('keydown', event => {
    if (!inBox(event) || event.key !== 'Enter' || !(event.ctrlKey || event.metaKey)) return;
    const run = () => document.querySelector('.st-key-run-row button');
    // not before what was typed has come back: a press sent earlier would bring along what it replaced
    const idle = () => document.querySelector('.stApp').dataset.testScriptState === 'notRunning';
    setTimeout(when, 150, () => run() && !run().disabled && idle(), () => run().click(), 100);
  }, true);
  const kept = sessionStorage.edPrompt && JSON.parse(sessionStorage.edPrompt);
  // each step by itself: this script runs while the page is being drawn, and a box that is left before what was put in
  // has been drawn keeps it to itself, and takes nothing else any more
  if (kept && fresh && kept[0].trim())
    setTimeout(when, 0, () => box('textarea'), () => {
      if (box('textarea').value === kept[0]) return;
      put(box('textarea'), kept[0]);
      when(() => box('input').value === '', () => kept[1] && put(box('input'), kept[1]));
    });
  else delete sessionStorage.edPrompt;
  if (localStorage.edWelcomed) document.documentElement.classList.add('ed-welcomed');
} else if (typed) save();
else delete sessionStorage.edPrompt;
const said = () => document.querySelector('.st-key-headline');
when(said, () => { said().tabIndex = 0; }, 50);  // it scrolls, so the keyboard must reach it
if (welcomed) localStorage.edWelcomed = 1;
})()"""


def listen() -> None:
    """At the end of every run: tell the browser whether what stands in the prompt's box was typed."""
    typed = bool(remembered.value("text", "")) and not remembered.value("example", "")
    known = session.current()
    told = json.dumps([typed, link.state().open, known.welcomed])
    st.html(f"<script>{SCRIPT % told}</script>", unsafe_allow_javascript=True)
