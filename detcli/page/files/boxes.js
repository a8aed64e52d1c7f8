"use strict";

/* Boxes over a picture, as vectors. */

const TILE_BOXES = 100; // drawn on a thumbnail; the best come first

function styleOf(box) {
  if (page.kinds.length) return page.kinds[boxColumns.kindNumber[box]];
  const [entry, track] = [
    page.classes[boxColumns.classNumber[box]],
    boxColumns.track[box],
  ];
  if (track === 0) return entry;
  const { palette } = page.lastRun;
  const [colour, ink] = palette[(track - 1) % palette.length] || [
    "#888",
    "#000",
  ];
  return { ...entry, colour, ink };
}

function classNameOf(box) {
  return page.classes[boxColumns.classNumber[box]].name;
}

function trackText(box) {
  return boxColumns.track[box] ? `#${boxColumns.track[box]} ` : "";
}

function titleOf(box) {
  return trackText(box) + classNameOf(box);
}

function coordinatesOf(box) {
  return boxColumns.coordinates.slice(4 * box, 4 * box + 4);
}

function shownBoxes(record, passes = boxTest()) {
  const boxes = [];
  for (let box = record.firstBox; box < record.endBox; box += 1)
    if (passes(box)) boxes.push(box);
  return boxes;
}

function polyline(points) {
  return `M${points.map((point) => point.join(" ")).join("L")}`;
}

function outline([x1, y1, x2, y2]) {
  return `M${x1} ${y1}H${x2}V${y2}H${x1}Z`;
}

function overlay({ width, height }, ...parts) {
  const viewBox = `0 0 ${width} ${height}`;
  return vector(
    "svg",
    { viewBox, class: "boxes", "aria-hidden": "true" },
    ...parts,
  );
}

/* A path in a colour, which a dark one beneath sets off from any picture. */
function cased(path, colour) {
  return [
    vector("path.casing", { d: path }),
    vector("path", { d: path, stroke: colour }),
  ];
}

function placeholder(text) {
  return element("span.missing", text);
}

/* A picture; a sentence takes its place if it cannot be shown. */
function pictureImage(source, attributes = {}) {
  const image = element("img", {
    alt: "",
    decoding: "async",
    draggable: "false",
    ...attributes,
  });
  image.onerror = () =>
    image.replaceWith(placeholder("The picture cannot be shown"));
  image.src = source;
  return image;
}

function pictureAddress(record) {
  return record.original || `pictures/${record.picture}.jpg`;
}

function thumbnailAddress(record) {
  return `thumbnails/${record.picture}.jpg`;
}

/* Shows a part of a picture, and what is drawn over it, in all of the room that they have. */
function showPart(record, [image, ...drawings], [left, top, width, height]) {
  for (const svg of drawings)
    svg.setAttribute("viewBox", `${left} ${top} ${width} ${height}`);
  Object.assign(image.style, {
    left: `${(-100 * left) / width}%`,
    top: `${(-100 * top) / height}%`,
    width: `${(100 * record.width) / width}%`,
    height: `${(100 * record.height) / height}%`,
  });
}

function swatch({ colour, isDashed }) {
  return element("span", {
    class: isDashed ? "swatch dashed" : "swatch",
    style: { color: colour },
  });
}

/* The boxes of a thumbnail: one path for each colour. */
function drawThumbnail(record) {
  const paths = new Map();
  for (const box of shownBoxes(record).slice(0, TILE_BOXES)) {
    const { colour } = styleOf(box);
    paths.set(colour, (paths.get(colour) || "") + outline(coordinatesOf(box)));
  }
  return overlay(
    record,
    ...[...paths].flatMap(([colour, path]) => cased(path, colour)),
  );
}

/* Where one side of a comparison has a box. */
function coordinatesOn(side, box) {
  return side === 1 && boxColumns.counterpart.has(box)
    ? boxColumns.counterpart.get(box).slice(1)
    : coordinatesOf(box);
}

/* The boxes of a large picture, with labels whose size does not depend on the picture's.
   `scale` is in CSS pixels for each pixel of the picture; `side` of a comparison, or undefined. */
function drawLarge(record, boxes, scale, side) {
  const svg = overlay(record);
  if (side !== undefined) svg.dataset.side = side;
  const on = boxes.filter(
    (box) => side === undefined || (styleOf(box).side ?? side) === side,
  );
  const visible = on.map((box) => inPicture(coordinatesOn(side, box), record));
  const layout = { taken: [], visible, hidden: visible.map(() => 0) };
  const labels = vector("g");
  for (const place of page.runs[record.runNumber].shapes) {
    const [outlines, caption] = drawPlace(record, place, scale, layout.taken);
    svg.append(outlines);
    labels.append(caption);
  }
  for (const box of [...on].reverse()) {
    // the best on top
    const { colour, isDashed } = styleOf(box);
    const parts = cased(outline(coordinatesOn(side, box)), colour);
    const other = boxColumns.counterpart.get(box);
    if (other && side === undefined) {
      parts.push(
        vector("path", {
          d: outline(other.slice(1)),
          stroke: colour,
          class: "other",
        }),
      );
    }
    if (boxColumns.symbolCorners.has(box)) {
      const d = `M${boxColumns.symbolCorners.get(box).join("L")}Z`;
      parts.push(vector("path", { d, stroke: colour, class: "symbol" }));
    }
    const attributes = {
      class: isDashed ? "box dashed" : "box",
      "data-box": box,
    };
    svg.append(vector("g", attributes, ...parts));
  }
  for (const box of state.labels === "on" ? on : []) {
    const label = drawLabel(record, box, scale, side, layout);
    if (label) labels.append(label);
  }
  svg.append(labels);
  return svg;
}

