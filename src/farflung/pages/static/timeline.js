// One step, drawn: a row for each worker, and under it a thin one for each link on which it sends.

const SVG = "http://www.w3.org/2000/svg";
const LINK = " -> ";
const KINDS = { forward: "forward", backward: "backward", accumulate: "gradients of weights", update: "update", activation: "activations on a link", gradient: "gradients on a link", state: "sums of replicas" };
const ROW = 18, THIN = 7, GAP = 4, LEFT = 132, WIDTH = 900, AXIS = 22;
const TICKS = 5, LEAST_SHOWN = 0.005;

function shape(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Rows in order: each worker of `order` first, then the links on which it sends. */
function rowsOf(spans, order) {
  const names = [...new Set(spans.map((span) => span[0]))], links = names.filter((name) => name.includes(LINK));
  const workers = [...new Set([...order, ...names.filter((name) => !name.includes(LINK))])];
  const sent = (worker) => links.filter((name) => name.split(LINK)[0] === worker).sort();
  const others = links.filter((name) => !workers.includes(name.split(LINK)[0])).sort();
  return [...others, ...workers.flatMap((worker) => [worker, ...sent(worker)])];
}

/** A picture of spans [row, kind, microbatch, start, end] on an axis of `whole` seconds; the step ends at `seconds`. */
function stepPicture(words, spans, seconds, whole, order) {
  const places = new Map();
  let height = GAP;
  for (const row of rowsOf(spans, order)) {
    const size = row.includes(LINK) ? THIN : ROW;
    places.set(row, [height, size]);
    height += size + (row.includes(LINK) ? 2 : GAP);
  }
  const x = (time) => LEFT + (WIDTH - LEFT - 8) * Math.min(1, time / whole);
  const drawn = shape("svg", { viewBox: `0 0 ${WIDTH} ${height + AXIS}`, class: "step-picture", role: "img", "aria-label": words });
  drawn.append(...axisOf(x, height, whole));
  for (const [name, [top, size]] of places) {
    const label = name.includes(LINK) ? `\u2192 ${name.split(LINK)[1]}` : name;
    const text = name.startsWith(`submitter${LINK}`) ? `submitter ${label}` : label;
    drawn.append(shape("text", { x: LEFT - 6, y: top + size - (size === THIN ? 1 : 5), class: size === THIN ? "link-name" : "worker-name", "text-anchor": "end" }, text));
  }
  drawn.append(...boxes(spans, places, x));
  drawn.append(shape("line", { x1: x(seconds), x2: x(seconds), y1: 0, y2: height, class: "step-end" }));
  return drawn;
}

function axisOf(x, height, whole) {
  return Array.from({ length: TICKS }, (_, number) => (whole * number) / (TICKS - 1)).flatMap((time, number) => [
    shape("line", { x1: x(time), x2: x(time), y1: 0, y2: height, class: "step-grid" }),
    shape("text", { x: x(time), y: height + 16, class: "step-tick", "text-anchor": number === TICKS - 1 ? "end" : number ? "middle" : "start" }, secondsWords(time)),
  ]);
}

/** All spans of one row and kind as one path, so that 20,000 spans are few elements; odd microbatches are darker. */
function boxes(spans, places, x) {
  const paths = new Map();
  for (const [row, kind, microbatch, start, end] of spans) {
    const key = JSON.stringify([row, kind, microbatch % 2 === 1]), [top, size] = places.get(row);
    const wide = Math.max(0.6, x(end) - x(start));
    paths.set(key, `${paths.get(key) ?? ""}M${x(start).toFixed(2)} ${top}h${wide.toFixed(2)}v${size}h-${wide.toFixed(2)}z`);
  }
  return [...paths].map(([key, d]) => {
    const [, kind, odd] = JSON.parse(key);
    return shape("path", { d, class: `span ${kind in KINDS ? kind : "state"}${odd ? " odd" : ""}` });
  });
}

function legendOf(spans) {
  const kinds = new Set(spans.map((span) => span[1]));
  return element("p", { class: "legend faint" }, ...Object.keys(KINDS).filter((kind) => kinds.has(kind)).map((kind) =>
    element("span", {}, element("i", { class: `swatch ${kind}`, "aria-hidden": "true" }), ` ${KINDS[kind]}`)));
}

/** Where each worker's seconds went, in words and as a table. */
function spentTable(timeline) {
  const rows = Object.entries(timeline.spent).flatMap(([worker, spent]) =>
    Object.entries(spent).filter(([, seconds]) => seconds >= LEAST_SHOWN * timeline.seconds).sort((one, other) => other[1] - one[1]).map(([words, seconds], index) =>
      [index ? "" : worker, words, secondsWords(seconds), `${Math.round((100 * seconds) / timeline.seconds)} %`, bar(seconds / timeline.seconds)]));
  return table(`Where the ${secondsWords(timeline.seconds)} of step ${timeline.step} went`, ["worker", "", "time", "of the step", ""], rows, [2, 3]);
}
