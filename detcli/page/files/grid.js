"use strict";

/* Pictures, or crops of them. Only tiles near the visible part exist, however many there are. */

const GAP = 12;
const OVERSCAN = 2; // rows above and below
const PAUSE = 120; // milliseconds between screens that are drawn while the bar is dragged
const MAX_HEIGHT = 15e6; // pixels; browsers cannot scroll further

/* What each view has in the grid: the least width of a tile where the window has room, the least
   number of columns, the height of a picture for its width, and pixels for its caption. */
const LAYOUTS = {
  pictures: {
    width: 210,
    columns: 2,
    shape: 0.75,
    caption: 50,
    items: () => shownRecords,
  },
  wall: {
    width: 120,
    columns: 3,
    shape: 1,
    caption: 44,
    items: () => wallItems(),
  },
};

const grid = {
  items: [],
  tiles: new Map(), // by place among the shown
  columns: 1,
  width: 0,
  rowHeight: 1,
  images: new Map(), // of the tiles before, by address: they need not be decoded again
  top: 0, // of the window when tiles were drawn last, and when that was
  time: 0,
  currentIndex: 0, // place that the keyboard is at
};

function layOut() {
  const room = byId("grid").clientWidth;
  if (!room || !LAYOUTS[state.view]) return;
  const { width, columns, shape, caption } = LAYOUTS[state.view];
  grid.columns = Math.max(columns, Math.floor((room + GAP) / (width + GAP)));
  grid.width = (room - GAP * (grid.columns - 1)) / grid.columns;
  grid.rowHeight = Math.round(grid.width * shape) + caption + GAP;
  const rows = Math.ceil(grid.items.length / grid.columns);
  byId("grid").style.height =
    `${Math.min(rows * grid.rowHeight, MAX_HEIGHT)}px`;
}

/* Lays out anew, after the filter or the window has changed. */
function refreshGrid() {
  const focused = hasFocus(byId("grid"));
  grid.images.clear();
  for (const tile of grid.tiles.values()) {
    const image = tile.querySelector("img:not([style])"); // those of crops have a place
    if (image) grid.images.set(image.getAttribute("src"), image);
    tile.remove();
  }
  grid.tiles.clear();
  grid.currentIndex = Math.max(
    0,
    Math.min(grid.currentIndex, grid.items.length - 1),
  );
  layOut();
  drawTiles();
  if (focused)
    grid.tiles
      .get(grid.currentIndex)
      ?.firstChild.focus({ preventScroll: true });
}

const scheduleTiles = onceAFrame(() => {
  const far = Math.abs(window.scrollY - grid.top) > window.innerHeight;
  if (far && performance.now() - grid.time < PAUSE)
    scheduleTiles(); // the bar is being dragged
  else drawTiles();
});

function visiblePlaces() {
  const top = -byId("grid").getBoundingClientRect().top;
  const first = Math.floor(top / grid.rowHeight) - OVERSCAN;
  const last =
    Math.ceil((top + window.innerHeight) / grid.rowHeight) + OVERSCAN;
  return [
    Math.max(0, first * grid.columns),
    Math.min(
      grid.items.length,
      Math.max(0, last * grid.columns),
      lastPlace() + 1,
    ),
  ];
}

function lastPlace() {
  return (
    Math.min(
      grid.items.length,
      Math.floor(MAX_HEIGHT / grid.rowHeight) * grid.columns,
    ) - 1
  );
}

function drawTiles() {
  if (byId("view-pictures").hidden) return;
  Object.assign(grid, { top: window.scrollY, time: performance.now() });
  const [first, end] = visiblePlaces();
  for (const [place, tile] of grid.tiles) {
    const focused = place === grid.currentIndex && hasFocus(tile);
    if ((place < first || place >= end) && !focused) {
      tile.remove();
      grid.tiles.delete(place);
    }
  }
  for (let place = first; place < end; place += 1) addTile(place);
}

function addTile(place) {
  if (grid.tiles.has(place)) return;
  grid.tiles.set(place, makeTile(grid.items[place], place));
  byId("grid").append(grid.tiles.get(place));
}

function makeTile(item, place) {
  const [row, column] = [
    Math.floor(place / grid.columns),
    place % grid.columns,
  ];
  const content = state.view === "wall" ? cropTile(item) : pictureTile(item);
  content.tabIndex = place === grid.currentIndex ? 0 : -1;
  return element(
    "div",
    {
      class: "tile",
      role: "listitem",
      "aria-posinset": place + 1,
      "aria-setsize": grid.items.length,
      style: {
        width: `${grid.width}px`,
        height: `${grid.rowHeight - GAP}px`,
        transform: `translate(${column * (grid.width + GAP)}px, ${row * grid.rowHeight}px)`,
      },
    },
    content,
    item.name ? undefined : markButtons(item, -1),
  );
}

function pictureTile(record) {
  const [name, found] = [displayName(record), tally(record)];
  const image = hasPicture(record)
    ? thumbnail(record)
    : placeholder("No picture");
  const frame = record.width ? [image, drawThumbnail(record)] : [image];
  const tile = tileLink(
    record,
    { "aria-label": `${name} ${found}` },
    frame,
    name,
    found,
  );
  tile.querySelector(".name").title = record.source;
  if (record.warnings.length) {
    tile.append(
      element("span.badge", { title: record.warnings.join("\n") }, "!"),
    );
  }
  return tile;
}

function tileLink(item, attributes, frame, name, text) {
  return element(
    "a",
    { href: linkTo(item), ...attributes },
    element("span.frame", ...frame),
    element(
      "span.caption",
      element("bdi.name", name),
      " ",
      element("bdi.quiet", text),
    ),
  );
}

function thumbnail(record) {
  const source = thumbnailAddress(record);
  const before = grid.images.get(source);
  grid.images.delete(source);
  return before || pictureImage(source);
}

/* "3 person, 2 car" for the boxes that are shown. */
function tally(record) {
  const names = [
    ...frequencies(shownBoxes(record).map((box) => styleOf(box).name)),
  ];
  if (!names.length) return "nothing found";
  const first = names.slice(0, 3).map(([name, count]) => `${count} ${name}`);
  return (
    first.join(", ") + (names.length > 3 ? ` and ${names.length - 3} more` : "")
  );
}

/* Brings a place into view, and gives it the keyboard. */
function focusTile(place) {
  if (!grid.items.length) return;
  grid.tiles.get(grid.currentIndex)?.firstChild.setAttribute("tabindex", -1);
  grid.currentIndex = Math.max(0, Math.min(place, lastPlace()));
  addTile(grid.currentIndex);
  const tile = grid.tiles.get(grid.currentIndex);
  tile.scrollIntoView({ block: "nearest" });
  tile.firstChild.tabIndex = 0;
  tile.firstChild.focus({ preventScroll: true });
  drawTiles();
}

/* The tile of a picture: the one that has the keyboard, or the first. */
function placeOf(record) {
  const shows = (item) => item === record || item?.record === record;
  return shows(grid.items[grid.currentIndex])
    ? grid.currentIndex
    : grid.items.findIndex(shows);
}
