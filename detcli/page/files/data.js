"use strict";

/* What the chunks hold. A chunk is a script that calls add() for each of its records, as a page
   from a disk may load scripts and nothing else. Boxes are kept in columns, not in objects: there
   may be millions. */

const found = {
  classOf: [],
  score: [], // NaN for an object of a label
  sides: [], // four a box: x1, y1, x2, y2 in pixels of the picture
  kind: [],
  other: new Map(), // by box: score and sides of its counterpart
  track: [], // 0 without, NaN where it has no number yet
  zones: new Map(), // by box: names of the zones that it is in
  crossed: new Map(), // by box: lines that it has crossed, each with the side that it went to
  texts: new Map(), // by box: what it says
  corners: new Map(), // by box: x and y of the four corners of its symbol
};

const page = {
  runs: [],
  last: undefined, // of the runs
  records: [],
  classes: [], // {id, name, colour, ink}
  kinds: [], // {name, colour, ink, dashed, wrong, side}
  sides: [], // names of what is compared
  videos: [], // {source, stride, records, film}
  tracked: false, // whether boxes have tracks
  damaged: 0, // chunks that cannot be read
  chunks: 0,
  loaded: 0,
};

const loading = {
  run: 0,
  classes: [], // of this run, as numbers of page.classes
  numbers: new Map(), // of classes, by id and name
  videos: new Map(), // of this run
  earlier: new Map(), // records by source and frame, where a run goes on with another
};

const named = (names, rows = []) =>
  rows.map((row) =>
    Object.fromEntries(names.map((name, at) => [name, row[at]])),
  );

/* Called by data/runs.js; the format of the data is described in detcli/page/folder.py. */
function runs(format, list) {
  page.runs = list;
  for (const run of list) {
    run.places = named(
      ["name", "colour", "ink", "fractions", "points"],
      run.places,
    );
    page.chunks += run.chunks;
  }
  page.last = list.at(-1);
  page.kinds = named(
    ["name", "colour", "ink", "dashed", "wrong", "side"],
    page.last?.kinds,
  );
  page.sides = page.last?.sides || [];
}

/* Called by the chunks. */
function add({
  classes = [],
  found: rows = [],
  tracks,
  zones,
  crossed,
  texts,
  corners,
  ...entry
}) {
  for (const [id, name, colour, ink] of classes) {
    const key = `${id} ${name}`;
    if (!loading.numbers.has(key)) {
      loading.numbers.set(key, page.classes.length);
      page.classes.push({ id, name, colour, ink });
    }
    loading.classes.push(loading.numbers.get(key));
  }
  const from = found.score.length;
  for (const row of rows) addBox(row);
  addWatched(from, { tracks, zones, crossed, texts, corners });
  const record = {
    warnings: [],
    ...entry, // source, size, frame, times, error, picture; original: its own file, if no copy
    number: page.records.length,
    run: loading.run,
    from,
    to: found.score.length,
    replaced: false,
  };
  if (entry.video !== undefined) addToVideo(record, entry);
  if (page.runs.length > 1) replaceEarlier(record);
  page.records.push(record);
}

function addBox([number, score, ...row]) {
  const [kind = 0, ...other] = row.splice(4);
  if (other.length) found.other.set(found.score.length, other);
  found.classOf.push(loading.classes[number]);
  found.score.push(score ?? NaN);
  found.sides.push(...row);
  found.kind.push(kind);
}

function addWatched(from, { tracks = [], crossed = [], ...entry }) {
  if (tracks.length) page.tracked = true;
  const none = tracks.length ? NaN : 0;
  for (let at = 0; from + at < found.score.length; at += 1)
    found.track.push(tracks[at] || none);
  for (const name of ["zones", "texts", "corners"]) {
    entry[name]?.forEach(
      (value, row) => value.length && found[name].set(from + row, value),
    );
  }
  crossed.forEach((lines, row) => {
    const texts = lines.map(([line, side]) => `${line} to the ${side}`);
    if (texts.length) found.crossed.set(from + row, texts);
  });
}

function addToVideo(record, entry) {
  let video = loading.videos.get(entry.video);
  if (!video) {
    video = { source: record.source, stride: 1, records: [] };
    loading.videos.set(entry.video, video);
    page.videos.push(video);
  }
  Object.assign(record, { video, place: video.records.length });
  video.records.push(record);
  if (entry.stride) video.stride = entry.stride;
  if (entry.film) video.film = entry.film;
}

