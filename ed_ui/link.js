// The link to what is on the screen (`browser.share`): the address the browser shows, read here and not sent by the server.

const LOOK = 500; // milliseconds between two looks at the address
const boxes = new WeakMap();

// Whether an address names what its page is about: `prompt` of a page that is about the prompt in the box.
function carries(search, prompt) {
  const has = new URLSearchParams(search), prompts = has.get('prompts');
  if (prompts === 'pasted' || prompts === 'lines') return false;
  const first = !prompt || prompts === 'bundled' || has.has('run') || has.has('example');
  return first && (has.get('compare') !== 'prompts' || has.has('second_run') || has.has('second_example'));
}

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
    this.draw = Object.assign(document.createElement('button'), { className: 'ed-link-copy', type: 'button' });
    this.draw.addEventListener('click', () => this.takePicture());
    parent.append(this.address, this.copy, ' ', this.draw, this.told);
    this.timer = setInterval(() => this.look(), LOOK);
  }

  look() {
    if (this.seen === location.href && this.said === this.words) return;
    [this.seen, this.said] = [location.href, this.words];
    this.address.textContent = location.href;
    this.copy.textContent = 'Copy';
    this.draw.textContent = 'Copy as picture';
    this.told.textContent = carries(location.search, this.words.prompt) ? this.words.whole : this.words.partly;
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

  // Where a page may not write pictures to the clipboard it is saved as a file.
  async takePicture() {
    this.draw.textContent = 'Drawing …';
    let found;
    try {
      found = await picture();
    } catch (error) {
      console.error(error);
      this.draw.textContent = 'No picture could be drawn';
      return;
    }
    try {
      await navigator.clipboard.write([new ClipboardItem({ 'image/png': found })]);
      this.draw.textContent = 'Picture copied';
    } catch {
      const file = Object.assign(document.createElement('a'), { href: URL.createObjectURL(found), download: 'effective-depth.png' });
      file.click();
      setTimeout(() => URL.revokeObjectURL(file.href), 60_000);
      this.draw.textContent = 'Saved as effective-depth.png';
    }
  }
}
