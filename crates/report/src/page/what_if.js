// What if: the curve and the table of plans for other batches.

function curve(whatIf) {
  const wide = 660,
    high = 300,
    left = 90,
    top = 16,
    rows = whatIf.variants;
  const most = Math.max(1, whatIf.capacity_bytes || 0, ...rows.map(row => row.total_bytes)),
    last = Math.max(...rows.map(row => row.batch));
  const x = batch => left + (wide * batch) / last,
    y = n => top + high * (1 - n / most);
  const make = (name, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text) element.textContent = text;
    return element;
  };
  const svg = make("svg", {
    class: "curve",
    viewBox: "0 0 770 360",
    role: "img",
    "aria-label": "total bytes over the batch",
  });
  svg.append(
    make("polyline", {
      class: "axis",
      points: [
        [left, top],
        [left, top + high],
        [left + wide, top + high],
      ].join(" "),
    }),
  );
  for (let part = 0; part <= 4; part++)
    svg.append(
      make(
        "text",
        { x: left - 6, y: y((most * part) / 4) + 4, "text-anchor": "end" },
        bytes(Math.round((most * part) / 4)),
      ),
    );
  svg.append(
    make("polyline", { class: "total", points: rows.map(row => [x(row.batch), y(row.total_bytes)]).join(" ") }),
  );
  let labelled = -99;
  for (const row of rows) {
    const dot = make("circle", {
      cx: x(row.batch),
      cy: y(row.total_bytes),
      r: 5,
      fill: row.fits === false ? "var(--peak)" : "var(--accent)",
    });
    dot.append(make("title", {}, "batch " + row.batch + ": " + bytes(row.total_bytes)));
    svg.append(dot);
    if (row.asked && 30 <= x(row.batch) - labelled) {
      labelled = x(row.batch);
      svg.append(make("text", { x: labelled, y: top + high + 18, "text-anchor": "middle" }, String(row.batch)));
    }
  }
  svg.append(make("text", { x: left + wide / 2, y: top + high + 38, "text-anchor": "middle" }, "batch"));
  if (whatIf.capacity_bytes) {
    svg.append(
      make("line", {
        class: "limit",
        x1: left,
        x2: left + wide,
        y1: y(whatIf.capacity_bytes),
        y2: y(whatIf.capacity_bytes),
      }),
    );
    svg.append(
      make("text", { x: left + 6, y: y(whatIf.capacity_bytes) + 15 }, "limit " + bytes(whatIf.capacity_bytes)),
    );
  }
  return svg;
}
function whatIf() {
  const what = D.what_if;
  if (!what) return;
  byId("whatif").hidden = false;
  const rows = el("div", { class: "scroll" });
  table(
    rows,
    [
      ["batch", "n", row => row.batch, row => row.batch],
      ["dtype", "", row => row.dtype, null],
      ["arena", "n", row => bytes(row.arena_bytes), row => row.arena_bytes],
      ["weights", "n", row => bytes(row.weights_bytes), row => row.weights_bytes],
      ["total", "n", row => bytes(row.total_bytes), row => row.total_bytes],
      ["state", "", row => row.state.replaceAll("_", " "), null],
      ["fits", "", row => (row.fits === null ? "" : row.fits ? "yes" : "no"), null],
    ],
    what.variants,
  );
  const answer =
    what.capacity_bytes === null
      ? ""
      : what.largest_batch === null
        ? "No batch fits into " + bytes(what.capacity_bytes) + "."
        : "The largest batch that fits into " +
          bytes(what.capacity_bytes) +
          " is " +
          what.largest_batch +
          (what.is_largest ? "." : ", the largest that was asked for.");
  clear(
    byId("whatifbody"),
    el(
      "p",
      {},
      what.model +
        " for " +
        what.target +
        ": arena and weights, each planned exactly. " +
        answer +
        " The rest of this page is about batch " +
        R.batch +
        ".",
    ),
    curve(what),
    rows,
  );
}
