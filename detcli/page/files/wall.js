"use strict";

/* A wall of crops: every box by itself, in groups that begin with a tile for their name. */

const AROUND = 1.4; // side of a crop for each pixel of its box
const MIN_SIDE = 24; // pixels of the image
const THUMBNAIL = 320; // pixels of its longer side

/* What crops can be grouped by: whether there is such a thing, the name of a box's group, and the
   name of the group of boxes that have no such thing, which is the last. */
const GROUPS = {
  class: {
    title: "Class",
    isAvailable: () => true,
    groupOf: (box) => classNameOf(box),
  },
  folder: {
    title: "Folder",
    isAvailable: () => page.folders.size > 1,
    groupOf: (box, record) => record.folder,
    without: "In no folder",
  },
  track: {
    title: "Track",
    isAvailable: () => page.hasTracks,
    groupOf: (box, record) =>
      trackText(box) && `${trackText(box)}· ${baseName(record)}`,
    without: "Without a track",
  },
  text: {
    title: "Text",
    isAvailable: () => boxColumns.text.size,
    groupOf: (box) => boxColumns.text.get(box),
    without: "Without a text",
  },
  none: {
    title: "Nothing",
    isAvailable: () => true,
    groupOf: () => "All",
  },
};

/* The crops of the images that are shown: the largest group first, each in the chosen order; without
   groups, all in that order. A group's tile is {name, count}, a crop {record, box, key}. */
function wallItems() {
  if (isRepeatsPage()) return repeatItems();
  const { makeKey } = ORDERS[state.sort];
  const keyOf = makeKey ? makeKey() : () => 0;
  const items = [];
  const groups = [...cropGroups(keyOf)];
  const { without } = GROUPS[state.group];
  const rank = ([name, crops]) => (name === without ? 0 : crops.length);
  groups.sort((groupA, groupB) => rank(groupB) - rank(groupA));
  for (const [name, crops] of groups) {
    if (state.group !== "none") items.push({ name, count: crops.length });
    for (const crop of crops.sort(byKey)) items.push(crop);
  }
  return items;
}

/* The crops of each group, by its name. */
function cropGroups(keyOf) {
  const passesFilter = boxTest();
  const { groupOf, without } = GROUPS[state.group];
  const onlyMarked = state.show === "marked";
  const groups = new Map();
  for (const record of shownRecords) {
    for (let box = record.firstBox; box < record.endBox; box += 1) {
      if (onlyMarked && !marks.has(idOf({ record, box }))) continue;
      if (!passesFilter(box)) continue;
      const name = groupOf(box, record) || without;
      if (!groups.has(name)) groups.set(name, []);
      const key = keyOf(box);
      const isUnknown = Number.isNaN(key); // an object of a label has no score
      groups.get(name).push({ record, box, key: isUnknown ? Infinity : key });
    }
  }
  return groups;
}

/* The tile of a group or a crop. */
function cropTile({ name, count, record, box }) {
  if (name) {
    const title = element("bdi.name", { title: name }, name);
    return element("span.group", title, boxCountText(count));
  }
  if (record.repeat) return repeatTile({ record, box });
  const kind = page.kinds.length ? ` ${styleOf(box).name}` : "";
  const score = scoreText(boxColumns.score[box]);
  const text = `${score} ${titleOf(box)}${kind}`;
  const pictureName = displayName(record);
  const title = `${labelText(box)}\n${pictureName}`;
  const frameParts = hasPicture(record)
    ? cropOf(record, box)
    : [placeholder("No image")];
  return tileLink({ record, box }, { title }, frameParts, text, pictureName);
}

/* A square around the box, within the image as far as it fits; from the thumbnail where that is
   large enough. */
function cropOf(record, box) {
  const { width, height } = record;
  const [x1, y1, x2, y2] = coordinatesOf(box);
  const longerSide = Math.max(width, height);
  const boxSide = Math.max(MIN_SIDE, x2 - x1, y2 - y1);
  const side = Math.min(AROUND * boxSide, longerSide);
  const left = cropStart((x1 + x2) / 2, side, width);
  const top = cropStart((y1 + y2) / 2, side, height);

  const tilePixels = grid.tileWidth * window.devicePixelRatio;
  const thumbnailPixels = (THUMBNAIL * side) / longerSide; // of the crop
  const isThumbnailEnough = thumbnailPixels >= tilePixels;
  const image = isThumbnailEnough
    ? thumbnailImage(record)
    : pictureImage(pictureAddress(record));
  const path = outline([x1, y1, x2, y2]);
  const svg = overlay(record, ...cased(path, styleOf(box).colour));
  if (boxColumns.repeated.has(box)) svg.classList.add("repeated");
  showPart(record, [image, svg], [left, top, side, side]);
  return [image, svg];
}

/* Where a crop around a middle begins along one axis: in the image, or around all of it. */
function cropStart(middle, side, pictureLength) {
  if (side > pictureLength) return (pictureLength - side) / 2;
  return Math.max(0, Math.min(middle - side / 2, pictureLength - side));
}
