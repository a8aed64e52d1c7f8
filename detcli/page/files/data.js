"use strict";

/* What the chunks hold. A chunk is a script that calls add() for each of its records, as a page
   from a disk may load scripts and nothing else. Boxes are kept in columns, not in objects: there
   may be millions. A box is its index in the columns, of all records together.

   detcli/page/folder.py says the format of the data, which detcli/page/page.py writes. To be short,
   it has lists whose values are told apart by their position. They become objects here, in which
   ink is the colour of text on a colour. */

const boxColumns = {
  classNumber: [], // index in page.classes
  score: [], // NaN for an object of a label
  coordinates: [], // four a box: x1, y1, x2, y2 in pixels of the image
  kindNumber: [], // index in page.kinds
  counterpart: new Map(), // by box: score, x1, y1, x2, y2 on the other side of a comparison
  track: [], // 0 without, NaN where it has no number yet
  zones: new Map(), // by box: names of the zones that it is in
  crossings: new Map(), // by box: lines that it has crossed, each with the side that it went to
  text: new Map(), // by box: what it says
  classified: new Map(), // by box: the class that another network gave it
  symbolCorners: new Map(), // by box: x and y of the four corners of its symbol
  repeated: new Map(), // by box: the number of the group of repeats that it was dropped with
};

const page = {
  runs: [],
  lastRun: undefined,
  records: [],
  classes: [], // {id, name, colour, ink}
  kinds: [], // {name, colour, ink, isDashed, isWrong, side}
  sides: [], // names of what is compared
  videos: [], // {source, stride, records, film, mayGoOn: whether more of it may be loaded}
  hasTracks: false,
  folders: new Set(), // of the images and videos
  damagedChunks: 0, // how many cannot be read
  chunkCount: 0, // of all runs
  loadedChunks: 0, // how many have been loaded, damaged ones too
};

/* What a page in one file has in place of other files: functions that do what the scripts of data do,
   by path, and images in base64, by name. */
const inlined = { scripts: {}, images: {} };

/* Runs a script of data, which is in the page or in a file. */
async function loadData(path) {
  const script = inlined.scripts[path];
  if (script) script();
  else await loadScript(path);
}

/* What is needed to add the records of a run. */
const loading = {
  runNumber: 0,
  classNumbers: [], // the index in page.classes of each class of this run
  numberOfClass: new Map(), // the index in page.classes, by id and name
  videos: new Map(), // of this run, by number
  lastFile: undefined, // the last of these that is no stream; a run reads files one by one
  latestRecords: new Map(), // by source and frame, where a run goes on with another
};

/* Called by data/runs.js. */
function runs(format, list) {
  page.runs = list;
  for (const run of list) {
    run.shapes = (run.places || []).map(
      ([name, colour, ink, isFractional, coordinates]) => {
        return { name, colour, ink, isFractional, coordinates };
      },
    );
    run.ignoredPolygons = (run.ignored || []).map(
      ([isFractional, coordinates]) => {
        return { isFractional, coordinates };
      },
    );
    page.chunkCount += run.chunks;
  }

  page.lastRun = list.at(-1);
  if (!page.lastRun) return;
  page.sides = page.lastRun.sides || [];
  for (const row of page.lastRun.kinds || []) {
    const [name, colour, ink, isDashed, isWrong, side] = row;
    page.kinds.push({ name, colour, ink, isDashed, isWrong, side });
  }
}

