"use strict";

/* What the chunks hold. A chunk is a script that calls add() for each of its records, as a page
   from a disk may load scripts and nothing else. Boxes are kept in columns, not in objects: there
   may be millions. */

class Column {
  constructor(Type, values = []) {
    this.data = new Type(1024);
    this.length = 0;
    for (const value of values) this.push(value);
  }

  push(value) {
    if (this.length === this.data.length) {
      const larger = new this.data.constructor(2 * this.length);
      larger.set(this.data);
      this.data = larger;
    }
    this.data[this.length++] = value;
  }
}

const found = {
  classOf: new Column(Uint32Array),
  score: new Column(Float32Array), // NaN for an object of a label
  sides: new Column(Float32Array), // four a box: x1, y1, x2, y2 in pixels of the picture
  kind: new Column(Uint8Array),
  other: new Map(), // by box: score and sides of its counterpart
  track: new Column(Float64Array), // 0 without, NaN where it has no number yet
  zones: new Map(), // by box: names of the zones that it is in
  crossed: new Map(), // by box: lines that it has crossed, and to which side
  texts: new Map(), // by box: what it says
  corners: new Map(), // by box: x and y of the four corners of its symbol
};

const page = {
  format: 0,
  runs: [],
  records: [],
  classes: [], // {id, name, colour, ink}
  kinds: [], // {name, colour, ink, dashed, wrong, side}
  sides: [], // names of what is compared
  videos: [], // {source, stride, records, film}
  tracked: false, // whether boxes have tracks
  damaged: [], // chunks that cannot be read
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

/* Called by data/runs.js. */
function runs(format, list) {
  page.format = format;
  page.runs = list;
  for (const run of list) {
    run.places = (run.places || []).map(([name, colour, ink, fractions, points]) => (
      { name, colour, ink, fractions, points }
    ));
  }
  page.chunks = list.reduce((sum, run) => sum + run.chunks, 0);
  const last = list[list.length - 1];
  if (last) {
    page.kinds = last.kinds.map(([name, colour, ink, dashed, wrong, side]) => (
      { name, colour, ink, dashed, wrong, side }
    ));
    page.sides = last.sides || [];
  }
}

/* Called by the chunks. */
function add(entry) {
  for (const [id, name, colour, ink] of entry.classes || []) {
    const key = `${id} ${name}`;
    if (!loading.numbers.has(key)) {
      loading.numbers.set(key, page.classes.length);
      page.classes.push({ id, name, colour, ink });
    }
    loading.classes.push(loading.numbers.get(key));
  }
  const from = found.score.length;
  for (const row of entry.found || []) addBox(row);
  addWatched(from, entry);
  const record = {
    number: page.records.length,
    run: loading.run,
    source: entry.source,
    width: entry.width,
    height: entry.height,
    frame: entry.frame,
    time_s: entry.time_s,
    time: entry.time,
    error: entry.error,
    warnings: entry.warnings || [],
    file: entry.picture,
    original: entry.original, // the picture's own file, where it is no copy
    from,
    to: found.score.length,
    replaced: false,
    count: 0, // of boxes that the filter lets through; so are the next two
    key: 0,
    wrong: 0,
  };
  if (entry.video !== undefined) addToVideo(record, entry);
  if (page.runs.length > 1) replaceEarlier(record);
  page.records.push(record);
}

function addBox(row) {
  const [number, score, x1, y1, x2, y2, kind, ...other] = row;
  const box = found.score.length;
  found.classOf.push(loading.classes[number]);
  found.score.push(score === null ? NaN : score);
  for (const side of [x1, y1, x2, y2]) found.sides.push(side);
  found.kind.push(kind || 0);
  if (other.length) found.other.set(box, other);
}

function addWatched(from, { tracks = [], zones = [], crossed = [], texts = [], corners = [] }) {
  if (tracks.length) page.tracked = true;
  for (let box = from; box < found.score.length; box += 1) found.track.push(tracks.length ? tracks[box - from] || NaN : 0);
  zones.forEach((names, row) => names.length && found.zones.set(from + row, names));
  crossed.forEach((lines, row) => lines.length && found.crossed.set(from + row, lines));
  texts.forEach((text, row) => text && found.texts.set(from + row, text));
  corners.forEach((ends, row) => ends.length && found.corners.set(from + row, ends));
}

function addToVideo(record, entry) {
  let video = loading.videos.get(entry.video);
  if (!video) {
    video = { source: record.source, stride: 1, records: [] };
    loading.videos.set(entry.video, video);
    page.videos.push(video);
  }
  record.video = video;
  record.place = video.records.length;
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

function hasPicture(record) {
  return record.file !== undefined
    && (!record.video || record.place % record.video.stride === 0);
}

function loadScript(path) {
  return new Promise((resolve) => {
    const script = document.createElement("script");
    const end = (loaded) => {
      script.remove();
      resolve(loaded);
    };
    script.addEventListener("load", () => end(true));
    script.addEventListener("error", () => end(false));
    script.src = path;
    document.head.append(script);
  });
}

/* Loads all chunks, one after the other; `progress` is called after each. */
async function loadData(progress) {
  await loadScript("data/runs.js");
  for (const [number, run] of page.runs.entries()) {
    Object.assign(loading, { run: number, classes: [], videos: new Map() });
    for (let left = run.chunks; left > 0; left -= 1) {
      const before = page.records.length;
      await loadScript(`data/${page.loaded}.js`);
      if (page.records.length === before) page.damaged.push(page.loaded);
      page.loaded += 1;
      progress();
    }
  }
}

/* Numbers and texts as they are shown. */

function baseName({ source, time }) {
  if (time) return source.replace(/^[a-z]+:\/\//i, ""); // of a stream: those of many cameras end alike
  const separator = /^([a-z]:)?\\/i.test(source) ? /[/\\]/ : "/"; // a file's name may hold \
  return source.split(separator).filter(Boolean).pop() || source;
}

function counted(number, what, plural = `${what}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? what : plural}`;
}

function clock(seconds) {
  const tenths = Math.floor(seconds * 10 + 1e-6);
  const whole = Math.floor(tenths / 10);
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const shown = parts[0] ? parts : parts.slice(1);
  const text = shown.map((part, at) => (at ? String(part).padStart(2, "0") : part)).join(":");
  return `${text}.${tenths % 10}`;
}

function moment(record) {
  if (record.time) return record.time.replace("T", " ").replace("Z", " UTC");
  return record.time_s === undefined ? `frame ${record.frame}` : clock(record.time_s);
}

function nameOf(record) {
  const name = baseName(record);
  return record.frame === undefined ? name : `${moment(record)} · ${name}`;
}

/* Makes an element. Texts become text nodes: no name can be markup. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else if (name === "style") Object.assign(made.style, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== undefined));
  return made;
}

function vector(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function byId(id) {
  return document.getElementById(id);
}
