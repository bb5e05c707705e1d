// What the browser does for the app (`browser.py`). Loaded once a page; the function below runs after each run that
// changes `data`.

const VERBATIM = // where tokens, prompts and predictions are; the figures say so themselves
  'code, pre, .ed-paper, .stApp :is(textarea, input), .st-key-headline, [class*=st-key-token-box]';
const when = (ready, then, tries = 100) => ready() ? then() : tries && setTimeout(when, 100, ready, then, tries - 1);
const root = document.documentElement;

function listen() {
  const app = document.querySelector('.stApp');
  const idle = () => app.dataset.testScriptState === 'notRunning';
  let press = 0;
  addEventListener('keydown', event => {
    if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey)) return;
    if (!event.target.closest?.('.st-key-prompt-box')) return;
    const run = () => document.querySelector('.stElementContainer[class*=st-key-run-] button');
    // only the last press counts, and none once something else was pressed: it would undo a Cancel
    const mine = ++press, over = () => mine !== press;
    // not before the server has what was typed: a press sent earlier would bring along the former text
    setTimeout(when, 150, () => over() || run() && !run().disabled && idle(), () => over() || run().click(), 100);
  }, true);
  addEventListener('pointerdown', event => { press += Boolean(event.target.closest('button')); }, true);
  addEventListener('input', event => { // the server hears of it when the box loses the focus
    const box = event.target.closest?.('.st-key-prompt-box');
    if (box) keep([...box.querySelectorAll('textarea, input[type=text]')].slice(0, 2).map(one => one.value));
  }, true);
  const print = on => {
    root.classList.toggle('ed-dark', on && getComputedStyle(app).colorScheme === 'dark');
    root.classList.toggle('ed-print', on);
    for (const chart of window.edCursor ? window.edCursor.charts : []) chart.fit();
  };
  addEventListener('beforeprint', () => print(true));
  addEventListener('afterprint', () => print(false));
  // menus and dialogs are children of the document, not of the app, and take their colours from it
  const follow = () => { root.style.colorScheme = getComputedStyle(app).colorScheme; };
  new MutationObserver(follow).observe(app, {attributeFilter: ['class']});
  follow();
  const mark = () => document.querySelectorAll(VERBATIM).forEach(one => { one.translate = false; });
  new MutationObserver(mark).observe(document.body, {childList: true, subtree: true});
  mark();
}

const keep = prompt => { sessionStorage.edPrompt = JSON.stringify(prompt); };

export default function({data, setTriggerValue}) {
  const reloaded = window.edBrowser || performance.getEntriesByType('navigation')[0]?.type === 'reload';
  if (!window.edBrowser) listen();
  window.edBrowser = true;
  if (data.begins && reloaded && sessionStorage.edPrompt) setTriggerValue('typed', JSON.parse(sessionStorage.edPrompt));
  else if (data.typed) keep(data.typed);
  else delete sessionStorage.edPrompt;
}
