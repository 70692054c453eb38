// The fleet as the broker sees it now: one picture a second at most, by server-sent events.

const SHOWN_JOBS = 5;
const OVER = ["done", "failed", "cancelled"];
const SHOWN_LEFT = 5;
const MOST_POINTS = 1500;
const MOST_ROWS = 100;  // of a table: a browser takes a second to lay out thousands

const place = (id) => document.getElementById(id);
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();
const badge = (state) => element("span", { class: `badge ${state.split(" ")[0]}` }, state);

/** The card of a job, with its curve. It stays in the page while its texts change. */
class JobCard {
  constructor(job) {
    this.texts = element("div");
    this.chart = element("div", { class: "chart", role: "img" });
    this.panel = new StepPanel(job);
    this.log = new LogPanel(job.job);
    this.root = element("article", { class: "job", id: `job-${job.job}`, "aria-label": `${job.name}, ${job.job}` }, this.texts, this.chart, this.panel.root, this.log.root);
    this.curve = { step: [], at: [], loss: [], validated: [], validation: [] };
    this.plot = null;
  }

  show(job, at) {
    this.#add(job, at);
    this.texts.replaceChildren(...[
      element("h3", {}, `${job.name} `, badge(conditionOf(job)), element("span", { class: "faint" }, ` ${job.job}`)),
      element("progress", { max: String(Math.max(1, job.steps)), value: String(job.step), "aria-label": `${job.step} of ${job.steps} steps` }),
      this.#figures(job),
      ...[job.reason, job.bottleneck, job.protection, job.planning].filter(Boolean).map((words) =>
        element("p", { class: [job.reason, job.bottleneck].includes(words) ? "why" : "faint" }, words)),
      planOf(job),
      codecsOf(job),
    ].filter(Boolean));
    this.panel.show(job);
    this.log.show();
    this.#draw(job);
  }

  #figures(job) {
    const figures = [["step", `${job.step} of ${job.steps}`]];
    if (job.loss !== null) figures.push(["loss", digits(job.loss, 5)]);
    if (job.validation_loss !== null) figures.push([`validation loss after ${job.validated_step} steps`, digits(job.validation_loss, 5)]);
    if (job.samples_per_second !== null) figures.push(["samples a second", digits(job.samples_per_second)]);
    const left = isMoving(job) ? this.#secondsLeft(job) : null;
    if (left !== null) figures.push(["left", secondsWords(left)]);
    figures.push(["workers", job.workers.join(" \u2192 ") || "none"]);
    const carried = job.links.reduce((sum, link) => sum + link.wire_bytes, 0);
    if (carried) figures.push(["between workers so far", bytesWords(carried)]);
    return element("dl", { class: "figures" }, ...figures.map(([name, value]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  }

  /** By the steps of this attempt, else by the newest ones: a wait in the past is not counted again. */
  #secondsLeft(job) {
    if (job.step_seconds !== null) return job.step_seconds * (job.steps - job.step);
    const { step, at } = this.curve, from = Math.max(0, step.length - 20), done = step.at(-1) - step[from];
    return done > 0 ? ((at.at(-1) - at[from]) / done) * (job.steps - job.step) : null;
  }

  #add(job, at) {
    this.#addValidation(job);
    const { step, at: times, loss } = this.curve;
    while (step.length && step.at(-1) > job.step) [step, times, loss].forEach((column) => column.pop());
    if (job.step === 0 || step.at(-1) === job.step) return;
    step.push(job.step);
    times.push(at);
    loss.push(job.loss);
    if (step.length > MOST_POINTS) this.curve = thinned(this.curve);
  }

