// Play over the answer's course (`pages/prompt/home.py`): goes through the layers, says what the model would say after
// each, and leads the depth cursor through all figures.

import { set } from './cursor.js';

const STEP = 260, PAUSE = 900; // milliseconds a layer
const made = (kind, name, more = {}) => Object.assign(document.createElement(kind), { className: `ed-story-${name}` }, more);

export class Story {
  constructor(parent) {
    this.box = made('div', 'box', { translate: false });
    this.play = made('button', 'play', { type: 'button', onclick: () => (this.timer ? this.stop() : this.go(0)) });
    this.said = made('span', 'said');
    this.box.append(this.play, this.said);
    parent.append(this.box);
  }

  show(text) {
    if (text === this.text) return;
    this.text = text;
    this.told = JSON.parse(text).story;
    this.stop();
  }

  go(depth) {
    const { before, steps, at } = this.told, last = steps.length - 1, { word, share, rank } = steps[depth];
    const where = depth ? `After layer ${depth} of ${last}` : 'Before any layer', percent = share < 0.01 ? 'under 1' : Math.round(100 * share);
    const sure = rank === 1 ? `, ${percent} %` : `, its last word has rank ${rank.toLocaleString('en')}`;
    this.said.replaceChildren(`${where}: ${before}`, made('mark', 'guess', { textContent: seen(word) }), sure);
    set({ depth, n: last, token: at });
    this.play.textContent = '■ Stop';
    if (depth < last) this.timer = setTimeout(() => this.go(depth + 1), depth ? STEP * (1 + (steps[depth + 1].word !== word)) : PAUSE);
    else this.end(), (this.play.textContent = '▶ Play');
  }

  stop() {
    this.end();
    set(null);
    this.play.textContent = '▶ Play';
    this.said.textContent = `Rank of “${seen(this.told.final)}” after each layer. Point at a layer to mark it in all maps.`;
  }

  end() {
    clearTimeout(this.timer);
    this.timer = 0;
  }
}

// A word as it is seen: its spaces and line ends, too.
function seen(word) {
  return word.replace(/^ /, '').replaceAll('\n', '⏎') || '␣';
}
