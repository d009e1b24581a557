// What if: the curve and the table of plans for other batches.

function curve(whatIf) {
  const wide = 660,
    high = 300,
    left = 90,
    top = 26,
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
    viewBox: "0 0 770 370",
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
        mark((most * part) / 4, most),
      ),
    );
  // A line for each dtype, named at its end if there are several.
  const dtypes = [...new Set(rows.map(row => row.dtype))];
  const lines = dtypes.map(dtype =>
    rows.filter(row => row.dtype === dtype).map(row => [x(row.batch), y(row.total_bytes)]),
  );
  dtypes.forEach((dtype, ix) => {
    const points = lines[ix];
    svg.append(
      make("polyline", { class: "total", "stroke-dasharray": ["none", "7 4", "2 3"][ix % 3], points: points.join(" ") }),
    );
    const end = points[points.length - 1];
    // Below its line if another one ends close above.
    const isBelow = lines.some((other, at) => {
      const apart = end[1] - other[other.length - 1][1];
      return at !== ix && 0 <= apart && apart < 26 && (0 < apart || at < ix);
    });
    if (1 < dtypes.length)
      svg.append(make("text", { x: end[0] - 8, y: end[1] + (isBelow ? 18 : -8), "text-anchor": "end" }, dtype));
  });
  let labelled = -99;
  for (const row of rows) {
    const dot = make("circle", {
      cx: x(row.batch),
      cy: y(row.total_bytes),
      r: 5,
      fill: row.fits === false ? "var(--peak)" : "var(--accent)",
    });
    dot.append(make("title", {}, "batch " + row.batch + ", " + row.dtype + ": " + bytes(row.total_bytes)));
    svg.append(dot);
    if (row.asked && row.dtype === dtypes[0] && 30 <= x(row.batch) - labelled) {
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
      ["state", "role", row => D.what_if_states[what.variants.indexOf(row)], null],
      // Without a limit there is no answer.
      ...(what.capacity_bytes === null ? [] : [["fits", "", row => (row.fits ? "yes" : "no"), null]]),
    ],
    what.variants,
  );
  const limit = bytes(what.capacity_bytes || 0);
  const answer = ({ dtype, batch, is_largest }) =>
    batch === null
      ? dtype + ": no batch fits in " + limit + "."
      : dtype + ": the largest batch that fits in " + limit + " is " + batch + (is_largest ? "." : ", the largest asked for.");
  const answers = what.capacity_bytes === null ? "" : what.largest.map(answer).join(" ");
  clear(
    byId("whatifbody"),
    el(
      "p",
      {},
      what.model +
        " for " +
        what.target +
        ": arena and weights, each planned exactly. " +
        answers +
        " The rest of this page is about batch " +
        R.batch +
        // Plans are listed by dtype, and the page is about one of them.
        (1 < what.largest.length && D.what_if_dtype ? ", " + D.what_if_dtype : "") +
        ".",
    ),
    curve(what),
    rows,
  );
}