/* Called by the chunks, once for each record. */
function add({
  classes = [],
  found: boxRows = [],
  tracks,
  zones,
  crossed,
  texts,
  corners,
  classified,
  repeated,
  repeat,
  ...fields
}) {
  for (const classRow of classes) addClass(classRow);

  const firstBox = boxColumns.score.length;
  for (const boxRow of boxRows) addBox(boxRow);
  addTracks(firstBox, tracks);
  addCrossings(firstBox, crossed);
  addNonEmpty(boxColumns.zones, firstBox, zones);
  addNonEmpty(boxColumns.text, firstBox, texts);
  addNonEmpty(boxColumns.classified, firstBox, classified);
  addNonEmpty(boxColumns.symbolCorners, firstBox, corners);
  addRepeated(firstBox, repeated);

  const record = {
    warnings: [],
    ignored: [], // numbers of polygons in which nothing counts
    ...fields, // source, size, frame, times, error, picture; original: its own file, if no copy
    repeat: repeat && repeatOf(repeat),
    folder: folderOf(fields),
    number: page.records.length,
    runNumber: loading.runNumber,
    firstBox,
    endBox: boxColumns.score.length, // behind its last box
    isReplaced: false,
  };
  if (fields.video !== undefined) addToVideo(record, fields);
  if (page.runs.length > 1) replaceEarlier(record);
  page.records.push(record);
  page.folders.add(record.folder);
}

/* Adds a class that comes up for the first time in a run. Runs number their classes by themselves,
   so `loading.classNumbers` leads from a run's number to that in page.classes. */
function addClass([id, name, colour, ink]) {
  const key = `${id} ${name}`;
  if (!loading.numberOfClass.has(key)) {
    loading.numberOfClass.set(key, page.classes.length);
    page.classes.push({ id, name, colour, ink });
  }
  loading.classNumbers.push(loading.numberOfClass.get(key));
}

/* Adds a box to the columns, from the list that the data has of it. The counterpart is the box on
   the other side of a comparison, empty without one. */
function addBox(boxRow) {
  const [classOfRun, score, x1, y1, x2, y2, kindNumber = 0, ...counterpart] =
    boxRow;
  if (counterpart.length)
    boxColumns.counterpart.set(boxColumns.score.length, counterpart);
  boxColumns.classNumber.push(loading.classNumbers[classOfRun]);
  boxColumns.score.push(score ?? NaN);
  boxColumns.coordinates.push(x1, y1, x2, y2);
  boxColumns.kindNumber.push(kindNumber);
}

/* Adds the tracks of the boxes that were added since `firstBox`: a number, or NaN for a box without
   one in a run with tracks, or 0 in a run without. */
function addTracks(firstBox, tracks = []) {
  if (tracks.length) page.hasTracks = true;
  const noTrack = tracks.length ? NaN : 0;
  const boxCount = boxColumns.score.length - firstBox;
  for (let index = 0; index < boxCount; index += 1)
    boxColumns.track.push(tracks[index] || noTrack);
}

/* Adds the lines that boxes have crossed, as texts. */
function addCrossings(firstBox, crossed = []) {
  for (const [index, lines] of crossed.entries()) {
    const texts = lines.map(([line, side]) => `${line} to the ${side}`);
    if (texts.length) boxColumns.crossings.set(firstBox + index, texts);
  }
}

/* Adds the numbers of the groups of repeats that boxes were dropped with. */
function addRepeated(firstBox, groupNumbers = []) {
  for (const [index, groupNumber] of groupNumbers.entries()) {
    if (groupNumber) boxColumns.repeated.set(firstBox + index, groupNumber);
  }
}

/* The group of boxes that a record stands for, on a page of repeats. */
function repeatOf(row) {
  const [number, imageCount, boxCount, place, firstName, lastName] = row;
  const boxFractions = row[6]; // x1, y1, x2, y2
  const counts = { imageCount, boxCount };
  return { number, ...counts, place, firstName, lastName, boxFractions };
}

/* Keeps the values, texts or lists, that are not empty. */
function addNonEmpty(column, firstBox, values = []) {
  for (const [index, value] of values.entries()) {
    if (value.length) column.set(firstBox + index, value);
  }
}

/* Adds the record of a frame to its video, which begins with its first frame. */
function addToVideo(record, { video: number, stride, film }) {
  let video = loading.videos.get(number);
  if (!video) {
    video = { source: record.source, stride: 1, records: [], mayGoOn: true };
    loading.videos.set(number, video);
    const isStream = record.time !== undefined;
    if (!isStream) {
      if (loading.lastFile) loading.lastFile.mayGoOn = false;
      loading.lastFile = video;
    }
    page.videos.push(video);
  }
  record.video = video;
  record.frameIndex = video.records.length;
  video.records.push(record);
  if (stride) video.stride = stride;
  if (film) video.film = film;
}

