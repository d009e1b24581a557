// Bars and the timeline.

function bars(target, title, rows, total, isLayer) {
  const style = (row, ix) =>
    isLayer && !["free", "padding", "residual", "Untrackable"].includes(row.name)
      ? layerLook(ix)
      : LOOKS.get(row.name.toLowerCase()) || layerLook(ix);
  const most = Math.max(1, ...rows.map(row => row.bytes));
  const positive = rows.reduce((sum, row) => sum + Math.max(0, row.bytes), 0);
  const strip = el(
    "div",
    { class: "strip", "aria-hidden": "true" },
    rows.map((row, ix) =>
      el("i", {
        class: "p-" + style(row, ix).pattern,
        title: row.name + ": " + bytes(row.bytes),
        style:
          "background-color:" +
          style(row, ix).color +
          ";width:" +
          (100 * Math.max(0, row.bytes)) / (positive || 1) +
          "%",
      }),
    ),
  );
  const body = rows.map((row, ix) =>
    el(
      "tr",
      { class: 40 <= ix ? "unprinted" : "" },
      el("td", { class: "w" }, swatch(style(row, ix)), breakable(row.name)),
      el("td", { class: "n", title: exact(row.bytes) }, bytes(row.bytes)),
      el("td", { class: "n" }, percent(row.bytes, total)),
      el(
        "td",
        { class: "barcell" },
        el("span", {
          class: "bar p-" + style(row, ix).pattern,
          style: "background-color:" + style(row, ix).color + ";width:" + (100 * Math.max(0, row.bytes)) / most + "%",
        }),
      ),
    ),
  );
  const head = el(
    "tr",
    {},
    el("th", {}, title),
    el("th", { class: "n" }, "bytes"),
    el("th", { class: "n" }, "share"),
    el("th"),
  );
  const foot = el(
    "tr",
    {},
    el("th", {}, "total"),
    el("th", { class: "n", title: exact(total) }, bytes(total)),
    el("th", { class: "n" }, "100.0 %"),
    el("th"),
  );
  const scroll = el(
    "div",
    { class: "scroll" },
    el("table", {}, el("thead", {}, head), el("tbody", {}, body), el("tfoot", {}, foot)),
  );
  clear(target, strip, scroll);
  scrolls(scroll);
}

const TIMED = Object.keys(P.timeline)
  .filter(role => role !== "free" && P.timeline[role].some(n => 0 < n))
  .sort((a, b) => rank(a) - rank(b));
const WRITTEN = R.actual && R.actual.live_written_bytes.length === P.steps.length ? R.actual.live_written_bytes : null;
const liveAt = step => TIMED.reduce((sum, role) => sum + P.timeline[role][step], 0);
const LIVE = Array.from({ length: STEPS }, (_, step) => liveAt(step));

// Labels of five levels of bytes, from none to the most, at the left edge of a chart.
function drawLevels(context, most, left, y) {
  context.fillStyle = css("--soft");
  context.textAlign = "right";
  for (let part = 0; part <= 4; part++)
    context.fillText(mark((most * part) / 4, most), left - 6, y((most * part) / 4) + 4);
}

// Weights that stay, and above them those that have a place for a part of the run.
function drawResident() {
  const resident = P.resident;
  if (!resident) return;
  const { context, width, height } = surface(byId("residentline"));
  const left = 86,
    top = 18,
    wide = width - left - 12,
    high = height - top - 24;
  const most = Math.max(1, resident.block_bytes);
  const y = n => top + high * (1 - n / most);
  drawLevels(context, most, left, y);
  const columns = Math.min(STEPS, Math.max(1, Math.floor(wide)));
  for (let column = 0; column < columns; column++) {
    const first = Math.ceil((column * STEPS) / columns),
      end = Math.max(first + 1, Math.ceil(((column + 1) * STEPS) / columns));
    const live = Math.max(...resident.bytes.slice(first, end));
    const x = left + (wide * column) / columns,
      next = left + (wide * (column + 1)) / columns;
    context.fillStyle = css("--accent");
    context.fillRect(x, y(live), next - x + 0.5, y(resident.kept_bytes) - y(live));
    context.fillStyle = look("weight").color;
    context.fillRect(x, y(resident.kept_bytes), next - x + 0.5, y(0) - y(resident.kept_bytes));
  }
  context.fillStyle = css("--soft");
  context.textAlign = "left";
  context.fillText("step 0", left, height - 6);
  context.textAlign = "right";
  context.fillText("step " + (STEPS - 1), left + wide, height - 6);
}

