"use strict";

/* Thumbnails are in packs: scripts that call thumbnail() for each of up to a thousand. A pack is loaded
   when an image near the window needs it, and let go when others were needed since. */

const MAX_PACKS = 32; // of 2 MB at most

const packs = {
  loaded: new Map(), // thumbnails in base64 by name, of each pack; the one needed last is the last
  arriving: new Map(), // thumbnails of the pack that is being loaded
  lastLoad: Promise.resolve(), // packs are loaded one after the other
};

/* Called by the packs. */
function thumbnail(name, data) {
  packs.arriving.set(name, data);
}

/* An image that shows the thumbnail of a record as soon as that is loaded. */
function thumbnailImage(record) {
  const image = pictureImage(undefined, { "data-name": record.picture });
  showThumbnail(image, record);
  return image;
}

async function showThumbnail(image, record) {
  const pack = packOf(record);
  if (pack && !packs.loaded.has(pack)) {
    packs.lastLoad = packs.lastLoad.then(() => loadPack(pack, image));
    await packs.lastLoad;
    if (!image.isConnected) return;
  }
  image.src = thumbnailAddress(record, pack);
}

/* Loads a pack, unless that was done meanwhile or the image that needed it is gone. */
async function loadPack(pack, image) {
  if (packs.loaded.has(pack) || !image.isConnected) return;
  packs.arriving = new Map();
  await loadScript(pack);
  packs.loaded.set(pack, packs.arriving);
  const [leastNeeded] = packs.loaded.keys();
  if (packs.loaded.size > MAX_PACKS) packs.loaded.delete(leastNeeded);
}

/* The path of the pack with a record's thumbnail; undefined if it is in no pack, as in a page in one
   file, or in one that an earlier version of detcli began. */
function packOf({ picture, runNumber }) {
  if (!page.runs[runNumber].packed) return undefined;
  return `thumbnails/${picture.slice(0, picture.lastIndexOf("/"))}.js`;
}

/* Where a pack has lost a thumbnail, the image itself is shown. */
function thumbnailAddress(record, pack) {
  if (!pack)
    return inlinedAddress(record) || `thumbnails/${record.picture}.jpg`;
  const thumbnails = packs.loaded.get(pack);
  packs.loaded.delete(pack);
  packs.loaded.set(pack, thumbnails); // as the one needed last
  const data = thumbnails.get(record.picture);
  return data ? jpegAddress(data) : pictureAddress(record);
}
