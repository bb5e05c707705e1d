// The depth story (`ed_ui/prompt_panels.py`): a slider lifts the prompt through the depths, and its next word changes in place. It
// leads the depth cursor through the maps. It plays on request, once.

import { set } from './cursor.js';

const STEP = 260, PAUSE = 1200; // milliseconds a depth
const SVG = 'http://www.w3.org/2000/svg';

const made = (kind, name, more = {}) => Object.assign(document.createElement(kind), { className: `ed-story-${name}` }, more);

export class Story {
  constructor(parent) {
    this.box = made('div', 'box', { translate: false });
    this.sentence = made('p', 'sentence');
    this.said = made('p', 'said');
    this.twin = made('p', 'twin');
    this.legend = made('p', 'legend');
    this.marks = made('div', 'marks');
    this.slider = made('input', 'slider', { type: 'range', min: 0, step: 1 });
    this.play = made('button', 'play', { type: 'button' });
    const row = made('div', 'row'), track = made('div', 'track');
    this.ranks = document.createElementNS(SVG, 'svg');
    for (const [name, value] of Object.entries({ class: 'ed-story-ranks', viewBox: '0 0 1 1', preserveAspectRatio: 'none', 'aria-hidden': true }))
      this.ranks.setAttribute(name, value);
    track.append(this.ranks, this.slider, this.marks);
    row.append(this.play, track);
    this.box.append(this.sentence, this.said, row, this.legend, this.twin);
    parent.append(this.box);
    this.slider.setAttribute('aria-label', 'Depth');
    this.slider.addEventListener('input', () => (this.stop(), this.go(Number(this.slider.value))));
    this.play.addEventListener('click', () => (this.timer ? this.stop() : this.begin()));
  }

  show(text) {
    if (text === this.text) return;
    this.text = text;
    this.told = JSON.parse(text).story;
    const last = this.told.steps.length - 1;
    this.slider.max = last;
    const ends = Array.from({ length: (this.told.passes ?? 1) - 1 }, (_, i) => {
      const end = made('span', 'pass', { title: `pass ${i + 1} ends` });
      end.style.left = `${(100 * (i + 1)) / this.told.passes}%`;
      return end;
    });
    this.marks.replaceChildren(...ends, ...Object.entries(this.told.marks).map(([words, depth]) => {
      const mark = made('span', 'mark', { textContent: '▲', title: words });
      mark.style.left = `${(100 * depth) / last}%`;
      return mark;
    }));
    const words = [...Object.keys(this.told.marks).length ? [`▲ ${Object.keys(this.told.marks).join(', ')}`] : [], ...ends.length ? ['| a pass ends'] : []];
    this.legend.textContent = [...words, ...this.beside()].join(' · ');
    this.stop();
    this.go(last, false);
  }

  // The rank of the final word over the depths, before the range of the same in untrained twins; its words. By logarithm,
  // 1 on top; nothing where no twins are stored.
  beside() {
    const { ghost, steps } = this.told;
    this.ranks.style.display = ghost ? '' : 'none';
    if (!ghost) return [];
    const own = steps.map((step) => step.rank), lowest = Math.log(Math.max(2, ...own, ...ghost.worst));
    const points = (ranks) => ranks.map((rank, depth) => `${depth / (ranks.length - 1)},${Math.log(rank) / lowest}`);
    const shape = (kind, name, at) => {
      const one = document.createElementNS(SVG, kind);
      one.setAttribute('class', `ed-story-${name}`);
      one.setAttribute('points', at.join(' '));
      return one;
    };
    const band = [...points(ghost.best), ...points(ghost.worst).reverse()];
    this.ranks.replaceChildren(shape('polygon', 'ghost', band), shape('polyline', 'rank', points(own)));
    const twins = ghost.twins === 1 ? 'an untrained copy' : `${ghost.twins} untrained copies`;
    return [`line: rank of the final word, 1 on top; grey: ${twins}, each by its own final word`];
  }

  go(depth, lead = true) {
    const { before, final, steps, at, passes } = this.told, last = steps.length - 1, step = steps[depth];
    const share = `${step.share < 0.01 ? 'under 1' : Math.round(100 * step.share)} %`;
    this.slider.value = depth;
    this.sentence.replaceChildren(before, made('mark', 'guess', { textContent: seen(step.word) }));
    const n = last / (passes ?? 1), layer = passes ? `${(depth - 1) % n} in pass ${Math.ceil(depth / n)} of ${passes}` : depth - 1;
    const where = depth ? `After layer ${layer} (depth ${depth} of ${last})` : `Before any layer (depth 0 of ${last})`;
    const rank = step.rank === 1 ? 'its final word' : `its final word ‘${seen(final)}’ is number ${step.rank.toLocaleString('en')}`;
    this.said.textContent = `${where}: ${share}, ${step.echo && step.rank !== 1 ? 'the word just read, repeated; ' : ''}${rank}.`;
    this.twin.textContent = step.twin === undefined ? '' : `An untrained copy reads ‘${seen(step.twin)}’ here.`;
    this.slider.setAttribute('aria-valuetext', `${where}: ${seen(step.word)}, ${share}`);
    if (lead) set({ depth, n: last, token: at });
  }

  begin() {
    const last = this.told.steps.length - 1;
    const on = (depth) => {
      this.go(depth);
      if (depth >= last) return this.stop();
      const changes = this.told.steps[depth + 1].word !== this.told.steps[depth].word;
      this.timer = setTimeout(on, changes && !matchMedia('(prefers-reduced-motion: reduce)').matches ? STEP * 2 : depth ? STEP : PAUSE, depth + 1);
    };
    this.play.textContent = 'Stop';
    on(0);
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.play.textContent = 'Play';
  }

  end() {
    this.stop();
  }
}

// A word as it is seen: its spaces and line ends, too.
function seen(word) {
  return word.replace(/^ /, '').replaceAll('\n', '⏎') || '␣';
}
