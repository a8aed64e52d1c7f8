"use strict";

/* Ties the parts together: views, filters, keys. */

/* What draws each view. */
const VIEWS = {
  pictures: refreshGrid,
  wall: refreshGrid,
  timeline: drawTimeline,
  figures: drawFigures,
  problems: drawProblems,
};

const COPIED_MS = 1500; // how long a button says that it has copied

const listLengths = {}; // how many items of each kind a list has before it is cut
let currentView = null;
let drawnAddress = null; // of what is drawn, whichever image is open

/* How long the last refresh took, and when it ended. */
const lastRefresh = { ms: 0, end: 0 };

/* While records are loaded, what is shown grows with them. Each refresh looks at all records, so it
   has to wait until several times as long was spent on loading. */
const LOADING_PER_REFRESH = 10;

const scheduleRefresh = onceAFrame(() => {
  const begin = performance.now();
  refresh();
  lastRefresh.end = performance.now();
  lastRefresh.ms = lastRefresh.end - begin;
});

function refresh() {
  selectRecords();
  countChoices();
  drawScoreBars();
  grid.items = LAYOUTS[state.view]?.items() || [];
  VIEWS[state.view]();
  showCounts();
  refreshViewer();
}

/* Whether so much was loaded since the last refresh that another one is worth its time. */
function isRefreshDue() {
  const loadingMs = performance.now() - lastRefresh.end;
  return loadingMs >= LOADING_PER_REFRESH * lastRefresh.ms;
}

/* The items of a list that are shown, `step` of them at first, and where it is cut a button for as
   many more. */
function cutList(items, noun, step) {
  listLengths[noun] ??= step;
  const listed = items.slice(0, listLengths[noun]);
  if (listed.length === items.length) return { listed };
  const text = `Show more of ${numberText(items.length)} ${noun}`;
  const moreButton = button(text);
  moreButton.onclick = () => {
    listLengths[noun] += step;
    VIEWS[state.view]();
  };
  return { listed, moreButton };
}

/* How much there is: in the title, beside the views and above the images. */
function showCounts() {
  const title = isRepeatsPage() ? repeatsTitleText() : titleText();
  byId("title").textContent = title;
  document.title = `${title} - detcli`;

  const problemCount = problemRecords().length;
  const problemText = problemCount ? numberText(problemCount) : "";
  byId("count-problems").textContent = problemText;
  byId("count-pictures").textContent = numberText(shownRecords.length);
  const timelineLink = document.querySelector('nav [data-view="timeline"]');
  timelineLink.hidden = !page.videos.length;

  const isEmpty = shownRecords.length === 0;
  const text = isEmpty ? "No image passes the filter" : shownText();
  byId("shown").textContent = text;
  const isLoaded = page.loadedChunks === page.chunkCount;
  if (isLoaded) byId("announce").textContent = text;
}

/* "3 images and 20 frames, 40 detections", of the whole run. */
function titleText() {
  let pictureCount = 0;
  let frameCount = 0;
  let boxCount = 0;
  for (const record of page.records) {
    if (record.isReplaced) continue;
    boxCount += record.endBox - record.firstBox;
    if (record.error) continue;
    if (record.frame === undefined) pictureCount += 1;
    else frameCount += 1;
  }
  const inputs = [];
  if (pictureCount || !frameCount)
    inputs.push(countText(pictureCount, "image"));
  if (frameCount) inputs.push(countText(frameCount, "frame"));
  const isComparison = page.kinds.length > 0;
  const boxes = isComparison
    ? boxCountText(boxCount)
    : countText(boxCount, "detection");
  return `${inputs.join(" and ")}, ${boxes}`;
}

/* "3 crops of 2 images shown", and whether some are out of reach. */
function shownText() {
  const noun = isRepeatsPage() ? "group" : "image";
  let text = countText(shownRecords.length, noun);
  if (!isRepeatsPage() && state.view === "wall") {
    const crops = grid.items.filter(({ box }) => box !== undefined);
    text = `${countText(crops.length, "crop")} of ${text}`;
  }
  if (state.among.length) text += " of a table's row";
  text += " shown";
  const beyondCount = grid.items.length - 1 - lastReachable();
  if (beyondCount > 0) {
    const beyond = numberText(beyondCount);
    text += `; the last ${beyond} are out of reach, so narrow the filter`;
  }
  return text;
}

