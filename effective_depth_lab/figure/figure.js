// The figure component (`ed_ui/show.py`). Plotly draws a new version into the old one; figures in sight come first, the
// others when the browser has time. Data that begins with "story" is the depth story.

import { join, leave, redrawn } from './cursor.js';
import { Story } from './story.js';

const MARGIN = 200; // pixels beyond the window that count as in sight
const FAR = 1e9;
const SOON = 500; // milliseconds that a figure out of sight waits at most for an idle moment
const NARROW = 440, FITS = 0.7, LABELS = 0.85, LINE = 12, LETTER = 7, MAP = 0.84, MAP_NARROW = 0.77, STRIP_NARROW = 0.86; // pixels; shares of the width (`figures.panel`)
const CONFIG = { displayModeBar: false, displaylogo: false };
const LINES = '#d5d7dc'; // of a saved figure's grid
const BIG = new Set(['x', 'y', 'z', 'text', 'customdata', 'meta', 'colorscale']); // parts of a figure without colours of roles
const FAILED = 'This figure could not be drawn. Reload the page.';

const plotly = import('./plotly.min.js').then(() => window.Plotly);

const shown = new WeakMap(), waiting = new Set();
let drawing = false;

export default function ({ data, parentElement, setTriggerValue }) {
  const text = new TextDecoder().decode(data);
  if (!shown.has(parentElement)) shown.set(parentElement, new (text.startsWith('{"story"') ? Story : Chart)(parentElement));
  const one = shown.get(parentElement);
  one.tell = (point) => setTriggerValue('clicked', point);
  one.show(text);
  return () => parentElement.isConnected || one.end();
}

class Chart {
  constructor(parent) {
    this.box = document.createElement('div');
    this.box.className = 'ed-chart notranslate';
    this.box.translate = false;
    this.box.setAttribute('role', 'figure');
    parent.append(this.box);
    join(this);
    this.resized = new ResizeObserver(() => this.box.clientWidth !== this.width && this.soon());
    this.resized.observe(this.box);
  }

  show(text) {
    const look = this.look();
    if (text === this.text && look === this.seen) return;
    [this.text, this.seen] = [text, look];
    const { alt, clickable, figure, over, save } = JSON.parse(text);
    Object.assign(this, { figure, clickable, save });
    this.offer();
    this.box.setAttribute('aria-label', alt);
    this.soon();
    if (over) (this.upper ??= new Upper(this.box.parentNode)).show(over);
    else this.layLess();
  }

  // Two buttons that appear over the figure and save it as a file.
  offer() {
    if (!this.save || this.saves) return;
    this.box.parentNode.style.position = 'relative';
    this.saves = this.box.parentNode.appendChild(Object.assign(document.createElement('div'), { className: 'ed-saves' }));
    for (const format of ['png', 'svg']) {
      const button = this.saves.appendChild(document.createElement('button'));
      Object.assign(button, { textContent: format.toUpperCase(), title: `Save this figure as ${format.toUpperCase()}`, onclick: () => this.saveAs(format) });
    }
  }

  // As it was made, dark on white, without what only the mouse reads.
  async saveAs(format) {
    const { layout: { annotations, font, ...layout }, name } = this.save, made = this.figure.layout;
    const data = this.figure.data.map((trace) => (trace.type === 'heatmap' ? { ...trace, text: undefined } : trace));
    const page = { ...made, ...layout, font: { ...made.font, ...font }, annotations: [...(made.annotations ?? []), ...annotations] };
    page.template = template([font.color, layout.paper_bgcolor, LINES, font.family, font.color]);
    const size = { width: layout.width, height: layout.height, scale: format === 'png' ? 2 : 1 };
    (await plotly).downloadImage({ data, layout: page }, { format, filename: name, ...size });
  }

  layLess() {
    this.upper?.end();
    this.upper = null;
  }

  soon() {
    this.box.setAttribute('aria-busy', 'true');
    waiting.add(this);
    if (!drawing) drawing = setTimeout(next);
  }

  // Pixels from the top of the window; out of sight is far.
  get place() {
    const { top, bottom } = this.box.getBoundingClientRect();
    return bottom > -MARGIN && top < innerHeight + MARGIN ? top : FAR;
  }

  // What of the page's theme a figure takes, as text.
  look() {
    const page = getComputedStyle(this.box), of = (name) => page.getPropertyValue(name).trim();
    return JSON.stringify([page.color, of('--st-background-color'), of('--st-border-color'), of('--st-font'), of('--st-heading-color')]);
  }

  draw() {
    return (this.drawn = this.drawNow());
  }

