"use strict";

/* On paper, where nothing scrolls: all pictures that the filter lets through, up to a limit. */

const PRINTED = 500; // pictures, twelve to a page

/* Puts what is only near the window otherwise onto the page; returns when its pictures are loaded. */
function fillPaper() {
  const paper = byId("paper");
  if (paper.childNodes.length || state.view !== "pictures" || viewer.record) return Promise.resolve();
  const left = shown.length - PRINTED;
  if (left > 0) paper.append(element("p", {}, `The first ${PRINTED} of ${counted(shown.length, "picture")}; ${left.toLocaleString("en")} are left out: a filter chooses others`));
  paper.append(element("div", {}, ...shown.slice(0, PRINTED).map((record, place) => makeTile(record, place))));
  return Promise.all([...paper.querySelectorAll("img")].map((image) => image.decode().catch(() => {})));
}

function startPrint() {
  window.addEventListener("beforeprint", fillPaper);
  window.addEventListener("afterprint", () => byId("paper").replaceChildren());
  document.addEventListener("keydown", async (event) => {
    if (event.key !== "p" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault(); // a browser would not wait for the pictures
    await fillPaper();
    window.print();
  });
}
