"use strict";

/* Boxes over a picture, as vectors. */

const TILE_BOXES = 100; // drawn on a thumbnail; the best come first

function boxColour(box) {
  if (page.kinds.length) return page.kinds[found.kind.data[box]] || { colour: "#888", ink: "#fff", name: "?", dashed: false };
  const entry = page.classes[found.classOf.data[box]];
  const track = found.track.data[box];
  if (track === 0) return entry;
  const { palette } = page.runs[page.runs.length - 1];
  const [colour, ink] = palette[(track - 1) % palette.length] || ["#888", "#000"];
  return { ...entry, colour, ink };
}

function sidesOf(box) {
  return found.sides.data.subarray(4 * box, 4 * box + 4);
}

function shownBoxes(record, passes = boxTest()) {
  const boxes = [];
  for (let box = record.from; box < record.to; box += 1) if (passes(box)) boxes.push(box);
  return boxes;
}

function outline([x1, y1, x2, y2]) {
  return `M${x1} ${y1}H${x2}V${y2}H${x1}Z`;
}

function overlay(record) {
  return vector("svg", {
    viewBox: `0 0 ${record.width} ${record.height}`,
    preserveAspectRatio: "xMidYMid meet",
    class: "boxes",
    "aria-hidden": "true",
  });
}

/* The boxes of a thumbnail: one path for each colour. */
function drawThumbnail(record) {
  const paths = new Map();
  for (const box of shownBoxes(record).slice(0, TILE_BOXES)) {
    const { colour } = boxColour(box);
    paths.set(colour, (paths.get(colour) || "") + outline(sidesOf(box)));
  }
  const svg = overlay(record);
  for (const [colour, path] of paths) {
    svg.append(vector("path", { d: path, class: "casing" }), vector("path", { d: path, stroke: colour }));
  }
  return svg;
}

/* Where one side of a comparison has a box. */
function sidesOn(side, box) {
  return side === 1 && found.other.has(box) ? found.other.get(box).slice(1) : sidesOf(box);
}

/* The boxes of a large picture, with labels whose size does not depend on the picture's.
   `scale` is in CSS pixels for each pixel of the picture; `side` of a comparison, or undefined. */
function drawLarge(record, boxes, scale, side) {
  const svg = overlay(record);
  if (side !== undefined) svg.dataset.side = side;
  const on = boxes.filter((box) => side === undefined || [undefined, null, side].includes(boxColour(box).side));
  const visible = on.map((box) => inPicture(sidesOn(side, box), record));
  const layout = { taken: [], visible, hidden: visible.map(() => 0) };
  const labels = vector("g");
  for (const place of page.runs[record.run].places) {
    const [outlines, caption] = drawPlace(record, place, scale, layout.taken);
    svg.append(outlines);
    labels.append(caption);
  }
  for (const box of [...on].reverse()) { // the best on top
    const { colour, dashed } = boxColour(box);
    const group = vector("g", { class: dashed ? "box dashed" : "box", "data-box": box });
    const path = outline(sidesOn(side, box));
    group.append(vector("path", { d: path, class: "casing" }), vector("path", { d: path, stroke: colour }));
    const other = found.other.get(box);
    if (other && side === undefined) {
      group.append(vector("path", { d: outline(other.slice(1)), stroke: colour, class: "other" }));
    }
    if (found.corners.has(box)) {
      group.append(vector("path", { d: `M${found.corners.get(box).join("L")}Z`, stroke: colour, class: "symbol" }));
    }
    svg.append(group);
  }
  for (const box of state.labels === "on" ? on : []) {
    const label = drawLabel(record, box, scale, side, layout);
    if (label) labels.append(label);
  }
  svg.append(labels);
  return svg;
}

/* A zone, or a line with an arrow, and its caption at the highest point that is in the picture. */
function drawPlace(record, { name, colour, ink, fractions, points }, scale, places) {
  const [unitX, unitY] = fractions ? [record.width, record.height] : [1, 1];
  const corners = [];
  for (let at = 0; at < points.length; at += 2) corners.push([unitX * points[at], unitY * points[at + 1]]);
  const zone = corners.length > 2;
  const path = `M${corners.map((corner) => corner.join(" ")).join("L")}${zone ? "Z" : arrow(corners, 12 / scale)}`;
  const outlines = vector("g", { class: "place" });
  outlines.append(vector("path", { d: path, class: "casing" }), vector("path", { d: path, stroke: colour }));
  let text = name;
  if (zone) {
    let count = 0;
    for (let box = record.from; box < record.to; box += 1) count += (found.zones.get(box) || []).includes(name);
    text += ` ${count}`;
  }
  const [width, height] = labelSize(text, scale);
  const highest = corners.reduce((best, corner) => (corner[1] < best[1] ? corner : best));
  const left = Math.max(0, Math.min(highest[0], record.width - width));
  const top = Math.max(0, Math.min(highest[1], record.height - height));
  places.push([left, top, left + width, top + height]);
  const caption = vector("g", { class: "place" });
  caption.append(...labelParts(text, [left, top], scale, { colour, ink }));
  return [outlines, caption];
}