  async drawNow() {
    if (!this.box.clientWidth || !this.figure) return; // hidden: it is drawn when it gets its width
    const { layout } = this.figure;
    try {
      await this.drawInto(await plotly);
    } catch (error) {
      if (!this.figure) return; // it ended meanwhile
      console.error(error);
      this.box.textContent = FAILED;
      return;
    }
    this.along = layout.meta?.along;
    this.reach();
    redrawn(this);
    if (!this.listens) this.box.on('plotly_click', ({ points: [point] }) => this.clicked(point));
    this.listens = true;
  }

  // In the width and the colours that the page gives it now.
  drawInto(library) {
    this.width = this.box.clientWidth;
    const { data, layout } = roomy(themed(this.figure, this.box), this.width), title = layout.title?.text;
    const shown = { ...layout, width: this.width, template: template(JSON.parse(this.seen)) };
    if (title) shown.title = { ...layout.title, text: `<b>${title}</b>` };
    return library.react(this.box, data, shown, CONFIG);
  }

  // At once, as paper does not wait.
  fit() {
    this.seen = this.look();
    if (window.Plotly && this.figure && this.box.clientWidth) this.drawn = this.drawInto(window.Plotly);
  }

  // Where the figure is scrolled in its box (`show.figure`), the keyboard must reach it.
  reach() {
    const around = this.box.closest('[class*="st-key-tall-"], [class*="st-key-wide-"]');
    const scrolls = around && (around.scrollHeight > around.clientHeight || around.scrollWidth > around.clientWidth);
    if (scrolls) this.box.tabIndex = 0;
    else if (!this.along?.tokens && !this.clickable) this.box.removeAttribute('tabindex');
  }

  clicked({ fullData, customdata, y, x }) {
    if (this.clickable && (customdata !== undefined || fullData.type === 'heatmap')) this.tell(customdata ?? [y, x]);
  }

  async end() {
    waiting.delete(this);
    this.layLess();
    leave(this);
    this.resized.disconnect();
    this.figure = null;
    await this.drawn; // plotly must not lose a figure that it draws
    (await plotly).purge(this.box);
  }
}

