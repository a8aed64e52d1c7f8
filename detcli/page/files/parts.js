"use strict";

/* What the result page and the review page have in common: elements, texts, and how a text is handed
   on. */

/* Makes an element of a tag with classes, as "span.quiet"; attributes, if any, come before what is
   in it. Texts become text nodes: no name can be markup. */
function element(tagAndClasses, ...content) {
  const [tag] = tagAndClasses.split(".");
  return fill(document.createElement(tag), tagAndClasses, content);
}

/* The same for a part of a drawing. */
function vector(tagAndClasses, ...content) {
  const [tag] = tagAndClasses.split(".");
  const namespace = "http://www.w3.org/2000/svg";
  const node = document.createElementNS(namespace, tag);
  return fill(node, tagAndClasses, content);
}

/* Gives a new element its classes, attributes and content; undefined stands for nothing. */
function fill(node, tagAndClasses, content) {
  const [, ...classes] = tagAndClasses.split(".");
  const attributes = content[0]?.constructor === Object ? content.shift() : {};
  if (classes.length) node.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") Object.assign(node.style, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== undefined)
      node.setAttribute(name, value);
  }
  node.append(...content.filter((child) => child !== undefined));
  return node;
}

/* The path of a box. */
function outline([x1, y1, x2, y2]) {
  return `M${x1} ${y1}H${x2}V${y2}H${x1}Z`;
}

/* A drawing in the pixels of an image. */
function overlay({ width, height }, ...parts) {
  const viewBox = `0 0 ${width} ${height}`;
  return vector(
    "svg",
    { viewBox, class: "boxes", "aria-hidden": "true" },
    ...parts,
  );
}

/* A path in a colour, which a dark one beneath sets off from any image. */
function cased(path, colour) {
  return [
    vector("path.casing", { d: path }),
    vector("path", { d: path, stroke: colour }),
  ];
}

function button(...content) {
  const node = element("button", ...content);
  node.type = "button";
  return node;
}

/* A function that draws, however often it is called, once a frame at most. */
function onceAFrame(draw) {
  let isWaiting = false;
  return () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => {
      isWaiting = false;
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

function numberText(value) {
  return Number.isInteger(value)
    ? value.toLocaleString("en")
    : value.toFixed(3);
}

/* "1 image", "2 images". */
function countText(count, noun, plural = `${noun}s`) {
  return `${numberText(count)} ${count === 1 ? noun : plural}`;
}

/* Resolves when the script has run, or is known to be missing: that has added nothing. */
function loadScript(path) {
  return new Promise((resolve) => {
    const script = element("script", { src: path });
    const end = () => {
      script.remove();
      resolve();
    };
    script.onload = end;
    script.onerror = end;
    document.head.append(script);
  });
}

/* A word of a shell's command, in quotes where it needs them. */
function shellWord(text) {
  const isPlain = /^[\w./:@%+=,-]+$/.test(text);
  return isPlain ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/* Has the browser save a text as a file. */
function saveText(fileName, text) {
  const blob = new Blob([text], { type: "text/plain" });
  const address = URL.createObjectURL(blob);
  element("a", { href: address, download: fileName }).click();
  URL.revokeObjectURL(address);
}

/* Copies the text of a field. */
async function copyField(field) {
  try {
    await navigator.clipboard.writeText(field.value);
  } catch {
    // not allowed from a disk
    field.select();
    document.execCommand("copy");
  }
}

/* Copies a text that no field has; one within the dialog that is open, as a page below it is inert. */
async function copyText(text) {
  const field = element("textarea.unseen");
  field.value = text;
  const parent = document.querySelector("dialog[open]") || document.body;
  parent.append(field);
  await copyField(field);
  field.remove();
}

/* Keeps a text in the browser; returns whether it can, as some keep nothing of pages from a disk. */
function storeText(key, text) {
  try {
    localStorage.setItem(key, text);
    return true;
  } catch {
    return false;
  }
}

/* The text that the browser keeps; null if there is none. */
function storedText(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}
