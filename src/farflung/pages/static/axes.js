// Where things stand in a run: by steps, or by the seconds since it began.

/** The index of the last entry of an ascending list that is at most `value`; -1 if there is none. */
function lastUpTo(list, value) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** A run with the lists that the page looks things up in. Times become seconds since its beginning. */
class Run {
  constructor(data, number) {
    Object.assign(this, data);
    this.number = number;
    const since = (at) => (at === null || this.began === null ? null : at - this.began);
    this.curves.elapsed = this.curves.at.map(since);
    for (const list of [this.happenings, this.plans, this.codecs, ...Object.values(this.evaluations)]) {
      for (const item of list) item.elapsed = since(item.at);
    }
    const points = this.curves.elapsed.map((elapsed, index) => [elapsed, this.curves.step[index]]);
    this.timed = points.filter(([elapsed]) => elapsed !== null).sort((one, other) => one[0] - other[0]);
    this.times = this.timed.map(([elapsed]) => elapsed);
    const last = this.happenings.at(-1);
    this.seconds = Math.max(0, this.times.at(-1) ?? 0, last ? last.elapsed ?? 0 : 0);
    this.steps = this.curves.step.at(-1) ?? 0;
  }

  /** The steps that were done after some seconds. */
  stepAt(elapsed) {
    const index = lastUpTo(this.times, elapsed);
    return index < 0 ? 0 : this.timed[index][1];
  }

  /** The index of the point of the curves that shows a step; -1 before the first one. */
  pointAt(step) {
    return lastUpTo(this.curves.step, step);
  }

  /** The plan in force at a moment, with the codec of each link then; null before the first one. */
  planAt(moment) {
    const index = this.plans.findLastIndex((plan) => moment.isReached(this, plan));
    if (index < 0) return null;
    const plan = this.plans[index], links = new Map();
    const add = (link) => links.set(JSON.stringify([link.source, link.target]), link);
    plan.codecs.forEach(add);
    for (const change of this.codecs) {
      if (change.at >= plan.at && moment.isReached(this, change)) change.changes.forEach(add);
    }
    return { plan, links };
  }
}

/** A moment of the replay: seconds since the beginning, or steps where times are not known. */
class Moment {
  constructor(value, byTime) {
    this.value = value;
    this.byTime = byTime;
  }

  stepOf(run) {
    return this.byTime ? run.stepAt(this.value) : Math.min(this.value, run.steps);
  }

  /** Whether something with a time and a step has happened. */
  isReached(run, item) {
    if (this.byTime) return item.elapsed === null || item.elapsed <= this.value;
    return item.step <= this.value;
  }

  words(run) {
    const step = `step ${this.stepOf(run)} of ${run.steps}${run.state === "running" ? " so far" : ""}`;
    if (!this.byTime) return step;
    if (this.value > run.seconds) return `${step}, after its end at ${secondsWords(run.seconds)}`;
    const how = { dateStyle: "medium", timeStyle: "long" };
    const clock = run.began === null ? "" : `, ${new Date((run.began + this.value) * 1000).toLocaleString(undefined, how)}`;
    return `${step}, ${secondsWords(this.value)} after it began${clock}`;
  }
}