/* What is said of a run that is not complete. */
const RUN_STATES = {
  running: "The run is still going on, or was cut off: reload for more",
  stopped: "The run was stopped early",
};

/* What the whole is: still growing, cut short, or complete. */
function showProgress() {
  const { chunkCount, loadedChunks, damagedChunks, lastRun } = page;
  const texts = [];
  if (loadedChunks < chunkCount) {
    const percent = Math.round((100 * loadedChunks) / chunkCount);
    texts.push(`Loading ${percent} %`);
  } else if (!lastRun) {
    texts.push("This page has no records");
  } else if (RUN_STATES[lastRun.state]) {
    texts.push(RUN_STATES[lastRun.state]);
  }
  if (damagedChunks) {
    const damagedText = countText(damagedChunks, "part");
    texts.push(`${damagedText} of the records cannot be read`);
  }
  byId("state").textContent = texts.join(". ");
}

/* What a comparison has found, above the images, and what made the records, below them. */
function showAbout() {
  const { lastRun } = page;
  if (!lastRun) return;
  const sentences = lastRun.summary.map((text) => element("p", text));
  byId("summary").hidden = !sentences.length;
  byId("summary").className = "";
  if (lastRun.agree === true) byId("summary").className = "agree";
  if (lastRun.agree === false) byId("summary").className = "differ";
  byId("summary").replaceChildren(...sentences);

  const facts = element("dl");
  for (const [index, run] of page.runs.entries()) {
    const prefix = page.runs.length > 1 ? `run ${index + 1}, ` : "";
    const entries = [...run.facts, ["begun", run.begun], ["ended", run.ended]];
    for (const [name, value] of entries) {
      if (!value) continue;
      const term = element("dt", prefix + name);
      const definition = element("dd", element("bdi", value));
      facts.append(element("div", term, definition));
    }
  }
  const title = element("h2", `Made by detcli ${lastRun.command}`);
  byId("foot").replaceChildren(title, facts);
}

/* Shows what the state says. */
function applyState() {
  fillFilters();
  showTheme();
  showView();
  const address = addressOf({ picture: "" });
  if (address !== drawnAddress) {
    const isFirst = drawnAddress === null;
    if (!isFirst && !viewer.record) grid.currentIndex = 0;
    drawnAddress = address;
    scheduleRefresh();
  }
  showOpenPicture();
}

/* Opens the image that the state names, or closes the viewer. */
function showOpenPicture() {
  const [number, boxOfRecord] = state.picture.split(".");
  const record = page.records[number];
  if (!record || record.error) {
    byId("viewer").close();
    return;
  }
  if (state.picture === viewer.openId) return;
  const isBox = boxOfRecord < record.endBox - record.firstBox;
  openViewer(record, isBox ? record.firstBox + Number(boxOfRecord) : null);
  viewer.openId = state.picture;
  if (isBox) highlight(null, true);
}

