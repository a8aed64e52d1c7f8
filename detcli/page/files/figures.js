"use strict";

/* Histograms of what the filter lets through, and a comparison's tables and curves. */

const SCORE_BINS = 20;
const LISTED_CLASSES = 30;
const LISTED_ROWS = 200;
const FOLDER_CLASSES = 8; // with a column of their own
const CURVES = 10; // with a colour of their own
const SIZES = [0, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]; // pixels

function drawFigures() {
  const scoreCounts = new Array(SCORE_BINS).fill(0);
  const sizeCounts = new Array(SIZES.length).fill(0);
  const classNumbers = []; // of all boxes
  forEachBox((box) => {
    classNumbers.push(boxColumns.classNumber[box]);
    const score = boxColumns.score[box];
    if (score >= 0) scoreCounts[scoreBin(score, SCORE_BINS)] += 1;
    const size = sizeOf(box);
    sizeCounts[SIZES.findLastIndex((from) => size >= from)] += 1;
  });

  const boxCount = boxCountText(classNumbers.length);
  byId("view-figures").replaceChildren(
    element("p.quiet", `${boxCount} with these filters`),
    ...tableFigures(),
    ...folderFigures(),
    ...curveFigures(),
    scoreFigure(scoreCounts),
    sizeFigure(sizeCounts),
    classFigure([...frequencies(classNumbers)]),
  );
}

function scoreFigure(counts) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  const note = `${countText(total, "score")}, in steps of ${1 / SCORE_BINS}`;
  const bars = counts.map((count, bin) => {
    const range = [bin / SCORE_BINS, (bin + 1) / SCORE_BINS];
    return { label: range[0].toFixed(2), count, filter: { score: range } };
  });
  return barFigure("Scores", note, bars);
}

function sizeFigure(counts) {
  const note = "The square root of the area, in pixels of the image";
  const bars = counts.map((count, bin) => {
    const range = [SIZES[bin], SIZES[bin + 1] ?? Infinity];
    return { label: String(SIZES[bin]), count, filter: { size: range } };
  });
  return barFigure("Box sizes", note, bars);
}

/* A bar chart, each bar of which leads to the images of its filter. */
function barFigure(title, note, bars) {
  const maxCount = Math.max(1, ...bars.map(({ count }) => count));
  const shortNumber = new Intl.NumberFormat("en", {
    notation: "compact",
    maximumFractionDigits: 1,
  });
  const slots = bars.map(({ label, count, filter }) => {
    const percent = (100 * count) / maxCount;
    const height = count ? `${Math.max(1, percent)}%` : "0%";
    const attributes = { title: `from ${label}: ${boxCountText(count)}` };
    if (count) attributes.href = addressOfPictures(filter);
    else attributes["aria-hidden"] = "true";
    return element(
      count ? "a.bar-slot" : "span.bar-slot",
      attributes,
      element("span.bar-count", count ? shortNumber.format(count) : ""),
      element("span.unseen", " boxes from "),
      element("span.bar-fill", { style: { height } }),
      element("span.bar-label", label),
    );
  });
  return figure(title, note, element("div.bars", ...slots));
}

/* The address of the images with these filters besides those that are set. */
function addressOfPictures(filter) {
  return addressOf({ ...filter, view: "pictures", picture: "" });
}

/* How many boxes each class has, as [class number, count], the most frequent first. */
function classFigure(counts) {
  const listedCounts = counts.slice(0, LISTED_CLASSES);
  const rows = listedCounts.map(([number, count]) => {
    const maxCount = counts[0][1];
    return classBarRow(page.classes[number], count, (100 * count) / maxCount);
  });
  const heads = ["Class", "Bar", "Boxes"].map((text) =>
    element("th.unseen", { scope: "col" }, text),
  );
  const table = element(
    "table.class-bars",
    element("thead", element("tr", ...heads)),
    element("tbody", ...rows),
  );

  let note = countText(counts.length, "class", "classes");
  if (counts.length > rows.length) note += `, the ${rows.length} most frequent`;
  const classes = figure("Classes", note, table);
  classes.classList.add("broad");
  return classes;
}

function classBarRow({ name, colour }, count, percent) {
  const href = addressOfPictures({ class: [name] });
  const link = element("a", { href }, element("bdi", name));
  const style = { width: `${percent}%`, background: colour };
  return element(
    "tr",
    element("th", { scope: "row", title: name }, link),
    element("td.wide", element("span.class-bar", { style })),
    element("td.number", numberText(count)),
  );
}

/* What a comparison has written about the whole. */
function tableFigures() {
  const tables = page.lastRun?.tables || [];
  return tables.map((table) => tableFigure(...table));
}

