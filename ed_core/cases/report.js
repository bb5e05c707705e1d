// Draws the figures of a page, in the page's colour of letters. Plotly's script is loaded already, or lies in the file,
// compressed: it is unpacked and put into the page, whose policy knows its hash.
const figures = JSON.parse(document.getElementById("figures").textContent);
const ink = () => getComputedStyle(document.body).color;
const config = {displayModeBar: false, displaylogo: false, responsive: true};
const OLD = "This browser is too old to unpack the figures (it has no DecompressionStream). Open the file in a newer one.";
async function unpack() {
  if (window.Plotly) return;
  const bytes = Uint8Array.from(atob(document.getElementById("plotly").textContent), (one) => one.charCodeAt(0));
  const text = new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  const script = Object.assign(document.createElement("script"), {textContent: await text});
  document.head.append(script); // it runs at once
  script.remove();
}
const draw = () => figures.forEach((figure, i) => {
  figure.layout.font = {...figure.layout.font, color: ink()};
  figure.layout.autosize = true;
  Plotly.newPlot("figure-" + i, figure.data, figure.layout, config);
});
function recolour() {
  if (window.Plotly) figures.forEach((_, i) => Plotly.relayout("figure-" + i, {"font.color": ink()}));
}
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
if (!window.Plotly && !window.DecompressionStream) figures.forEach((_, i) => document.getElementById("figure-" + i).textContent = OLD);
else unpack().then(draw);
