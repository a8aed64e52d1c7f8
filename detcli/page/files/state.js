"use strict";

/* What the page shows. All of it is in the address, as #view=timeline&class=person&score=0..0.4:
   a reload, a link and "Back" bring it back.

   Each key has the value where the address says nothing, and how texts of the address become a
   value and back; read() refuses texts with undefined. */

/* One text; `isValid` tells whether the page knows it. */
function word(initial, isValid = () => true) {
  return {
    initial,
    read: ([text]) => (isValid(text) ? text : undefined),
    write: (value) => [value],
  };
}

/* Any number of texts: the key is repeated. */
const words = {
  initial: [],
  read: (texts) => texts,
  write: (values) => values,
};

/* From one number to below another; an end that is left out is the initial one. */
function range(from, below) {
  const initial = [from, below];
  const read = ([text]) => {
    const ends = text.split("..").map((endText, index) => {
      if (endText === "") return initial[index];
      return Number(endText);
    });
    const isRange = ends.length === 2 && ends[0] <= ends[1];
    return isRange ? ends : undefined;
  };
  const write = (ends) => {
    const texts = ends.map((end, index) => {
      return end === initial[index] ? "" : end;
    });
    return [texts.join("..")];
  };
  return { initial, read, write };
}

const numbers = {
  initial: [],
  read: ([text]) => text.split(".").map(Number),
  write: (values) => [values.join(".")],
};

const ADDRESS_KEYS = {
  view: word("pictures", (text) => Object.hasOwn(VIEWS, text)),
  picture: word("", (text) => /^\d+(\.\d+)?$/.test(text)), // which is open, see idOf()
  find: word(""),
  among: numbers, // of records; none for all
  score: range(0, 1),
  size: range(0, Infinity), // the square root of a box's area, in pixels of the image
  class: words, // none for all
  kind: words, // none for all
  show: word("all", (text) =>
    byId("show").querySelector(`[value="${CSS.escape(text)}"]`),
  ),
  sort: word("input", (text) => Object.hasOwn(ORDERS, text)),
  near: word("0.5", (text) => text !== "" && text >= 0 && text <= 1), // a score, for `sort`
  group: word("class", (text) => Object.hasOwn(GROUPS, text)), // of crops
  count: word("class", (text) => ["class", "track"].includes(text)), // on the timeline
  boxes: word("on", (text) => text === "off"),
  labels: word("on", (text) => text === "off"),
  sides: word("both", (text) => ["swipe", "pair"].includes(text)), // of a comparison
  theme: word("", (text) => ["light", "dark"].includes(text)), // the system's, where it is empty
};

/* The keys that decide which boxes and images are shown, and in which order. */
const FILTERS = [
  "find",
  "among",
  "score",
  "size",
  "class",
  "kind",
  "show",
  "sort",
  "near",
];
const WRITE_PAUSE_MS = 250; // between two changes of the address: browsers refuse more

const state = initialValues(Object.keys(ADDRESS_KEYS));

let lastWriteMs = 0; // when the address was written last
let writeTimer = null; // of the next time, if something has changed

function initialValues(keys) {
  const values = {};
  for (const key of keys) values[key] = ADDRESS_KEYS[key].initial;
  return values;
}

/* The address of what is shown now, but for these values. */
function addressOf(values = {}) {
  const query = new URLSearchParams();
  const allValues = { ...state, ...values };
  for (const [key, { initial, write }] of Object.entries(ADDRESS_KEYS)) {
    const texts = write(allValues[key]);
    if (String(texts) === String(write(initial))) continue;
    for (const text of texts) query.append(key, text);
  }
  return `#${query}`;
}

/* What `picture` in the address says of a record, or of a box: {record, box}. */
function idOf({ number, record, box }) {
  if (!record) return String(number);
  return `${record.number}.${box - record.firstBox}`;
}

/* The address that opens a record, or a box: {record, box}. */
function linkTo(item) {
  return addressOf({ picture: idOf(item) });
}

function readAddress() {
  const query = new URLSearchParams(location.hash.slice(1));
  for (const [key, { initial, read }] of Object.entries(ADDRESS_KEYS)) {
    const value = query.has(key) ? read(query.getAll(key)) : undefined;
    state[key] = value ?? initial;
  }
}

/* Shows something else, and says so in the address. Links make a step of the history, this does
   not. */
function changeState(values) {
  Object.assign(state, values);
  if (writeTimer === null) {
    const waitMs = lastWriteMs + WRITE_PAUSE_MS - performance.now();
    writeTimer = setTimeout(writeAddress, waitMs);
  }
  applyState();
}

function writeAddress() {
  clearTimeout(writeTimer);
  writeTimer = null;
  lastWriteMs = performance.now();
  history.replaceState(null, "", addressOf());
}