function tableFigure(title, columns, rows, pictures) {
  const listedRows = rows.slice(0, LISTED_ROWS);
  let note = "";
  if (rows.length > LISTED_ROWS)
    note = `the first ${LISTED_ROWS} of ${rows.length}`;
  const attributes = {
    class: "scroll",
    tabindex: 0,
    role: "region",
    "aria-label": title,
  };
  const table = sortableTable(title, columns, listedRows, pictures);
  const tablePart = figure(title, note, element("div", attributes, table));
  if (columns.length > 5) tablePart.classList.add("broad");
  return tablePart;
}

/* The images and boxes of each folder, by class, where there are several folders; not of
   groups of repeats. */
function folderFigures() {
  if (page.folders.size < 2 || isRepeatsPage()) return [];
  const passesFilter = boxTest();
  const passesSearch = findTest();
  const folders = new Map(); // by name: numbers of its records, and of the classes of its boxes
  for (const record of page.records) {
    if (record.isReplaced || record.error || !passesSearch(record)) continue;
    if (!folders.has(record.folder))
      folders.set(record.folder, { recordNumbers: [], classNumbers: [] });
    const { recordNumbers, classNumbers } = folders.get(record.folder);
    recordNumbers.push(record.number);
    for (const box of shownBoxes(record, passesFilter))
      classNumbers.push(boxColumns.classNumber[box]);
  }

  const entries = [...folders];
  entries.sort(([nameA], [nameB]) => COLLATOR.compare(nameA, nameB));
  const allClasses = entries.flatMap(([, { classNumbers }]) => classNumbers);
  const listedClasses = [...frequencies(allClasses).keys()];
  listedClasses.length = Math.min(FOLDER_CLASSES, listedClasses.length);
  const classNames = listedClasses.map((number) => page.classes[number].name);
  const rows = entries.map(([name, { recordNumbers, classNumbers }]) => {
    const counts = frequencies(classNumbers);
    const ofClasses = listedClasses.map((number) => counts.get(number) || 0);
    const total = [recordNumbers.length, classNumbers.length];
    return [name || GROUPS.folder.without, ...total, ...ofClasses];
  });
  const pictures = entries.map(([, { recordNumbers }]) => recordNumbers);
  const columns = ["Folder", "Images", "Boxes", ...classNames];
  return [tableFigure("Folders", columns, rows, pictures)];
}

/* A click on a column sorts by it, a second one the other way round. The first cell of a row opens
   the images that the row is about, to which it narrows the page. */
function sortableTable(title, columns, rows, pictures) {
  const entries = rows.map((cells, index) => {
    return { cells, row: tableRow(cells, pictures?.[index] || []) };
  });
  const body = element("tbody", ...entries.map(({ row }) => row));
  const heads = columns.map((name, column) => {
    const isNumeric = rows.some((cells) => typeof cells[column] === "number");
    const attributes = { scope: "col", class: isNumeric ? "number" : "" };
    const sortButton = button(name);
    const head = element("th", attributes, sortButton);
    sortButton.onclick = () => {
      const isAscending = turnSort(head, heads, isNumeric);
      sortEntries(entries, column, isNumeric, isAscending);
      body.replaceChildren(...entries.map(({ row }) => row));
    };
    return head;
  });
  return element(
    "table.figures",
    element("caption.unseen", title),
    element("thead", element("tr", ...heads)),
    body,
  );
}

/* Marks a column as the one that is sorted by, the other way round than before; returns whether it
   ascends. Numbers descend first, texts ascend. */
function turnSort(head, heads, isNumeric) {
  const opposite = isNumeric ? "ascending" : "descending";
  const isAscending = (head.ariaSort || opposite) === "descending";
  for (const eachHead of heads) eachHead.removeAttribute("aria-sort");
  head.ariaSort = isAscending ? "ascending" : "descending";
  return isAscending;
}

/* Sorts rows by a column; what is unknown is last. */
function sortEntries(entries, column, isNumeric, isAscending) {
  entries.sort((entryA, entryB) => {
    const valueA = entryA.cells[column];
    const valueB = entryB.cells[column];
    if (valueA === null || valueB === null)
      return (valueA === null) - (valueB === null);
    const order = isNumeric
      ? valueA - valueB
      : COLLATOR.compare(valueA, valueB);
    return isAscending ? order : -order;
  });
}

