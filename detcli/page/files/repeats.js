"use strict";

/* A page of repeats: each record stands for a group of boxes of one class at one place of a camera,
   and shows one of them. A mark on it is a mark on the group. */

function isRepeatsPage() {
  return Boolean(page.lastRun?.repeats);
}

/* The tiles of the wall, without headings: the groups in the chosen order. */
function repeatItems() {
  const passesFilter = boxTest();
  const items = [];
  for (const record of shownRecords) {
    const box = record.firstBox;
    if (record.repeat && passesFilter(box)) items.push({ record, box });
  }
  return items;
}

/* "412 images", of a group. */
function repeatCountText({ imageCount }) {
  return countText(imageCount, "image");
}

/* Where a group is, and its first and last image. */
function repeatPlaceText({ place, firstName, lastName }) {
  return `${place}: ${firstName} to ${lastName}`;
}

/* The same for a tile, where a long path would leave no room for the images. */
function shortPlaceText(repeat) {
  return repeatPlaceText({ ...repeat, place: lastFolders(repeat.place) });
}

/* All that is known of a group, for the viewer. */
function repeatText(repeat) {
  const boxText = boxCountText(repeat.boxCount);
  const countsText = `${repeatCountText(repeat)}, ${boxText}`;
  return `Group ${repeat.number}: ${countsText} · ${repeatPlaceText(repeat)}`;
}

/* The tile of a group: a crop around its box. */
function repeatTile({ record, box }) {
  const { repeat } = record;
  const name = `${repeatCountText(repeat)} · ${classNameOf(box)}`;
  const frameParts = hasPicture(record)
    ? cropOf(record, box)
    : [placeholder("No image")];
  const title = `${name}\n${repeatText(repeat)}`;
  const placeText = shortPlaceText(repeat);
  const item = { record, box };
  return tileLink(item, { title }, frameParts, name, placeText);
}

/* The fields of a mark on a group, as `--apply` takes them. */
function repeatMark(mark, record) {
  const { number, place, boxFractions } = record.repeat;
  return {
    mark,
    source: place,
    repeated: number,
    class_name: classNameOf(record.firstBox),
    box_fractions: boxFractions,
  };
}

/* "12 groups of repeated boxes", of the whole page. A box may be in several. */
function repeatsTitleText() {
  return `${countText(page.records.length, "group")} of repeated boxes`;
}

/* What is usual on such a page: crops, without a choice of groups, and marks for `--apply` only, as
   lists of files would have one image of each group. */
function startRepeats() {
  if (!isRepeatsPage()) return;
  ADDRESS_KEYS.view.initial = "wall";
  Object.assign(LAYOUTS.wall, { minWidth: 230, minColumns: 1 }); // for longer captions
  for (const option of byId("hand-as").querySelectorAll("option"))
    if (option.value !== "json") option.remove();
  byId("hand-of").querySelector("[value=shown]").remove();
  readAddress();
}
