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
  const numbers = []; // of the classes of boxes
  forEachBox((box) => {
    numbers.push(boxColumns.classNumber[box]);
    const score = boxColumns.score[box];
    if (score >= 0) scores[scoreBin(score, SCORE_BINS)] += 1;
    sizes[SIZES.findLastIndex((from) => sizeOf(box) >= from)] += 1;
  });
  const scored = scores.reduce((sum, count) => sum + count, 0);
  byId("view-figures").replaceChildren(
    element("p.quiet", `${boxCountText(numbers.length)} with these filters`),
    ...tables(),
    ...curves(),
    bars(
      "Scores",
      `${countText(scored, "score")}, in steps of ${1 / SCORE_BINS}`,
      scores,
      (bin) => {
        const ends = [bin / SCORE_BINS, (bin + 1) / SCORE_BINS];
        return [ends[0].toFixed(2), { score: ends }];
      },
    ),
    bars(
      "Box sizes",
      "The square root of the area, in pixels of the picture",
      sizes,
      (bin) => [
        String(SIZES[bin]),
        { size: [SIZES[bin], SIZES[bin + 1] ?? Infinity] },
      ],
    ),
    classFigure([...frequencies(numbers)]),
  );
}

/* A bar chart, each bar of which leads to its pictures. */
function bars(title, note, counts, entryOf) {
  const most = Math.max(1, ...counts);
  const short = new Intl.NumberFormat("en", {
    notation: "compact",
    maximumFractionDigits: 1,
  });
  const slots = counts.map((count, bin) => {
    const [label, values] = entryOf(bin);
    const height = `${count && Math.max(1, (100 * count) / most)}%`;
    const made = element(
      count ? "a.bar-slot" : "span.bar-slot",
      { title: `from ${label}: ${boxCountText(count)}` },
      element("span.bar-count", count ? short.format(count) : ""),
      element("span.unseen", " boxes from "),
      element("span.bar-fill", { style: { height } }),
      element("span.bar-label", label),
    );
    if (count) made.href = picturesOf(values);
    else made.ariaHidden = "true";
    return made;
  });
  return figure(title, note, element("div.bars", ...slots));
}

/* The address of the pictures with these filters besides those that are set. */
function picturesOf(values) {
  return addressOf({ ...values, view: "pictures", picture: "" });
}

function classFigure(counts) {
  const rows = counts.slice(0, LISTED_CLASSES).map(([number, count]) => {
    const { name, colour } = page.classes[number];
    const style = {
      width: `${(100 * count) / counts[0][1]}%`,
      background: colour,
    };
    const href = picturesOf({ class: [name] });
    return element(
      "tr",
      element(
        "th",
        { scope: "row", title: name },
        element("a", { href }, element("bdi", name)),
      ),
      element("td.wide", element("span.class-bar", { style })),
      element("td.number", numberText(count)),
    );
  });
  const sum = countText(counts.length, "class", "classes");
  const note =
    counts.length > rows.length
      ? `${sum}, the ${rows.length} most frequent`
      : sum;
  const scope = "col";
  const heads = ["Class", "Bar", "Boxes"].map((text) =>
    element("th.unseen", { scope }, text),
  );
  const parts = [
    element("thead", element("tr", ...heads)),
    element("tbody", ...rows),
  ];
  const made = figure("Classes", note, element("table.class-bars", ...parts));
  made.classList.add("broad");
  return made;
}

/* What a comparison has written about the whole. */
function tables() {
  return (page.lastRun?.tables || []).map(
    ([title, columns, rows, pictures]) => {
      const cut =
        rows.length > LISTED_ROWS &&
        `the first ${LISTED_ROWS} of ${rows.length}`;
      const made = table(title, columns, rows.slice(0, LISTED_ROWS), pictures);
      const attributes = {
        class: "scroll",
        tabindex: 0,
        role: "region",
        "aria-label": title,
      };
      const whole = figure(title, cut, element("div", attributes, made));
      if (columns.length > 5) whole.classList.add("broad");
      return whole;
    },
  );
}

/* A click on a column sorts by it, a second one the other way round. The first cell of a row opens
   the pictures that the row is about, to which it narrows the page. */