/* A run that goes on with another repeats what failed there, and what was cut off. */
function replaceEarlier(record) {
  if (record.time !== undefined || record.source === "-") return; // new in every run
  const key = `${record.frame} ${record.source}`;
  const earlier = loading.latestRecords.get(key);
  if (earlier && earlier.runNumber < record.runNumber)
    earlier.isReplaced = true;
  loading.latestRecords.set(key, record);
}

/* The histogram bin of a score; a float32 score on a border belongs to the upper bin. */
function scoreBin(score, binCount) {
  const bin = Math.floor(score * binCount + 1e-5);
  return Math.min(binCount - 1, bin);
}

/* Whether an image was kept: of a video every stride-th, which grows as the video does. So while
   more of it may be loaded, only the first frame is certain to have one. */
function hasPicture({ picture: name, video, frameIndex }) {
  if (name === undefined) return false;
  if (!video) return true;
  if (video.mayGoOn) return frameIndex === 0;
  return frameIndex % video.stride === 0;
}

/* Of the videos of a run, no more is loaded. */
function endVideos() {
  for (const video of loading.videos.values()) video.mayGoOn = false;
}

/* Loads all chunks, one after the other; `progress` is called after each. */
async function loadChunks(progress) {
  for (const [runNumber, run] of page.runs.entries()) {
    loading.runNumber = runNumber;
    loading.classNumbers = [];
    loading.videos = new Map();
    loading.lastFile = undefined;
    for (let left = run.chunks; left > 0; left -= 1) {
      const recordsBefore = page.records.length;
      await loadData(`data/${page.loadedChunks}.js`);
      if (page.records.length === recordsBefore) page.damagedChunks += 1;
      page.loadedChunks += 1;
      if (left === 1) endVideos();
      progress();
    }
  }
}

/* Numbers and texts as they are shown. */

function baseName({ source, time }) {
  if (time) return source.replace(/^[a-z]+:\/\//i, ""); // names of many cameras end alike
  const isWindowsPath = /^([a-z]:)?\\/i.test(source);
  const separator = isWindowsPath ? /[/\\]/ : "/"; // elsewhere a file's name may hold \
  return source.split(separator).filter(Boolean).pop() || source;
}

/* The folder of an image or a video; empty for none. */
function folderOf({ source, time }) {
  if (time) return ""; // of a camera
  const name = baseName({ source });
  return source.slice(0, source.lastIndexOf(name)).replace(/[/\\]+$/, "");
}

/* The end of a path, where all of it would leave no room. */
function lastFolders(path) {
  return path.split("/").slice(-2).join("/");
}

function boxCountText(count) {
  return countText(count, "box", "boxes");
}

/* How often each value is there, the most frequent first. */
function frequencies(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
  const byCount = ([, countA], [, countB]) => countB - countA;
  return new Map([...counts].sort(byCount));
}

/* 1:02:03.4, without the hours where there are none. */
function clockText(timeS) {
  const tenths = Math.floor(timeS * 10 + 1e-6);
  const seconds = Math.floor(tenths / 10);
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(minutes / 60);
  const twoDigits = (number) => String(number).padStart(2, "0");
  const end = `${twoDigits(seconds % 60)}.${tenths % 10}`;
  if (!hours) return `${minutes}:${end}`;
  return `${hours}:${twoDigits(minutes % 60)}:${end}`;
}

/* When a frame was: the date of a stream, the time in a video, or else the frame's number. */
function momentText(record) {
  if (record.time) return record.time.replace("T", " ").replace("Z", " UTC");
  if (record.time_s === undefined) return `frame ${record.frame}`;
  return clockText(record.time_s);
}

function displayName(record) {
  const name = baseName(record);
  if (record.frame === undefined) return name;
  return `${momentText(record)} · ${name}`;
}