function arrow([[x1, y1], [x2, y2]], side) {
  const length = Math.hypot(x2 - x1, y2 - y1);
  const [x, y] = [side * (x2 - x1) / length, side * (y2 - y1) / length];
  return `M${x2 - x - y / 2} ${y2 - y + x / 2}L${x2} ${y2}L${x2 - x + y / 2} ${y2 - y - x / 2}`;
}

const MEASURE = document.createElement("canvas").getContext("2d");
MEASURE.font = "600 12px system-ui, sans-serif";

function labelText(box, side) {
  const { name } = page.classes[found.classOf.data[box]];
  const score = side === 1 && found.other.has(box) ? found.other.get(box)[0] : found.score.data[box];
  const parts = [trackText(box) + shortened(name)];
  if (score !== null && !Number.isNaN(score)) parts.push(score.toFixed(2));
  if (found.texts.has(box)) parts.push(shortened(found.texts.get(box)));
  return parts.join(" ");
}

function shortened(text) {
  return text.length > 40 ? `${text.slice(0, 39)}…` : text;
}

function trackText(box) {
  const track = found.track.data[box];
  return track ? `#${track} ` : "";
}

function labelSize(text, scale) {
  return [(MEASURE.measureText(text).width + 10) / scale, 18 / scale];
}

function labelParts(text, [x, y], scale, { colour, ink }) {
  const [width, height] = labelSize(text, scale);
  return [
    vector("rect", { x, y, width, height, rx: 2 / scale, fill: colour }),
    vector("text", {
      x: x + 5 / scale, y: y + 13 / scale, fill: ink, "font-size": 12 / scale,
    }, text),
  ];
}

/* Columns and rows where a label may be, the best first: 0 before the box, 1 at its first side,
   2 at its last, 3 behind. As in sink/draw.py, which --save draws with. */
const PLACES = [
  [1, 0], [1, 1], [1, 3], [0, 1], [3, 1], [2, 0], [2, 1], [2, 3], [0, 2], [3, 2], [1, 2], [2, 2],
];
const COVER = 0.15; // of a box, at most, under all labels together

function inPicture([x1, y1, x2, y2], { width, height }) {
  const within = (at, most) => Math.max(0, Math.min(at, most));
  return [within(x1, width), within(y1, height), within(x2, width), within(y2, height)];
}

function commonArea([x1, y1, x2, y2], [left, top, right, bottom]) {
  return Math.max(0, Math.min(x2, right) - Math.max(x1, left)) * Math.max(0, Math.min(y2, bottom) - Math.max(y1, top));
}

/* The left top corner of a label over no other one, which leaves all boxes to be seen; null if there is none. */
function placeLabel([x1, y1, x2, y2], [width, height], record, { taken, visible, hidden }) {
  if (width > record.width || height > record.height) return null;
  const starts = (from, to, size, most) => [from - size, from, to - size, to].map((at) => Math.max(0, Math.min(at, most - size)));
  const [columns, rows] = [starts(x1, x2, width, record.width), starts(y1, y2, height, record.height)];
  for (const [column, row] of PLACES) {
    const label = [columns[column], rows[row], columns[column] + width, rows[row] + height];
    if (taken.some((one) => commonArea(label, one))) continue;
    const covered = visible.map((one) => commonArea(label, one));
    if (covered.some((area, at) => area && hidden[at] + area > COVER * commonArea(visible[at], visible[at]))) continue;
    taken.push(label);
    covered.forEach((area, at) => { hidden[at] += area; });
    return label.slice(0, 2);
  }
  return null;
}

/* Null if there is no place; without a layout it is above its box, whatever it covers. */
function drawLabel(record, box, scale, side, layout = { taken: [], visible: [] }) {
  const text = labelText(box, side);
  const place = placeLabel(sidesOn(side, box), labelSize(text, scale), record, layout);
  return place && vector("g", { class: "label", "data-box": box }, ...labelParts(text, place, scale, boxColour(box)));
}
