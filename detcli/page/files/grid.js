"use strict";

/* Images, or crops of them. Only tiles near the visible part exist, however many there are. */

const GAP = 12;
const OVERSCAN_ROWS = 2; // above and below
const DRAG_PAUSE_MS = 120; // between screens that are drawn while the bar is dragged
const LETTER_WIDTH = 7; // pixels, in captions
const MAX_CAPTION_LINES = 6; // of boxes
const MAX_HEIGHT = 15e6; // pixels; browsers cannot scroll further

/* What each view has in the grid. */
const LAYOUTS = {
  pictures: {
    minWidth: 210, // of a tile, where the window has room
    minColumns: 2,
    heightPerWidth: 0.75, // of the image
    items: () => shownRecords,
  },
  wall: {
    minWidth: 120,
    minColumns: 3,
    heightPerWidth: 1,
    items: () => wallItems(),
  },
};

const grid = {
  items: [], // records; on the wall crops and names of groups, see wallItems()
  tiles: new Map(), // by index of the item
  columns: 1,
  tileWidth: 0,
  rowHeight: 1,
  images: new Map(), // of the tiles before, by name: they need not be decoded again
  drawnScrollY: 0, // of the window when tiles were drawn last, and when that was
  drawnTimeMs: 0,
  currentIndex: 0, // of the item that the keyboard is at
};

/* Of a caption, in pixels: a name, the folder of an image if there are several, and the boxes of an
   image. In a comparison, kinds have the names of models, which take more lines: two kinds of an
   image, one of a crop. */
function captionHeight() {
  const isWall = state.view === "wall";
  let lineCount = 2;
  if (page.kinds.length) {
    const nameLengths = page.kinds.map(({ name }) => name.length);
    const longest = Math.max(...nameLengths);
    const letterCount = isWall ? longest + 20 : 2 * longest + 30;
    const roomForText = grid.tileWidth - 20;
    const neededLines = Math.ceil((LETTER_WIDTH * letterCount) / roomForText);
    lineCount = 1 + Math.min(MAX_CAPTION_LINES, neededLines);
  }
  if (isWall) return 8 + 18 * lineCount;
  if (page.folders.size > 1) lineCount += 1;
  return 12 + 19 * lineCount;
}

/* Fits columns and rows to the room that there is. */
function layOut() {
  const roomWidth = byId("grid").clientWidth;
  const layout = LAYOUTS[state.view];
  if (!roomWidth || !layout) return;
  const fittingColumns = Math.floor(
    (roomWidth + GAP) / (layout.minWidth + GAP),
  );
  grid.columns = Math.max(layout.minColumns, fittingColumns);
  grid.tileWidth = (roomWidth - GAP * (grid.columns - 1)) / grid.columns;
  const pictureHeight = Math.round(grid.tileWidth * layout.heightPerWidth);
  const heightOfCaption = captionHeight();
  byId("view-pictures").style.setProperty("--caption", `${heightOfCaption}px`);
  grid.rowHeight = pictureHeight + heightOfCaption + GAP;
  const rowCount = Math.ceil(grid.items.length / grid.columns);
  const height = Math.min(rowCount * grid.rowHeight, MAX_HEIGHT);
  byId("grid").style.height = `${height}px`;
}

/* Lays out anew, after the filter or the window has changed. */
function refreshGrid() {
  const hadFocus = hasFocus(byId("grid"));
  grid.images.clear();
  for (const tile of grid.tiles.values()) {
    const image = tile.querySelector("img[src]:not([style])"); // those of crops have a position
    if (image) grid.images.set(image.dataset.name, image);
    tile.remove();
  }
  grid.tiles.clear();
  const lastItem = grid.items.length - 1;
  grid.currentIndex = Math.max(0, Math.min(grid.currentIndex, lastItem));
  layOut();
  drawTiles();
  if (!hadFocus) return;
  const currentTile = grid.tiles.get(grid.currentIndex);
  currentTile?.firstChild.focus({ preventScroll: true });
}

const scheduleTiles = onceAFrame(() => {
  const scrolled = Math.abs(window.scrollY - grid.drawnScrollY);
  const elapsedMs = performance.now() - grid.drawnTimeMs;
  const isDragging = scrolled > window.innerHeight; // the bar, not the wheel
  if (isDragging && elapsedMs < DRAG_PAUSE_MS) scheduleTiles();
  else drawTiles();
});

/* The indices of the items near the window: from the first to before the last. */
function visibleRange() {
  const top = -byId("grid").getBoundingClientRect().top;
  const bottom = top + window.innerHeight;
  const firstRow = Math.floor(top / grid.rowHeight) - OVERSCAN_ROWS;
  const endRow = Math.ceil(bottom / grid.rowHeight) + OVERSCAN_ROWS;
  const first = Math.max(0, firstRow * grid.columns);
  const end = Math.max(0, endRow * grid.columns);
  return [first, Math.min(end, lastReachable() + 1)];
}

