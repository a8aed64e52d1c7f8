"use strict";

/* Which boxes and pictures are shown, and in which order. */

let shownRecords = []; // records in the grid, in their order

/* Each order: its name, a comparison of records, and for an order of boxes what makes a function to
   their key; a record's is the lowest of its boxes. */
const byKey = (a, b) => a.key - b.key;
const ORDERS = {
  input: ["As they came", (a, b) => a.number - b.number],
  wrong: ["Most differences", (a, b) => b.wrong - a.wrong],
  most: ["Most detections", (a, b) => b.count - a.count],
  fewest: ["Fewest detections", (a, b) => a.count - b.count],
  highest: ["Highest score", byKey, () => (box) => -boxColumns.score[box]],
  lowest: ["Lowest score", byKey, () => (box) => boxColumns.score[box]],
  uncertain: [
    "Score nearest to",
    byKey,
    () => (box) => Math.abs(boxColumns.score[box] - state.near),
  ],
  largest: ["Largest box", byKey, () => (box) => -sizeOf(box)],
  smallest: ["Smallest box", byKey, () => sizeOf],
  class: [
    "Class",
    byKey,
    () => {
      const names = page.classes.map(({ name }) => name).sort(COLLATOR.compare);
      const ranks = page.classes.map(({ name }) => names.indexOf(name));
      return (box) => ranks[boxColumns.classNumber[box]];
    },
  ],
  name: ["File name", (a, b) => COLLATOR.compare(a.source, b.source)],
};

const COLLATOR = new Intl.Collator("en", { numeric: true });

/* The square root of the area, in pixels of the picture. */
function sizeOf(box) {
  const [x1, y1, x2, y2] = coordinatesOf(box);
  return Math.sqrt(Math.max(0, x2 - x1) * Math.max(0, y2 - y1));
}

/* A function that tells whether a box is shown; `except` names a filter to leave out. */
function boxTest(except) {
  const [least, below] = except === "score" ? [0, 1] : state.score;
  const { classNumber, score, kindNumber } = boxColumns;
  const [smallest, larger] = state.size;
  const sized = smallest > 0 || larger < Infinity;
  const classes =
    except === "class" ? null : numbersOf(state.class, page.classes);
  const kinds = except === "kind" ? null : numbersOf(state.kind, page.kinds);
  // A score of 1 is below no end of the slider: its last place has no upper limit. NaN stays.
  return (box) =>
    !(score[box] < least || (score[box] >= below && below < 1)) &&
    (!classes || classes.has(classNumber[box])) &&
    (!kinds || kinds.has(kindNumber[box])) &&
    (!sized || (sizeOf(box) >= smallest && sizeOf(box) < larger));
}

/* The places of names among entries; null without names, which stands for all. */
function numbersOf(names, entries) {
  const chosen = () =>
    [...entries.keys()].filter((at) => names.includes(entries[at].name));
  return names.length ? new Set(chosen()) : null;
}

/* A function that tells whether a record is among those of a table's row, has all the words of the
   search, and none behind a minus. A word that is a class asks for its boxes; any other may be a
   part of a class, of what a box says or of the file's name. Classes need not be chosen to be
   searched for. */
function findTest() {
  const passes = boxTest("class");
  const matches = [
    ...state.find.toLowerCase().matchAll(/(-?)(?:"([^"]*)"?|([^\s-]\S*))/g),
  ];
  const words = matches.map(([, minus, quoted, plain]) => {
    const text = quoted ?? plain;
    const names = page.classes.map(({ name }) => name.toLowerCase());
    const whole = names.includes(text);
    const classes = names.map((name) =>
      whole ? name === text : name.includes(text),
    );
    const says = (box) =>
      passes(box) &&
      (classes[boxColumns.classNumber[box]] ||
        (!whole && boxColumns.text.get(box)?.toLowerCase().includes(text)));
    return {
      wanted: !minus,
      named: (source) => !whole && source.includes(text),
      says,
    };
  });
  const among = state.among.length && new Set(state.among);
  return (record) => {
    if (among && !among.has(record.number)) return false;
    const source = record.source.toLowerCase();
    return words.every(
      ({ wanted, named, says }) =>
        wanted === (named(source) || shownBoxes(record, says).length > 0),
    );
  };
}