function drawTimeline() {
  const canvas = byId("timeline");
  const { context, width, height } = surface(canvas);
  const left = 86,
    top = 18,
    wide = width - left - 12,
    high = height - top - 24;
  const most = Math.max(1, P.arena_bytes);
  canvas.area = { left, wide };
  const y = n => top + high * (1 - n / most);
  drawLevels(context, most, left, y);
  // One column a pixel at most, of the step with the most bytes among those it stands for.
  const columns = Math.min(STEPS, Math.max(1, Math.floor(wide)));
  const line = [];
  for (let column = 0; column < columns; column++) {
    const first = Math.ceil((column * STEPS) / columns),
      end = Math.max(first + 1, Math.ceil(((column + 1) * STEPS) / columns));
    let step = first;
    for (let at = first; at < end && at < STEPS; at++) if (LIVE[step] < LIVE[at] || at === P.peak_step) step = at;
    const x = left + (wide * column) / columns,
      next = left + (wide * (column + 1)) / columns;
    let below = 0;
    for (const role of TIMED) {
      const n = P.timeline[role][step];
      // Patterns are drawn over the whole afterwards: in columns of a pixel they would not show.
      context.fillStyle = look(role).color;
      context.fillRect(x, y(below + n), next - x + 0.5, y(below) - y(below + n) + 0.3);
      const marks = pattern(context, look(role).pattern, "rgba(0,0,0,.45)");
      if (marks) {
        context.fillStyle = marks;
        context.fillRect(x, y(below + n), next - x, y(below) - y(below + n));
      }
      below += n;
    }
    if (WRITTEN) line.push([x, y(WRITTEN[step])], [next, y(WRITTEN[step])]);
  }
  if (line.length) {
    context.strokeStyle = css("--ink");
    context.lineWidth = 1.5;
    context.beginPath();
    line.forEach(([x, y], ix) => (ix ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.stroke();
  }
  upright(
    context,
    left + (wide * (P.peak_step + 0.5)) / STEPS,
    top,
    high,
    css("--peak"),
    "peak " + bytes(P.lower_bound_bytes),
    width,
  );
  if (state.step !== P.peak_step)
    upright(
      context,
      left + (wide * (state.step + 0.5)) / STEPS,
      top,
      high,
      css("--accent"),
      "step " + state.step,
      width,
    );
  context.fillStyle = css("--soft");
  context.textAlign = "left";
  context.fillText("step 0", left, height - 6);
  context.textAlign = "right";
  context.fillText("step " + (STEPS - 1), left + wide, height - 6);
  const parts = TIMED.filter(role => P.timeline[role][state.step]).map(
    role => role + " " + bytes(P.timeline[role][state.step]),
  );
  byId("stepinfo").textContent =
    "Step " +
    state.step +
    (state.step === P.peak_step ? ", the peak" : "") +
    ": " +
    stepName(state.step) +
    " – " +
    bytes(LIVE[state.step]) +
    " of " +
    bytes(P.arena_bytes) +
    " alive (" +
    parts.join(", ") +
    ")" +
    (WRITTEN ? "; " + bytes(WRITTEN[state.step]) + " of it written by then (the line)" : "");
}
function upright(context, x, top, high, color, text, width) {
  context.strokeStyle = context.fillStyle = color;
  context.setLineDash([5, 3]);
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x, top);
  context.lineTo(x, top + high);
  context.stroke();
  context.setLineDash([]);
  context.textAlign = x < width - 150 ? "left" : "right";
  context.fillText(text, x + (x < width - 150 ? 4 : -4), top - 5);
}
function timelineEvents() {
  const canvas = byId("timeline");
  const stepOf = event => {
    const { left, wide } = canvas.area;
    return Math.max(0, Math.min(STEPS - 1, Math.floor(((event.offsetX - left) / wide) * STEPS)));
  };
  canvas.addEventListener("click", event => change({ step: stepOf(event) }));
  canvas.addEventListener("mousemove", event =>
    showTip(
      event,
      "step " + stepOf(event) + ": " + stepName(stepOf(event)) + "\n" + bytes(LIVE[stepOf(event)]) + " alive",
    ),
  );
  canvas.addEventListener("mouseleave", hideTip);
  canvas.addEventListener("keydown", event => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -STEPS, End: STEPS }[event.key];
    if (by === undefined && event.key !== "p") return;
    event.preventDefault();
    change({ step: event.key === "p" ? P.peak_step : Math.max(0, Math.min(STEPS - 1, state.step + by)) });
  });
  byId("peak").addEventListener("click", () => change({ step: P.peak_step }));
}
