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

const lengths = {}; // of lists that are cut
let currentView = null;
let drawn = null; // the address of what is drawn, whichever picture is open

const scheduleRefresh = onceAFrame(() => {
  selectRecords();
  countChoices();
  drawScoreBars();
  grid.items = LAYOUTS[state.view]?.items() || [];
  VIEWS[state.view]();
  showCounts();
  refreshViewer();
});

/* Those of a list that are shown, and where it is cut a button for more of `what`. */
function cutList(items, what, most) {
  lengths[what] ??= most;
  const left = items.length > lengths[what];
  const more = button(`Show more of ${numberText(items.length)} ${what}`);
  more.onclick = () => {
    lengths[what] += most;
    VIEWS[state.view]();
  };
  return [items.slice(0, lengths[what]), ...(left ? [more] : [])];
}

function showCounts() {
  const problems = problemRecords();
  const failed = problems.filter((record) => record.error).length;
  const records = page.records.filter((record) => !record.isReplaced);
  const pictures = records.filter(
    (record) => record.frame === undefined && !record.error,
  ).length;
  const frames = records.length - pictures - failed;
  const inputs = [];
  if (pictures || !frames) inputs.push(countText(pictures, "picture"));
  if (frames) inputs.push(countText(frames, "frame"));
  const boxes = records.reduce(
    (sum, record) => sum + record.endBox - record.firstBox,
    0,
  );
  const sum = page.kinds.length
    ? boxCountText(boxes)
    : countText(boxes, "detection");
  byId("title").textContent = `${inputs.join(" and ")}, ${sum}`;
  document.title = `${byId("title").textContent} - detcli`;
  byId("count-pictures").textContent = numberText(shownRecords.length);
  byId("count-problems").textContent = problems.length
    ? numberText(problems.length)
    : "";
  document.querySelector('nav [data-view="timeline"]').hidden =
    !page.videos.length;
  const text = shownRecords.length
    ? shownText()
    : "No picture passes the filter";
  byId("shown").textContent = text;
  if (page.loadedChunks === page.chunkCount)
    byId("announce").textContent = text;
}

function shownText() {
  const beyond = grid.items.length - 1 - lastPlace();
  const crops = grid.items.filter(({ box }) => box !== undefined).length;
  return [
    state.view === "wall" ? `${countText(crops, "crop")} of ` : "",
    `${countText(shownRecords.length, "picture")} ${state.among.length ? "of a table's row " : ""}shown`,
    beyond > 0
      ? `; the last ${numberText(beyond)} are out of reach, so narrow the filter`
      : "",
  ].join("");
}

/* What the whole is: still growing, cut short, or complete. */
const STATES = {
  running: "The run is still going on, or was cut off: reload for more",
  stopped: "The run was stopped early",
};

function showProgress() {
  const { chunkCount: chunks, loadedChunks: loaded, lastRun: last } = page;
  const texts = [];
  if (loaded < chunks)
    texts.push(`Loading ${Math.round((100 * loaded) / chunks)} %`);
  else if (!last) texts.push("This page has no records");
  else if (STATES[last.state]) texts.push(STATES[last.state]);
  const damaged = countText(page.damagedChunks, "part");
  if (page.damagedChunks)
    texts.push(`${damaged} of the records cannot be read`);
  byId("state").textContent = texts.join(". ");
}

function showAbout() {
  const { lastRun: last } = page;
  if (!last) return;
  byId("summary").hidden = !last.summary.length;
  byId("summary").className =
    { true: "agree", false: "differ" }[last.agree] || "";
  byId("summary").replaceChildren(
    ...last.summary.map((text) => element("p", text)),
  );
  const facts = page.runs.flatMap((run, number) => {
    const before = page.runs.length > 1 ? `run ${number + 1}, ` : "";
    const entries = [...run.facts, ["begun", run.begun], ["ended", run.ended]];
    return entries
      .filter(([, value]) => value)
      .map(([name, value]) =>
        element(
          "div",
          element("dt", before + name),
          element("dd", element("bdi", value)),
        ),
      );
  });
  const title = element("h2", `Made by detcli ${last.command}`);
  byId("foot").replaceChildren(title, element("dl", ...facts));
}

