// One step of a job as it ran, as the planner sees it, and as it would be if things were different.

const CODECS = ["dense", "int8", "auto"];
const SLOWEST = 0, FASTEST = 4;  // of a slider: powers of ten of Mbit/s

async function asked(path, body) {
  const how = body ? { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) } : {};
  const answer = await fetch(path, how), isJson = (answer.headers.get("content-type") ?? "").startsWith("application/json");
  if (answer.ok && isJson) return answer.json();
  throw new Error(isJson ? (await answer.json()).error : (await answer.text()).trim().split("\n")[0] || `the broker refuses (${answer.status})`);
}

/** A number field with its label for screen readers. */
function field(label, attributes, value = "") {
  const made = element("input", { type: "number", "aria-label": label, ...attributes });
  made.value = value;
  return made;
}

/** A line's rate: a slider to drag and the number beside it, which follow each other. */
class RateField {
  constructor(label, mbps, changed) {
    this.known = mbps;
    this.number = field(`${label}, Mbit/s`, { min: "0.001", max: "1000000", step: "any" }, mbps === null ? "" : digits(mbps));
    this.slider = element("input", { type: "range", min: SLOWEST, max: FASTEST, step: "0.02", "aria-label": `${label}, to drag` });
    this.slider.value = mbps === null ? FASTEST : Math.log10(mbps);
    this.isChanged = false;
    this.slider.addEventListener("input", () => { this.number.value = digits(10 ** Number(this.slider.value)); this.isChanged = true; });
    this.slider.addEventListener("change", changed);
    this.number.addEventListener("change", () => { this.slider.value = Math.log10(Number(this.number.value) || 1); this.isChanged = true; changed(); });
    this.root = element("div", { class: "rate" }, this.slider, this.number);
  }

  get value() {
    return this.isChanged && this.number.value !== "" ? Number(this.number.value) : null;
  }
}

/** The part of a job's card that is about one step; it asks the broker only once it is opened. */
class StepPanel {
  constructor(job) {
    this.job = job.job;
    this.measured = null;
    this.foreseen = null;
    this.fields = null;
    this.isPlanning = false;
    this.isStale = false;  // whether something was changed while the broker planned
    this.steps = element("div", { class: "steps" });
    this.trouble = element("p", { class: "warning", role: "status", hidden: "" });
    this.form = element("div", { class: "what-if" });
    const again = element("button", { type: "button" }, "Watch another step");
    again.addEventListener("click", () => this.watch());
    const trace = element("a", { href: `/api/v1/jobs/${encodeURIComponent(this.job)}/trace`, download: "" }, "trace file for ui.perfetto.dev");
    this.root = element("details", { class: "step-panel" },
      element("summary", {}, "One step, and what if"), this.trouble, this.steps, element("p", {}, again, " ", trace), this.form);
    this.root.addEventListener("toggle", () => { if (this.root.open && !this.measured) { this.watch(); this.plan(); } });
  }

  show(job) {
    this.order = job.workers;
    this.root.hidden = job.emulated || !["running", "loading"].includes(job.state);
  }

  async watch() {
    await this.#ask("watching one step of each worker", async () => { this.measured = await asked(`/api/v1/jobs/${encodeURIComponent(this.job)}/step`); });
  }

