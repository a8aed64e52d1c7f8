"use strict";

/* Plays the frames of a video in the viewer, and leads to what happens in it. */

const player = {
  playback: null, // a token of what plays now
  key: "", // what the moments are of
  moments: [], // {target: the frame nearest to it that has a picture, text}
};

function keptFrames(records) {
  return records.filter(
    (record) => !record.isReplaced && !record.error && hasPicture(record),
  );
}

/* When tracks appear and cross lines; without tracks, when something appears. */
function momentsOf({ records }) {
  const passes = boxTest();
  const tracked = records.some(({ firstBox, endBox }) =>
    boxColumns.track.slice(firstBox, endBox).some(Boolean),
  );
  const seen = new Set([0]); // which stands for no track
  let before = 0;
  return records.flatMap((record) => {
    const boxes = record.isReplaced ? [] : shownBoxes(record, passes);
    const texts = boxes.flatMap((box) => {
      const appears = seen.has(boxColumns.track[box])
        ? []
        : [`${titleOf(box)} appears`];
      seen.add(boxColumns.track[box]);
      const crossed = boxColumns.crossings.get(box) || [];
      return [
        ...appears,
        ...crossed.map((text) => `${titleOf(box)} crosses ${text}`),
      ];
    });
    if (boxes.length && !before && !tracked)
      texts.push(`${tally(record)} after nothing`);
    before = boxes.length;
    const text = `${momentText(record)}: ${texts.join(", ")}`;
    return texts.length
      ? [{ target: nearestPicture(record, records), text }]
      : [];
  });
}

function showMoments() {
  const { record } = viewer;
  byId("player").hidden = !record.video;
  byId("play").setAttribute("aria-pressed", Boolean(player.playback));
  if (!record.video) return;
  const key = `${page.videos.indexOf(record.video)} ${addressOf({ picture: "" })}`;
  if (key !== player.key)
    Object.assign(player, { key, moments: momentsOf(record.video) });
  const here = player.moments.filter(({ target }) => target === record);
  byId("moments").textContent = here.map(({ text }) => text).join("; ");
}

function jump(by) {
  const { frameIndex } = viewer.record;
  const ahead = player.moments.filter(
    ({ target }) => by * (target.frameIndex - frameIndex) > 0,
  );
  const next = ahead.at(by > 0 ? 0 : -1);
  if (next) goTo(next.target);
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
async function playFrames(record, token) {
  const frames = keptFrames(record.video.records);
  const clockOf = ({ time_s: time, frame }) =>
    time === undefined ? frame / 25 : time;
  for (let at = frames.indexOf(record) + 1 || 1; at < frames.length; at += 1) {
    const image = new Image();
    image.src = pictureAddress(frames[at]);
    const gap = Math.max(
      0,
      Math.min(1, clockOf(frames[at]) - clockOf(frames[at - 1])),
    );
    const paced = new Promise((resolve) => {
      setTimeout(resolve, 1000 * gap);
    });
    await Promise.all([image.decode().catch(() => {}), paced]);
    if (player.playback !== token) return;
    openViewer(frames[at]);
  }
  stopPlaying();
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

function stopPlaying() {
  const film = byId("stage").querySelector("video");
  const { record } = viewer;
  const frames = film ? keptFrames(record.video.records) : [];
  const at = frames.findLast((one) => one.time_s <= film.currentTime);
  film?.remove();
  goTo(at || record);
  showMoments();
}

function startPlayer() {
  byId("play").addEventListener("click", togglePlay);
  byId("before").addEventListener("click", () => jump(-1));
  byId("after").addEventListener("click", () => jump(1));
}
