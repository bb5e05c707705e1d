// One depth cursor through all figures of a page: pointing at a layer in one of them, or the arrow keys in it, marks the
// same depth in all, and says what the model would say there. In the browser alone; a figure tells on which of its axes
// the depth runs (`Canvas.along`): layers count from 1, and layer n ends at depth n. Tokens are counted in the whole
// text: the columns of a map of written tokens (`begin`) stand behind the prompt's.

const STEPS = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] };
const known = (window.edCursor ??= { charts: new Set(), at: null, due: 0 }); // in the window for printing (`ed_ui/browser.py`)

// Where a depth of a model with n layers lies on a figure's own axis, and back. Of models of other depth: the same share.
const onAxis = (along, { depth, n }) => (along.n === n ? depth : Math.round((depth / n) * along.n));
const ofAxis = (along, value) => {
  const depth = Math.round(value);
  return depth >= 0 && depth <= along.n ? depth : null;
};

export function join(chart) {
  known.charts.add(chart);
  const { box } = chart;
  box.addEventListener('pointermove', (event) => point(chart, event));
  box.addEventListener('pointerdown', (event) => point(chart, event));
  box.addEventListener('pointerleave', () => known.byKey || set(null));
  box.addEventListener('keydown', (event) => key(chart, event));
  box.addEventListener('blur', () => set(null));
}

export function leave(chart) {
  known.charts.delete(chart);
}

// After a figure was drawn anew its marks are gone from it.
export function redrawn(chart) {
  const along = chart.along;
  if (along?.tokens || (along && chart.clickable)) {
    chart.box.tabIndex = 0;
    chart.box.setAttribute('aria-keyshortcuts', Object.keys(STEPS).join(' '));
  }
  chart.marks = null;
  if (known.at) soon();
}

function point(chart, event) {
  const { along, box } = chart, full = box._fullLayout;
  known.byKey = false;
  if (!along || !full?.xaxis) return;
  const { left, top } = box.getBoundingClientRect();
  const [x, y] = [event.clientX - left, event.clientY - top];
  const inside = (axis, at) => at >= axis._offset && at <= axis._offset + axis._length;
  if (y < full._size.t || y > full._size.t + full._size.h || x < full._size.l || x > full.width - full._size.r) return;
  const axis = along.axis === 'y' ? full.yaxis : full.xaxis;
  const depth = ofAxis(along, axis.p2l((along.axis === 'y' ? y : x) - axis._offset));
  if (depth === null) return set(null);
  const over = along.tokens && inside(full.xaxis, x);
  const token = over ? Math.round(full.xaxis.p2l(x - full.xaxis._offset)) + (along.begin ?? 0) : known.at?.token;
  set({ depth, n: along.n, token: token ?? null, chart });
}

function key(chart, event) {
  const step = STEPS[event.key], { along } = chart;
  if (event.key === 'Escape') return set(null);
  if (along && chart.clickable && (event.key === 'Enter' || event.key === ' ')) {
    event.preventDefault();
    return chart.tell([known.at ? onAxis(along, known.at) : 0, known.at?.token ?? lastToken(chart)]);
  }
  if (!along || !step || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  known.byKey = true;
  const columns = columnsOf(chart), begin = along.begin ?? 0;
  const at = known.at ?? { depth: along.n, n: along.n, token: null };
  const moved = Math.min(begin + columns - 1, Math.max(begin, (at.token ?? lastToken(chart)) + step[1]));
  const token = step[1] || at.token !== null ? moved : null;
  set({ n: at.n, depth: Math.min(at.n, Math.max(0, at.depth + (known.at ? step[0] : 0))), token, chart });
}

const columnsOf = ({ box }) => box._fullData?.[0]?.z?.[0]?.length ?? 1;
const lastToken = (chart) => (chart.along.begin ?? 0) + (chart.along.says?.at ?? columnsOf(chart) - 1);

export function set(at) {
  known.at = at;
  soon();
}

function soon() {
  if (!known.due) known.due = requestAnimationFrame(draw);
}

function draw() {
  known.due = 0;
  const began = performance.now();
  for (const chart of known.charts) mark(chart, known.at);
  say(known.at);
  known.took = performance.now() - began;
}

function mark(chart, at) {
  const { along, box } = chart, full = box._fullLayout;
  if (!at || !along || !full?.xaxis) {
    for (const one of chart.marks ?? []) one.style.display = 'none';
    return;
  }
  chart.marks ??= ['ed-cursor-depth', 'ed-cursor-token'].map((name) => {
    const one = box.querySelector(`.${name}`) ?? document.createElement('div');
    one.className = name;
    const above = [...box.querySelectorAll('.main-svg')].at(-1); // what hover says stands over the marks
    above.parentNode.insertBefore(one, above);
    return one;
  });
  const [depth, token] = chart.marks, { l, r, t, h } = full._size;
  span(depth, along.axis, along.axis === 'y' ? full.yaxis : full.xaxis, onAxis(along, at), { l, t, w: full.width - l - r, h });
  if (along.tokens && at.token !== null) span(token, 'x', full.xaxis, at.token - (along.begin ?? 0), { l, t, w: 0, h });
  else token.style.display = 'none';
}

// A frame around one row or column of a figure; nothing where that lies beyond its axis.
function span(one, letter, axis, value, { l, t, w, h }) {
  const ends = [value - 0.5, value + 0.5].map((end) => axis._offset + axis.l2p(end)).sort((a, b) => a - b);
  const within = ends[0] >= axis._offset - 2 && ends[1] <= axis._offset + axis._length + 2;
  const place = letter === 'y' ? [l, ends[0], w, ends[1] - ends[0]] : [ends[0], t, ends[1] - ends[0], h];
  one.style.display = within ? '' : 'none';
  [one.style.left, one.style.top, one.style.width, one.style.height] = place.map((pixels) => `${pixels}px`);
}

// The readout: which layer, which depth, and what the lens reads there: the map that is pointed at, else the first one of
// its side; none where what is pointed at is written, as the prompt's maps hold other tokens.
function say(at) {
  known.told ??= document.body.appendChild(Object.assign(document.createElement('div'), { className: 'ed-cursor-says', translate: false }));
  known.told.setAttribute('role', 'status');
  known.told.hidden = !at;
  if (at) known.told.replaceChildren(...words(at));
}

function words({ depth, n, token, chart }) {
  const bold = (text) => Object.assign(document.createElement('b'), { textContent: text });
  const said = [bold(depth ? `After layer ${depth} of ${n}` : 'Before any layer')];
  const from = chart?.along ?? {}, read = from.says ? [chart] : from.begin === undefined ? known.charts : [];
  for (const { along, box } of read) {
    if (!along?.says || along.n !== n || along.side !== from.side || !box.isConnected) continue;
    const cell = box.data?.[0]?.text?.[depth]?.[token ?? along.says.at], lines = cell?.split('<br>') ?? [];
    const best = lines[along.says.first ? 1 : 2], input = lines[0]?.replace(/<[^>]*>|◆ sink/g, '').trim();
    if (!best) continue;
    const [share, ...guess] = plain(best).trim().split('  ');
    const percent = share.includes('⁻') ? 0 : Math.round(100 * Number(share.replace(/[^\d.]/g, '')));  // 0 of a power
    said.push(': the lens reads ', bold(`‘${guess.join('  ')}’`), ` at ${percent || '< 1'} %, after ‘${plain(input)}’`);
    break;
  }
  return said;
}

// What a figure's text says, without its marks.
function plain(text) {
  const box = document.createElement('textarea');
  box.innerHTML = text;
  return box.value;
}
