// Elements, and numbers in words. Text from a run is only ever set as text.

/** An element with attributes and children; a string child becomes text, a missing one nothing. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

/** A table with a caption, column heads and rows of strings or elements; columns in `numbers` are set to the right. */
function table(caption, heads, rows, numbers = []) {
  const kind = (index) => (numbers.includes(index) ? { class: "number" } : {});
  const head = heads.map((text, index) => element("th", { scope: "col", ...kind(index) }, text));
  const body = rows.map((row) => element("tr", {}, ...row.map((cell, index) => element("td", kind(index), cell))));
  return element("table", {}, element("caption", {}, caption),
    heads.length ? element("thead", {}, element("tr", {}, ...head)) : null, element("tbody", {}, ...body));
}

/** A bar of a share between 0 and 1 in a track. */
function bar(share) {
  const inner = element("div", { class: "bar" });
  inner.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return element("div", { class: "track", "aria-hidden": "true" }, inner);
}

function digits(value, count = 3) {
  if (value === null || value === undefined) return "-";
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3)) return value.toExponential(count - 1);
  return String(Number(value.toPrecision(count)));
}

function secondsWords(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds < 60) return seconds < 0.9995 ? `${digits(seconds * 1000)} ms` : `${digits(seconds)} s`;
  const whole = Math.round(seconds), two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours} h ${two(minutes)} min` : `${minutes} min ${two(whole % 60)} s`;
}

function bytesWords(count) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (Math.abs(count) < 1000) return `${unit === "B" ? count : count.toFixed(1)} ${unit}`;
    count /= 1000;
  }
  return `${count.toFixed(1)} TB`;
}

/** A colour of the style sheet in its present theme. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
