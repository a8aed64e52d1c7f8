"use strict";

/* Histograms of what the filter lets through, and a comparison's tables. */

const SCORE_BINS = 20;
const LISTED_CLASSES = 30;
const LISTED_ROWS = 200;
const SIZES = [0, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]; // pixels

function drawFigures() {
  const scores = new Array(SCORE_BINS).fill(0);
  const sizes = new Array(SIZES.length).fill(0);
  const classes = new Array(page.classes.length).fill(0);
  let boxes = 0;
  let scored = 0;
  forEachBox((box) => {
    boxes += 1;
    classes[found.classOf.data[box]] += 1;
    const score = found.score.data[box];
    if (score >= 0) {
      scores[scoreBin(score, SCORE_BINS)] += 1;
      scored += 1;
    }
    sizes[SIZES.findLastIndex((from) => sizeOf(box) >= from)] += 1;
  });
  const listed = [...classes.keys()].filter((number) => classes[number])
    .sort((a, b) => classes[b] - classes[a]);
  byId("view-figures").replaceChildren(
    element("p", { class: "quiet" }, `${counted(boxes, "box", "boxes")} with these filters`),
    ...tables(),
    bars("Scores", `${counted(scored, "score")}, in steps of ${1 / SCORE_BINS}`, scores.map((count, bin) => [
      (bin / SCORE_BINS).toFixed(2), count, { score: [bin / SCORE_BINS, (bin + 1) / SCORE_BINS] },
    ])),
    bars("Box sizes", "The square root of the area, in pixels of the picture", sizes.map((count, bin) => [
      String(SIZES[bin]), count, { size: [SIZES[bin], SIZES[bin + 1] ?? Infinity] },
    ])),
    classFigure(listed, classes),
  );
}

/* A bar chart, each bar of which leads to its pictures. */
function bars(title, note, entries) {
  const most = Math.max(1, ...entries.map(([, count]) => count));
  const chart = element("div", { class: "bars" }, ...entries.map(([label, count, values]) => (
    element(
      count ? "a" : "span",
      {
        class: "bar-slot",
        title: `from ${label}: ${counted(count, "box", "boxes")}`,
        ...(count ? { href: picturesOf(values), "aria-label": `from ${label}: ${counted(count, "box", "boxes")}` } : { "aria-hidden": "true" }),
      },
      element("span", { class: "bar-count" }, count ? shortNumber(count) : ""),
      element("span", { class: "bar-fill", style: { height: `${count ? Math.max(1, (100 * count) / most) : 0}%` } }),
      element("span", { class: "bar-label" }, label),
    )
  )));
  return figure(title, note, chart);
}

/* The address of the pictures with these filters besides those that are set. */
function picturesOf(values) {
  return addressOf({ ...values, view: "pictures", picture: "" });
}

function shortNumber(count) {
  return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(count);
}

function classFigure(listed, counts) {
  const most = Math.max(1, ...listed.slice(0, 1).map((number) => counts[number]));
  const rows = listed.slice(0, LISTED_CLASSES).map((number) => {
    const { name, colour } = page.classes[number];
    const bar = element("span", { class: "class-bar", style: { width: `${(100 * counts[number]) / most}%`, background: colour } });
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, element("a", { href: picturesOf({ class: [name] }) }, element("bdi", { title: name }, name))),
      element("td", { class: "wide" }, bar),
      element("td", { class: "number" }, counts[number].toLocaleString("en")),
    );
  });
  const more = listed.length - rows.length;
  const head = element("tr", {}, ...["Class", "", "Boxes"].map((text) => element("th", { scope: "col", class: "unseen" }, text)));
  const note = more > 0 ? `${listed.length} classes, the ${rows.length} most frequent` : counted(listed.length, "class", "classes");
  const made = figure("Classes", note, element("table", { class: "class-bars" }, element("thead", {}, head), element("tbody", {}, ...rows)));
  made.classList.add("broad");
  return made;
}

/* What a comparison has written about the whole. */
function tables() {
  const last = page.runs[page.runs.length - 1];
  return (last ? last.tables : []).map(([title, columns, rows, links = []]) => {
    const cut = rows.length > LISTED_ROWS ? `the first ${LISTED_ROWS} of ${rows.length}` : undefined;
    return figure(title, cut, element("div", { class: "scroll" }, table(title, columns, rows.slice(0, LISTED_ROWS), links)));
  });
}

function figure(title, note, ...parts) {
  const caption = element("figcaption", {}, element("h2", {}, title), note ? element("p", { class: "quiet" }, note) : undefined);
  return element("figure", {}, caption, ...parts);
}

/* A table; `links` has for each row the filters of its pictures. */
function table(title, columns, rows, links) {
  const cell = (value, filters) => {
    const number = typeof value === "number";
    const text = value === null ? "-" : number ? numberText(value) : value;
    const shownText = element("bdi", {}, text);
    const link = filters && element("a", { href: picturesOf({ ...initial(FILTERS), ...filters }) }, shownText);
    return element("td", { class: number || value === null ? "number" : "" }, link || shownText);
  };
  return element(
    "table",
    { class: "figures" },
    element("caption", { class: "unseen" }, title),
    element("thead", {}, element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...rows.map((row, at) => (
      element("tr", {}, ...row.map((value, column) => cell(value, column === 0 && links[at])))
    ))),
  );
}

function numberText(value) {
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(3);
}
