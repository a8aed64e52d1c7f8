"use strict";

/* On paper, where nothing scrolls: all pictures that the filter lets through, up to a limit. */

const PRINTED = 500; // pictures, twelve to a page

/* Puts what is only near the window otherwise onto the page; returns when it is loaded. */
function fillPaper() {
  const paper = byId("paper");
  if (paper.firstChild || state.view !== "pictures" || viewer.record)
    return Promise.resolve();
  const left = shownRecords.length - PRINTED;
  const text = `The first ${PRINTED} of ${countText(shownRecords.length, "picture")}`;
  const rest = `${numberText(left)} are left out: a filter chooses others`;
  if (left > 0) paper.append(element("p", `${text}; ${rest}`));
  paper.append(element("div", ...shownRecords.slice(0, PRINTED).map(makeTile)));
  return Promise.allSettled(
    [...paper.querySelectorAll("img")].map((image) => image.decode()),
  );
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
