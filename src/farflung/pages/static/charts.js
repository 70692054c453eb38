// The curves, drawn by uPlot: one chart for each quantity, both runs in it.

const RUN_COLOURS = ["first", "second"];
const LONG_PAUSE = 10; // times the usual time between two points

/** The charts of a page: title, unit, and for each run the points of its lines. */
function chartsOf(runs) {
  const charts = [{ title: "Loss", lines: runs.flatMap(lossLines) }];
  const columns = [["Seconds a step", "seconds", 1], ["MB on the wire a step", "bytes", 1e-6], ["Gradient norm", "gradient_norm", 1]];
  for (const [title, column, scale] of columns) charts.push({ title, lines: runs.map((run) => columnLine(run, column, scale)) });
  const losses = ["validation loss", "validation loss with codecs"];
  const names = new Set(runs.flatMap((run) => Object.keys(run.evaluations)).filter((name) => !losses.includes(name)));
  for (const name of names) charts.push({ title: name, lines: runs.map((run) => evaluationLine(run, name)) });
  return charts.filter((chart) => chart.lines.some((line) => line.y.some((value) => value !== null)));
}

function columnLine(run, column, scale, label = "") {
  const y = run.curves[column].map((value) => (value === null ? null : value * scale));
  return { run, label, step: run.curves.step, elapsed: run.curves.elapsed, y };
}

function evaluationLine(run, name, label = "", dash = undefined) {
  const points = Object.hasOwn(run.evaluations, name) ? run.evaluations[name] : [];
  return { run, label, dash, dots: true, step: points.map((point) => point.step),
    elapsed: points.map((point) => point.elapsed), y: points.map((point) => point.value) };
}

function lossLines(run) {
  const lines = [columnLine(run, "loss", 1, "training")];
  const { loss_low: low, loss_high: high } = run.curves;
  if (low.some((value, index) => value !== high[index])) {
    lines.push({ ...columnLine(run, "loss_low", 1, "least of a point's steps"), faint: true });
    lines.push({ ...columnLine(run, "loss_high", 1, "greatest of a point's steps"), faint: true });
  }
  lines.push(evaluationLine(run, "validation loss", "validation (dashed)", [8, 4]));
  lines.push(evaluationLine(run, "validation loss with codecs", "validation with codecs (dotted)", [2, 4]));
  return lines.filter((line) => line.y.length);
}

/** The lines on one ascending list of places, as uPlot wants them: undefined is passed over, null breaks a line. */
function aligned(lines, byTime) {
  const places = lines.map((line) => (byTime ? line.elapsed : line.step));
  const pauses = byTime ? lines.filter((line) => !line.dots).flatMap((line) => pausesOf(line.elapsed)).map(([from, to]) => (from + to) / 2) : [];
  const all = [...new Set([...places.flat(), ...pauses].filter((place) => place !== null))].sort((one, other) => one - other);
  const index = new Map(all.map((place, number) => [place, number]));
  const columns = lines.map((line, number) => {
    const column = new Array(all.length).fill(undefined);
    places[number].forEach((place, at) => { if (place !== null && line.y[at] !== null) column[index.get(place)] = line.y[at]; });
    for (const [from, to] of byTime && !line.dots ? pausesOf(line.elapsed) : []) {
      for (let at = index.get(from) + 1; all[at] < to; at++) column[at] = null;
    }
    return column;
  });
  return [all, ...columns];
}

/** Pairs of places between which no step ended for long, so that a line over time breaks. */
function pausesOf(elapsed) {
  const known = elapsed.filter((place) => place !== null), gaps = known.slice(1).map((place, index) => place - known[index]);
  const usual = [...gaps].sort((one, other) => one - other)[gaps.length >> 1];
  return gaps.flatMap((gap, index) => (gap > LONG_PAUSE * usual ? [[known[index], known[index + 1]]] : []));
}

/** Draws charts, and again where the window, the theme or the axis changes; marks faults and the replay's moment. */
class Charts {
  constructor(place, runs) {
    this.place = place;
    this.runs = runs;
    this.byTime = false;
    this.moment = null;
    this.plots = [];
  }

