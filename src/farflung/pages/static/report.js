// The page: what stands still, and what follows the slider.

const STATES = { done: "done", failed: "failed", "broken off": "broken" };

function headerOf(runs) {
  return runs.map((run) => element("div", { class: `run-${run.number}` },
    element("h1", {}, element("span", { class: "run-name" }, run.title)),
    element("p", {}, element("span", { class: `state ${STATES[run.state] ?? ""}` }, run.state), run.reason ? `: ${run.reason}` : ""),
    element("p", { class: "faint" }, run.folder),
    ...run.warnings.map((words) => element("p", { class: "warning" }, words)),
  ));
}

function summaryOf(run) {
  const place = named(run);
  place.append(table("The run's own figures", [], run.facts.map(([label, value]) => [label, value])));
  return place;
}

function accountOf(run) {
  const place = named(run), whole = run.account.reduce((sum, [, seconds]) => sum + seconds, 0);
  if (!whole) {
    place.append(element("p", { class: "faint" }, run.has_times ? "Nothing was recorded yet." : "Not known: the run folder has no times."));
    return place;
  }
  const rows = run.account.map(([label, seconds]) => [label, secondsWords(seconds), `${((100 * seconds) / whole).toFixed(1)} %`, bar(seconds / whole)]);
  place.append(table(`Of ${secondsWords(whole)}`, [], rows, [1, 2]));
  return place;
}

function show() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const runs = data.runs.map((run, number) => new Run(run, number));
  for (const run of runs) run.isCompared = runs.length > 1;
  if (runs.length > 1 && runs[0].title === runs[1].title) {
    for (const run of runs) run.title = `${run.title} (${run.folder.split("/").at(-1)})`;
  }
  const at = (id) => document.getElementById(id);
  at("header").append(...headerOf(runs));
  at("footer").append(`Made by farflung ${data.farflung}. This page loads nothing and sends nothing.`);
  at("summary").append(...runs.map(summaryOf));
  at("account").append(...runs.map(accountOf));
  at("numbers").append(...runs.map(numbersOf));
  at("main").hidden = false; // charts need its width

  const charts = new Charts(at("charts"), runs);
  const events = runs.map((run) => eventsOf(run, () => replay));
  at("events").append(...events.map((list) => list.place));
  const replay = new Replay(runs, (moment) => {
    at("plan").replaceChildren(...runs.map((run) => planOf(run, moment)));
    events.forEach((list) => list.show(moment));
    charts.show(moment);
  });
  const byTime = () => document.querySelector("input[name=axis]:checked").value === "time";
  const draw = () => { charts.draw(byTime()); charts.show(replay.moment); };
  if (!replay.byTime) at("axis").hidden = true;
  at("axis").addEventListener("change", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("resize", () => charts.resize());
  draw();
  replay.begin();
  at("unread").remove();
}

show();
