"use strict";

/* Which boxes and pictures are shown, and in which order. */

const filter = {
  text: "",
  least: 0,
  classes: new Set(), // none for all
  kinds: new Set(), // none for all
  show: "all",
  sort: "input",
};

let shown = []; // records in the grid, in their order

const ORDERS = {
  input: ["As they came", (a, b) => a.number - b.number],
  wrong: ["Most differences", (a, b) => b.wrong - a.wrong],
  most: ["Most detections", (a, b) => b.count - a.count],
  fewest: ["Fewest detections", (a, b) => a.count - b.count],
  lowest: ["Lowest score", (a, b) => a.lowest - b.lowest],
  name: ["File name", (a, b) => COLLATOR.compare(a.source, b.source)],
};

const COLLATOR = new Intl.Collator("en", { numeric: true });

/* A function that tells whether a box is shown; `except` names a filter to leave out. */
function boxTest(except) {
  const least = Math.fround(filter.least); // as the scores are
  const { classOf, score, kind } = found;
  const wanted = except === "classes" || !filter.classes.size ? null : filter.classes;
  const kinds = filter.kinds.size && except !== "kinds" ? filter.kinds : null;
  const any = except === "score";
  return (box) => (any || !(score.data[box] < least)) // NaN stays
    && (!wanted || wanted.has(classOf.data[box]))
    && (!kinds || kinds.has(kind.data[box]));
}

/* Whether a record is of a file that is searched for. */
function textTest() {
  const text = filter.text.trim().toLowerCase();
  return (record) => !text || record.source.toLowerCase().includes(text);
}

/* Boxes of the records that count, one by one; frames without a picture count too. */
function forEachBox(visit, except) {
  const [passes, named] = [boxTest(except), textTest()];
  for (const record of page.records) {
    if (record.replaced || !named(record)) continue;
    for (let box = record.from; box < record.to; box += 1) {
      if (passes(box)) visit(box, record);
    }
  }
}

/* Chooses and sorts the pictures. */
function select() {
  const [passes, named] = [boxTest(), textTest()];
  const narrowed = filter.classes.size || filter.kinds.size;
  const wrong = page.kinds.map((kind) => kind.wrong);
  shown = [];
  for (const record of page.records) {
    if (record.replaced || record.error || !named(record)) continue;
    if (record.frame !== undefined && !hasPicture(record)) continue;
    record.count = 0;
    record.lowest = 2; // behind all that have one
    record.wrong = 0;
    for (let box = record.from; box < record.to; box += 1) {
      if (!passes(box)) continue;
      record.count += 1;
      record.wrong += wrong[found.kind.data[box]] ? 1 : 0;
      if (found.score.data[box] < record.lowest) record.lowest = found.score.data[box];
    }
    const wanted = {
      all: record.count || !narrowed,
      some: record.count,
      none: !record.count,
      warned: record.warnings.length,
    };
    if (wanted[filter.show]) shown.push(record);
  }
  if (filter.sort !== "input") shown.sort(ORDERS[filter.sort][1]); // stable: equals as they came
}

/* The lists of classes and kinds: the most frequent first, whatever the filter. */
function listChoices() {
  const classes = new Array(page.classes.length).fill(0);
  for (let box = 0; box < found.score.length; box += 1) classes[found.classOf.data[box]] += 1;
  const order = [...classes.keys()].sort((a, b) => classes[b] - classes[a] || a - b);
  fillChoices(byId("classes"), filter.classes, order, page.classes);
  fillChoices(byId("kinds"), filter.kinds, [...page.kinds.keys()], page.kinds);
  byId("kinds").hidden = !page.kinds.length;
}

function fillChoices(fieldset, chosen, order, entries) {
  const list = fieldset.querySelector("ul");
  list.replaceChildren(...order.map((number) => {
    const { name, colour, dashed } = entries[number];
    const box = element("input", { type: "checkbox", value: number });
    box.checked = chosen.has(number);
    const swatch = element("span", { class: dashed ? "swatch dashed" : "swatch", style: { color: colour } });
    const text = element("bdi", { class: "name", title: name }, name);
    return element("li", {}, element("label", {}, box, swatch, text, element("span", { class: "count" })));
  }));
}

/* How many boxes each class and each kind has with the other filters. */
function countChoices() {
  const sums = {
    classes: new Array(page.classes.length).fill(0),
    kinds: new Array(page.kinds.length).fill(0),
  };
  forEachBox((box) => { sums.classes[found.classOf.data[box]] += 1; }, "classes");
  if (page.kinds.length) forEachBox((box) => { sums.kinds[found.kind.data[box]] += 1; }, "kinds");
  for (const [id, counts] of Object.entries(sums)) {
    for (const row of byId(id).querySelectorAll("label")) {
      row.lastChild.textContent = counts[Number(row.firstChild.value)].toLocaleString("en");
    }
  }
}

/* The bars above the slider. */
function drawScoreBars() {
  const bins = new Array(50).fill(0);
  forEachBox((box) => {
    const score = found.score.data[box];
    if (score >= 0) bins[scoreBin(score, 50)] += 1;
  }, "score");
  const most = Math.max(1, ...bins);
  byId("score-bars").replaceChildren(...bins.map((count, bin) => {
    const height = count ? Math.max(1, (24 * count) / most) : 0;
    const out = (bin + 1) / 50 <= filter.least;
    return vector("rect", {
      x: bin + 0.1, y: 24 - height, width: 0.8, height, class: out ? "out" : "in",
    });
  }));
}
