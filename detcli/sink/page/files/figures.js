"use strict";

/* Histograms of what the filter lets through, and a comparison's tables. */

const SCORE_BINS = 20;
const LISTED_CLASSES = 30;
const LISTED_ROWS = 200;
const CURVES = 10; // with a colour of their own
const SIZES = [0, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]; // pixels

function drawFigures() {
  const scores = new Array(SCORE_BINS).fill(0);
  const sizes = new Array(SIZES.length).fill(0);
  const classes = new Array(page.classes.length).fill(0);
  let boxes = 0;
  let scored = 0;
  forEachBox((box) => {
    boxes += 1;
    classes[found.classOf.data[box]] += 1;
    const score = found.score.data[box];
    if (score >= 0) {
      scores[scoreBin(score, SCORE_BINS)] += 1;
      scored += 1;
    }
    sizes[SIZES.findLastIndex((from) => sizeOf(box) >= from)] += 1;
  });
  const listed = [...classes.keys()].filter((number) => classes[number])
    .sort((a, b) => classes[b] - classes[a]);
  byId("view-figures").replaceChildren(
    element("p", { class: "quiet" }, `${counted(boxes, "box", "boxes")} with these filters`),
    ...tables(),
    ...curves(),
    bars("Scores", `${counted(scored, "score")}, in steps of ${1 / SCORE_BINS}`, scores.map((count, bin) => [
      (bin / SCORE_BINS).toFixed(2), count, { score: [bin / SCORE_BINS, (bin + 1) / SCORE_BINS] },
    ])),
    bars("Box sizes", "The square root of the area, in pixels of the picture", sizes.map((count, bin) => [
      String(SIZES[bin]), count, { size: [SIZES[bin], SIZES[bin + 1] ?? Infinity] },
    ])),
    classFigure(listed, classes),
  );
}

/* A bar chart, each bar of which leads to its pictures. */
function bars(title, note, entries) {
  const most = Math.max(1, ...entries.map(([, count]) => count));
  const chart = element("div", { class: "bars" }, ...entries.map(([label, count, values]) => (
    element(
      count ? "a" : "span",
      {
        class: "bar-slot",
        title: `from ${label}: ${counted(count, "box", "boxes")}`,
        href: count ? picturesOf(values) : undefined,
        "aria-hidden": count ? undefined : "true",
      },
      element("span", { class: "bar-count" }, count ? shortNumber(count) : ""),
      element("span", { class: "unseen" }, " boxes from "),
      element("span", { class: "bar-fill", style: { height: `${count ? Math.max(1, (100 * count) / most) : 0}%` } }),
      element("span", { class: "bar-label" }, label),
    )
  )));
  return figure(title, note, chart);
}

/* The address of the pictures with these filters besides those that are set. */
function picturesOf(values) {
  return addressOf({ ...values, view: "pictures", picture: "" });
}

function shortNumber(count) {
  return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(count);
}

function classFigure(listed, counts) {
  const most = Math.max(1, ...listed.slice(0, 1).map((number) => counts[number]));
  const rows = listed.slice(0, LISTED_CLASSES).map((number) => {
    const { name, colour } = page.classes[number];
    const bar = element("span", { class: "class-bar", style: { width: `${(100 * counts[number]) / most}%`, background: colour } });
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, element("a", { href: picturesOf({ class: [name] }) }, element("bdi", { title: name }, name))),
      element("td", { class: "wide" }, bar),
      element("td", { class: "number" }, counts[number].toLocaleString("en")),
    );
  });
  const more = listed.length - rows.length;
  const head = element("tr", {}, ...["Class", "Bar", "Boxes"].map((text) => element("th", { scope: "col", class: "unseen" }, text)));
  const note = more > 0 ? `${listed.length} classes, the ${rows.length} most frequent` : counted(listed.length, "class", "classes");
  const made = figure("Classes", note, element("table", { class: "class-bars" }, element("thead", {}, head), element("tbody", {}, ...rows)));
  made.classList.add("broad");
  return made;
}

/* What a comparison has written about the whole. */
function tables() {
  const last = page.runs[page.runs.length - 1];
  return (last?.tables || []).map((one) => {
    const [title, columns, rows, pictures] = one;
    const cut = rows.length > LISTED_ROWS ? `the first ${LISTED_ROWS} of ${rows.length}` : undefined;
    const made = table(title, columns, rows.slice(0, LISTED_ROWS));
    [...made.tBodies[0].rows].forEach((row, at) => pictures?.[at]?.length && makeOpener(row, pictures[at]));
    makeSortable(made, rows);
    const whole = figure(title, cut, element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, made));
    if (columns.length > 5) whole.classList.add("broad");
    return whole;
  });
}