  #addValidation(job) {
    const { validated, validation } = this.curve;
    if (job.validated_step === null) return;
    while (validated.length && validated.at(-1) >= job.validated_step) [validated, validation].forEach((column) => column.pop());
    validated.push(job.validated_step);
    validation.push(job.validation_loss);
  }

  #draw(job) {
    const { step, loss } = this.curve;
    if (step.length < 2 || loss.every((value) => value === null)) return;
    this.chart.setAttribute("aria-label", `Loss of ${job.name}: ${digits(loss.find((value) => value !== null))} at step ${step[0]}, now ${digits(job.loss)}`);
    if (this.plot) this.plot.setData(columnsOf(this.curve));
    else this.redraw();
  }

  /** Draw the curve anew, in the present theme and width. */
  redraw() {
    this.plot?.destroy();
    this.plot = null;
    if (this.curve.step.length < 2 || !this.root.isConnected) return;
    const axis = { stroke: colour("ink"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("rule"), width: 1 } };
    this.plot = new uPlot({
      width: Math.max(240, this.chart.clientWidth), height: 180, scales: { x: { time: false } },
      axes: [axis, { ...axis, size: 64 }],
      series: [{ label: "step" },
        { label: "loss (a point a second)", stroke: colour("first"), width: 2, spanGaps: true, value: (_, value) => digits(value, 6) },
        { label: "validation loss", stroke: colour("second"), width: 2, spanGaps: true, points: { show: true, size: 7 }, value: (_, value) => digits(value, 6) }],
    }, columnsOf(this.curve), this.chart);
  }
}

/** Every second point of a curve. */
function thinned(curve) {
  const thin = Object.fromEntries(["step", "at", "loss"].map((name) => [name, curve[name].filter((_, index) => index % 2 === 0)]));
  return { ...curve, ...thin };
}

/** Steps, with the loss and the validation loss at each; null where there is none. */
function columnsOf({ step, loss, validated, validation }) {
  const steps = [...new Set([...step, ...validated])].sort((one, other) => one - other);
  const trained = new Map(step.map((at, index) => [at, loss[index]])), checked = new Map(validated.map((at, index) => [at, validation[index]]));
  return [steps, steps.map((at) => trained.get(at) ?? null), steps.map((at) => checked.get(at) ?? null)];
}

/** What the broker's log says of a job; asked for while it is open. */
class LogPanel {
  constructor(job) {
    this.path = `/api/v1/jobs/${encodeURIComponent(job)}/log`;
    this.lines = element("ul", { class: "log", tabindex: "0", "aria-label": "Log" });
    this.root = element("details", {}, element("summary", {}, "Log"), this.lines);
    this.root.addEventListener("toggle", () => this.show());
  }

  async show() {
    if (!this.root.open || this.isAsking) return;
    this.isAsking = true;
    try {
      const answer = await fetch(this.path), lines = answer.ok ? await answer.json() : [];
      const shown = lines.reverse().map(([at, words]) => element("li", {}, element("time", {}, clock(at)), words));
      this.lines.replaceChildren(...(shown.length ? shown : [element("li", { class: "faint" }, "nothing since the broker was started")]));
    } catch { // the next picture says it if the broker is gone
    } finally {
      this.isAsking = false;
    }
  }
}

/** A list of which the page shows the first rows, or those with the text that the viewer looks for. */
class Finder {
  constructor(name) {
    this.input = place(`find-${name}`);
    this.show = () => {};
    this.input.addEventListener("input", () => this.show());
  }

  /** Show items by `draw(items, words)`; `text` is what of an item is searched. */
  list(items, text, draw) {
    this.show = () => {
      const wanted = this.input.value.trim().toLowerCase();
      const found = wanted ? items.filter((item) => text(item).toLowerCase().includes(wanted)) : items;
      const of = found.length > MOST_ROWS ? `the first ${MOST_ROWS} of ${found.length}` : wanted ? `${found.length} of ${items.length}` : "";
      draw(found.slice(0, MOST_ROWS), of);
    };
    this.input.parentElement.hidden = items.length <= MOST_ROWS && !this.input.value;
    this.show();
  }
}

/** What each link carries, in Mbit/s, from one report of its sender to the next. */
class LinkUse {
  constructor() {
    this.known = new Map();
  }

  mbps(view, at) {
    const key = JSON.stringify([view.job, view.holder, view.report.peer]), sent = view.report.link?.bytes_sent ?? 0;
    const before = this.known.get(key);
    if (!before || sent < before.sent) this.known.set(key, { sent, at, mbps: null });
    else if (sent > before.sent && at > before.at) this.known.set(key, { sent, at, mbps: ((sent - before.sent) * 8e-6) / (at - before.at) });
    return this.known.get(key).mbps;
  }
}

/** A table that scrolls sideways where it is wider than the page. */
function wide(label, inner) {
  return element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label }, inner);
}

