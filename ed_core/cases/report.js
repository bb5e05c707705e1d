// Draws the figures of a page, in the page's colour of letters.
const figures = JSON.parse(document.getElementById("figures").textContent);
const ink = () => getComputedStyle(document.body).color;
const config = {displayModeBar: false, displaylogo: false, responsive: true};
figures.forEach((figure, i) => {
  figure.layout.font = {...figure.layout.font, color: ink()};
  figure.layout.autosize = true;
  Plotly.newPlot("figure-" + i, figure.data, figure.layout, config);
});
function recolour() {
  figures.forEach((_, i) => Plotly.relayout("figure-" + i, {"font.color": ink()}));
}
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
