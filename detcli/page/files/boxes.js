"use strict";

/* Boxes over an image, as vectors. */

const TILE_BOXES = 100; // drawn on a thumbnail; the best come first

/* Name and colours of what a box is: of its kind in a comparison, or else of its class. All boxes of
   a kind or class have the same object. */
function groupStyleOf(box) {
  if (page.kinds.length) return page.kinds[boxColumns.kindNumber[box]];
  return page.classes[boxColumns.classNumber[box]];
}

/* Name and colours of a box: those of its kind or class, in the colours of its track if it has
   one. Each call for a tracked box makes an object of its own. */
function styleOf(box) {
  const groupStyle = groupStyleOf(box);
  const track = boxColumns.track[box];
  if (page.kinds.length || track === 0) return groupStyle;
  const { palette } = page.lastRun;
  const trackColours = palette[(track - 1) % palette.length];
  const [colour, ink] = trackColours || ["#888", "#000"]; // without a number yet
  return { ...groupStyle, colour, ink };
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

/* x1, y1, x2 and y2 of a box, in pixels of the image. */
function coordinatesOf(box) {
  return boxColumns.coordinates.slice(4 * box, 4 * box + 4);
}

/* Where one side of a comparison has a box. */
function coordinatesOn(side, box) {
  const counterpart = boxColumns.counterpart.get(box);
  if (side !== 1 || !counterpart) return coordinatesOf(box);
  return counterpart.slice(1);
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

/* A sentence in place of an image. */
function placeholder(text) {
  return element("span.missing", text);
}

/* An image, without a source one that gets it later; a sentence takes its place if it cannot be
   shown. */
function pictureImage(source, attributes = {}) {
  const image = element("img", {
    alt: "",
    decoding: "async",
    draggable: "false",
    ...attributes,
  });
  image.onerror = () =>
    image.replaceWith(placeholder("The image cannot be shown"));
  if (source) image.src = source;
  return image;
}

function pictureAddress(record) {
  return (
    record.original ||
    inlinedAddress(record) ||
    `pictures/${record.picture}.jpg`
  );
}

/* The image of a record as the page itself has it, in one size; undefined if it is in files. */
function inlinedAddress({ picture }) {
  const data = inlined.images[picture];
  return data && jpegAddress(data);
}

function jpegAddress(data) {
  return `data:image/jpeg;base64,${data}`;
}

/* Shows a part of an image, and what is drawn over it, in all of the room that they have. */
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

/* A small square in the colour of a class or a kind. */
function swatch({ colour, isDashed }) {
  return element("span", {
    class: isDashed ? "swatch dashed" : "swatch",
    style: { color: colour },
  });
}

/* The boxes of a thumbnail: one path for each colour. */
function drawThumbnail(record) {
  const svg = overlay(record, ...drawIgnored(record));
  const paths = new Map();
  for (const box of shownBoxes(record).slice(0, TILE_BOXES)) {
    const { colour } = styleOf(box);
    const key = boxColumns.repeated.has(box) ? `${colour} dim` : colour;
    const path = paths.get(key) || "";
    paths.set(key, path + outline(coordinatesOf(box)));
  }

  for (const [key, path] of paths) {
    const [colour, isDim] = key.split(" ");
    const parts = cased(path, colour);
    svg.append(vector(isDim ? "g.repeated" : "g", ...parts));
  }
  return svg;
}

/* The boxes of a large image, with labels whose size does not depend on the image's.
   `scale` is in CSS pixels for each pixel of the image; `side` of a comparison, or undefined. */
function drawLarge(record, boxes, scale, side) {
  const svg = overlay(record, ...drawIgnored(record));
  if (side !== undefined) svg.dataset.side = side;
  const boxesOfSide = boxes.filter((box) => isOnSide(side, box));
  const layout = newLayout(
    boxesOfSide.map((box) => inPicture(coordinatesOn(side, box), record)),
  );

  const labels = vector("g");
  for (const shape of page.runs[record.runNumber].shapes) {
    const { lines, caption } = drawShape(record, shape, scale, layout);
    svg.append(lines);
    labels.append(caption);
  }
  for (const box of [...boxesOfSide].reverse()) {
    svg.append(drawBox(box, side)); // the best on top
  }
  if (state.labels === "on") {
    for (const box of boxesOfSide) {
      const label = drawLabel(record, box, scale, side, layout);
      if (label) labels.append(label);
    }
  }
  svg.append(labels);
  return svg;
}

/* Whether a side of a comparison has a box; without a side all boxes are drawn. */
function isOnSide(side, box) {
  if (side === undefined) return true;
  const onlySide = styleOf(box).side ?? side;
  return onlySide === side;
}

/* A box with its counterpart, if both sides are drawn together, and with the outline of a symbol. */
function drawBox(box, side) {
  const { colour, isDashed } = styleOf(box);
  const parts = cased(outline(coordinatesOn(side, box)), colour);
  const counterpart = boxColumns.counterpart.get(box);
  if (counterpart && side === undefined) {
    const path = outline(counterpart.slice(1));
    parts.push(vector("path", { d: path, stroke: colour, class: "other" }));
  }
  const corners = boxColumns.symbolCorners.get(box);
  if (corners) {
    const path = `M${corners.join("L")}Z`;
    parts.push(vector("path", { d: path, stroke: colour, class: "symbol" }));
  }
  let boxClass = isDashed ? "box dashed" : "box";
  if (boxColumns.repeated.has(box)) boxClass += " repeated";
  return vector("g", { class: boxClass, "data-box": box }, ...parts);
}

/* The polygons of an image in which nothing counts: dim, without a caption. */
function drawIgnored(record) {
  const { ignoredPolygons } = page.runs[record.runNumber];
  return record.ignored.map((number) => {
    const corners = cornersOf(ignoredPolygons[number], record);
    return vector("path.ignored", { d: `${polyline(corners)}Z` });
  });
}

/* The points of a zone, a line or an ignored polygon in pixels of an image. */
function cornersOf({ isFractional, coordinates }, record) {
  const unitX = isFractional ? record.width : 1;
  const unitY = isFractional ? record.height : 1;
  const points = [];
  for (let index = 0; index < coordinates.length; index += 2) {
    const x = unitX * coordinates[index];
    const y = unitY * coordinates[index + 1];
    points.push([x, y]);
  }
  return points;
}

/* A zone, or a line with an arrow, and its caption at the highest point that is in the image. */
function drawShape(record, shape, scale, layout) {
  const { name, colour } = shape;
  const points = cornersOf(shape, record);

  let path = polyline(points);
  let text = name;
  if (points.length > 2) {
    const isInZone = (box) => boxColumns.zones.get(box)?.includes(name);
    path += "Z";
    text += ` ${shownBoxes(record, isInZone).length}`;
  } else {
    path += arrow(points, 12 / scale);
  }

  const [width, height] = labelSize(text, scale);
  const [x, y] = highestOf(points);
  const left = Math.max(0, Math.min(x, record.width - width));
  const top = Math.max(0, Math.min(y, record.height - height));
  layout.labels.push([left, top, left + width, top + height]);
  const caption = labelParts(text, [left, top], scale, shape);
  return {
    lines: vector("g.place", ...cased(path, colour)),
    caption: vector("g.place", ...caption),
  };
}

/* The first of the highest points. */
function highestOf(points) {
  let highest = points[0];
  for (const point of points) {
    if (point[1] < highest[1]) highest = point;
  }
  return highest;
}

/* The head of an arrow at the end of a line. */
function arrow([[x1, y1], [x2, y2]], headSize) {
  const length = Math.hypot(x2 - x1, y2 - y1);
  // From the tip, each half of the head goes back along the line, and half as far to its side.
  const backX = (headSize * (x2 - x1)) / length;
  const backY = (headSize * (y2 - y1)) / length;
  const start = `${x2 - backX - backY / 2} ${y2 - backY + backX / 2}`;
  const end = `${x2 - backX + backY / 2} ${y2 - backY - backX / 2}`;
  return `M${start}L${x2} ${y2}L${end}`;
}

const MEASURE = document.createElement("canvas").getContext("2d");
MEASURE.font = "600 12px system-ui, sans-serif";

function labelText(box, side) {
  const counterpart = boxColumns.counterpart.get(box);
  let score = boxColumns.score[box];
  if (side === 1 && counterpart) score = counterpart[0];
  const parts = [trackText(box) + shortened(classNameOf(box))];
  if (score !== null && score >= 0) parts.push(score.toFixed(2)); // an object of a label has none
  for (const column of [boxColumns.classified, boxColumns.text]) {
    if (column.has(box)) parts.push(shortened(column.get(box)));
  }
  return parts.join(" ");
}

function shortened(text) {
  return text.length > 40 ? `${text.slice(0, 39)}…` : text;
}

/* Width and height of a label, in pixels of the image. */
function labelSize(text, scale) {
  const textWidth = MEASURE.measureText(text).width;
  return [(textWidth + 10) / scale, 18 / scale];
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
   2 at its last, 3 behind. As in sink/label_layout.py, by which --save draws. */
const LABEL_POSITIONS = [
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

/* What labels must leave to be seen: the labels before them, and enough of each of the boxes. */
function newLayout(boxes) {
  return { labels: [], boxes, coveredAreas: boxes.map(() => 0) };
}

/* The part of a box that is in the image. */
function inPicture([x1, y1, x2, y2], { width, height }) {
  const clampX = (x) => Math.max(0, Math.min(x, width));
  const clampY = (y) => Math.max(0, Math.min(y, height));
  return [clampX(x1), clampY(y1), clampX(x2), clampY(y2)];
}

function commonArea([x1, y1, x2, y2], [left, top, right, bottom]) {
  const width = Math.min(x2, right) - Math.max(x1, left);
  const height = Math.min(y2, bottom) - Math.max(y1, top);
  return Math.max(0, width) * Math.max(0, height);
}

/* The left top corner of a label over no other one, which leaves all boxes to be seen; null if
   there is none. */
function placeLabel([x1, y1, x2, y2], [width, height], record, layout) {
  if (width > record.width || height > record.height) return null;
  const columns = labelStarts(x1, x2, width, record.width);
  const rows = labelStarts(y1, y2, height, record.height);
  for (const [column, row] of LABEL_POSITIONS) {
    const left = columns[column];
    const top = rows[row];
    if (addToLayout(layout, [left, top, left + width, top + height]))
      return [left, top];
  }
  return null;
}

/* Where a label may begin along one axis: before the box, at its first side, at its last, behind
   it; always in the image. */
function labelStarts(from, to, labelLength, pictureLength) {
  const starts = [from - labelLength, from, to - labelLength, to];
  return starts.map((start) =>
    Math.max(0, Math.min(start, pictureLength - labelLength)),
  );
}

/* Adds a label to a layout if it covers no other one, and not too much of any box; returns whether
   it has. */
function addToLayout({ labels, boxes, coveredAreas }, label) {
  if (labels.some((otherLabel) => commonArea(label, otherLabel))) return false;
  const addedAreas = boxes.map((box) => commonArea(label, box));
  for (const [index, box] of boxes.entries()) {
    if (!addedAreas[index]) continue;
    const coveredArea = coveredAreas[index] + addedAreas[index];
    if (coveredArea > COVER * commonArea(box, box)) return false;
  }

  labels.push(label);
  for (const [index, addedArea] of addedAreas.entries())
    coveredAreas[index] += addedArea;
  return true;
}

/* Null if nothing fits; without a layout, the label goes above its box and may cover others. */
function drawLabel(record, box, scale, side, layout = newLayout([])) {
  const text = labelText(box, side);
  const size = labelSize(text, scale);
  const start = placeLabel(coordinatesOn(side, box), size, record, layout);
  if (start === null) return null;
  const parts = labelParts(text, start, scale, styleOf(box));
  const isRepeated = boxColumns.repeated.has(box);
  const labelClass = isRepeated ? "g.label.repeated" : "g.label";
  return vector(labelClass, { "data-box": box }, ...parts);
}
