"use strict";

/* What the page shows. All of it is in the address, as #view=timeline&class=person&score=0..0.4:
   a reload, a link and "Back" bring it back.

   A row for each key has the value where the address says nothing, and how texts of the address
   become a value and back; read() refuses texts with undefined. */

function word(first, known = () => true) {
  return {
    first,
    read: ([text]) => (known(text) ? text : undefined),
    write: (value) => [value],
  };
}

const words = { first: [], read: (texts) => texts, write: (values) => values };

/* From one number to below another; an end that is left out is that of `first`. */
function range(...first) {
  const read = ([text]) => {
    const ends = text
      .split("..")
      .map((end, at) => (end === "" ? first[at] : Number(end)));
    return ends.length === 2 && ends[0] <= ends[1] ? ends : undefined;
  };
  const write = (ends) => [
    ends.map((end, at) => (end === first[at] ? "" : end)).join(".."),
  ];
  return { first, read, write };
}

const numbers = {
  first: [],
  read: ([text]) => text.split(".").map(Number),
  write: (values) => [values.join(".")],
};

const ROWS = {
  view: word("pictures", (text) => Object.hasOwn(VIEWS, text)),
  picture: word("", (text) => /^\d+(\.\d+)?$/.test(text)), // which is open, see idOf()
  find: word(""),
  among: numbers, // of records; none for all
  score: range(0, 1),
  size: range(0, Infinity), // the square root of a box's area, in pixels of the picture
  class: words, // none for all
  kind: words, // none for all
  show: word("all", (text) =>
    byId("show").querySelector(`[value="${CSS.escape(text)}"]`),
  ),
  sort: word("input", (text) => Object.hasOwn(ORDERS, text)),
  near: word("0.5", (text) => text !== "" && text >= 0 && text <= 1), // a score, for `sort`
  group: word("class", (text) => Object.hasOwn(GROUPS, text)), // of crops
  boxes: word("on", (text) => text === "off"),
  labels: word("on", (text) => text === "off"),
  sides: word("both", (text) => ["swipe", "pair"].includes(text)), // of a comparison
  theme: word("", (text) => ["light", "dark"].includes(text)), // the system's, where it is empty
};
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
const WRITE_MS = 250; // between two changes of the address: browsers refuse more

const state = initial(Object.keys(ROWS));

let written = 0; // when the address was
let toWrite = null; // a timer

function initial(names) {
  return Object.fromEntries(names.map((name) => [name, ROWS[name].first]));
}

/* The address of what is shown now, but for these values. */
function addressOf(values = {}) {
  const query = new URLSearchParams();
  for (const [name, { first, write }] of Object.entries(ROWS)) {
    const texts = write({ ...state, ...values }[name]);
    if (String(texts) === String(write(first))) continue;
    for (const text of texts) query.append(name, text);
  }
  return `#${query}`;
}

/* What `picture` says of a record, or of one and a box in it. */
function idOf({ number, record, box }) {
  return record ? `${record.number}.${box - record.firstBox}` : String(number);
}

function linkTo(item) {
  return addressOf({ picture: idOf(item) });
}

function readAddress() {
  const query = new URLSearchParams(location.hash.slice(1));
  for (const [name, { first, read }] of Object.entries(ROWS)) {
    state[name] =
      (query.has(name) ? read(query.getAll(name)) : undefined) ?? first;
  }
}

/* Shows something else, and says so in the address. Links make a step of the history, this does
   not. */
function changeState(values) {
  Object.assign(state, values);
  if (toWrite === null)
    toWrite = setTimeout(writeAddress, written + WRITE_MS - performance.now());
  applyState();
}

function writeAddress() {
  clearTimeout(toWrite);
  toWrite = null;
  written = performance.now();
  history.replaceState(null, "", addressOf());
}