function table(title, columns, values, pictures) {
  const rows = values.map((cells, at) => ({
    cells,
    row: tableRow(cells, pictures?.[at] || []),
  }));
  const body = element("tbody", ...rows.map(({ row }) => row));
  const heads = columns.map((name, at) => {
    const numbers = values.some((cells) => typeof cells[at] === "number");
    const sort = button(name);
    const head = element(
      "th",
      { scope: "col", class: numbers ? "number" : "" },
      sort,
    );
    sort.onclick = () => {
      const before = head.ariaSort || (numbers ? "ascending" : "descending");
      const way = before === "ascending" ? -1 : 1;
      for (const one of heads) one.removeAttribute("aria-sort");
      head.ariaSort = way > 0 ? "ascending" : "descending";
      rows.sort(
        ({ cells: { [at]: a } }, { cells: { [at]: b } }) =>
          // what is unknown is last
          (a === null) - (b === null) ||
          way * (numbers ? a - b : COLLATOR.compare(a, b)),
      );
      body.replaceChildren(...rows.map(({ row }) => row));
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

function tableRow(values, numbers) {
  const cells = values.map((value, at) => {
    const text = element(
      "bdi",
      typeof value === "number" ? numberText(value) : (value ?? "-"),
    );
    const title = `Open ${countText(numbers.length, "picture")}`;
    const content = numbers.length && at === 0 ? button({ title }, text) : text;
    return element(
      "td",
      { class: typeof value === "string" ? "" : "number" },
      content,
    );
  });
  const row = element(
    "tr",
    { class: numbers.length ? "opener" : "" },
    ...cells,
  );
  if (numbers.length) {
    row.onclick = () => {
      Object.assign(state, initialValues(FILTERS), { among: numbers });
      selectRecords();
      changeState({
        picture: shownRecords.length ? idOf(shownRecords[0]) : "",
      });
    };
  }
  return row;
}

/* Lines whose axes go from 0 to 1. The classes with most boxes have a colour, the last line is of
   all. */
function curves() {
  return (page.lastRun?.curves || []).map(
    ([title, [across, up], lines, marked]) => {
      const ordered = lines.slice(0, -1).sort((a, b) => b[1] - a[1]);
      const line = (d, attributes, ...children) =>
        vector("path", { d, ...attributes }, ...children);
      const note = (text, x, y, anchor) =>
        vector("text", { x, y, "text-anchor": anchor }, text);
      const grid = [0, 25, 50, 75, 100].flatMap((at) => [
        line(`M0 ${at}H100M${at} 0V100`, { class: "grid" }),
        note(at / 100, -1.5, 101.5 - at, "end"),
        note(at / 100, at, 105, "middle"),
      ]);
      const draw = ([name, , , heights], attributes) => {
        const wide = 100 / (heights.length - 1);
        const points = heights.map((height, at) => [
          wide * at,
          100 * (1 - height),
        ]);
        return line(polyline(points), attributes, vector("title", name));
      };
      const others = ordered
        .slice(CURVES)
        .map((one) => draw(one, { class: "others" }));
      const colours = new Map(
        page.classes.map(({ name, colour }) => [name, colour]),
      );
      const entries = [];
      const named = [...lines.slice(-1), ...ordered.slice(0, CURVES)].map(
        (one, at) => {
          const colour = at ? colours.get(one[0]) || OTHERS : "currentColor";
          entries.push(legendEntry(`${one[0]} ${one[2].toFixed(3)}`, colour));
          return draw(one, { stroke: colour, class: at ? "" : "all" });
        },
      );
      if (others.length)
        entries.push(legendEntry(`${others.length} more`, OTHERS));
      const limit =
        marked === null
          ? []
          : [line(`M${100 * marked} 0V100`, { class: "marked" })];
      const svg = vector(
        "svg.curves",
        {
          viewBox: "-9 -5 113 117",
          role: "img",
          "aria-label": `${up} by ${across}`,
        },
        ...[
          ...grid,
          note(across, 50, 111, "middle"),
          note(up, 0, -2, "start"),
          ...limit,
          ...others,
        ],
        ...named,
      );
      const text =
        marked === null ? undefined : `Pictures show what is above ${marked}`;
      return figure(title, text, svg, legend(entries));
    },
  );
}

function figure(title, note, ...parts) {
  const text = note ? element("p.quiet", note) : "";
  return element(
    "figure",
    element("figcaption", element("h2", title), text),
    ...parts,
  );
}