/* Boxes of the records that count, one by one; frames without a picture count too. */
function forEachBox(visit, except) {
  const [passes, wanted] = [boxTest(except), findTest()];
  for (const record of page.records) {
    if (record.isReplaced || !wanted(record)) continue;
    for (let box = record.firstBox; box < record.endBox; box += 1) {
      if (passes(box)) visit(box, record);
    }
  }
}

/* Chooses and sorts the pictures. */
function selectRecords() {
  const [passes, named] = [boxTest(), findTest()];
  const sized = String(state.size) !== String(ADDRESS_KEYS.size.initial);
  const narrowed = state.class.length || state.kind.length || sized;
  const [, compare, keys] = ORDERS[state.sort];
  const keyOf = keys ? keys() : () => Infinity;
  const wrong = page.kinds.map((kind) => kind.isWrong);
  const marked = new Set([...marks.keys()].map((key) => key.split(".")[0]));
  shownRecords = [];
  for (const record of page.records) {
    if (record.isReplaced || record.error || !named(record)) continue;
    if (record.frame !== undefined && !hasPicture(record)) continue;
    // Of boxes that the filter lets through; without any it is behind all others.
    Object.assign(record, { count: 0, key: Infinity, wrong: 0 });
    for (let box = record.firstBox; box < record.endBox; box += 1) {
      if (!passes(box)) continue;
      record.count += 1;
      if (wrong[boxColumns.kindNumber[box]]) record.wrong += 1;
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
    if (wanted[state.show]) shownRecords.push(record);
  }
  if (state.sort !== "input") shownRecords.sort(compare); // stable: equals as they came
}

const CHOICES = {
  class: ["classes", () => page.classes],
  kind: ["kinds", () => page.kinds],
};

/* The lists of classes and kinds: the most frequent first, whatever the filter. */
function listChoices() {
  fillChoices("class", [...frequencies(boxColumns.classNumber).keys()]);
  fillChoices("kind", [...page.kinds.keys()]);
  byId("kinds").hidden = !page.kinds.length;
  fillOptions("group", GROUPS, (value) => GROUPS[value][1]());
}

/* Options of rows that begin with their text, as far as they are there. */
function fillOptions(id, rows, there) {
  const entries = Object.entries(rows).filter(([value]) => there(value));
  byId(id).replaceChildren(
    ...entries.map(([value, [text]]) => element("option", { value }, text)),
  );
  byId(id).value = state[id];
}

function fillChoices(row, order) {
  const [id, entries] = CHOICES[row];
  byId(id)
    .querySelector("ul")
    .replaceChildren(
      ...order.map((number) => {
        const { name } = entries()[number];
        const box = element("input", {
          type: "checkbox",
          name: row,
          value: number,
        });
        box.checked = state[row].includes(name);
        const text = element("bdi.name", { title: name }, name);
        const count = element("span.count");
        return element(
          "li",
          element("label", box, swatch(entries()[number]), text, count),
        );
      }),
    );
}

/* How many boxes each class and each kind has with the other filters. */
function countChoices() {
  for (const [name, numbers] of [
    ["class", boxColumns.classNumber],
    ["kind", boxColumns.kindNumber],
  ]) {
    const [id, entries] = CHOICES[name];
    const counts = new Array(entries().length).fill(0);
    if (counts.length)
      forEachBox((box) => {
        counts[numbers[box]] += 1;
      }, name);
    for (const row of byId(id).querySelectorAll("label")) {
      row.lastChild.textContent = numberText(counts[row.firstChild.value]);
    }
  }
}

/* The bars above the slider. */
function drawScoreBars() {
  const bins = new Array(50).fill(0);
  forEachBox((box) => {
    const score = boxColumns.score[box];
    if (score >= 0) bins[scoreBin(score, 50)] += 1;
  }, "score");
  const most = Math.max(1, ...bins);
  byId("score-bars").replaceChildren(
    ...bins.map((count, bin) => {
      const height = count ? Math.max(1, (24 * count) / most) : 0;
      const end = bin + 1 < 50 ? (bin + 1) / 50 : Infinity; // the last bar has scores of 1 too
      const out = end <= state.score[0] || bin / 50 >= state.score[1];
      const place = { x: bin + 0.1, y: 24 - height, width: 0.8, height };
      return vector("rect", { ...place, class: out ? "out" : "in" });
    }),
  );
}
