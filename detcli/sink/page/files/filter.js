"use strict";

/* Which boxes and pictures are shown, and in which order. */

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
  const [least, below] = state.score.map(Math.fround); // as the scores are
  const { classOf, score, kind } = found;
  const classes = except === "class" ? null : numbersOf(state.class, page.classes);
  const kinds = except === "kind" ? null : numbersOf(state.kind, page.kinds);
  const any = except === "score";
  return (box) => (any || !(score.data[box] < least || (score.data[box] >= below && below < 1))) // NaN stays
    && (!classes || classes.has(classOf.data[box]))
    && (!kinds || kinds.has(kind.data[box]));
}

/* The places of names among entries; null without names, which stands for all. */
function numbersOf(names, entries) {
  return names.length ? new Set([...entries.keys()].filter((at) => names.includes(entries[at].name))) : null;
}

/* Whether a record is of a file that is searched for. */
function textTest() {
  const text = state.find.trim().toLowerCase();
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
  const narrowed = state.class.length || state.kind.length;
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
    if (wanted[state.show]) shown.push(record);
  }
  if (state.sort !== "input") shown.sort(ORDERS[state.sort][1]); // stable: equals as they came
}

const CHOICES = { class: ["classes", () => page.classes], kind: ["kinds", () => page.kinds] };

/* The lists of classes and kinds: the most frequent first, whatever the filter. */
function listChoices() {
  const classes = new Array(page.classes.length).fill(0);
  for (let box = 0; box < found.score.length; box += 1) classes[found.classOf.data[box]] += 1;
  const order = [...classes.keys()].sort((a, b) => classes[b] - classes[a] || a - b);
  fillChoices("class", order);
  fillChoices("kind", [...page.kinds.keys()]);
  byId("kinds").hidden = !page.kinds.length;
}

function fillChoices(row, order) {
  const [id, entries] = CHOICES[row];
  byId(id).querySelector("ul").replaceChildren(...order.map((number) => {
    const { name, colour, dashed } = entries()[number];
    const box = element("input", { type: "checkbox", name: row, value: number });
    box.checked = state[row].includes(name);
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
  forEachBox((box) => { sums.classes[found.classOf.data[box]] += 1; }, "class");
  if (page.kinds.length) forEachBox((box) => { sums.kinds[found.kind.data[box]] += 1; }, "kind");
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
    const out = (bin + 1) / 50 <= state.score[0] || bin / 50 >= state.score[1];
    return vector("rect", {
      x: bin + 0.1, y: 24 - height, width: 0.8, height, class: out ? "out" : "in",
    });
  }));
}
