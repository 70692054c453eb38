// The slider, and what a run was like at its moment.

const POSITIONS = 1000;
const PLAYED_SECONDS = 20;

/** Moves a moment from the beginning to the end of the longest run, and says so to `changed`. */
class Replay {
  constructor(runs, changed) {
    this.byTime = runs.every((run) => run.has_times && run.seconds > 0);
    this.length = Math.max(...runs.map((run) => (this.byTime ? run.seconds : run.steps)), this.byTime ? 1e-9 : 1);
    this.runs = runs;
    this.changed = changed;
    this.slider = document.getElementById("moment");
    this.button = document.getElementById("play");
    this.timer = null;
    this.slider.addEventListener("input", () => { this.stop(); this.#show(); });
    this.button.addEventListener("click", () => (this.timer === null ? this.play() : this.stop()));
  }

  get moment() {
    const share = Number(this.slider.value) / POSITIONS;
    return new Moment(this.byTime ? share * this.length : Math.round(share * this.length), this.byTime);
  }

  /** Go to a happening of a run. */
  goTo(happening) {
    this.stop();
    const place = this.byTime ? happening.elapsed : happening.step;
    this.slider.value = String(Math.ceil((place / this.length) * POSITIONS));
    this.#show();
  }

  play() {
    if (Number(this.slider.value) >= POSITIONS) this.slider.value = "0";
    this.button.textContent = "Pause";
    const begin = performance.now(), from = Number(this.slider.value);
    this.timer = setInterval(() => {
      const position = from + ((performance.now() - begin) / 1000 / PLAYED_SECONDS) * POSITIONS;
      this.slider.value = String(Math.min(POSITIONS, position));
      if (position >= POSITIONS) this.stop();
      this.#show();
    }, 100);
  }

  stop() {
    if (this.timer !== null) clearInterval(this.timer);
    this.timer = null;
    this.button.textContent = "Play";
  }

  #show() {
    const moment = this.moment, words = this.runs.map((run) => this.#words(run, moment));
    this.slider.setAttribute("aria-valuetext", words.join("; "));
    document.getElementById("moment-words").replaceChildren(...words.map((text) => element("span", { class: "moment" }, text)));
    this.changed(moment);
  }

  #words(run, moment) {
    const point = run.pointAt(moment.stepOf(run)), loss = point < 0 ? null : run.curves.loss[point];
    const name = this.runs.length > 1 ? `run ${run.number + 1}: ` : "";
    return `${name}${moment.words(run)}${loss === null ? "" : `, loss ${digits(loss, 5)}`}`;
  }

  begin() {
    this.#show();
  }
}

/** The plan of a run at a moment: its segments, and a table of its links. */
function planOf(run, moment) {
  const place = named(run), found = run.planAt(moment);
  if (found === null) {
    const isOlder = !run.plans.length && (!run.has_times || run.happenings.some((one) => one.words.startsWith("attempt ")));
    const why = isOlder ? "The run folder holds no plan of an attempt: an older farflung wrote it." : "There was no plan yet.";
    place.append(element("p", { class: "faint" }, why));
    return place;
  }
  place.append(element("p", { class: "faint" }, `Attempt ${found.plan.attempt}`));
  place.append(element("ol", { class: "segments" }, ...found.plan.segments.map((segment) => element("li", {},
    element("strong", {}, segment.workers.length ? segment.workers.join(", ") : "no worker"),
    `segment ${segment.segment}: ${segment.nodes} operators, ${bytesWords(segment.parameter_bytes)} of parameters`))));
  place.append(linksOf(run, moment, found.links));
  return place;
}

function linksOf(run, moment, codecs) {
  const { step, pairs, mbps, ratio, left_out: leftOut } = run.links;
  const at = step.findIndex((last) => last >= Math.max(1, moment.stepOf(run)));
  if (!pairs.length || at < 0) return element("p", { class: "faint" }, "No links between workers carried anything.");
  const most = Math.max(...mbps.map((rates) => rates[at] ?? 0), 1e-9);
  const rows = pairs.map(([source, target], index) => {
    const codec = codecs.get(JSON.stringify([source, target]));
    return { rate: mbps[index][at], cells: [`${source} -> ${target}`, codec ? codec.codec : "dense",
      mbps[index][at] === null ? "-" : `${digits(mbps[index][at])} Mbit/s`, bar((mbps[index][at] ?? 0) / most),
      ratio[index][at] === null ? "-" : `${digits(ratio[index][at])}x`, codec ? codec.reason : ""] };
  }).filter((row) => row.rate !== 0);
  const caption = `Links at step ${step[at]}${leftOut ? `; ${leftOut} that carried less are left out` : ""}`;
  const made = table(caption, ["link", "codec", "rate over whole steps", "of the fastest", "fewer bytes", "why"], rows.map((row) => row.cells), [2, 4]);
  return element("div", { class: "wide links", tabindex: "0", role: "region", "aria-label": caption }, made);
}

/** The events of a run; those after the moment are faint. */
function eventsOf(run, replay) {
  const rows = run.happenings.map((happening) => {
    const when = happening.elapsed === null ? `step ${happening.step}` : `${secondsWords(happening.elapsed)}, step ${happening.step}`;
    const button = element("button", { type: "button" }, when);
    button.addEventListener("click", () => replay().goTo(happening));
    return element("li", { class: happening.kind }, button, element("span", {}, happening.words));
  });
  const place = named(run);
  place.append(element("ol", { class: "events" }, ...rows));
  return { place, show: (moment) => rows.forEach((row, index) => row.classList.toggle("later", !moment.isReached(run, run.happenings[index]))) };
}

/** A place for something of one run, with its name where there are two. */
function named(run) {
  const place = element("div", { class: `run-${run.number}` });
  if (run.isCompared) place.append(element("h3", {}, element("span", { class: "run-name" }, `run ${run.number + 1}: ${run.title}`)));
  return place;
}