function showView() {
  for (const link of document.querySelectorAll("nav a")) {
    const { view } = link.dataset;
    link.href = addressOf({ view, picture: "" });
    if (view === state.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const countsTracks = state.view === "timeline" && page.hasTracks;
  byId("count").parentElement.hidden = !countsTracks;
  if (state.view === currentView) return;
  currentView = state.view;
  const sectionName = LAYOUTS[currentView] ? "pictures" : currentView;
  for (const section of document.querySelectorAll("main section")) {
    section.hidden = section.id !== `view-${sectionName}`;
  }
  byId("grid").dataset.view = currentView;
  const hasGroups = currentView === "wall" && !isRepeatsPage();
  byId("group").parentElement.hidden = !hasGroups;
  window.scrollTo(0, 0);
}

/* The fields say what the state says. */
function fillFilters() {
  byId("search").value = state.find;
  fillScore("least", state.score[0]);
  fillScore("below", state.score[1]);
  const [initialFrom, initialBelow] = ADDRESS_KEYS.size.initial;
  const [sizeFrom, sizeBelow] = state.size;
  byId("smallest").value = sizeFrom === initialFrom ? "" : sizeFrom;
  byId("larger").value = sizeBelow === initialBelow ? "" : sizeBelow;
  for (const id of ["sort", "near", "group", "count", "show"])
    byId(id).value = state[id];
  byId("near").hidden = state.sort !== "uncertain";
  for (const checkBox of byId("filters").querySelectorAll("[type=checkbox]")) {
    const name = chosenName(checkBox);
    checkBox.checked = state[checkBox.name].includes(name);
  }
}

function fillScore(id, score) {
  byId(id).value = score;
  byId(`${id}-shown`).textContent = score.toFixed(2);
}

/* The name of the class or kind that a check box chooses. */
function chosenName(checkBox) {
  const { entries } = CHOICES[checkBox.name];
  return entries()[checkBox.value].name;
}

/* The value of the form field that an event is about. */
function fieldValue(field) {
  if (field.name === "score") return scoreRange(field.id);
  if (field.name === "size") {
    const sizeFrom = Number(byId("smallest").value);
    const sizeBelow = Number(byId("larger").value) || Infinity;
    return [sizeFrom, sizeBelow];
  }
  if (!CHOICES[field.name]) return field.value;
  const name = chosenName(field);
  const otherNames = state[field.name].filter(
    (stateName) => stateName !== name,
  );
  return field.checked ? [...otherNames, name] : otherNames;
}

/* The score that was moved stops at the other one. */
function scoreRange(movedId) {
  const from = Number(byId("least").value);
  const below = Number(byId("below").value);
  if (movedId === "least") return [Math.min(from, below), below];
  return [from, Math.max(from, below)];
}

function startFilters() {
  const form = byId("filters");
  form.addEventListener("input", ({ target }) =>
    changeState({ [target.name]: fieldValue(target) }),
  );
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    changeState(initialValues(FILTERS));
  });
  byId("open-filters").addEventListener("click", () => openFilters());
}

/* Where the window is narrow; without an argument, the other way than now. */
function openFilters(opens) {
  const isOpen = document.body.classList.toggle("filtering", opens);
  byId("open-filters").setAttribute("aria-expanded", isOpen);
}

/* What is usual depends on the run. */
function startOrders() {
  const isComparison = page.kinds.length > 0;
  fillOptions("sort", ORDERS, (order) => order !== "wrong" || isComparison);
  document.body.classList.toggle("comparison", isComparison);
  if (isComparison) ADDRESS_KEYS.sort.initial = "wrong";
  const floor = page.lastRun?.floor || 0;
  ADDRESS_KEYS.score.initial[0] = Math.floor(floor * 100) / 100;
  readAddress();
}

const DARK = window.matchMedia("(prefers-color-scheme: dark)");

function showTheme() {
  const systemTheme = DARK.matches ? "dark" : "light";
  const theme = state.theme || systemTheme;
  document.documentElement.dataset.theme = theme;
  byId("theme").setAttribute("aria-pressed", theme === "dark");
}

/* What the system prefers is not in the address. */
function toggleTheme() {
  const wasDark = document.documentElement.dataset.theme === "dark";
  const theme = wasDark ? "light" : "dark";
  const isSystemTheme = (theme === "dark") === DARK.matches;
  changeState({ theme: isSystemTheme ? "" : theme });
}

function startKeys() {
  byId("open-keys").addEventListener("click", showKeys);
  document.addEventListener("keydown", pressKey);
}

function showKeys() {
  byId("keys").showModal();
}

/* Does what a key does, if the browser does nothing with it where the focus is. */
function pressKey(event) {
  const { key, target, ctrlKey, metaKey, altKey } = event;
  if (ctrlKey || metaKey || altKey) return;
  if (byId("keys").open || byId("marks").open) return;
  if (key === "Escape" && target.id === "search") focusTile(grid.currentIndex);
  if (target.matches("input:not([type=checkbox]), select, textarea")) return;
  if (key === " " && target.matches("button, video")) return;
  const action = keyActions()[key];
  if (!action) return;
  event.preventDefault();
  action();
}

