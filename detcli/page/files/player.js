"use strict";

/* Plays the frames of a video in the viewer, and leads to what happens in it. */

const FRAME_RATE = 25; // of a video whose frames have no times

const player = {
  playback: null, // a token of what plays now
  momentsKey: "", // what the moments are of
  moments: [], // {record: the frame nearest to it that has an image, text}
};

function framesWithPicture(records) {
  return records.filter(
    (record) => !record.isReplaced && !record.error && hasPicture(record),
  );
}

/* When tracks appear and cross lines; without tracks, when something appears. */
function momentsOf({ records }) {
  const passesFilter = boxTest();
  const hasTracks = records.some(({ firstBox, endBox }) =>
    boxColumns.track.slice(firstBox, endBox).some(Boolean),
  );
  const seenTracks = new Set([0]); // which stands for no track
  const moments = [];
  let earlierCount = 0;
  for (const record of records) {
    const boxes = record.isReplaced ? [] : shownBoxes(record, passesFilter);
    const texts = boxes.flatMap((box) => eventTexts(box, seenTracks));
    if (boxes.length && !earlierCount && !hasTracks)
      texts.push(`${tally(record)} after nothing`);
    earlierCount = boxes.length;
    if (!texts.length) continue;
    moments.push({
      record: nearestPicture(record, records),
      text: `${momentText(record)}: ${texts.join(", ")}`,
    });
  }
  return moments;
}

/* What a box does: its track appears, unless it was seen before, and it crosses lines. */
function eventTexts(box, seenTracks) {
  const texts = [];
  const track = boxColumns.track[box];
  if (!seenTracks.has(track)) texts.push(`${titleOf(box)} appears`);
  seenTracks.add(track);
  for (const crossing of boxColumns.crossings.get(box) || [])
    texts.push(`${titleOf(box)} crosses ${crossing}`);
  return texts;
}

function showMoments() {
  const { record } = viewer;
  byId("player").hidden = !record.video;
  byId("play").setAttribute("aria-pressed", Boolean(player.playback));
  if (!record.video) return;
  const videoNumber = page.videos.indexOf(record.video);
  const key = `${videoNumber} ${addressOf({ picture: "" })}`;
  if (key !== player.momentsKey) {
    player.momentsKey = key;
    player.moments = momentsOf(record.video);
  }
  const momentsHere = player.moments.filter(
    (moment) => moment.record === record,
  );
  byId("moments").textContent = momentsHere.map(({ text }) => text).join("; ");
}

/* Goes to the next moment, or with -1 to the one before. */
function jump(direction) {
  const { frameIndex } = viewer.record;
  const momentsAhead = player.moments.filter(
    ({ record }) => direction * (record.frameIndex - frameIndex) > 0,
  );
  const nextMoment = momentsAhead.at(direction > 0 ? 0 : -1);
  if (nextMoment) goTo(nextMoment.record);
}

function togglePlay() {
  if (player.playback) {
    stopPlaying();
  } else if (viewer.record?.video) {
    player.playback = {};
    showMoments();
    if (viewer.record.video.film) playFilm(viewer.record);
    else playFrames(viewer.record, player.playback);
  }
}

/* At its pace: a second for a second, where frames load as fast. */
async function playFrames(record, playback) {
  const frames = framesWithPicture(record.video.records);
  const first = Math.max(1, frames.indexOf(record) + 1);
  for (let index = first; index < frames.length; index += 1) {
    const frame = frames[index];
    const image = new Image();
    image.src = pictureAddress(frame);
    const gapS = secondsOf(frame) - secondsOf(frames[index - 1]);
    const waitMs = 1000 * Math.max(0, Math.min(1, gapS));
    const pause = new Promise((resolve) => {
      setTimeout(resolve, waitMs);
    });
    const loaded = image.decode().catch(() => {}); // the viewer says what is missing
    await Promise.all([loaded, pause]);
    if (player.playback !== playback) return;
    openViewer(frame);
  }
  stopPlaying();
}

/* When a frame is in its video. */
function secondsOf({ time_s: timeS, frame }) {
  return timeS === undefined ? frame / FRAME_RATE : timeS;
}

/* The annotated video that was saved beside the page, as it is. */
function playFilm(record) {
  const film = element("video", {
    src: record.video.film,
    controls: true,
    autoplay: true,
  });
  film.muted = true;
  film.currentTime = record.time_s || 0;
  film.addEventListener("ended", stopPlaying);
  film.addEventListener("error", () => {
    // moved, or of a kind that this browser does not play
    record.video.film = undefined;
    film.remove();
    if (player.playback) playFrames(record, player.playback);
  });
  byId("stage").append(film);
}

/* Stays at the frame that was shown last. */
function stopPlaying() {
  let { record } = viewer;
  const film = byId("stage").querySelector("video");
  if (film) {
    const frames = framesWithPicture(record.video.records);
    const isPast = (frame) => frame.time_s <= film.currentTime;
    record = frames.findLast(isPast) || record;
    film.remove();
  }
  goTo(record);
  showMoments();
}

function startPlayer() {
  byId("play").addEventListener("click", togglePlay);
  byId("before").addEventListener("click", () => jump(-1));
  byId("after").addEventListener("click", () => jump(1));
}