function isMoving(job) {
  return job.state === "running" && !job.held && !job.waits_for.length;
}

function conditionOf(job) {
  if (OVER.includes(job.state)) return job.state;
  if (job.held) return "held";
  return job.waits_for.length ? `waiting for ${job.waits_for.slice(0, 3).join(", ")}` : job.state;
}

/** The segments of the plan with their workers, and how much of a step each worker computes. */
function planOf(job) {
  if (!job.segments.length) return null;
  const seconds = job.step_seconds, seen = new Set();
  const rows = job.segments.flatMap((one) => one.workers.map((name) => {
    const computes = seen.has(name) ? undefined : job.computing[name];  // a worker of several segments: once
    seen.add(name);
    const known = seconds && computes !== undefined;
    return [name, `${Math.round(100 * one.share)} %`, bytesWords(one.parameter_bytes),
      known ? `${secondsWords(computes)}, ${Math.round((100 * computes) / seconds)} % of ${secondsWords(seconds)}` : "-", known ? bar(computes / seconds) : ""];
  }));
  return wide("Plan", table("Plan", ["worker", "of the model", "parameters", "computes in a step", ""], rows, [1, 2]));
}

function codecsOf(job) {
  if (!job.codecs.length) return null;
  const rows = job.codecs.map((link) => [`${link.source} \u2192 ${link.target}`, link.codec, `${digits(link.ratio)}x`]);
  return element("details", {}, element("summary", {}, `Codecs of ${rows.length} links`), wide("Codecs", table("", ["link", "codec", "fewer bytes"], rows, [2])));
}

/** All that the page shows, from one picture to the next. */
class Page {
  constructor() {
    this.cards = new Map();
    this.map = new FleetMap(place("map"));
    this.use = new LinkUse();
    this.act = new ActForm();
    this.finders = { workers: new Finder("workers"), links: new Finder("links") };
    this.at = null;
    this.isOver = false;
  }

  /** Take the curves that the broker has seen: it saw more than a page that was closed or away. */
  remember(curves) {
    for (const [job, curve] of Object.entries(curves)) this.#card({ job, name: job, workers: [] }).curve = curve;
    this.redraw();
  }

  show({ at, status }) {
    this.at = at;
    place("broker").textContent = `broker ${status.version}; the newest change was at ${clock(at)}`;
    this.isOver = status.jobs.length > 0 && status.jobs.every((job) => OVER.includes(job.state));
    const listed = new Set(status.jobs.map((job) => job.job));
    for (const job of this.cards.keys()) if (!listed.has(job)) this.cards.delete(job);
    this.#jobs(status.jobs, at);
    this.#workers(status.workers, at);
    this.#links(status, at);
    this.act.show(status);
  }

  redraw() {
    this.map.draw();
    this.cards.forEach((card) => card.redraw());
  }