/* The first cell of a row opens the pictures that the row is about, to which it narrows the page. */
function makeOpener(row, numbers) {
  const open = element("button", { type: "button", title: `Open ${counted(numbers.length, "picture")}` }, ...row.cells[0].childNodes);
  row.cells[0].append(open);
  row.classList.add("opener");
  row.addEventListener("click", () => {
    Object.assign(state, initial(FILTERS), { among: numbers });
    select();
    change({ picture: String(shown[0]?.number ?? "") });
  });
}

/* A click on a column sorts by it, a second one the other way round; what is unknown is last. */
function makeSortable(made, values) {
  const [body] = made.tBodies;
  const rows = [...body.rows].map((row, at) => ({ row, cells: values[at] }));
  for (const [at, head] of [...made.tHead.rows[0].cells].entries()) {
    const sort = element("button", { type: "button" }, ...head.childNodes);
    head.append(sort);
    sort.addEventListener("click", () => {
      const numbers = rows.some(({ cells }) => typeof cells[at] === "number");
      const way = (head.ariaSort || (numbers ? "ascending" : "descending")) === "ascending" ? -1 : 1;
      for (const one of made.tHead.rows[0].cells) one.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
      rows.sort(({ cells: { [at]: a } }, { cells: { [at]: b } }) => (
        (a === null) - (b === null) || way * (numbers ? a - b : COLLATOR.compare(a, b))
      ));
      body.replaceChildren(...rows.map(({ row }) => row));
    });
  }
}

/* Lines whose axes go from 0 to 1. The classes with most boxes have a colour, the last line is of all. */
function curves() {
  const last = page.runs[page.runs.length - 1];
  return (last?.curves || []).map(([title, [across, up], lines, marked]) => {
    const [all] = lines.slice(-1);
    const ordered = lines.slice(0, -1).sort((a, b) => b[1] - a[1]);
    const svg = vector("svg", { viewBox: "-9 -5 113 117", class: "curves", role: "img", "aria-label": `${up} by ${across}` });
    for (let at = 0; at <= 100; at += 25) {
      svg.append(
        vector("path", { d: `M0 ${at}H100M${at} 0V100`, class: "grid" }),
        vector("text", { x: -1.5, y: 101.5 - at, "text-anchor": "end" }, String(at / 100)),
        vector("text", { x: at, y: 105, "text-anchor": "middle" }, String(at / 100)),
      );
    }
    svg.append(vector("text", { x: 50, y: 111, "text-anchor": "middle" }, across), vector("text", { x: 0, y: -2 }, up));
    if (marked !== null) svg.append(vector("path", { d: `M${100 * marked} 0V100`, class: "marked" }));
    const draw = ([name, , , heights], style) => {
      const d = `M${heights.map((height, at) => `${(100 * at) / (heights.length - 1)} ${100 * (1 - height)}`).join("L")}`;
      const path = vector("path", { d, ...style }, vector("title", {}, name));
      svg.append(path);
      return path;
    };
    ordered.slice(CURVES).forEach((line) => draw(line, { class: "others" }));
    const coloured = ordered.slice(0, CURVES).map((line) => [line, page.classes.find(({ name }) => name === line[0])?.colour || OTHERS]);
    const entries = [[all, "currentColor", "all"], ...coloured].map(([line, colour, kind]) => {
      const path = draw(line, { stroke: colour, class: kind || "" });
      const entry = legendEntry(`${line[0]} ${line[2].toFixed(3)}`, "swatch", colour);
      entry.addEventListener("pointerenter", () => path.classList.add("lit"));
      entry.addEventListener("pointerleave", () => path.classList.remove("lit"));
      return entry;
    });
    if (ordered.length > CURVES) entries.push(legendEntry(`${ordered.length - CURVES} more`, "swatch", OTHERS));
    return figure(title, marked === null ? undefined : `Pictures show what is above ${marked}`, svg, legend(entries));
  });
}

function figure(title, note, ...parts) {
  const caption = element("figcaption", {}, element("h2", {}, title), note ? element("p", { class: "quiet" }, note) : undefined);
  return element("figure", {}, caption, ...parts);
}

function table(title, columns, rows) {
  const cell = (value) => {
    const number = typeof value === "number";
    const text = value === null ? "-" : number ? numberText(value) : value;
    return element("td", { class: number || value === null ? "number" : "" }, element("bdi", {}, text));
  };
  return element(
    "table",
    { class: "figures" },
    element("caption", { class: "unseen" }, title),
    element("thead", {}, element("tr", {}, ...columns.map((name, at) => (
      element("th", { scope: "col", class: rows.some((row) => typeof row[at] === "number") ? "number" : "" }, name)
    )))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell)))),
  );
}

function numberText(value) {
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(3);
}