/* A zone, or a line with an arrow, and its caption at the highest point that is in the picture. */
function drawPlace(
  record,
  { name, colour, ink, isFractional, coordinates },
  scale,
  places,
) {
  const [unitX, unitY] = isFractional ? [record.width, record.height] : [1, 1];
  const corners = [];
  for (let at = 0; at < coordinates.length; at += 2) {
    corners.push([unitX * coordinates[at], unitY * coordinates[at + 1]]);
  }
  const zone = corners.length > 2;
  const path = `${polyline(corners)}${zone ? "Z" : arrow(corners, 12 / scale)}`;
  const inside = () =>
    shownBoxes(record, (box) => boxColumns.zones.get(box)?.includes(name));
  const text = zone ? `${name} ${inside().length}` : name;
  const [width, height] = labelSize(text, scale);
  const highest = corners.reduce((best, corner) =>
    corner[1] < best[1] ? corner : best,
  );
  const left = Math.max(0, Math.min(highest[0], record.width - width));
  const top = Math.max(0, Math.min(highest[1], record.height - height));
  places.push([left, top, left + width, top + height]);
  const caption = labelParts(text, [left, top], scale, { colour, ink });
  return [cased(path, colour), caption].map((parts) =>
    vector("g.place", ...parts),
  );
}

function arrow([[x1, y1], [x2, y2]], side) {
  const length = Math.hypot(x2 - x1, y2 - y1);
  const [x, y] = [(side * (x2 - x1)) / length, (side * (y2 - y1)) / length];
  return `M${x2 - x - y / 2} ${y2 - y + x / 2}L${x2} ${y2}L${x2 - x + y / 2} ${y2 - y - x / 2}`;
}

const MEASURE = document.createElement("canvas").getContext("2d");
MEASURE.font = "600 12px system-ui, sans-serif";

function labelText(box, side) {
  const score =
    side === 1 && boxColumns.counterpart.has(box)
      ? boxColumns.counterpart.get(box)[0]
      : boxColumns.score[box];
  const parts = [trackText(box) + shortened(classNameOf(box))];
  if (score >= 0 && score !== null) parts.push(score.toFixed(2)); // a label has none
  if (boxColumns.text.has(box)) parts.push(shortened(boxColumns.text.get(box)));
  return parts.join(" ");
}

function shortened(text) {
  return text.length > 40 ? `${text.slice(0, 39)}…` : text;
}

function labelSize(text, scale) {
  return [(MEASURE.measureText(text).width + 10) / scale, 18 / scale];
}

function labelParts(text, [x, y], scale, { colour, ink }) {
  const [width, height] = labelSize(text, scale);
  const start = { x: x + 5 / scale, y: y + 13 / scale };
  return [
    vector("rect", { x, y, width, height, rx: 2 / scale, fill: colour }),
    vector("text", { ...start, fill: ink, "font-size": 12 / scale }, text),
  ];
}

/* Columns and rows where a label may be, the best first: 0 before the box, 1 at its first side,
   2 at its last, 3 behind. As in sink/draw.py, which --save draws with. */
const PLACES = [
  [1, 0],
  [1, 1],
  [1, 3],
  [0, 1],
  [3, 1],
  [2, 0],
  [2, 1],
  [2, 3],
  [0, 2],
  [3, 2],
  [1, 2],
  [2, 2],
];
const COVER = 0.15; // of a box, at most, under all labels together

function inPicture(sides, { width, height }) {
  return sides.map((side, at) =>
    Math.max(0, Math.min(side, at % 2 ? height : width)),
  );
}

function commonArea([x1, y1, x2, y2], [left, top, right, bottom]) {
  const width = Math.min(x2, right) - Math.max(x1, left);
  const height = Math.min(y2, bottom) - Math.max(y1, top);
  return Math.max(0, width) * Math.max(0, height);
}

/* The left top corner of a label over no other one, which leaves all boxes to be seen; null if
   there is none. */
function placeLabel(
  [x1, y1, x2, y2],
  [width, height],
  record,
  { taken, visible, hidden },
) {
  if (width > record.width || height > record.height) return null;
  const starts = (from, to, size, most) =>
    [from - size, from, to - size, to].map((at) =>
      Math.max(0, Math.min(at, most - size)),
    );
  const columns = starts(x1, x2, width, record.width);
  const rows = starts(y1, y2, height, record.height);
  for (const [column, row] of PLACES) {
    const label = [
      columns[column],
      rows[row],
      columns[column] + width,
      rows[row] + height,
    ];
    if (taken.some((one) => commonArea(label, one))) continue;
    const covered = visible.map((one) => commonArea(label, one));
    const mostOf = (one) => COVER * commonArea(one, one);
    if (
      covered.some(
        (area, at) => area && hidden[at] + area > mostOf(visible[at]),
      )
    )
      continue;
    taken.push(label);
    covered.forEach((area, at) => {
      hidden[at] += area;
    });
    return label.slice(0, 2);
  }
  return null;
}

/* Null if nothing fits; without a layout, the label goes above its box and may cover others. */
function drawLabel(
  record,
  box,
  scale,
  side,
  layout = { taken: [], visible: [] },
) {
  const text = labelText(box, side);
  const place = placeLabel(
    coordinatesOn(side, box),
    labelSize(text, scale),
    record,
    layout,
  );
  const parts = place && labelParts(text, place, scale, styleOf(box));
  return parts && vector("g.label", { "data-box": box }, ...parts);
}