/* The index of the last item that can be scrolled to. */
function lastReachable() {
  const rows = Math.floor(MAX_HEIGHT / grid.rowHeight);
  return Math.min(grid.items.length, rows * grid.columns) - 1;
}

/* Makes the tiles near the window and removes all others, but for the one that has the focus. */
function drawTiles() {
  if (byId("view-pictures").hidden) return;
  grid.drawnScrollY = window.scrollY;
  grid.drawnTimeMs = performance.now();
  const [first, end] = visibleRange();
  for (const [index, tile] of grid.tiles) {
    const isNear = index >= first && index < end;
    const isFocused = index === grid.currentIndex && hasFocus(tile);
    if (!isNear && !isFocused) {
      tile.remove();
      grid.tiles.delete(index);
    }
  }
  for (let index = first; index < end; index += 1) addTile(index);
}

function addTile(index) {
  if (grid.tiles.has(index)) return;
  const tile = makeTile(grid.items[index], index);
  grid.tiles.set(index, tile);
  byId("grid").append(tile);
}

function makeTile(item, index) {
  const row = Math.floor(index / grid.columns);
  const column = index % grid.columns;
  const x = column * (grid.tileWidth + GAP);
  const y = row * grid.rowHeight;
  const content = state.view === "wall" ? cropTile(item) : pictureTile(item);
  content.tabIndex = index === grid.currentIndex ? 0 : -1;
  const isGroup = Boolean(item.name);
  return element(
    "div",
    {
      class: "tile",
      role: "listitem",
      "aria-posinset": index + 1,
      "aria-setsize": grid.items.length,
      style: {
        width: `${grid.tileWidth}px`,
        height: `${grid.rowHeight - GAP}px`,
        transform: `translate(${x}px, ${y}px)`,
      },
    },
    content,
    isGroup ? undefined : markButtons(item, -1),
  );
}

function pictureTile(record) {
  const name = displayName(record);
  const tallyText = tally(record);
  const image = hasPicture(record)
    ? tileImage(record)
    : placeholder("No image");
  const frameParts = [image];
  if (record.width) frameParts.push(drawThumbnail(record));
  const hasFolders = page.folders.size > 1;
  const folderName = hasFolders ? lastFolders(record.folder) || "-" : "";
  const label = [name, folderName, tallyText].filter(Boolean).join(" ");
  const attributes = { "aria-label": label };
  const tile = tileLink(record, attributes, frameParts, name, tallyText);
  tile.querySelector(".name").title = record.source;
  if (hasFolders)
    tile.querySelector(".name").after(" ", element("bdi.folder", folderName));
  if (record.warnings.length) {
    const title = record.warnings.join("\n");
    tile.append(element("span.badge", { title }, "!"));
  }
  return tile;
}

/* A link that opens a record or a crop: parts in a frame, and a name and a text below. */
function tileLink(item, attributes, frameParts, name, text) {
  return element(
    "a",
    { href: linkTo(item), ...attributes },
    element("span.frame", ...frameParts),
    element(
      "span.caption",
      element("bdi.name", name),
      " ",
      element("bdi.quiet", text),
    ),
  );
}

/* A thumbnail; the image of an earlier tile, if there is one. */
function tileImage(record) {
  const earlierImage = grid.images.get(record.picture);
  grid.images.delete(record.picture);
  return earlierImage || thumbnailImage(record);
}

/* "3 person, 2 car" for the boxes that are shown. */
function tally(record) {
  const names = shownBoxes(record).map((box) => styleOf(box).name);
  const counts = [...frequencies(names)];
  if (!counts.length) return "nothing found";
  const texts = counts.slice(0, 3).map(([name, count]) => `${count} ${name}`);
  const text = texts.join(", ");
  if (counts.length <= 3) return text;
  return `${text} and ${counts.length - 3} more`;
}

/* Brings an item into view, and gives it the keyboard. */
function focusTile(index) {
  if (!grid.items.length) return;
  const earlierTile = grid.tiles.get(grid.currentIndex);
  earlierTile?.firstChild.setAttribute("tabindex", -1);
  grid.currentIndex = Math.max(0, Math.min(index, lastReachable()));
  addTile(grid.currentIndex);
  const tile = grid.tiles.get(grid.currentIndex);
  tile.scrollIntoView({ block: "nearest" });
  tile.firstChild.tabIndex = 0;
  tile.firstChild.focus({ preventScroll: true });
  drawTiles();
}

/* The index of the tile that shows a record: of the one that has the keyboard, or the first. */
function tileIndexOf(record) {
  const showsRecord = (item) => item === record || item?.record === record;
  if (showsRecord(grid.items[grid.currentIndex])) return grid.currentIndex;
  return grid.items.findIndex(showsRecord);
}
