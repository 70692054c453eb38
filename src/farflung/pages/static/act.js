// Ends jobs, and lets workers and members go, for a viewer who shows a token.

const DRAIN_SECONDS = 300;

/** What is to be done, as the API takes it. */
function actionOf(what, target, reason) {
  if (what === "CancelJob") return { type: what, job: target, reason };
  if (what === "Drain") return { type: what, worker: target, within_seconds: DRAIN_SECONDS };
  return what === "RemoveMember" ? { type: what, member: target, reason } : { type: what, member: target };
}

/** The form; it offers the jobs and workers that the page shows. */
class ActForm {
  constructor() {
    const at = (name) => document.getElementById(`act-${name}`);
    [this.what, this.target, this.reason, this.token, this.words, this.known] = ["what", "target", "reason", "token", "words", "known"].map(at);
    this.form = this.what.form;
    this.button = this.form.querySelector("button");
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.#act(); });
    this.what.addEventListener("change", () => this.#offer());
  }

  show(status) {
    const jobs = status.jobs.filter((job) => !["done", "failed", "cancelled"].includes(job.state)).map((job) => job.job);
    this.offered = { jobs, workers: status.workers.map((worker) => worker.worker) };
    this.named = status.jobs.filter((job) => jobs.includes(job.job));
    if (document.activeElement !== this.target) this.#offer();
  }

  #offer() {
    const { jobs, workers } = this.offered ?? { jobs: [], workers: [] };
    this.known.replaceChildren(...(this.what.value === "CancelJob" ? jobs : workers).map((name) => element("option", { value: name })));
    this.target.placeholder = this.what.value === "CancelJob" ? "such as job-1" : "its name";
    this.reason.disabled = ["Drain", "AllowMember"].includes(this.what.value);
  }

  /** The id of the only job that goes on and has this name; else what was typed. */
  #meant(target) {
    const same = this.what.value === "CancelJob" ? this.named.filter((job) => job.name === target) : [];
    return same.length === 1 ? same[0].job : target;
  }

  async #act() {
    this.button.disabled = true;
    this.words.textContent = "asking the broker";
    try {
      const action = actionOf(this.what.value, this.#meant(this.target.value.trim()), this.reason.value.trim());
      this.words.textContent = (await asked("/api/v1/act", { token: this.token.value, action })).words;
      this.words.className = "";
    } catch (error) {
      this.words.className = "why";
      this.words.textContent = error instanceof TypeError ? "the broker does not answer" : error.message;
    } finally {
      this.button.disabled = false;
    }
  }
}
