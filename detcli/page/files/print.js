"use strict";

/* On paper, where nothing scrolls: all images that the filter lets through, up to a limit. */

const PRINTED_PICTURES = 500; // twelve to a page

/* The filters that paper names, by their key in the address. */
const FILTER_NAMES = {
  find: "find",
  score: "score",
  size: "box side in pixels",
  class: "class",
  kind: "kind",
  show: "show",
  sort: "order",
};

/* "Filter: score 0.4 to 0.9; class person, dog"; empty where all is shown as it came. */
function filterText() {
  const texts = [];
  for (const [key, name] of Object.entries(FILTER_NAMES)) {
    const { initial, write } = ADDRESS_KEYS[key];
    const values = write(state[key]);
    if (String(values) === String(write(initial))) continue;
    let text = values.join(", ");
    if (key === "score" || key === "size") {
      const [from, below] = text.split("..");
      text = [from && `from ${from}`, below && `below ${below}`].join(" ");
    }
    if (key === "show" || key === "sort")
      text = byId(key).selectedOptions[0].textContent;
    texts.push(`${name} ${text}`);
  }
  return texts.length ? `Filter: ${texts.join("; ")}` : "";
}

/* Puts what is only near the window otherwise onto the page; returns when it is loaded. */
function fillPaper() {
  byId("paper-filter").textContent = filterText();
  const paper = byId("paper");
  if (paper.firstChild || state.view !== "pictures" || viewer.record)
    return Promise.resolve();

  const leftOutCount = shownRecords.length - PRINTED_PICTURES;
  if (leftOutCount > 0) {
    const total = countText(shownRecords.length, "image");
    const leftOut = `${numberText(leftOutCount)} are left out`;
    const text = `The first ${PRINTED_PICTURES} of ${total}; ${leftOut}: a filter chooses others`;
    paper.append(element("p", text));
  }

  const tiles = shownRecords.slice(0, PRINTED_PICTURES).map(makeTile);
  paper.append(element("div", ...tiles));
  const images = [...paper.querySelectorAll("img")];
  return packs.lastLoad.then(() =>
    Promise.allSettled(images.map((image) => image.decode())),
  );
}

function startPrint() {
  window.addEventListener("beforeprint", fillPaper);
  window.addEventListener("afterprint", () => byId("paper").replaceChildren());
  document.addEventListener("keydown", async (event) => {
    const isPrintKey = event.key === "p" && (event.ctrlKey || event.metaKey);
    if (!isPrintKey) return;
    event.preventDefault(); // a browser would not wait for the images
    await fillPaper();
    window.print();
  });
}