// A second figure of the same size over the first, right of a line that is dragged or moved by the arrow keys.
class Upper {
  constructor(parent) {
    const make = (name) => parent.appendChild(Object.assign(document.createElement('div'), { className: name }));
    this.parent = parent;
    this.chart = new Chart(make('ed-upper'));
    this.line = make('ed-divider');
    for (const [name, value] of Object.entries({ role: 'slider', tabindex: 0, 'aria-label': 'Divider: A on the left, B on the right', 'aria-valuemin': 0, 'aria-valuemax': 100 }))
      this.line.setAttribute(name, value);
    parent.classList.add('ed-laid');
    this.line.addEventListener('pointerdown', (event) => this.line.setPointerCapture(event.pointerId));
    this.line.addEventListener('pointermove', ({ pointerId, clientX }) => {
      const { left, width } = parent.getBoundingClientRect();
      if (this.line.hasPointerCapture(pointerId)) this.to((100 * (clientX - left)) / width);
    });
    this.line.addEventListener('keydown', (event) => {
      const to = { ArrowLeft: this.at - 1, ArrowRight: this.at + 1, PageDown: this.at - 10, PageUp: this.at + 10, Home: 0, End: 100 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      this.to(to);
    });
  }

  // At first the line stands in the middle of the map, or of what is seen of it.
  show(figure) {
    this.chart.show(JSON.stringify(figure));
    if (this.at !== undefined) return;
    const { margin: { l, r }, xaxis: { domain: [from, to] = [0, 1] } } = figure.figure.layout, width = this.parent.clientWidth;
    const middle = l + ((width - l - r) * (from + to)) / 2, seen = innerWidth - this.parent.getBoundingClientRect().left;
    this.to((100 * (middle < seen ? middle : (l + seen) / 2)) / width);
  }

  to(percent) {
    this.at = Math.min(100, Math.max(0, percent));
    this.parent.style.setProperty('--ed-at', `${this.at}%`);
    this.line.setAttribute('aria-valuenow', Math.round(this.at));
  }

  end() {
    this.parent.classList.remove('ed-laid');
    this.chart.end();
    this.chart.box.parentNode.remove();
    this.line.remove();
  }
}

// On a dark page the colours of roles (`figures.colours.DARK`) are others.
function themed(figure, box) {
  const dark = figure.layout.meta?.dark;
  if (!dark || getComputedStyle(box).colorScheme !== 'dark') return figure;
  const swap = (one) => {
    if (typeof one === 'string') return dark[one] ?? one;
    if (!one || typeof one !== 'object' || ArrayBuffer.isView(one)) return one;
    if (Array.isArray(one)) return one.some((item) => item && typeof item === 'object') ? one.map(swap) : one;
    return Object.fromEntries(Object.entries(one).map(([name, value]) => [name, BIG.has(name) ? value : swap(value)]));
  };
  return { data: figure.data.map(swap), layout: swap(figure.layout) };
}

// On a phone the words of the strip beside a map stand under the map's last token: the map leaves them more room, and
// they stand on more lines. The ends of the map's colour bar, and what is written behind it, go with the map. Words in its
// cells are left out, as they were cut for wider ones, and so are as many of the tokens' labels as would overlap; short
// ones that stand upright between rotated ones have no room at all where columns are narrow.
function roomy({ data: all, layout: made }, width) {
  const wide = made.meta?.width_px, tight = width < FITS * wide, data = all.filter(({ name }) => !tight || !name?.startsWith('letters '));
  const layout = { ...made, annotations: made.annotations?.filter((one) => fits(one, made, width)) };
  if (made.meta?.along?.tokens && width < LABELS * wide)
    for (const [long, short] of [['xaxis', 'xaxis3'], ['xaxis4', 'xaxis5']]) {
      layout[long] &&= thinned(layout[long], width, wide);
      layout[short] &&= thinned(layout[short], width, wide);
      if (layout[short] && (MAP * width) / (layout[short].range[1] - layout[short].range[0]) < LINE) layout[short] = { ...layout[short], tickvals: [], ticktext: [] };
    }
  const end = layout.xaxis?.domain?.[1], strip = layout.xaxis2;
  if (width >= NARROW || end !== MAP || !strip) return { data, layout };
  const bar = (one) => one?.colorbar && { ...one, colorbar: { ...one.colorbar, len: MAP_NARROW } };
  const moved = ({ title, ...axis }, domain) => ({ ...axis, domain, title: title && { ...title, text: title.text?.replaceAll(', ', ',<br>') } });
  return {
    data: data.map((trace) => ({ ...trace, ...bar(trace), ...(trace.marker?.colorbar && { marker: bar(trace.marker) }) })),
    layout: {
      ...layout, xaxis: moved(layout.xaxis, [0, MAP_NARROW]), xaxis2: moved(strip, [STRIP_NARROW, 1]),
      annotations: layout.annotations?.map((one) => (one.x === MAP && one.xref === 'paper' ? { ...one, x: MAP_NARROW } : one)),
    },
  };
}

// Whether a word over the course (`figures.course`) has room over its depths, and what is for a wide screen any.
function fits({ name, text }, { xaxis, margin }, width) {
  const depths = name?.startsWith('word ') && Number(name.slice(5));
  if (width < NARROW && name?.startsWith('wide ')) return false;
  return !depths || LETTER * text.replace(/<[^>]*>/g, '').length <= (depths * (width - margin.l - margin.r)) / (xaxis.range[1] - xaxis.range[0]) + 2;
}

// Every second label, every third and so on; rotated ones only where their lines would meet. Of those that stand on two
// lines by turns an odd step keeps the turns.
function thinned(axis, width, wide) {
  const { tickvals: at, ticktext: words, tickangle, range: [from, to] } = axis;
  if (!(at?.length > 1 && words)) return axis;
  const apart = ((at.at(-1) - at[0]) / (at.length - 1)) * ((MAP * width) / (to - from));
  let step = Math.ceil(tickangle ? LINE / apart : wide / width);
  if (!tickangle && step % 2 === 0 && words.some((one) => one.includes('<br>'))) step += 1;
  const kept = (_, i) => i % step === 0;
  return { ...axis, tickvals: at.filter(kept), ticktext: words.filter(kept) };
}

async function next() {
  const [first, second] = [...waiting].map((chart) => ({ chart, place: chart.place })).sort((a, b) => a.place - b.place);
  if (!first) return void (drawing = false);
  waiting.delete(first.chart);
  await first.chart.draw();
  if (!waiting.has(first.chart)) first.chart.box.removeAttribute('aria-busy');
  if (second?.place === FAR) requestIdleCallback(next, { timeout: SOON });
  else setTimeout(next); // between two figures the browser paints and listens
}

// Colours and letters of the page, for what a figure leaves open.
function template([text, ground, border, family, heading]) {
  const font = { color: text, family, size: 12 };
  const axis = (standoff) => ({
    automargin: true, gridcolor: border, zerolinecolor: border, tickcolor: border, tickfont: font,
    title: { font: { ...font, size: 14 }, standoff },
  });
  return {
    layout: {
      font, xaxis: { ...axis(20), showgrid: false, zeroline: false }, yaxis: axis(24), legend: { font, bgcolor: ground },
      title: { font: { ...font, color: heading, size: 16 }, x: 0, xanchor: 'left' }, margin: { pad: 8 },
      hoverlabel: { bgcolor: ground, bordercolor: border, font }, coloraxis: { colorbar: { tickfont: font } },
    },
  };
}