/* A row of a table about the images with these numbers, if any. */
function tableRow(values, pictureNumbers) {
  const isOpener = pictureNumbers.length > 0;
  const cells = values.map((value, column) => {
    const isNumber = typeof value === "number";
    let content = element("bdi", isNumber ? numberText(value) : (value ?? "-"));
    if (isOpener && column === 0) {
      const title = `Open ${countText(pictureNumbers.length, "image")}`;
      content = button({ title }, content);
    }
    const isText = typeof value === "string";
    return element("td", { class: isText ? "" : "number" }, content);
  });
  const row = element("tr", { class: isOpener ? "opener" : "" }, ...cells);
  if (isOpener) row.onclick = () => openPictures(pictureNumbers);
  return row;
}

/* Narrows the page to images, and opens the first of them. */
function openPictures(numbers) {
  Object.assign(state, initialValues(FILTERS), { among: numbers });
  selectRecords();
  changeState({
    picture: shownRecords.length ? idOf(shownRecords[0]) : "",
  });
}

function curveFigures() {
  const diagrams = page.lastRun?.curves || [];
  return diagrams.map(([title, axes, lines, marked]) => {
    const curves = lines.map(([name, boxCount, value, heights]) => {
      return { name, boxCount, value, heights };
    });
    return curveFigure(title, axes, curves, marked);
  });
}

/* Lines whose axes go from 0 to 1. The classes with most boxes have a colour, the last line is of
   all. `marked` is a place on the first axis, or null. */
function curveFigure(title, [acrossTitle, upTitle], curves, marked) {
  const svg = vector(
    "svg.curves",
    {
      viewBox: "-9 -5 113 117",
      role: "img",
      "aria-label": `${upTitle} by ${acrossTitle}`,
    },
    ...axisParts(acrossTitle, upTitle),
  );
  let note = "";
  if (marked !== null) {
    note = `Images show what is above ${marked}`;
    svg.append(
      vector("path", { d: `M${100 * marked} 0V100`, class: "marked" }),
    );
  }

  const classCurves = curves.slice(0, -1);
  classCurves.sort((curveA, curveB) => curveB.boxCount - curveA.boxCount);
  const greyCurves = classCurves.slice(CURVES);
  for (const curve of greyCurves)
    svg.append(drawCurve(curve, { class: "others" }));

  const colours = new Map(
    page.classes.map(({ name, colour }) => [name, colour]),
  );
  const entries = [];
  for (const curve of curves.slice(-1)) {
    svg.append(drawCurve(curve, { stroke: "currentColor", class: "all" }));
    entries.push(curveEntry(curve, "currentColor"));
  }
  for (const curve of classCurves.slice(0, CURVES)) {
    const colour = colours.get(curve.name) || OTHERS;
    svg.append(drawCurve(curve, { stroke: colour, class: "" }));
    entries.push(curveEntry(curve, colour));
  }
  if (greyCurves.length)
    entries.push(legendEntry(`${greyCurves.length} more`, OTHERS));
  return figure(title, note, svg, legend(entries));
}

function curveEntry({ name, value }, colour) {
  return legendEntry(`${name} ${value.toFixed(3)}`, colour);
}

/* A grid with numbers, and what the axes are. */
function axisParts(acrossTitle, upTitle) {
  const parts = [];
  for (const percent of [0, 25, 50, 75, 100]) {
    const lines = `M0 ${percent}H100M${percent} 0V100`;
    parts.push(vector("path", { d: lines, class: "grid" }));
    parts.push(axisText(percent / 100, -1.5, 101.5 - percent, "end"));
    parts.push(axisText(percent / 100, percent, 105, "middle"));
  }
  parts.push(axisText(acrossTitle, 50, 111, "middle"));
  parts.push(axisText(upTitle, 0, -2, "start"));
  return parts;
}

function axisText(text, x, y, anchor) {
  return vector("text", { x, y, "text-anchor": anchor }, text);
}

/* The line of a curve, whose heights are in equal steps; a dot if there is only one. */
function drawCurve({ name, heights }, attributes) {
  const title = vector("title", name);
  if (heights.length === 1) {
    const dot = `M0 ${100 * (1 - heights[0])}h0`;
    const dotAttributes = { ...attributes, "stroke-linecap": "round" };
    return vector("path", { d: dot, ...dotAttributes }, title);
  }
  const step = 100 / (heights.length - 1);
  const points = heights.map((height, index) => {
    return [step * index, 100 * (1 - height)];
  });
  return vector("path", { d: polyline(points), ...attributes }, title);
}

/* A part of a view with a title, and a note below it if there is one. */
function figure(title, note, ...parts) {
  const noteText = note ? element("p.quiet", note) : "";
  const caption = element("figcaption", element("h2", title), noteText);
  return element("figure", caption, ...parts);
}
