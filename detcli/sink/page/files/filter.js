"use strict";

/* Which boxes and pictures are shown, and in which order. */

let shown = []; // records in the grid, in their order

/* Each order: its name, a comparison of records, and for an order of boxes what makes a function to
   their key; a record's is the lowest of its boxes. */
const byKey = (a, b) => a.key - b.key;
const ORDERS = {
  input: ["As they came", (a, b) => a.number - b.number],
  wrong: ["Most differences", (a, b) => b.wrong - a.wrong],
  most: ["Most detections", (a, b) => b.count - a.count],
  fewest: ["Fewest detections", (a, b) => a.count - b.count],
  highest: ["Highest score", byKey, () => (box) => -found.score.data[box]],
  lowest: ["Lowest score", byKey, () => (box) => found.score.data[box]],
  uncertain: ["Score nearest to", byKey, () => (box) => Math.abs(found.score.data[box] - state.near)],
  largest: ["Largest box", byKey, () => (box) => -sizeOf(box)],
  smallest: ["Smallest box", byKey, () => sizeOf],
  class: ["Class", byKey, () => {
    const names = page.classes.map(({ name }) => name).sort(COLLATOR.compare);
    const ranks = page.classes.map(({ name }) => names.indexOf(name));
    return (box) => ranks[found.classOf.data[box]];
  }],
  name: ["File name", (a, b) => COLLATOR.compare(a.source, b.source)],
};

const COLLATOR = new Intl.Collator("en", { numeric: true });

/* The square root of the area, in pixels of the picture. */
function sizeOf(box) {
  const [x1, y1, x2, y2] = sidesOf(box);
  return Math.sqrt(Math.max(0, x2 - x1) * Math.max(0, y2 - y1));
}

/* A function that tells whether a box is shown; `except` names a filter to leave out. */
function boxTest(except) {
  const [least, below] = state.score.map(Math.fround); // as the scores are
  const { classOf, score, kind } = found;
  const [smallest, larger] = state.size;
  const sized = smallest > 0 || larger < Infinity;
  const classes = except === "class" ? null : numbersOf(state.class, page.classes);
  const kinds = except === "kind" ? null : numbersOf(state.kind, page.kinds);
  const any = except === "score";
  return (box) => (any || !(score.data[box] < least || (score.data[box] >= below && below < 1))) // NaN stays
    && (!classes || classes.has(classOf.data[box]))
    && (!kinds || kinds.has(kind.data[box]))
    && (!sized || (sizeOf(box) >= smallest && sizeOf(box) < larger));
}

/* The places of names among entries; null without names, which stands for all. */
function numbersOf(names, entries) {
  return names.length ? new Set([...entries.keys()].filter((at) => names.includes(entries[at].name))) : null;
}

/* A function that tells whether a record is among those of a table's row, has all the words of the search, and none behind a minus.
   A word that is a class asks for its boxes; any other may be a part of a class, of what a box says
   or of the file's name. Classes need not be chosen to be searched for. */
function findTest() {
  const passes = boxTest("class");
  const matches = [...state.find.toLowerCase().matchAll(/(-?)(?:"([^"]*)"?|([^\s-]\S*))/g)];
  const words = matches.map(([, minus, quoted, plain]) => {
    const text = quoted ?? plain;
    const names = page.classes.map(({ name }) => name.toLowerCase());
    const whole = names.includes(text);
    const classes = names.map((name) => (whole ? name === text : name.includes(text)));
    const says = (box) => classes[found.classOf.data[box]]
      || (!whole && found.texts.get(box)?.toLowerCase().includes(text));
    return { wanted: !minus, named: (source) => !whole && source.includes(text), says };
  });
  const among = state.among.length && new Set(state.among);
  return (record) => {
    if (among && !among.has(record.number)) return false;
    const source = record.source.toLowerCase();
    const has = ({ named, says }) => {
      if (named(source)) return true;
      for (let box = record.from; box < record.to; box += 1) if (passes(box) && says(box)) return true;
      return false;
    };
    return words.every((one) => one.wanted === has(one));
  };
}

/* Boxes of the records that count, one by one; frames without a picture count too. */
function forEachBox(visit, except) {
  const [passes, wanted] = [boxTest(except), findTest()];
  for (const record of page.records) {
    if (record.replaced || !wanted(record)) continue;
    for (let box = record.from; box < record.to; box += 1) {
      if (passes(box)) visit(box, record);
    }
  }
}

/* Chooses and sorts the pictures. */
function select() {
  const [passes, named] = [boxTest(), findTest()];
  const narrowed = state.class.length || state.kind.length || String(state.size) !== String(ROWS.size.first);
  const [, compare, keys] = ORDERS[state.sort];
  const keyOf = keys ? keys() : () => Infinity;
  const wrong = page.kinds.map((kind) => kind.wrong);
  const marked = new Set([...marks.keys()].map((key) => key.split(".")[0]));
  shown = [];
  for (const record of page.records) {
    if (record.replaced || record.error || !named(record)) continue;
    if (record.frame !== undefined && !hasPicture(record)) continue;
    record.count = 0;
    record.key = Infinity; // behind all that have a box
    record.wrong = 0;
    for (let box = record.from; box < record.to; box += 1) {
      if (!passes(box)) continue;
      record.count += 1;
      record.wrong += wrong[found.kind.data[box]] ? 1 : 0;
      const key = keyOf(box);
      if (key < record.key) record.key = key;
    }
    const wanted = {
      all: record.count || !narrowed,
      some: record.count,
      none: !record.count,
      warned: record.warnings.length,
      marked: marked.has(String(record.number)),
    };
    if (wanted[state.show]) shown.push(record);
  }
  if (state.sort !== "input") shown.sort(compare); // stable: equals as they came
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
  const groups = Object.entries(GROUPS).filter(([, [, there]]) => there());
  byId("group").replaceChildren(...groups.map(([value, [text]]) => element("option", { value }, text)));
  byId("group").value = state.group;
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
