// The fleet as a picture: sites with their workers, and the links in use, which can be moved and enlarged.
// It is drawn on a canvas, because 5,000 links as elements would be too slow to move. The tables say the same.

const TAU = 2 * Math.PI;
const DOT = 5, SITE = 46, STEP = 40, NAMED = 60;
const NEAREST = 0.15, FARTHEST = 12;

/** Where each worker stands: sites on a ring, their workers on a small ring each; the same fleet, the same places. */
function placesOf(workers) {
  const sites = new Map();
  for (const worker of workers) {
    const site = worker.site || worker.worker;
    if (!sites.has(site)) sites.set(site, []);
    sites.get(site).push(worker.worker);
  }
  const names = [...sites.keys()].sort(), sizes = names.map((name) => SITE + DOT * Math.sqrt(sites.get(name).length) * 2);
  const ring = names.length < 2 ? 0 : Math.max(120, sizes.reduce((sum, size) => sum + 2 * size + 12, 0) / TAU);
  const places = new Map(), centres = new Map();
  names.forEach((name, number) => {
    const turn = (TAU * number) / names.length + (names.length === 2 ? TAU / 2 : -TAU / 4), x = 1.6 * ring * Math.cos(turn), y = ring * Math.sin(turn);
    const members = sites.get(name).sort(), inner = members.length < 2 ? 0 : Math.max(18, DOT * 2.4 * members.length / TAU);
    centres.set(name, { x, y, inner, alone: members.length === 1 && members[0] === name });
    members.forEach((member, at) => {
      const angle = (TAU * at) / members.length - TAU / 4;
      places.set(member, [x + inner * Math.cos(angle), y + inner * Math.sin(angle)]);
    });
  });
  return { places, centres };
}

class FleetMap {
  constructor(canvas) {
    this.canvas = canvas;
    this.scale = 1;
    this.middle = [0, 0];
    this.isOwn = false;  // whether the viewer has moved it
    this.workers = [];
    this.links = [];
    this.layout = placesOf([]);
    this.frames = 0;
    this.#listen();
  }

  /** Show workers, and links {source, target, share, relayed}; `share` is what is used of what is possible. */
  show(workers, links) {
    const ids = workers.map((worker) => `${worker.site}/${worker.worker}`).join();
    if (ids !== this.ids) this.layout = placesOf(workers);
    this.ids = ids;
    this.workers = workers;
    this.links = links;
    const busy = links.filter((link) => link.share > 0.5).length;
    this.canvas.setAttribute("aria-label", `Map: ${workers.length} workers at ${this.layout.centres.size} sites, ${links.length} links in use, ${busy} of them more than half full. The tables below have it in words.`);
    if (!this.isOwn) this.#fit();
    this.draw();
  }

  draw() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => { this.isDue = false; this.#paint(); });
  }

  #fit() {
    const points = [...this.layout.places.values()];
    const far = (axis) => Math.max(1, ...points.map((point) => Math.abs(point[axis])));
    this.middle = [0, 0];
    this.scale = Math.min(3, this.canvas.clientWidth / 2 / (far(0) + SITE + 30), this.canvas.clientHeight / 2 / (far(1) + SITE));
  }

  #paint() {
    const { canvas, scale, middle } = this, ratio = devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const at = ([x, y]) => [width / 2 + (x - middle[0]) * scale, height / 2 + (y - middle[1]) * scale];
    this.#paintSites(pen, at);
    this.#paintLinks(pen, at);
    this.#paintWorkers(pen, at);
    this.frames += 1;
  }

  #paintSites(pen, at) {
    pen.lineWidth = 1;
    pen.strokeStyle = colour("rule");
    pen.fillStyle = colour("faint");
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "center";
    for (const [name, centre] of this.layout.centres) {
      if (centre.alone) continue;
      const [x, y] = at([centre.x, centre.y]), size = (centre.inner + 14) * this.scale;
      pen.beginPath();
      pen.arc(x, y, size, 0, TAU);
      pen.stroke();
      pen.fillText(name, x, y - size - 5);
    }
  }

  /** Links of one look as one path: 5,000 strokes would take too long. */
  #paintLinks(pen, at) {
    const looks = new Map();
    for (const link of this.links) {
      const ends = [this.layout.places.get(link.source), this.layout.places.get(link.target)];
      if (!ends[0] || !ends[1]) continue;
      const look = `${link.share > 0.8 ? 2 : link.share > 0.3 ? 1 : 0}${link.relayed ? "r" : ""}`;
      if (!looks.has(look)) looks.set(look, new Path2D());
      const [from, to] = ends.map(at);
      looks.get(look).moveTo(...from);
      looks.get(look).lineTo(...to);
    }
    for (const [look, path] of looks) {
      pen.strokeStyle = colour(["rule", "first", "second"][Number(look[0])]);
      pen.lineWidth = 1 + Number(look[0]);
      pen.setLineDash(look.endsWith("r") ? [5, 4] : []);
      pen.stroke(path);
    }
    pen.setLineDash([]);
  }

  #paintWorkers(pen, at) {
    const size = Math.max(1.5, Math.min(9, DOT * Math.sqrt(this.scale))), hasNames = this.workers.length <= NAMED || this.scale > 2.5;
    const groups = { training: new Path2D(), suspect: new Path2D(), other: new Path2D() };
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "left";
    pen.fillStyle = colour("ink");
    for (const worker of this.workers) {
      const [x, y] = at(this.layout.places.get(worker.worker));
      const group = groups[worker.state] ?? groups.other;
      group.moveTo(x + size, y);
      group.arc(x, y, size, 0, TAU);
      if (hasNames) pen.fillText(worker.worker.slice(0, 24), x + size + 4, y + 4);
    }
    const colours = { training: "good", suspect: "bad", other: "faint" };
    for (const [name, path] of Object.entries(groups)) {
      pen.fillStyle = colour(colours[name]);
      pen.fill(path);
    }
  }

  #move(x, y) {
    this.middle = [this.middle[0] - x / this.scale, this.middle[1] - y / this.scale];
    this.isOwn = true;
    this.draw();
  }

  #zoom(factor) {
    this.scale = Math.max(NEAREST, Math.min(FARTHEST, this.scale * factor));
    this.isOwn = true;
    this.draw();
  }

  #listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
    canvas.addEventListener("pointermove", (event) => { if (event.buttons & 1) this.#move(event.movementX, event.movementY); });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && document.activeElement !== canvas) return;  // else the page scrolls
      event.preventDefault();
      this.#zoom(event.deltaY < 0 ? 1.15 : 1 / 1.15);
    }, { passive: false });
    canvas.addEventListener("dblclick", () => { this.isOwn = false; this.#fit(); this.draw(); });
    const keys = { ArrowLeft: [STEP, 0], ArrowRight: [-STEP, 0], ArrowUp: [0, STEP], ArrowDown: [0, -STEP] };
    canvas.addEventListener("keydown", (event) => {
      if (event.key in keys) this.#move(...keys[event.key]);
      else if (event.key === "+" || event.key === "=") this.#zoom(1.25);
      else if (event.key === "-") this.#zoom(1 / 1.25);
      else if (event.key === "0") { this.isOwn = false; this.#fit(); this.draw(); }
      else return;
      event.preventDefault();
    });
  }
}
