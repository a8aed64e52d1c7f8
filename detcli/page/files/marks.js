"use strict";

/* Marks on pictures and boxes, and the forms in which they are handed back. */

const marks = new Map(); // keep or drop, by what `picture` of an address says of a picture or a box

const storageKey = () => `detcli ${location.pathname} ${page.runs[0]?.begun}`;
const sourcesOf = (items) => [
  ...new Set(items.map(({ record }) => record.source)),
];

const HANDED = {
  json: ["marks.json", markedJson],
  files: ["files.txt", (items) => sourcesOf(items).join("\n")],
  jq: ["marked.jq", markedFilter],
  predict: ["predict.sh", markedCommand],
};

/* Two buttons; in the grid keys do the same. */
function markButtons(item, tabindex = 0) {
  const key = idOf(item);
  const buttons = [
    ["keep", "Keep"],
    ["drop", "Drop"],
  ].map(([mark, title]) =>
    button({
      ...{
        tabindex,
        title,
        "aria-label": title,
        "aria-pressed": String(marks.get(key) === mark),
      },
      ...{ "data-mark": mark, "data-key": key },
    }),
  );
  return element("span.marks", ...buttons);
}

/* Marks, or takes the same mark off again. */
function setMark(key, mark) {
  if (marks.get(key) === mark) marks.delete(key);
  else marks.set(key, mark);
  showMarks();
}

/* Marks what the keyboard is at: a tile, or in the viewer a box that was chosen, or the picture. */
function markFocused(mark) {
  const { record, chosenBox: box } = viewer;
  const focused = hasFocus(byId("grid"))
    ? grid.items[grid.currentIndex]
    : undefined;
  const item = record && box !== null ? { record, box } : record || focused;
  if (item && !item.name) setMark(idOf(item), mark);
}

function showMarks() {
  for (const button of document.querySelectorAll("[data-mark]")) {
    button.setAttribute(
      "aria-pressed",
      marks.get(button.dataset.key) === button.dataset.mark,
    );
  }
  byId("count-marks").textContent = marks.size ? numberText(marks.size) : "";
  try {
    if (marks.size)
      localStorage.setItem(storageKey(), JSON.stringify([...marks]));
    else localStorage.removeItem(storageKey());
  } catch {
    /* this browser keeps nothing of pages from a disk */
  }
}

/* Marks that were made before a reload. */
function restoreMarks() {
  try {
    const kept = JSON.parse(localStorage.getItem(storageKey())) || [];
    for (const [key, mark] of kept) marks.set(key, mark);
  } catch {
    /* as above */
  }
  showMarks();
}

/* The records and boxes that have a mark: all, or those with this one; or what is shown. */
function markedItems(only) {
  if (only === "shown")
    return shownRecords.map((record) => ({ mark: "keep", record }));
  const wanted = [...marks].filter(
    ([, mark]) => only === "all" || mark === only,
  );
  return wanted
    .map(([key, mark]) => {
      const [number, box] = key.split(".");
      const record = page.records[number];
      return { mark, record, box: box && record.firstBox + Number(box) };
    })
    .sort((a, b) => a.record.number - b.record.number);
}

/* What `--apply` takes: one mark a line. */
function markedJson(items) {
  const lines = items.map(({ mark, record, box }) => {
    const { source, frame, time, firstBox } = record;
    const what =
      box === undefined
        ? {}
        : {
            detection: page.kinds.length ? undefined : box - firstBox, // a comparison has another order
            class_name: classNameOf(box),
            box: coordinatesOf(box),
          };
    return JSON.stringify({ mark, source, frame, time, ...what });
  });
  return `[\n${lines.join(",\n")}\n]`;
}

function markedFilter(items) {
  const named = ({ record: { source, frame = null } }) =>
    JSON.stringify([source, frame]);
  const records = [...new Set(items.map(named))].join(",\n  ");
  return `# jq -c -f marked.jq boxes.jsonl\nselect([.source, .frame] | IN(\n  ${records}\n))`;
}

function markedCommand(items) {
  const facts = new Map(page.lastRun.facts); // of two models the last
  const plain = /^[\w./:@%+=,-]+$/;
  const quoted = (text) =>
    plain.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
  const names = sourcesOf(items).map((name) =>
    name.startsWith("-") ? `./${name}` : name,
  );
  const given = ["model", "conf"].filter((name) => facts.has(name));
  const options = given.flatMap((name) => [`--${name}`, facts.get(name)]);
  return ["detcli", "predict", ...options, ...names].map(quoted).join(" ");
}

function handed() {
  return `${HANDED[byId("hand-as").value][1](markedItems(byId("hand-of").value))}\n`;
}

function showHanded() {
  const [dropped, kept] = ["drop", "keep"].map((mark) =>
    numberText(markedItems(mark).length),
  );
  byId("marks-sum").textContent = `${dropped} to drop, ${kept} to keep`;
  byId("hand-text").value = handed();
  byId("hand-done").textContent = "";
}

async function copyHanded() {
  try {
    await navigator.clipboard.writeText(handed());
  } catch {
    // not allowed from a disk
    byId("hand-text").select();
    document.execCommand("copy");
  }
  byId("hand-done").textContent = "Copied";
}

function saveHanded() {
  const [name] = HANDED[byId("hand-as").value];
  const address = URL.createObjectURL(
    new Blob([handed()], { type: "text/plain" }),
  );
  element("a", { href: address, download: name }).click();
  URL.revokeObjectURL(address);
  byId("hand-done").textContent = `Saved as ${name}`;
}

function startMarks() {
  window.addEventListener(
    "click",
    (event) => {
      const { mark, key } = event.target.dataset || {};
      if (!mark) return;
      event.stopPropagation(); // a row of the viewer does something else
      setMark(key, mark);
    },
    true,
  );
  byId("open-marks").addEventListener("click", () => {
    byId("marks").showModal();
    showHanded();
  });
  for (const id of ["hand-as", "hand-of"])
    byId(id).addEventListener("change", showHanded);
  byId("hand-copy").addEventListener("click", copyHanded);
  byId("hand-save").addEventListener("click", saveHanded);
  byId("hand-clear").addEventListener("click", () => {
    if (!window.confirm(`Clear ${countText(marks.size, "mark")}?`)) return;
    marks.clear();
    showMarks();
    byId("marks").close();
  });
}