  async plan() {
    this.isStale = true;
    if (this.isPlanning) return;  // one question at a time: the newest follows
    this.isPlanning = true;
    while (this.isStale) {
      this.isStale = false;
      await this.#ask("planning", async () => {
        this.foreseen = await asked("/api/v1/what-if", this.#changes());
        if (!this.fields && !this.foreseen.refusal) this.#build(this.foreseen);
      });
    }
    this.isPlanning = false;
  }

  async #ask(words, ask) {
    this.#say(words);
    try {
      await ask();
      this.#say("");
    } catch (error) {
      this.#say(error instanceof TypeError ? "the broker does not answer" : error.message);
    }
    this.#draw();
  }

  #say(words) {
    this.trouble.hidden = !words;
    this.trouble.textContent = words;
  }

  #changes() {
    const body = { job: this.job };
    if (!this.fields) return body;
    body.workers = {};
    for (const [worker, one] of this.fields.workers) {
      const change = { used: one.used.checked };
      if (one.up.value !== null) change.up_mbps = one.up.value;
      if (one.down.value !== null) change.down_mbps = one.down.value;
      if (Number(one.speed.value) && Number(one.speed.value) !== 1) change.speed = Number(one.speed.value);
      if (Number(one.twins.value)) change.twins = Number(one.twins.value);
      body.workers[worker] = change;
    }
    if (this.fields.microbatches.value) body.microbatches = Number(this.fields.microbatches.value);
    if (this.fields.codec.value) body.codec = this.fields.codec.value;
    if (this.fields.topology) return { ...body, workers: {}, topology: this.fields.topology };
    return body;
  }

  /** The form, filled with what the fleet is now. */
  #build(found) {
    const changed = () => this.plan();
    const watched = (input) => { input.addEventListener("change", changed); return input; };
    const workers = new Map(found.workers.map((one) => [one.worker, {
      used: watched(Object.assign(element("input", { type: "checkbox", "aria-label": `the job may use ${one.worker}` }), { checked: one.used })),
      up: new RateField(`uplink of ${one.worker}`, one.up_mbps, changed), down: new RateField(`downlink of ${one.worker}`, one.down_mbps, changed),
      speed: watched(field(`times as fast: ${one.worker}`, { min: "0.01", max: "100", step: "any" }, "1")),
      twins: watched(field(`more workers like ${one.worker}`, { min: "0", max: "8", step: "1" }, "0")),
    }]));
    const choices = element("datalist", { id: `codecs-${this.job}` }, ...CODECS.map((name) => element("option", { value: name })));
    const microbatches = watched(field("microbatches a step", { min: "1", max: "10000", step: "1" }, found.now.microbatches));
    const codec = watched(element("input", { type: "text", list: `codecs-${this.job}`, "aria-label": "codec of all links", placeholder: "as now", size: "10" }));
    const file = element("input", { type: "file", accept: ".json,application/json", "aria-label": "a topology file to plan for, not this fleet" });
    file.addEventListener("change", async () => { this.fields.topology = file.files[0] ? await file.files[0].text() : null; changed(); });
    const reset = element("button", { type: "button" }, "As it is");
    reset.addEventListener("click", () => { this.fields = null; this.form.replaceChildren(); this.plan(); });
    this.fields = { workers, microbatches, codec, topology: null };
    const rows = [...workers].map(([worker, one]) => [one.used, worker, one.up.root, one.down.root, one.speed, one.twins]);
    this.form.replaceChildren(
      element("h4", {}, "What if"),
      element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "What if: workers" }, table("", ["used", "worker", "uplink, Mbit/s", "downlink, Mbit/s", "times as fast", "more like it"], rows)),
      element("p", { class: "choices" }, "microbatches a step ", microbatches, " codec ", codec, choices, " or a topology file ", file, " ", reset));
  }

  #draw() {
    const { measured, foreseen } = this, now = foreseen?.now, then = this.fields && foreseen?.then;
    const isSame = then && now && !this.#isChanged();
    const whole = Math.max(...[measured?.seconds, now?.step_seconds, isSame ? 0 : then?.step_seconds].filter(Boolean), 1e-9);
    const parts = [];
    if (measured) {
      const words = `As it ran: step ${measured.step}, ${secondsWords(measured.seconds)}`;
      parts.push(this.#picture(words, measured.spans, measured.seconds, whole), legendOf(measured.spans),
        element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Where the time went" }, spentTable(measured)));
      if (measured.cut) parts.push(element("p", { class: "faint" }, `${measured.cut} more spans are not shown`));
      if (measured.silent.length) parts.push(element("p", { class: "faint" }, `no answer from ${measured.silent.join(", ")}`));
    }
    if (now) parts.push(this.#simulated("As the simulator has it", now, whole));
    if (then && !isSame) parts.push(element("p", { class: "why", role: "status" }, verdict(now, then)), this.#simulated("What if", then, whole),
      ...foreseen.notes.map((note) => element("p", { class: "faint" }, note)));
    if (foreseen?.refusal) parts.push(element("p", { class: "why", role: "status" }, `No such plan: ${foreseen.refusal}`));
    this.steps.replaceChildren(...parts);
  }

  #isChanged() {
    const { workers, microbatches, codec, topology } = this.fields;
    const moved = [...workers].some(([name, one]) => one.up.isChanged || one.down.isChanged || Number(one.speed.value) !== 1 || Number(one.twins.value)
      || one.used.checked !== this.foreseen.workers.find((known) => known.worker === name)?.used);
    return moved || Number(microbatches.value) !== this.foreseen.now.microbatches || codec.value !== "" || topology !== null;
  }

  #simulated(title, step, whole) {
    const words = `${title}: ${secondsWords(step.step_seconds)}; ${step.bottleneck}`;
    const shares = step.segments.map((one) => `${one.workers.join(" + ")} ${Math.round(100 * one.share)} %`).join(" \u2192 ");
    const codecs = step.codecs.length ? `; ${step.codecs.join(", ")}` : "";
    return element("div", {}, this.#picture(words, step.spans, step.step_seconds, whole),
      element("p", { class: "faint" }, `${shares} of the model, ${step.microbatches} microbatches${codecs}`));
  }

  #picture(words, spans, seconds, whole) {
    return element("figure", {}, element("figcaption", {}, words), stepPicture(words, spans, seconds, whole, this.order));
  }
}

function verdict(now, then) {
  const change = then.step_seconds / now.step_seconds - 1, percent = Math.round(Math.abs(change) * 100);
  const words = percent ? `${percent} % ${change < 0 ? "less" : "more"}` : "the same";
  return `A step would take ${secondsWords(then.step_seconds)}, ${words} than the simulated ${secondsWords(now.step_seconds)} of now`.replace("the same than", "the same as");
}