  draw(byTime) {
    this.byTime = byTime;
    this.plots.forEach((plot) => plot.destroy());
    this.place.replaceChildren();
    this.plots = chartsOf(this.runs).map((chart) => this.#plot(chart));
  }

  show(moment) {
    this.moment = moment;
    this.plots.forEach((plot) => {
      const place = this.#placeOf(this.runs[0]), index = place === null ? -1 : lastUpTo(plot.data[0], place);
      plot.setLegend({ idx: index < 0 ? null : index });
      plot.redraw(false);
    });
  }

  resize() {
    this.plots.forEach((plot) => plot.setSize({ width: this.#width(), height: plot.height }));
  }

  /** Where the replay's moment is on the axis; null if that is not known. */
  #placeOf(run) {
    if (this.moment === null) return null;
    if (!this.byTime) return this.moment.stepOf(run);
    return this.moment.byTime ? this.moment.value : null;
  }

  #width() {
    return Math.max(240, this.place.clientWidth);
  }

  #plot(chart) {
    const holder = element("div", { class: "chart", role: "img", "aria-label": this.#inWords(chart) }, element("h3", {}, chart.title));
    this.place.append(holder);
    const axis = { stroke: colour("ink"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("rule"), width: 1 } };
    const options = {
      width: this.#width(), height: chart.title === "Loss" ? 300 : 180,
      cursor: { sync: { key: "run" }, drag: { x: true, y: false } },
      scales: { x: { time: false } },
      axes: [axis, { ...axis, size: 64 }],
      series: [{ label: this.byTime ? "seconds" : "step", value: (_, value) => digits(value, 6) }, ...chart.lines.map((line) => this.#series(line, chart.title))],
      hooks: { draw: [(plot) => this.#mark(plot)] },
    };
    return new uPlot(options, aligned(chart.lines, this.byTime), holder);
  }

  #series(line, title) {
    const stroke = colour(RUN_COLOURS[line.run.number]);
    const name = this.runs.length > 1 ? `run ${line.run.number + 1} ${line.label}` : line.label || title;
    return { label: name.trim(), stroke: line.faint ? `${stroke}66` : stroke, width: line.faint ? 1 : 2, dash: line.dash,
      points: { show: Boolean(line.dots), size: 6 }, value: (_, value) => digits(value, 6) };
  }

  /** What a chart shows, for those who do not see it. */
  #inWords(chart) {
    const words = chart.lines.filter((line) => line.y.length && !line.faint).map((line) => {
      const known = line.y.filter((value) => value !== null);
      return `run ${line.run.number + 1} ${line.label}: from ${digits(known[0])} to ${digits(known.at(-1))}`;
    });
    return `${chart.title}. ${words.join("; ")}`;
  }

  #mark(plot) {
    const context = plot.ctx, { left, top, width, height } = plot.bbox;
    const line = (place, style, dash) => {
      const x = plot.valToPos(place, "x", true);
      if (!(x >= left && x <= left + width)) return;
      context.strokeStyle = style;
      context.setLineDash(dash);
      context.beginPath();
      context.moveTo(x, top);
      context.lineTo(x, top + height);
      context.stroke();
    };
    context.save();
    context.lineWidth = devicePixelRatio;
    for (const run of this.runs) {
      for (const one of run.happenings.filter((happening) => happening.kind === "fault")) {
        line(this.byTime ? one.elapsed : one.step, colour("bad"), [4, 4]);
      }
      const place = this.#placeOf(run);
      if (place !== null) line(place, colour(RUN_COLOURS[run.number]), []);
    }
    context.restore();
  }
}

/** The curves as a table of at most 100 rows a run. */
function numbersOf(run) {
  const { step, loss, seconds, bytes } = run.curves, every = Math.ceil(step.length / 100) || 1;
  const rows = step.map((_, index) => index).filter((index) => index % every === 0 || index === step.length - 1).map((index) => [
    String(step[index]), digits(loss[index], 6), secondsWords(seconds[index]), bytes[index] === null ? "-" : bytesWords(bytes[index]),
  ]);
  return table(run.title, ["step", "loss", "time a step", "bytes on the wire"], rows, [0, 1, 2, 3]);
}
