"use strict";

/* Marks on images and boxes, and the forms in which they are handed back. */

const marks = new Map(); // keep or drop, by the key of an image, a box or a group of repeats

/* Drawn, as few fonts have a tick and a cross. */
const MARK_ICONS = { keep: "M3 8l4 4 6-8", drop: "M4 4l8 8M12 4l-8 8" };

/* The forms: the name of a file, and what makes its text of marked items. */
const FORMS = {
  json: { fileName: "marks.json", write: markedJson },
  files: {
    fileName: "files.txt",
    write: (items) => sourcesOf(items).join("\n"),
  },
  jq: { fileName: "marked.jq", write: markedFilter },
  csv: { fileName: "boxes.csv", write: markedCsv },
  boxes: {
    fileName: "boxes.json",
    write: (items) => jsonLines(markedBoxes(items)),
  },
  predict: { fileName: "predict.sh", write: markedCommand },
};

/* Where the browser keeps the marks of this page, as long as no other run replaces it. */
function storageKey() {
  return `detcli ${location.pathname} ${page.runs[0]?.begun}`;
}

/* What a mark on an image or a box has as its key: what `picture` of an address says of it. On a
   page of repeats both stand for the group, whose key is that of the image. */
function markKeyOf(item) {
  if (isRepeatsPage()) return idOf(item.record || item);
  return idOf(item);
}

/* Two buttons; in the grid keys do the same. */
function markButtons(item, tabindex = 0) {
  const key = markKeyOf(item);
  return element(
    "span.marks",
    markButton(key, "keep", "Keep", tabindex),
    markButton(key, "drop", "Drop", tabindex),
  );
}

function markButton(key, mark, title, tabindex) {
  const attributes = {
    tabindex,
    title,
    "aria-label": title,
    "aria-pressed": String(marks.get(key) === mark),
    "data-mark": mark,
    "data-key": key,
  };
  const icon = vector(
    "svg",
    { viewBox: "0 0 16 16", "aria-hidden": "true" },
    vector("path", { d: MARK_ICONS[mark] }),
  );
  return button(attributes, icon);
}

/* Marks, or takes the same mark off again. */
function setMark(key, mark) {
  if (marks.get(key) === mark) marks.delete(key);
  else marks.set(key, mark);
  showMarks();
}

/* Marks what the keyboard is at. Where it is at nothing yet, the first key only selects a tile, so
   that nobody marks an image without having looked at it. */
function markFocused(mark) {
  const item = focusedItem();
  if (!item) {
    if (LAYOUTS[state.view]) focusTile(grid.currentIndex);
    return;
  }
  const isGroup = Boolean(item.name);
  if (!isGroup) setMark(markKeyOf(item), mark);
}

/* In the viewer the box that was chosen, or the image; outside a tile, if one has the focus. */
function focusedItem() {
  const { record, chosenBox } = viewer;
  if (record && chosenBox !== null) return { record, box: chosenBox };
  if (record) return record;
  return hasFocus(byId("grid")) ? grid.items[grid.currentIndex] : undefined;
}

function showMarks() {
  for (const button of document.querySelectorAll("[data-mark]")) {
    const { key, mark } = button.dataset;
    button.setAttribute("aria-pressed", marks.get(key) === mark);
  }
  byId("count-marks").textContent = marks.size ? numberText(marks.size) : "";
  const isKept = storedText(storageKey()) !== null;
  if (marks.size || isKept) storeText(storageKey(), JSON.stringify([...marks]));
}

/* Marks that were made before a reload. */
function restoreMarks() {
  try {
    const entries = JSON.parse(storedText(storageKey())) || [];
    for (const [key, mark] of entries) marks.set(key, mark);
  } catch {
    /* it was not written by this page */
  }
  showMarks();
}

/* Records and boxes, {mark, record, box}: all that have a mark, those with one of the marks, or
   the records that are shown. */
function markedItems(choice) {
  if (choice === "shown")
    return shownRecords.map((record) => ({ mark: "keep", record }));
  const items = [];
  for (const [key, mark] of marks) {
    if (choice !== "all" && choice !== mark) continue;
    const [number, boxOfRecord] = key.split(".");
    const record = page.records[number];
    let box;
    if (boxOfRecord !== undefined) box = record.firstBox + Number(boxOfRecord);
    items.push({ mark, record, box });
  }
  return items.sort(
    (itemA, itemB) => itemA.record.number - itemB.record.number,
  );
}

function sourcesOf(items) {
  const sources = items.map(({ record }) => record.source);
  return [...new Set(sources)];
}

/* What `--apply` takes: one mark a line. */
function markedJson(items) {
  const markFields = items.map(({ mark, record, box }) => {
    if (record.repeat) return repeatMark(mark, record);
    const { source, frame, time } = record;
    const fields = { mark, source, frame, time };
    if (box !== undefined) {
      const isComparison = page.kinds.length > 0; // it has another order
      if (!isComparison) fields.detection = box - record.firstBox;
      Object.assign(fields, boxFields(box));
    }
    return fields;
  });
  return jsonLines(markFields);
}

