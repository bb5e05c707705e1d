// Theme and search. It stands in the head, so that no page is ever seen in the wrong theme.
"use strict";
const KEPT = "effective-depth theme";

function remembered() {
  try { return localStorage.getItem(KEPT); } catch { return ""; } // a browser that keeps nothing for files
}

function remember(theme) {
  try { localStorage.setItem(KEPT, theme); } catch { /* it holds for this page then */ }
}

function wear(theme) {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

function search(box, found) {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  let n = 0;
  for (const kind of document.querySelectorAll(".kind")) {
    let here = 0;
    for (const item of kind.querySelectorAll("li")) {
      item.hidden = !words.every(word => item.dataset.words.includes(word));
      here += !item.hidden;
    }
    kind.hidden = !here;
    n += here;
  }
  found.textContent = !words.length ? "" : n ? n + (n === 1 ? " page" : " pages") : "No page has all of these words.";
}

wear(remembered());

document.addEventListener("DOMContentLoaded", () => {
  const theme = document.getElementById("theme"), box = document.getElementById("search");
  theme.value = document.documentElement.dataset.theme || "";
  theme.parentElement.hidden = false;
  theme.addEventListener("change", () => {
    wear(theme.value);
    remember(theme.value);
    if (typeof recolour === "function") recolour();
  });
  if (!box) return;
  const found = document.getElementById("found");
  box.closest("p").hidden = false;
  box.addEventListener("input", () => search(box, found));
  for (const tag of document.querySelectorAll("button.tag")) tag.addEventListener("click", () => {
    box.value = tag.textContent;
    search(box, found);
    box.focus();
  });
  window.addEventListener("pageshow", () => search(box, found)); // Back brings what was typed
});