  #card(job) {
    if (!this.cards.has(job.job)) this.cards.set(job.job, new JobCard(job));
    return this.cards.get(job.job);
  }

  #jobs(jobs, at) {
    const going = jobs.filter((job) => !OVER.includes(job.state)), over = jobs.filter((job) => OVER.includes(job.state)).reverse();
    const shown = [...going, ...over.slice(0, SHOWN_JOBS)], older = over.slice(SHOWN_JOBS);
    const cards = shown.map((job) => this.#card(job));
    const roots = cards.map((card) => card.root), present = [...place("jobs").children];
    if (roots.length !== present.length || roots.some((root, index) => root !== present[index])) place("jobs").replaceChildren(...roots);
    cards.forEach((card, index) => card.show(shown[index], at));
    place("no-jobs").hidden = jobs.length > 0;
    place("older").hidden = older.length === 0;
    place("older-jobs").replaceChildren(table("", ["job", "name", "state", "steps"], older.map((job) => [job.job, job.name, job.state, `${job.step}/${job.steps}`])));
  }

  #workers(workers, at) {
    const there = workers.filter((worker) => worker.state !== "left"), left = workers.filter((worker) => worker.state === "left");
    const states = [...new Set(there.map((worker) => worker.state))].map((state) => `${there.filter((worker) => worker.state === state).length} ${state}`);
    place("counted").textContent = `${there.length} here${states.length ? `: ${states.join(", ")}` : left.length ? "" : ": farflung token create, then farflung join on each machine"}${left.length ? `; ${left.length} left` : ""}`;
    const heads = ["worker", "state", "job", "why", "device", "memory", "site", "framework", "here for", "address"];
    const cells = (worker) => [worker.worker, badge(worker.state), worker.job, worker.reason, worker.device, bytesWords(worker.memory_bytes), worker.site,
      worker.framework, worker.there_seconds ? secondsWords(worker.there_seconds) : "away", worker.address];
    const words = (worker) => [worker.worker, worker.state, worker.job, worker.reason, worker.device, worker.site].join(" ");
    this.finders.workers.list(there, words, (shown, of) => place("workers").replaceChildren(there.length ? table(of, heads, shown.map(cells)) : ""));
    const gone = [...left].sort((one, other) => one.gone_seconds - other.gone_seconds).slice(0, SHOWN_LEFT);
    place("left").replaceChildren(...gone.map((worker) => element("li", {}, `${worker.worker} `, badge(worker.is_lost ? "lost" : "left"),
      ` at ${clock(at - worker.gone_seconds)}${worker.reason ? `: ${worker.reason}` : ""}`)));
  }

  #links(status, at) {
    const going = new Set(status.jobs.filter((job) => !OVER.includes(job.state)).map((job) => job.job));
    const codecs = new Map(status.jobs.flatMap((job) => job.codecs.map((one) => [JSON.stringify([job.job, one.source, one.target]), one.codec])));
    const views = status.links.filter((view) => going.has(view.job));
    const mbps = (value) => (value === null || value === undefined ? "-" : `${digits(value)} Mbit/s`);
    const known = views.map((view) => {
      const link = view.report.link, used = this.use.mbps(view, at), possible = view.possible_mbps;
      return { view, link, used, possible, share: used && possible ? used / possible : 0 };
    });
    const cells = ({ view, link, used, possible, share }) => {
      const ends = `${view.holder} \u2192 ${view.report.peer}`;
      if (!link) return [ends, "not connected: farflung doctor shows why", "", "", "", "", "", ""];
      return [ends, link.path, link.round_trip_ms === null ? "-" : `${digits(link.round_trip_ms)} ms`, mbps(used), mbps(possible), bar(share),
        link.resent === null ? "-" : `${digits(link.resent * 100, 2)} %`, codecs.get(JSON.stringify([view.job, view.holder, view.report.peer])) ?? "dense"];
    };
    const heads = ["link", "route", "round trip", "carries", "of possible", "", "sent again", "codec"];
    this.finders.links.list(known, ({ view, link }) => `${view.holder} \u2192 ${view.report.peer} ${link?.path ?? ""}`, (shown, of) =>
      place("links").replaceChildren(known.length ? table(of, heads, shown.map(cells), [2, 3, 4, 6]) : element("p", { class: "faint" }, "No job uses links now.")));
    const drawn = known.filter(({ link }) => link).map(({ view, link, share }) => ({ source: view.holder, target: view.report.peer, share, relayed: link.path.startsWith("relay") }));
    place("map-section").hidden = status.workers.every((worker) => worker.state === "left");
    this.map.show(status.workers.filter((worker) => worker.state !== "left"), drawn);
  }
}

function trouble(words) {
  place("trouble").hidden = !words;
  place("trouble").textContent = words;
}

async function remember(page) {
  const answer = await fetch("/api/v1/curves");
  if (answer.ok) page.remember(await answer.json());
}

function show() {
  const page = new Page();
  const source = new EventSource("/api/v1/events");
  place("broker").textContent = "Asking the broker";
  source.onopen = () => remember(page).catch(() => {}); // the next picture says it if the broker is gone
  source.onmessage = (event) => { page.show(JSON.parse(event.data)); trouble(""); };
  source.onerror = () => {
    const of = page.at === null ? "" : `: what you see is of ${clock(page.at)}`;
    if (page.isOver) return trouble(`The broker has ended, and all its jobs are over${of}. See a run again: farflung report DIR`);
    if (source.readyState !== EventSource.CLOSED) return trouble(`The broker does not answer${of}. Trying again`);
    trouble(`The broker refuses to go on${of}. Open the page again, with its token if it has one`);
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page.redraw());
  addEventListener("resize", () => page.redraw());
}

show();
