// The link to what is on the screen (`link.share`): the address the browser shows, read here and not sent by the server.

const LOOK = 500; // milliseconds between two looks at the address
const boxes = new WeakMap();

export default function ({ data, parentElement }) {
  if (!boxes.has(parentElement)) boxes.set(parentElement, new Box(parentElement));
  const box = boxes.get(parentElement);
  box.words = data;
  box.look();
  return () => parentElement.isConnected || clearInterval(box.timer);
}

class Box {
  constructor(parent) {
    this.address = Object.assign(document.createElement('code'), { className: 'ed-link-address' });
    this.told = Object.assign(document.createElement('p'), { className: 'ed-link-told' });
    this.copy = Object.assign(document.createElement('button'), { className: 'ed-link-copy', type: 'button', textContent: 'Copy' });
    this.copy.addEventListener('click', () => this.take());
    parent.append(this.address, this.copy, this.told);
    this.timer = setInterval(() => this.look(), LOOK);
  }

  look() {
    if (this.seen === location.href && this.said === this.words) return;
    [this.seen, this.said] = [location.href, this.words];
    const has = new URLSearchParams(location.search);
    const whole = (has.has('run') || has.has('example')) && has.get('prompts') !== 'pasted';
    this.address.textContent = location.href;
    this.copy.textContent = 'Copy';
    this.told.textContent = whole ? this.words.whole : this.words.partly;
  }

  async take() {
    try {
      await navigator.clipboard.writeText(location.href);
      this.copy.textContent = 'Copied';
    } catch {
      getSelection().selectAllChildren(this.address); // a page that is not served over https may not write there
      this.copy.textContent = 'Selected: press Ctrl+C';
    }
  }
}
