"use strict";

/* Which boxes and images are shown, and in which order. */

let shownRecords = []; // those in the grid, in their order

const COLLATOR = new Intl.Collator("en", { numeric: true });

/* Each order has a comparison of records. That of boxes has makeKey() besides, which returns a
   function from a box to its key; a record's key is the lowest of its boxes. */
const byKey = (a, b) => a.key - b.key;
const ORDERS = {
  input: { title: "As they came", compare: (a, b) => a.number - b.number },
  wrong: {
    title: "Most differences",
    compare: (a, b) => b.wrongCount - a.wrongCount,
  },
  most: {
    title: "Most detections",
    compare: (a, b) => b.boxCount - a.boxCount,
  },
  fewest: {
    title: "Fewest detections",
    compare: (a, b) => a.boxCount - b.boxCount,
  },
  highest: {
    title: "Highest score",
    compare: byKey,
    makeKey: () => (box) => -boxColumns.score[box],
  },
  lowest: {
    title: "Lowest score",
    compare: byKey,
    makeKey: () => (box) => boxColumns.score[box],
  },
  uncertain: {
    title: "Score nearest to",
    compare: byKey,
    makeKey: () => (box) => Math.abs(boxColumns.score[box] - state.near),
  },
  largest: {
    title: "Largest box",
    compare: byKey,
    makeKey: () => (box) => -sizeOf(box),
  },
  smallest: { title: "Smallest box", compare: byKey, makeKey: () => sizeOf },
  class: { title: "Class", compare: byKey, makeKey: makeClassRank },
  name: {
    title: "File name",
    compare: (a, b) => COLLATOR.compare(a.source, b.source),
  },
};

/* A function from a box to the place of its class in the alphabet. */
function makeClassRank() {
  const classNames = page.classes.map(({ name }) => name);
  const sortedNames = [...classNames].sort(COLLATOR.compare);
  const ranks = classNames.map((name) => sortedNames.indexOf(name));
  return (box) => ranks[boxColumns.classNumber[box]];
}

/* The square root of the area, in pixels of the image. */
function sizeOf(box) {
  const [x1, y1, x2, y2] = coordinatesOf(box);
  return Math.sqrt(Math.max(0, x2 - x1) * Math.max(0, y2 - y1));
}

/* A function that tells whether a box is shown; `except` names a filter to leave out. */
function boxTest(except) {
  const [scoreFrom, scoreBelow] = except === "score" ? [0, 1] : state.score;
  const [sizeFrom, sizeBelow] = state.size;
  const limitsSize = sizeFrom > 0 || sizeBelow < Infinity;
  let classNumbers = null;
  if (except !== "class") classNumbers = numbersOf(state.class, page.classes);
  let kindNumbers = null;
  if (except !== "kind") kindNumbers = numbersOf(state.kind, page.kinds);

  return (box) => {
    // A score of 1 is below no end of the slider: its last place has no upper limit. NaN stays.
    const score = boxColumns.score[box];
    if (score < scoreFrom) return false;
    if (score >= scoreBelow && scoreBelow < 1) return false;
    if (classNumbers && !classNumbers.has(boxColumns.classNumber[box]))
      return false;
    if (kindNumbers && !kindNumbers.has(boxColumns.kindNumber[box]))
      return false;
    if (!limitsSize) return true;
    const size = sizeOf(box);
    return size >= sizeFrom && size < sizeBelow;
  };
}

/* The indices of entries with these names; null without names, which stands for all. */
function numbersOf(names, entries) {
  if (!names.length) return null;
  const numbers = new Set();
  for (const [number, { name }] of entries.entries()) {
    if (names.includes(name)) numbers.add(number);
  }
  return numbers;
}

/* A function that tells whether a record is among those of a table's row, has all the words of the
   search, and none behind a minus. A word that is a class asks for its boxes; any other may be a
   part of a class, of what a box says or of the file's name. Classes need not be chosen to be
   searched for. */
function findTest() {
  const words = searchWords();
  const numbers = state.among.length ? new Set(state.among) : null;
  return (record) => {
    if (numbers && !numbers.has(record.number)) return false;
    const source = record.source.toLowerCase();
    return words.every(({ isExcluded, isInSource, isInBox }) => {
      const isFound =
        isInSource(source) || shownBoxes(record, isInBox).length > 0;
      return isFound !== isExcluded;
    });
  };
}

/* The words of the search: whether there is a minus, and tests of a source and of a box. */
function searchWords() {
  const passesFilter = boxTest("class");
  const classNames = page.classes.map(({ name }) => name.toLowerCase());
  const pattern = /(-?)(?:"([^"]*)"?|([^\s-]\S*))/g;
  const matches = state.find.toLowerCase().matchAll(pattern);
  return [...matches].map(([, minus, quotedText, plainText]) => {
    const text = quotedText ?? plainText;
    const isClass = classNames.includes(text);
    const classMatches = classNames.map((name) =>
      isClass ? name === text : name.includes(text),
    );
    return {
      isExcluded: minus === "-",
      isInSource: (source) => !isClass && source.includes(text),
      isInBox: (box) => {
        if (!passesFilter(box)) return false;
        if (classMatches[boxColumns.classNumber[box]]) return true;
        const classified = boxColumns.classified.get(box)?.toLowerCase();
        if (classified?.includes(text)) return true;
        const boxText = boxColumns.text.get(box)?.toLowerCase();
        return !isClass && boxText !== undefined && boxText.includes(text);
      },
    };
  });
}

/* Boxes of the records that count, one by one; frames without an image count too. */
function forEachBox(visit, except) {
  const passesFilter = boxTest(except);
  const passesSearch = findTest();
  for (const record of page.records) {
    if (record.isReplaced || !passesSearch(record)) continue;
    for (let box = record.firstBox; box < record.endBox; box += 1) {
      if (passesFilter(box)) visit(box, record);
    }
  }
}

