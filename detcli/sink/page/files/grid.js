"use strict";

/* Pictures, or crops of them. Only tiles near the visible part exist, however many pictures there are. */

const GAP = 12;
const OVERSCAN = 2; // rows above and below
const PAUSE = 120; // milliseconds between screens that are drawn while the bar is dragged
const MAX_HEIGHT = 15e6; // pixels; browsers cannot scroll further

/* What each view has in the grid: the least width of a tile where the window has room, the least
   number of columns, the height of a picture for its width, and pixels for its caption. */
const LAYOUTS = {
  pictures: { width: 210, columns: 2, shape: 0.75, caption: 50, items: () => shown, fill: pictureTile },
  wall: { width: 120, columns: 3, shape: 1, caption: 44, items: () => wallItems(), fill: (item) => cropTile(item) },
};

const grid = {
  items: [],
  tiles: new Map(), // by place among the shown
  columns: 1,
  width: 0,
  rowHeight: 1,
  images: new Map(), // of the tiles before, by address: they need not be decoded again
  scheduled: false,
  top: 0, // of the window when tiles were drawn last, and when that was
  time: 0,
  current: 0, // place that the keyboard is at
};

function layOut() {
  const room = byId("grid").clientWidth;
  if (!room || !LAYOUTS[state.view]) return;
  const { width, columns, shape, caption } = LAYOUTS[state.view];
  grid.columns = Math.max(columns, Math.floor((room + GAP) / (width + GAP)));
  grid.width = (room - GAP * (grid.columns - 1)) / grid.columns;
  grid.rowHeight = Math.round(grid.width * shape) + caption + GAP;
  const rows = Math.ceil(grid.items.length / grid.columns);
  byId("grid").style.height = `${Math.min(rows * grid.rowHeight, MAX_HEIGHT)}px`;
}

/* Lays out anew, after the filter or the window has changed. */
function refreshGrid() {
  const focused = byId("grid").contains(document.activeElement);
  grid.images.clear();
  for (const tile of grid.tiles.values()) {
    const image = tile.querySelector("img");
    if (image) grid.images.set(image.getAttribute("src"), image);
    tile.remove();
  }
  grid.tiles.clear();
  grid.current = Math.max(0, Math.min(grid.current, grid.items.length - 1));
  layOut();
  drawTiles();
  if (focused) grid.tiles.get(grid.current)?.firstChild.focus({ preventScroll: true });
}

function scheduleTiles() {
  if (grid.scheduled) return;
  grid.scheduled = true;
  requestAnimationFrame(() => {
    grid.scheduled = false;
    const far = Math.abs(window.scrollY - grid.top) > window.innerHeight;
    if (far && performance.now() - grid.time < PAUSE) scheduleTiles(); // the bar is being dragged
    else drawTiles();
  });
}

function visiblePlaces() {
  const top = -byId("grid").getBoundingClientRect().top;
  const first = Math.floor(top / grid.rowHeight) - OVERSCAN;
  const last = Math.ceil((top + window.innerHeight) / grid.rowHeight) + OVERSCAN;
  return [
    Math.max(0, first * grid.columns),
    Math.min(grid.items.length, Math.max(0, last * grid.columns), lastPlace() + 1),
  ];
}

function lastPlace() {
  return Math.min(grid.items.length, Math.floor(MAX_HEIGHT / grid.rowHeight) * grid.columns) - 1;
}

function drawTiles() {
  if (byId("view-pictures").hidden) return;
  Object.assign(grid, { top: window.scrollY, time: performance.now() });
  const [first, end] = visiblePlaces();
  for (const [place, tile] of grid.tiles) {
    const focused = place === grid.current && tile.contains(document.activeElement);
    if ((place < first || place >= end) && !focused) {
      tile.remove();
      grid.tiles.delete(place);
    }
  }
  const fresh = document.createDocumentFragment();
  for (let place = first; place < end; place += 1) {
    if (!grid.tiles.has(place)) {
      const tile = makeTile(grid.items[place], place);
      grid.tiles.set(place, tile);
      fresh.append(tile);
    }
  }
  byId("grid").append(fresh);
}