/* What keys do: in the viewer, or outside. */
function keyActions() {
  const everywhere = {
    f: toggleFull,
    "?": showKeys,
    x: () => markFocused("drop"),
    k: () => markFocused("keep"),
  };
  if (byId("viewer").open) return { ...everywhere, ...viewerActions() };
  const outside = { ...everywhere, "/": focusSearch };
  if (!LAYOUTS[state.view]) return outside;
  return { ...outside, ...gridActions() };
}

function viewerActions() {
  const actions = {
    b: () => toggle("boxes"),
    l: () => toggle("labels"),
    p: () => step(-1),
    n: () => step(1),
    "+": () => zoomTo(1.5 * lens.zoom),
    "=": () => zoomTo(1.5 * lens.zoom),
    "-": () => zoomTo(lens.zoom / 1.5),
    0: () => zoomTo(1),
    ArrowLeft: () => step(-1),
    ArrowRight: () => step(1),
  };
  if (lens.zoom > 1) {
    actions.ArrowLeft = () => pan(60, 0);
    actions.ArrowRight = () => pan(-60, 0);
    actions.ArrowUp = () => pan(0, 60);
    actions.ArrowDown = () => pan(0, -60);
  }
  if (page.sides.length) {
    const nextArrangement = { both: "swipe", swipe: "pair", pair: "both" };
    actions.s = () => changeState({ sides: nextArrangement[state.sides] });
  }
  if (viewer.record.video) {
    actions[" "] = togglePlay;
    actions["["] = () => jump(-1);
    actions["]"] = () => jump(1);
  }
  return actions;
}

function gridActions() {
  const move = (by) => () => focusTile(grid.currentIndex + by);
  if (!hasFocus(byId("grid")))
    return { ArrowDown: move(0), ArrowRight: move(0) };
  return {
    ArrowLeft: move(-1),
    ArrowRight: move(1),
    ArrowUp: move(-grid.columns),
    ArrowDown: move(grid.columns),
    Home: move(-Infinity),
    End: move(Infinity),
  };
}

function focusSearch() {
  openFilters(true);
  byId("search").focus();
  byId("search").select();
}

/* The keyboard goes on from the tile that has the focus. */
function followFocus({ target }) {
  for (const [index, tile] of grid.tiles) {
    if (tile.contains(target)) grid.currentIndex = index;
  }
}

function startGrid() {
  byId("grid").addEventListener("focusin", followFocus);
  window.addEventListener("scroll", scheduleTiles, { passive: true });
  const observer = new ResizeObserver(() => {
    const earlierWidth = grid.tileWidth;
    layOut();
    if (earlierWidth !== grid.tileWidth) refreshGrid();
  });
  observer.observe(byId("grid"));
}

/* The address is written before whatever may leave the page. */
function startAddress() {
  window.addEventListener("hashchange", () => {
    readAddress();
    applyState();
  });
  const writeChanges = () => {
    if (writeTimer) writeAddress();
  };
  window.addEventListener("click", writeChanges, true);
  window.addEventListener("pagehide", writeChanges, true);
}

/* Copies the address of what is shown, and says so on the button for a moment. */
async function copyLink({ currentTarget: linkButton }) {
  writeAddress();
  await copyText(location.href);
  linkButton.focus();
  const title = linkButton.textContent;
  linkButton.textContent = "Copied";
  setTimeout(() => {
    linkButton.textContent = title;
  }, COPIED_MS);
}

function startHeader() {
  for (const linkButton of document.querySelectorAll(".copy-link"))
    linkButton.addEventListener("click", copyLink);
  DARK.addEventListener("change", showTheme);
  byId("theme").addEventListener("click", toggleTheme);
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address says something else
    byId("main").focus();
  });
}

async function start() {
  readAddress();
  showTheme();
  startHeader();
  startFilters();
  startViewer();
  startMarks();
  startKeys();
  startPrint();
  startGrid();
  startAddress();

  await loadData("data/runs.js");
  startOrders();
  offerForms();
  startRepeats();
  showAbout();
  await loadChunks(() => {
    showProgress();
    if (!isRefreshDue()) return;
    listChoices();
    showView();
    scheduleRefresh();
  });
  showProgress();
  listChoices();
  restoreMarks();
  applyState();
  scheduleRefresh();
  document.documentElement.dataset.ready = "true";
}

start();