/* Chooses and sorts the images. */
function selectRecords() {
  const passesFilter = boxTest();
  const passesSearch = findTest();
  const { compare, makeKey } = ORDERS[state.sort];
  const keyOf = makeKey ? makeKey() : () => Infinity;
  const isShown = showTest();

  shownRecords = [];
  for (const record of page.records) {
    if (record.isReplaced || record.error || !passesSearch(record)) continue;
    if (record.frame !== undefined && !hasPicture(record)) continue;
    countBoxes(record, passesFilter, keyOf);
    if (isShown(record)) shownRecords.push(record);
  }
  if (state.sort !== "input") shownRecords.sort(compare); // stable: equals as they came
}

/* Says in a record how many of its boxes pass the filter, how many of them are wrong, and the
   lowest key; without any box a record is behind all others. */
function countBoxes(record, passesFilter, keyOf) {
  record.boxCount = 0;
  record.wrongCount = 0;
  record.key = Infinity;
  for (let box = record.firstBox; box < record.endBox; box += 1) {
    if (!passesFilter(box)) continue;
    record.boxCount += 1;
    if (page.kinds[boxColumns.kindNumber[box]]?.isWrong) record.wrongCount += 1;
    const key = keyOf(box);
    if (key < record.key) record.key = key; // NaN is not
  }
}

/* A function that tells whether a record is of those that are to be shown: all, some, ... */
function showTest() {
  const initialSize = ADDRESS_KEYS.size.initial;
  const limitsSize = String(state.size) !== String(initialSize);
  const isNarrowed = state.class.length || state.kind.length || limitsSize;
  const markedNumbers = new Set();
  for (const key of marks.keys()) markedNumbers.add(key.split(".")[0]);

  const tests = {
    all: (record) => record.boxCount || !isNarrowed,
    some: (record) => record.boxCount,
    none: (record) => !record.boxCount,
    warned: (record) => record.warnings.length,
    marked: (record) => markedNumbers.has(String(record.number)),
  };
  return tests[state.show];
}

/* The filters that are lists of names: the id of the list, and what has these names. */
const CHOICES = {
  class: { listId: "classes", entries: () => page.classes },
  kind: { listId: "kinds", entries: () => page.kinds },
};

/* The lists of classes and kinds: the most frequent first, whatever the filter. */
function listChoices() {
  const classCounts = frequencies(boxColumns.classNumber);
  fillChoices("class", [...classCounts.keys()]);
  fillChoices("kind", [...page.kinds.keys()]);
  byId("kinds").hidden = !page.kinds.length;
  fillOptions("group", GROUPS, (value) => GROUPS[value].isAvailable());
}

/* Options of a <select>, by value; `isAvailable` tells of which values there are any. */
function fillOptions(id, titles, isAvailable) {
  const options = [];
  for (const [value, { title }] of Object.entries(titles)) {
    if (isAvailable(value)) options.push(element("option", { value }, title));
  }
  byId(id).replaceChildren(...options);
  byId(id).value = state[id];
}

/* Check boxes of the classes or kinds with these numbers. */
function fillChoices(filter, numbers) {
  const { listId, entries } = CHOICES[filter];
  const items = numbers.map((number) => {
    const entry = entries()[number];
    const { name } = entry;
    const attributes = { type: "checkbox", name: filter, value: number };
    const checkBox = element("input", attributes);
    checkBox.checked = state[filter].includes(name);
    const text = element("bdi.name", { title: name }, name);
    const count = element("span.count");
    return element(
      "li",
      element("label", checkBox, swatch(entry), text, count),
    );
  });
  byId(listId)
    .querySelector("ul")
    .replaceChildren(...items);
}

/* How many boxes each class and each kind has with the other filters. */
function countChoices() {
  countChoice("class", boxColumns.classNumber);
  countChoice("kind", boxColumns.kindNumber);
}

/* The same for one of them; `numbers` has the number of each box. */
function countChoice(filter, numbers) {
  const { listId, entries } = CHOICES[filter];
  const counts = new Array(entries().length).fill(0);
  if (counts.length)
    forEachBox((box) => {
      counts[numbers[box]] += 1;
    }, filter);
  for (const label of byId(listId).querySelectorAll("label")) {
    const checkBox = label.firstChild;
    label.lastChild.textContent = numberText(counts[checkBox.value]);
  }
}

const SLIDER_BINS = 50;
const SLIDER_HEIGHT = 24; // of the view box

/* The bars above the slider. */
function drawScoreBars() {
  const counts = new Array(SLIDER_BINS).fill(0);
  forEachBox((box) => {
    const score = boxColumns.score[box];
    if (score >= 0) counts[scoreBin(score, SLIDER_BINS)] += 1;
  }, "score");

  const maxCount = Math.max(1, ...counts);
  const bars = counts.map((count, bin) => {
    const scaledHeight = (SLIDER_HEIGHT * count) / maxCount;
    const height = count ? Math.max(1, scaledHeight) : 0;
    const y = SLIDER_HEIGHT - height;
    const from = bin / SLIDER_BINS;
    const isLast = bin + 1 === SLIDER_BINS; // it has scores of 1 too
    const below = isLast ? Infinity : (bin + 1) / SLIDER_BINS;
    const isOut = below <= state.score[0] || from >= state.score[1];
    const rectangle = { x: bin + 0.1, y, width: 0.8, height };
    return vector("rect", { ...rectangle, class: isOut ? "out" : "in" });
  });
  byId("score-bars").replaceChildren(...bars);
}
