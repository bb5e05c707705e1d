// What is on the screen as one picture to share, 1200 × 630: what the page says in bold, model and prompt, the ruler,
// two figures, and the address. Drawn in the browser, from figures that stand there.

const WIDE = 1200, HIGH = 630, EDGE = 32;
const FIRST = ['.st-key-lens', '.st-key-cosine']; // of Home's maps those that tell most

export async function picture() {
  const canvas = Object.assign(document.createElement('canvas'), { width: WIDE, height: HIGH });
  const pen = canvas.getContext('2d'), page = getComputedStyle(document.querySelector('.stApp')), ink = page.color;
  pen.fillStyle = page.backgroundColor;
  pen.fillRect(0, 0, WIDE, HIGH);
  pen.textBaseline = 'top';
  const write = (text, size, y, lines, bold = '', x = EDGE, within = WIDE - 2 * EDGE) => {
    pen.font = `${bold} ${size}px ${page.fontFamily}`;
    pen.fillStyle = ink;
    const cut = wrapped(pen, text, within, lines);
    cut.forEach((line, i) => pen.fillText(line, x, y + i * size * 1.25));
    return y + cut.length * size * 1.25;
  };
  let y = write(said(), 28, 24, 2, 'bold') + 4;
  y = write(asked(), 17, y, 2) + 8;
  const foot = HIGH - 34, figures = shown(), ruler = document.querySelector('[class*="st-key-ruler"] .js-plotly-plot');
  if (ruler) y = (await put(pen, ruler, EDGE, y, WIDE - 2 * EDGE, ruler.layout.height)) + 6;
  const wide = (WIDE - 2 * EDGE - 16 * (figures.length - 1)) / Math.max(figures.length, 1);
  for (const [i, one] of figures.entries()) {
    const x = EDGE + i * (wide + 16), below = write(titled(one), 15, y, 1, '', x, wide);
    await put(pen, one, x, below, wide, foot - below - 6);
  }
  write(location.href.replace(/^https?:\/\//, ''), 14, foot, 1);
  return new Promise((done) => canvas.toBlob(done, 'image/png'));
}

// What the page concludes, or its question.
function said() {
  const bold = [...document.querySelectorAll('[class*="st-key-headline"] strong, [class*="st-key-conclusion-"] strong')].map((one) => one.innerText.trim());
  return bold.find((text) => text.includes(' ')) ?? document.querySelector('.st-key-room h3').innerText.trim();
}

function asked() {
  const model = document.querySelector('.st-key-headline-two p, .st-key-model-box p')?.innerText ?? '';
  const of = document.querySelector('.st-key-prompt-box textarea')?.value.replace(/\s+/g, ' ') ?? '';
  return of ? `${model} · “${of}”` : model;
}

function shown() {
  const first = FIRST.map((name) => document.querySelector(`${name} .js-plotly-plot`)).filter(Boolean);
  const others = [...document.querySelectorAll('.st-key-page .js-plotly-plot')].filter((one) => !one.closest('[class*="st-key-ruler"], .ed-upper'));
  return [...new Set([...first, ...others])].slice(0, 2);
}

function titled(figure) {
  return figure.closest('[class*="st-key-box-"]')?.querySelector('[data-testid="stCaptionContainer"]')?.innerText.trim() ?? '';
}

// A figure within so many pixels; one that is higher than that is drawn higher and made smaller, so that its letters fit.
async function put(pen, figure, x, y, wide, high) {
  const scale = Math.min(1, high / Math.min(figure.layout.height, 2 * high));
  const image = new Image();
  image.src = await window.Plotly.toImage(figure, { format: 'png', width: wide / scale, height: high / scale, scale: 1 });
  await image.decode();
  pen.drawImage(image, x, y, wide, high);
  return y + high;
}

// Lines of words that fit, the last one cut where there are more.
function wrapped(pen, text, wide, most) {
  const lines = [''];
  for (const word of text.split(' ')) {
    const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (pen.measureText(longer).width <= wide || !lines.at(-1)) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  const found = lines.slice(0, most).map((line) => {
    while (pen.measureText(line).width > wide) line = `${line.slice(0, -2)}…`;
    return line;
  });
  if (lines.length > most) found[most - 1] = `${found[most - 1].replace(/.{1,3}$/, '')}…`;
  return found;
}