/* Shows what the state says. */
function applyState() {
  fillFilters();
  showTheme();
  showView();
  const now = addressOf({ picture: "" });
  if (now !== drawn) {
    if (drawn !== null && !viewer.record) grid.currentIndex = 0;
    drawn = now;
    scheduleRefresh();
  }
  const [number, box] = state.picture.split(".");
  const record = page.records[number];
  if (!record || record.error) byId("viewer").close();
  else if (state.picture !== viewer.openId) {
    const isBox = box < record.endBox - record.firstBox;
    openViewer(record, isBox ? record.firstBox + Number(box) : null);
    viewer.openId = state.picture;
    if (isBox) highlight(null, true);
  }
}

function showView() {
  for (const link of document.querySelectorAll("nav a")) {
    const { view } = link.dataset;
    link.href = addressOf({ view, picture: "" });
    if (view === state.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (state.view === currentView) return;
  currentView = state.view;
  for (const section of document.querySelectorAll("main section")) {
    section.hidden =
      section.id !== `view-${LAYOUTS[currentView] ? "pictures" : currentView}`;
  }
  byId("grid").dataset.view = currentView;
  byId("group").parentElement.hidden = currentView !== "wall";
  window.scrollTo(0, 0);
}

/* The fields say what the state says. */
function fillFilters() {
  byId("search").value = state.find;
  for (const [at, id] of ["least", "below"].entries()) {
    byId(id).value = state.score[at];
    byId(`${id}-shown`).textContent = state.score[at].toFixed(2);
  }
  for (const [at, id] of ["smallest", "larger"].entries()) {
    byId(id).value =
      state.size[at] === ADDRESS_KEYS.size.initial[at] ? "" : state.size[at];
  }
  for (const id of ["sort", "near", "group", "show"])
    byId(id).value = state[id];
  byId("near").hidden = state.sort !== "uncertain";
  for (const input of byId("filters").querySelectorAll("[type=checkbox]")) {
    input.checked = state[input.name].includes(
      CHOICES[input.name][1]()[input.value].name,
    );
  }
}

/* What a field says, of which the event tells. */
function fieldValue({ name, id, value, checked }) {
  if (name === "score") {
    const [least, below] = ["least", "below"].map((one) =>
      Number(byId(one).value),
    );
    return id === "least"
      ? [Math.min(least, below), below]
      : [least, Math.max(least, below)];
  }
  if (name === "size") {
    return [
      Number(byId("smallest").value),
      Number(byId("larger").value) || Infinity,
    ];
  }
  if (!CHOICES[name]) return value;
  const chosen = CHOICES[name][1]()[value].name;
  const others = state[name].filter((one) => one !== chosen);
  return checked ? [...others, chosen] : others;
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

function openFilters(opens) {
  const open = document.body.classList.toggle("filtering", opens);
  byId("open-filters").setAttribute("aria-expanded", open);
}

/* What is usual depends on the run. */
function startOrders() {
  fillOptions(
    "sort",
    ORDERS,
    (value) => value !== "wrong" || page.kinds.length,
  );
  if (page.kinds.length) ADDRESS_KEYS.sort.initial = "wrong";
  ADDRESS_KEYS.score.initial[0] =
    Math.floor((page.lastRun?.floor || 0) * 100) / 100;
  readAddress();
}

const DARK = window.matchMedia("(prefers-color-scheme: dark)");

function showTheme() {
  const theme = state.theme || (DARK.matches ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  byId("theme").setAttribute("aria-pressed", theme === "dark");
}

/* What the system prefers is not in the address. */
function toggleTheme() {
  const theme =
    document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  changeState({ theme: (theme === "dark") === DARK.matches ? "" : theme });
}

function startKeys() {
  byId("open-keys").addEventListener("click", () => byId("keys").showModal());
  document.addEventListener("keydown", (event) => {
    const { key, target, ctrlKey, metaKey, altKey } = event;
    if (ctrlKey || metaKey || altKey || byId("keys").open || byId("marks").open)
      return;
    if (key === "Escape" && target.id === "search")
      focusTile(grid.currentIndex);
    if (target.matches("input:not([type=checkbox]), select, textarea")) return;
    if (key === " " && target.matches("button, video")) return;
    const action = actions()[key];
    if (action) event.preventDefault();
    action?.();
  });
}

/* What keys do: in the viewer, or outside. */
function actions() {
  const everywhere = {
    f: toggleFull,
    "?": () => byId("keys").showModal(),
    x: () => markFocused("drop"),
    k: () => markFocused("keep"),
  };
  if (byId("viewer").open) {
    const near = lens.zoom > 1;
    const move = (x, y) => () => (near ? pan(60 * x, 60 * y) : step(-x));
    const ways = { both: "swipe", swipe: "pair", pair: "both" };
    return {
      ...everywhere,
      b: () => toggle("boxes"),
      l: () => toggle("labels"),
      p: () => step(-1),
      n: () => step(1),
      "+": () => zoomTo(1.5 * lens.zoom),
      "=": () => zoomTo(1.5 * lens.zoom),
      "-": () => zoomTo(lens.zoom / 1.5),
      0: () => zoomTo(1),
      ArrowLeft: move(1, 0),
      ArrowRight: move(-1, 0),
      ...(near && { ArrowUp: move(0, 1), ArrowDown: move(0, -1) }),
      ...(page.sides.length && {
        s: () => changeState({ sides: ways[state.sides] }),
      }),
      ...(viewer.record.video && {
        " ": togglePlay,
        "[": () => jump(-1),
        "]": () => jump(1),
      }),
    };
  }
  everywhere["/"] = () => {
    openFilters(true);
    byId("search").focus();
    byId("search").select();
  };
  if (!LAYOUTS[state.view]) return everywhere;
  const move = (by) => () => focusTile(grid.currentIndex + by);
  if (!hasFocus(byId("grid"))) {
    return { ...everywhere, ArrowDown: move(0), ArrowRight: move(0) };
  }
  return {
    ...everywhere,
    ArrowLeft: move(-1),
    ArrowRight: move(1),
    ArrowUp: move(-grid.columns),
    ArrowDown: move(grid.columns),
    Home: move(-Infinity),
    End: move(Infinity),
  };
}

async function start() {
  readAddress();
  showTheme();
  DARK.addEventListener("change", showTheme);
  byId("theme").addEventListener("click", toggleTheme);
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address says something else
    byId("main").focus();
  });
  startFilters();
  startViewer();
  startMarks();
  startKeys();
  startPrint();
  byId("grid").addEventListener("focusin", ({ target }) => {
    grid.currentIndex =
      [...grid.tiles].find(([, tile]) => tile.contains(target))?.[0] ??
      grid.currentIndex;
  });
  window.addEventListener("scroll", scheduleTiles, { passive: true });
  new ResizeObserver(() => {
    const before = grid.width;
    layOut();
    if (before !== grid.width) refreshGrid();
  }).observe(byId("grid"));
  window.addEventListener("hashchange", () => {
    readAddress();
    applyState();
  });
  for (const type of ["click", "pagehide"]) {
    window.addEventListener(type, () => writeTimer && writeAddress(), true);
  }
  await loadScript("data/runs.js");
  startOrders();
  showAbout();
  await loadChunks(() => {
    showProgress();
    listChoices();
    showView();
    scheduleRefresh();
  });
  showProgress();
  restoreMarks();
  applyState();
  document.documentElement.dataset.ready = "true";
}

start();
