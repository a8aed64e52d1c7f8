"use strict";

/* A wall of crops: every box by itself, in groups that begin with a tile for their name. */

const AROUND = 1.4; // side of a crop for each pixel of its box
const LEAST_SIDE = 24; // pixels of the picture
const THUMBNAIL = 320; // pixels of its longer side

const GROUPS = {
  class: ["Class", () => true, (box) => classNameOf(box)],
  track: [
    "Track",
    () => page.hasTracks,
    (box, record) => trackText(box) && `${trackText(box)}· ${baseName(record)}`,
  ],
  text: ["Text", () => boxColumns.text.size, (box) => boxColumns.text.get(box)],
};

/* The crops of the pictures that are shown: the largest group first, each in the chosen order. */
function wallItems() {
  const passes = boxTest();
  const [, , keys] = ORDERS[state.sort];
  const keyOf = keys ? keys() : () => 0;
  const groups = new Map();
  for (const record of shownRecords) {
    for (let box = record.firstBox; box < record.endBox; box += 1) {
      if (state.show === "marked" && !marks.has(idOf({ record, box })))
        continue;
      const name = passes(box) && GROUPS[state.group][2](box, record);
      if (!name) continue;
      if (!groups.has(name)) groups.set(name, []);
      const key = keyOf(box);
      // A label has no score.
      groups
        .get(name)
        .push({ record, box, key: Number.isNaN(key) ? Infinity : key });
    }
  }
  const largest = [...groups].sort(([, a], [, b]) => b.length - a.length);
  return largest.flatMap(([name, crops]) => [
    { name, count: crops.length },
    ...crops.sort(byKey),
  ]);
}

function cropTile({ name, count, record, box }) {
  if (name) {
    const title = element("bdi.name", { title: name }, name);
    return element("span.group", title, boxCountText(count));
  }
  const kind = page.kinds.length ? ` ${styleOf(box).name}` : "";
  const text = `${scoreText(boxColumns.score[box])} ${titleOf(box)}${kind}`;
  const title = `${labelText(box)}\n${displayName(record)}`;
  const frame = hasPicture(record)
    ? cropOf(record, box)
    : [placeholder("No picture")];
  return tileLink({ record, box }, { title }, frame, text, displayName(record));
}

/* A square around the box, within the picture as far as it fits; from the thumbnail where that is
   large enough. */
function cropOf(record, box) {
  const { width, height } = record;
  const [x1, y1, x2, y2] = coordinatesOf(box);
  const longer = Math.max(width, height);
  const side = Math.min(
    AROUND * Math.max(LEAST_SIDE, x2 - x1, y2 - y1),
    longer,
  );
  const from = (middle, room) =>
    side > room
      ? (room - side) / 2
      : Math.max(0, Math.min(middle - side / 2, room - side));
  const small =
    THUMBNAIL * side >= grid.width * window.devicePixelRatio * longer;
  const image = pictureImage(
    small ? thumbnailAddress(record) : pictureAddress(record),
  );
  const svg = overlay(
    record,
    ...cased(outline([x1, y1, x2, y2]), styleOf(box).colour),
  );
  const [left, top] = [from((x1 + x2) / 2, width), from((y1 + y2) / 2, height)];
  showPart(record, [image, svg], [left, top, side, side]);
  return [image, svg];
}