/* A run that goes on with another repeats what failed there, and what was cut off. */
function replaceEarlier(record) {
  if (record.time !== undefined || record.source === "-") return; // new in every run
  const key = `${record.frame} ${record.source}`;
  const before = loading.earlier.get(key);
  if (before && before.run < record.run) before.replaced = true;
  loading.earlier.set(key, record);
}

/* The histogram bin of a score; a float32 score on a border belongs to the upper bin. */
function scoreBin(score, bins) {
  return Math.min(bins - 1, Math.floor(score * bins + 1e-5));
}

function hasPicture({ picture: kept, video, place }) {
  return kept !== undefined && (!video || place % video.stride === 0);
}

function loadScript(path) {
  return new Promise((resolve) => {
    const script = element("script", { src: path });
    const end = () => {
      script.remove();
      resolve();
    };
    Object.assign(script, { onload: end, onerror: end }); // what is missing has added nothing
    document.head.append(script);
  });
}

/* Loads all chunks, one after the other; `progress` is called after each. */
async function loadChunks(progress) {
  for (const [number, run] of page.runs.entries()) {
    Object.assign(loading, { run: number, classes: [], videos: new Map() });
    for (let left = run.chunks; left > 0; left -= 1) {
      const before = page.records.length;
      await loadScript(`data/${page.loaded}.js`);
      if (page.records.length === before) page.damaged += 1;
      page.loaded += 1;
      progress();
    }
  }
}

/* Numbers and texts as they are shown. */

function baseName({ source, time }) {
  if (time) return source.replace(/^[a-z]+:\/\//i, ""); // names of many cameras end alike
  const separator = /^([a-z]:)?\\/i.test(source) ? /[/\\]/ : "/"; // a file's name may hold \
  return source.split(separator).filter(Boolean).pop() || source;
}

function numberText(value) {
  return Number.isInteger(value)
    ? value.toLocaleString("en")
    : value.toFixed(3);
}

function counted(number, what, plural = `${what}s`) {
  return `${numberText(number)} ${number === 1 ? what : plural}`;
}

const boxesText = (number) => counted(number, "box", "boxes");

/* How often each value is there, the most frequent first. */
function frequencies(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
  return new Map([...counts].sort(([, a], [, b]) => b - a));
}

function clock(seconds) {
  const tenths = Math.floor(seconds * 10 + 1e-6);
  const whole = Math.floor(tenths / 10);
  const parts = [
    Math.floor(whole / 3600),
    Math.floor(whole / 60) % 60,
    whole % 60,
  ];
  const shown = parts[0] ? parts : parts.slice(1);
  const text = shown
    .map((part, at) => (at ? String(part).padStart(2, "0") : part))
    .join(":");
  return `${text}.${tenths % 10}`;
}

function moment(record) {
  if (record.time) return record.time.replace("T", " ").replace("Z", " UTC");
  return record.time_s === undefined
    ? `frame ${record.frame}`
    : clock(record.time_s);
}

function nameOf(record) {
  const name = baseName(record);
  return record.frame === undefined ? name : `${moment(record)} · ${name}`;
}

/* Makes an element of a tag with classes, as "span.quiet"; attributes, if any, come before what is
   in it. Texts become text nodes: no name can be markup. */
function element(name, ...content) {
  return fill(document.createElement(name.split(".")[0]), name, content);
}

function vector(name, ...content) {
  const space = "http://www.w3.org/2000/svg";
  return fill(
    document.createElementNS(space, name.split(".")[0]),
    name,
    content,
  );
}

function fill(made, name, content) {
  const [, ...classes] = name.split(".");
  const attributes = content[0]?.constructor === Object ? content.shift() : {};
  if (classes.length) made.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style") Object.assign(made.style, value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== undefined)
      made.setAttribute(key, value);
  }
  made.append(...content.filter((child) => child !== undefined));
  return made;
}

function button(...content) {
  const made = element("button", ...content);
  made.type = "button";
  return made;
}

/* A function that draws, however often it is called, once a frame at most. */
function onceAFrame(draw) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  };
}

function hasFocus(part) {
  return part.contains(document.activeElement);
}

function byId(id) {
  return document.getElementById(id);
}