function makeTile(item, place) {
  const [row, column] = [Math.floor(place / grid.columns), place % grid.columns];
  const content = LAYOUTS[state.view].fill(item);
  content.tabIndex = place === grid.current ? 0 : -1;
  return element("div", {
    class: "tile",
    role: "listitem",
    "aria-posinset": place + 1,
    "aria-setsize": grid.items.length,
    style: {
      width: `${grid.width}px`,
      height: `${grid.rowHeight - GAP}px`,
      transform: `translate(${column * (grid.width + GAP)}px, ${row * grid.rowHeight}px)`,
    },
  }, content, item.name ? undefined : markButtons(markKey(item), -1));
}

function pictureTile(record) {
  const frame = element("span", { class: "frame" });
  if (hasPicture(record)) frame.append(thumbnail(record));
  else frame.append(element("span", { class: "missing" }, "No picture"));
  if (record.width) frame.append(drawThumbnail(record));
  const caption = element(
    "span",
    { class: "caption" },
    element("bdi", { class: "name", title: record.source }, nameOf(record)),
    " ",
    element("span", { class: "quiet" }, tally(record)),
  );
  const badge = record.warnings.length
    ? element("span", { class: "badge", title: record.warnings.join("\n") }, "!")
    : undefined;
  return element("a", {
    href: addressOf({ picture: String(record.number) }),
    "aria-label": `${nameOf(record)} ${tally(record)}`,
  }, frame, caption, badge);
}

function thumbnail(record) {
  const source = `thumbnails/${record.file}.jpg`;
  const before = grid.images.get(source);
  if (before) {
    grid.images.delete(source);
    return before;
  }
  const image = element("img", { alt: "", decoding: "async", draggable: "false" });
  image.addEventListener("error", () => {
    image.replaceWith(element("span", { class: "missing" }, "The picture cannot be shown"));
  });
  image.src = source;
  return image;
}

/* "3 person, 2 car" for the boxes that are shown. */
function tally(record) {
  const counts = new Map();
  const boxes = shownBoxes(record);
  for (const box of boxes) {
    const entry = page.kinds.length ? boxColour(box) : page.classes[found.classOf.data[box]];
    counts.set(entry.name, (counts.get(entry.name) || 0) + 1);
  }
  if (!boxes.length) return "nothing found";
  const names = [...counts].sort((a, b) => b[1] - a[1]);
  const first = names.slice(0, 3).map(([name, count]) => `${count} ${name}`);
  return first.join(", ") + (names.length > 3 ? ` and ${names.length - 3} more` : "");
}

/* Brings a place into view, and gives it the keyboard. */
function focusTile(place) {
  if (!grid.items.length) return;
  grid.tiles.get(grid.current)?.firstChild.setAttribute("tabindex", -1);
  grid.current = Math.max(0, Math.min(place, lastPlace()));
  const top = byId("grid").getBoundingClientRect().top + window.scrollY
    + Math.floor(grid.current / grid.columns) * grid.rowHeight;
  const head = document.querySelector("header").offsetHeight + GAP;
  const room = window.innerHeight - grid.rowHeight;
  if (top - head < window.scrollY) window.scrollTo({ top: top - head });
  else if (top - room > window.scrollY) window.scrollTo({ top: top - room });
  drawTiles();
  const link = grid.tiles.get(grid.current)?.firstChild;
  link?.setAttribute("tabindex", 0);
  link?.focus({ preventScroll: true });
}

/* The tile of a picture: the one that has the keyboard, or the first. */
function placeOf(record) {
  const shows = (item) => item === record || item?.record === record;
  return shows(grid.items[grid.current]) ? grid.current : grid.items.findIndex(shows);
}