/* A JSON array, a line for each item. */
function jsonLines(items) {
  const lines = items.map((item) => JSON.stringify(item));
  return `[\n${lines.join(",\n")}\n]`;
}

/* What JSON says of a box; an object of a label has a score of null. */
function boxFields(box) {
  return {
    class_name: classNameOf(box),
    score: boxColumns.score[box],
    box: coordinatesOf(box),
  };
}

/* The boxes that are marked, and of marked images those that pass the filter. */
function markedBoxes(items) {
  const passesFilter = boxTest();
  const rows = [];
  for (const { mark, record, box } of items) {
    const boxes = box === undefined ? shownBoxes(record, passesFilter) : [box];
    const { source: file, frame, time } = record;
    for (const eachBox of boxes)
      rows.push({ mark, file, frame, time, ...boxFields(eachBox) });
  }
  return rows;
}

/* The same as a table; a frame of a stream has its time in place of a number. */
function markedCsv(items) {
  const lines = ["mark,file,frame,class,score,x1,y1,x2,y2"];
  for (const row of markedBoxes(items)) {
    const { mark, file, frame = "", time, class_name: name, score, box } = row;
    const scoreCell = Number.isNaN(score) ? "" : score;
    const cells = [mark, file, time ?? frame, name, scoreCell, ...box];
    lines.push(cells.map(csvCell).join(","));
  }
  return lines.join("\n");
}

/* A cell, in quotes where it needs them. */
function csvCell(value) {
  const text = String(value);
  if (!/[",\r\n]/.test(text)) return text;
  return `"${text.replaceAll('"', '""')}"`;
}

/* A program for jq that selects the marked records of a file. */
function markedFilter(items) {
  const keys = items.map(({ record: { source, frame = null } }) =>
    JSON.stringify([source, frame]),
  );
  const records = [...new Set(keys)].join(",\n  ");
  return `# jq -c -f marked.jq boxes.jsonl\nselect([.source, .frame] | IN(\n  ${records}\n))`;
}

/* The command that finds the detections of the marked files anew, in the folder of the run. What has
   no name for it is left out: images of archives, and of standard input. */
function markedCommand(items) {
  const words = [...page.lastRun.rerun];
  const isNameless = /^-$|\.(tar|tar\.gz|tgz|parquet)\//i;
  const sources = sourcesOf(items).filter((source) => !isNameless.test(source));
  if (!sources.length) return "# None of these is a file of its own";
  for (const source of sources) {
    const looksLikeOption = source.startsWith("-");
    words.push(looksLikeOption ? `./${source}` : source);
  }
  return words.map(shellWord).join(" ");
}

/* The text that is handed back, as the fields of the dialog have it. */
function marksText() {
  const form = FORMS[byId("hand-as").value];
  const items = markedItems(byId("hand-of").value);
  return `${form.write(items)}\n`;
}

function showMarksText() {
  const dropCount = numberText(markedItems("drop").length);
  const keepCount = numberText(markedItems("keep").length);
  byId("marks-sum").textContent = `${dropCount} to drop, ${keepCount} to keep`;
  byId("hand-text").value = marksText();
  byId("hand-done").textContent = "";
}

async function copyMarksText() {
  byId("hand-text").value = marksText();
  await copyField(byId("hand-text"));
  byId("hand-done").textContent = "Copied";
}

function saveMarksText() {
  const { fileName } = FORMS[byId("hand-as").value];
  saveText(fileName, marksText());
  byId("hand-done").textContent = `Saved as ${fileName}`;
}

function clearMarks() {
  if (!window.confirm(`Clear ${countText(marks.size, "mark")}?`)) return;
  marks.clear();
  showMarks();
  byId("marks").close();
}

/* A click on one of the buttons, wherever it is. */
function markClicked(event) {
  const { mark, key } = event.target.dataset || {};
  if (!mark) return;
  event.stopPropagation(); // a row of the viewer does something else
  setMark(key, mark);
}

/* Only a page of predict knows all options of its run. */
function offerForms() {
  const hasCommand = page.lastRun?.rerun?.length > 0;
  const option = byId("hand-as").querySelector("[value=predict]");
  if (!hasCommand) option.remove();
}

function startMarks() {
  window.addEventListener("click", markClicked, true);
  byId("open-marks").addEventListener("click", () => {
    byId("marks").showModal();
    showMarksText();
  });
  byId("hand-as").addEventListener("change", showMarksText);
  byId("hand-of").addEventListener("change", showMarksText);
  byId("hand-copy").addEventListener("click", copyMarksText);
  byId("hand-save").addEventListener("click", saveMarksText);
  byId("hand-clear").addEventListener("click", clearMarks);
}
