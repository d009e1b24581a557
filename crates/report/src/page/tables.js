// The headline, the card of a buffer, what is alive at a step, what was found, and the tables of the other parts.

function headline() {
  const card = (value, label, isBad) =>
    el("div", { class: isBad ? "bad" : "" }, el("b", {}, value), el("span", {}, label));
  const cards = [];
  if (IS_PLAN) {
    cards.push(card(bytes(P.arena_bytes + P.weights_bytes), "total: arena and weights"));
    const isLeast = P.any_kernels_bytes === P.arena_bytes;
    const proof = P.optimal
      ? "optimal for " + (isLeast ? "all orders, layouts and kernels" : "this order and these kernels")
      : "not proved the least possible for this order and these kernels";
    cards.push(card(bytes(P.arena_bytes), "arena; " + proof));
    cards.push(card(bytes(P.weights_bytes), "weights and constants in the executable"));
    // Bounds are shown only where they differ from the arena.
    if (P.lower_bound_bytes !== P.arena_bytes)
      cards.push(
        card(bytes(P.lower_bound_bytes), "live at step " + P.peak_step + ": no placement needs less in this order"),
      );
    if (P.order.bound_bytes !== P.lower_bound_bytes)
      cards.push(card(bytes(P.order.bound_bytes), "no order of the steps has a lower peak with these kernels"));
    if (P.any_kernels_bytes && !isLeast)
      cards.push(card(bytes(P.any_kernels_bytes), "no kernels, layouts and order of these steps need less"));
    if (P.limit)
      cards.push(
        card(
          bytes(P.limit.bytes),
          "budget; the fastest plan needs " + bytes(P.limit.unlimited_bytes) + ", modelled time of a run x " + P.limit.time_ratio.toFixed(2),
        ),
      );
  } else {
    cards.push(card(bytes(P.arena_bytes), "allocated, in " + counted(BUFFERS.length, "allocation")));
    const requested = BUFFERS.reduce((sum, buffer) => sum + buffer.bytes, 0);
    cards.push(
      card(
        bytes(P.arena_bytes - requested),
        "lost to rounding, " + percent(P.arena_bytes - requested, requested) + " of the requested bytes",
      ),
    );
    (R.unnamed || []).forEach(row => cards.push(card(bytes(row.bytes), row.what)));
  }
  const free = P.free_at_peak.reduce((sum, range) => sum + range.bytes, 0);
  if (IS_PLAN && free)
    cards.push(card(bytes(free), "free at the peak, in " + counted(P.free_at_peak.length, "range")));
  if (R.actual) {
    const rest = R.actual.residual.reduce((sum, item) => sum + item.bytes, 0);
    cards.push(card(R.verdict, "a run against the plan", R.verdict !== "equal"));
    cards.push(card(bytes(R.actual.peak_rss_bytes), "resident at most"));
    cards.push(card(bytes(rest), "resident outside of the plan"));
  }
  clear(byId("cards"), ...cards);
}

function opportunities() {
  if (!P.opportunities.length) return;
  byId("change").hidden = false;
  table(
    byId("changetable"),
    [
      ["saves at most", "n", row => bytes(row.saves_bytes), row => row.saves_bytes],
      ["bytes in question", "w", row => prose(row.text), null],
      ["change", "w", row => prose(row.action), null],
    ],
    P.opportunities,
  );
}

function savedValues() {
  if (!P.saved || !P.saved.length) return;
  byId("saved").hidden = false;
  const where = row => (row.writer ? "step " + row.writer.step : "the caller");
  table(
    byId("savedtable"),
    [
      ["bytes", "n", row => bytes(row.bytes), row => row.bytes],
      ["value", "w", row => row.name, row => row.name],
      ["type", "", row => typeText(row), null],
      ["written by", "", where, null],
      [
        "read by, and why",
        "w why",
        row => prose(row.readers.map(by => "step " + by.step + ": " + by.reason).join("; ")),
        null,
      ],
    ],
    P.saved,
  );
  if (!P.recomputed) return;
  byId("again").hidden = false;
  table(
    byId("againtable"),
    [
      ["bytes", "n", row => bytes(row.bytes), row => row.bytes],
      ["recomputed", "w", row => row.scope, row => row.scope],
      ["at step", "n", row => String(row.step), row => row.step],
      ["kernel", "", row => row.kernel, null],
    ],
    P.recomputed,
  );
}

function residentWeights() {
  const resident = P.resident;
  if (!resident) return;
  byId("resident").hidden = false;
  byId("residenthint").textContent =
    bytes(resident.block_bytes) + " and the arena within " + bytes(resident.limit_bytes) + " together: " +
    bytes(resident.kept_bytes) + " stay, a run reads " + bytes(resident.read_bytes) +
    " (no order of reads needs less than " + bytes(resident.least_read_bytes) + ").";
  const columns = [
    ["bytes", "n", row => bytes(row.bytes), row => row.bytes],
    ["weight", "w", row => row.name, row => row.name],
    ["layer", "w", row => row.scope, row => row.scope],
    ["offset", "n", row => String(row.offset), row => row.offset],
  ];
  table(
    byId("readtable"),
    columns.concat([
      ["read from step", "n", row => String(row.first_step), row => row.first_step],
      ["for step", "n", row => String(row.first_use), row => row.first_use],
      ["to step", "n", row => String(row.last_step), row => row.last_step],
    ]),
    resident.reads,
  );
  table(
    byId("kepttable"),
    columns.concat([["first used by step", "n", row => String(row.first_use), row => row.first_use]]),
    resident.kept,
  );
}

function drawCard() {
  const ix = state.buffer,
    buffer = BUFFERS[ix];
  if (!buffer) return clear(byId("card"), el("p", {}, "No buffer is chosen."));
  const row = (name, value) => [el("dt", {}, name), el("dd", {}, value)];
  const at = isAlive(buffer, state.step) ? state.step : buffer.first_step;
  const values = buffer.values
    .slice(0, 12)
    .map(value =>
      el(
        "li",
        {},
        breakable(value.name),
        " ",
        el("b", {}, typeText(value)),
        (value.layout === "row_major" ? "" : " " + value.layout) +
          ", steps " +
          value.first_step +
          " to " +
          value.last_step +
          (value.sharing === "own" ? "" : ", " + value.sharing.replace("_", " ")),
      ),
    );
  if (12 < buffer.values.length) values.push(el("li", {}, buffer.values.length - 12 + " more"));
  clear(
    byId("card"),
    el("h3", {}, swatch(look(roleAt(ix, at))), breakable(buffer.scope || buffer.tag)),
    el(
      "dl",
      {},
      row("role", roleAt(ix, at) + (roleAt(ix, at) === buffer.role ? "" : ", later " + buffer.role)),
      row("size", bytes(buffer.bytes) + " (" + exact(buffer.bytes) + ")"),
      row("padding", exact(buffer.padded_bytes - buffer.bytes)),
      buffer.pieces && isAlive(buffer, at) ? row("now", bytes(ownBytes(buffer, pieceAt(buffer, at)))) : [],
      IS_PLAN ? row("offset", buffer.offset.toLocaleString("en")) : [],
      IS_PLAN ? row("steps", buffer.first_step + " to " + buffer.last_step) : [],
      row(
        "written by",
        buffer.writer
          ? buffer.writer.scope + ", step " + buffer.writer.step
          : IS_PLAN
            ? "the caller"
            : "unavailable",
      ),
      row(
        "read last by",
        buffer.last_reader
          ? buffer.last_reader.scope + ", step " + buffer.last_reader.step
          : buffer.role === "output"
            ? "the caller"
            : "-",
      ),
      row("alive at " + at, prose(why(ix, at))),
      buffer.actual
        ? row("actual", buffer.actual.verdict + ": " + exact(buffer.actual.written_bytes) + " written")
        : [],
    ),
    buffer.refused.length
      ? el(
          "div",
          {},
          el("b", {}, "No shared bytes:"),
          el(
            "ul",
            {},
            buffer.refused.slice(0, 6).map(row => el("li", {}, prose(row.text))),
          ),
        )
      : null,
    values.length
      ? el("div", {}, el("b", {}, values.length === 1 ? "Holds" : "Holds in turn"), el("ul", {}, values))
      : null,
  );
}

function scrolls(target) {
  const title = target.closest("section") && target.closest("section").dataset.title;
  target.tabIndex = 0;
  target.setAttribute("role", "region");
  target.setAttribute("aria-label", title || "Table");
}
// Functions that mark the chosen row of each table.
const tables = new Map();
// A table whose columns sort: [title, class, text of a row, what to sort by]. A table that is filled again keeps its order,
// and the focus stays on the same head or row.
function table(target, columns, rows, act, isOn) {
  const sort = (target.sort = target.sort || { column: -1, isDown: true });
  const most = 400,
    printed = 40;
  const focusOn = key => {
    const element = key && target.querySelector("[data-key=" + JSON.stringify(key) + "]");
    if (element) element.focus({ preventScroll: true });
  };
  const draw = () => {
    const focus = target.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const key = columns[sort.column] && columns[sort.column][3];
    const cell = (text, kind) => (typeof text === "string" && kind.startsWith("w") ? breakable(text) : text);
    const sign = sort.isDown ? 1 : -1;
    const compare = (a, b) => sign * (key(b) < key(a) ? -1 : key(a) < key(b) ? 1 : 0);
    const order = key ? rows.slice().sort(compare) : rows;
    const head = columns.map(([title, kind, , by], ix) =>
      el(
        "th",
        {
          class: kind,
          scope: "col",
          "aria-sort": ix === sort.column ? (sort.isDown ? "descending" : "ascending") : undefined,
        },
        by
          ? el(
              "button",
              {
                type: "button",
                "data-key": "head " + ix,
                onclick: () => {
                  Object.assign(sort, { column: ix, isDown: ix === sort.column ? !sort.isDown : true });
                  draw();
                },
              },
              title,
            )
          : title,
      ),
    );
    const shown = order.slice(0, most);
    const body = shown.map((row, at) =>
      el(
        "tr",
        { class: printed <= at ? "unprinted" : "" },
        columns.map(([, kind, text], ix) =>
          el(
            "td",
            { class: kind },
            ix === 0 && act
              ? el(
                  "button",
                  { type: "button", class: "link", "data-key": "row " + rows.indexOf(row), onclick: () => act(row) },
                  breakable(text(row)),
                )
              : cell(text(row), kind),
          ),
        ),
      ),
    );
    const first = n => (n < order.length ? "the first " + n + " of " + counted(order.length, "row") : "");
    const more = [
      el("caption", { class: "unprinted" }, first(most)),
      el("caption", { class: "inprint" }, first(printed)),
    ].filter(caption => caption.textContent);
    // What scrolls is reached by the keyboard, and has the name of its section.
    if (target.classList.contains("scroll")) scrolls(target);
    clear(target, el("table", {}, more, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
    const mark = () => body.forEach((line, ix) => line.classList.toggle("on", !!isOn && isOn(shown[ix])));
    mark();
    tables.set(target, mark);
    focusOn(focus);
  };
  draw();
}
const BUFFER_COLUMNS = [
  ["buffer", "w", ix => BUFFERS[ix].scope || BUFFERS[ix].tag, ix => BUFFERS[ix].scope],
  [
    "role",
    "",
    ix => el("span", { class: "role" }, swatch(look(roleAt(ix, state.step))), roleAt(ix, state.step)),
    ix => roleAt(ix, state.step),
  ],
  ["holds", "w", ix => holds(ix), null],
  ["bytes", "n", ix => bytes(bytesNow(ix)), bytesNow],
  ["padding", "n", paddingNow, paddingNow],
  ["offset", "n", ix => BUFFERS[ix].offset.toLocaleString("en"), ix => BUFFERS[ix].offset],
  ["steps", "n", ix => BUFFERS[ix].first_step + "–" + BUFFERS[ix].last_step, ix => BUFFERS[ix].first_step],
].filter(([title]) => IS_PLAN || !["holds", "offset", "steps"].includes(title));
// The bytes and the padding of a buffer at the chosen step.
function bytesNow(ix) {
  const piece = pieceAt(BUFFERS[ix], state.step);
  return piece ? ownBytes(BUFFERS[ix], piece) : 0;
}
function paddingNow(ix) {
  const piece = pieceAt(BUFFERS[ix], state.step);
  return piece ? piece.padded_bytes - ownBytes(BUFFERS[ix], piece) : 0;
}
function holds(ix) {
  const values = BUFFERS[ix].values,
    now = valuesAt(BUFFERS[ix], state.step);
  const one = now[now.length - 1] || values[0];
  if (!one) return BUFFERS[ix].role === "workspace" ? "scratch" : "";
  return typeText(one) + (1 < values.length ? " (one of " + values.length + " values)" : "");
}
function drawAlive() {
  const alive = BUFFERS.map((_, ix) => ix)
    .filter(ix => isAlive(BUFFERS[ix], state.step))
    .sort((a, b) => bytesNow(b) - bytesNow(a));
  const total = alive.reduce((sum, ix) => sum + bytesNow(ix) + paddingNow(ix), 0);
  byId("alivetitle").textContent = IS_PLAN
    ? "Alive at step " +
      state.step +
      (state.step === P.peak_step ? ", the peak" : "") +
      ": " +
      counted(alive.length, "buffer") +
      ", " +
      bytes(total)
    : "Allocations: " + alive.length + ", " + bytes(total);
  const because = [
    "why it is alive",
    "w why",
    ix => prose([why(ix, state.step), ...BUFFERS[ix].refused.slice(0, 1).map(row => row.text)].join("; ")),
    null,
  ];
  table(byId("alivetable"), IS_PLAN ? [...BUFFER_COLUMNS, because] : BUFFER_COLUMNS, alive, select, ix => ix === state.buffer);
}

const HAYSTACK = BUFFERS.map(buffer =>
  [buffer.tag, ...buffer.values.map(value => value.name + " " + typeText(value))].join("\n").toLowerCase(),
);
function search(text) {
  const words = text.trim().toLowerCase();
  if (!words) {
    byId("results").hidden = true;
    byId("found").textContent = "";
    return change({ matches: null });
  }
  const found = HAYSTACK.flatMap((hay, ix) => (hay.includes(words) ? [ix] : []));
  const constants = P.constants.filter(row => (row.tag + " " + typeText(row)).toLowerCase().includes(words));
  byId("found").textContent = counted(found.length, "buffer") + ", " + counted(constants.length, "constant");
  byId("results").hidden = false;
  const list = el("div"),
    more = el("div");
  table(list, BUFFER_COLUMNS, found, select, ix => ix === state.buffer);
  if (constants.length) {
    table(more, CONSTANT_COLUMNS, constants);
  }
  clear(byId("resultlist"), ...(found.length ? [list] : []), ...(constants.length ? [more] : []));
  change({ matches: new Set(found), ...(found.length ? { buffer: found[0] } : {}) });
  if (found.length) reveal(found[0]);
}

// Nothing reads the constant that a state starts from: it is copied before the first run.
const STATES = new Set(
  BUFFERS.filter(buffer => buffer.persistence === "session").flatMap(buffer => buffer.values.map(value => value.name)),
);
const readBy = row => row.scope || (STATES.has(row.name) ? "the first run: its initial value" : "");
const CONSTANT_COLUMNS = [
  ["constant", "w", row => row.name, row => row.name],
  ["role", "", row => el("span", { class: "role" }, swatch(look(row.role)), row.role), row => row.role],
  ["type", "w", typeText, null],
  ["packed", "n", row => bytes(row.bytes), row => row.bytes],
  ["tensor", "n", row => bytes(row.tensor_bytes), row => row.tensor_bytes],
  ["read first by", "w", readBy, readBy],
];
function weights() {
  if (!P.constants.length) return;
  byId("weights").hidden = false;
  const tensors = P.constants.reduce((sum, row) => sum + row.tensor_bytes, 0);
  byId("weightstitle").textContent =
    "Constants in the executable: " + bytes(P.weights_bytes) + ", packed from " + bytes(tensors);
  table(
    byId("weightstable"),
    CONSTANT_COLUMNS,
    P.constants.slice().sort((a, b) => b.bytes - a.bytes),
  );
}

function actual() {
  if (!R.actual) return;
  byId("actual").hidden = false;
  const target = byId("actualbody"),
    buffers = el("div", { class: "scroll" }),
    items = el("div", { class: "scroll" });
  const rows = BUFFERS.map((_, ix) => ix).filter(ix => BUFFERS[ix].actual);
  const count = verdict => rows.filter(ix => BUFFERS[ix].actual.verdict === verdict).length;
  const verdicts = ["equal", "smaller", "outside", "undetermined"]
    .filter(count)
    .map(verdict => count(verdict) + " " + verdict);
  table(
    buffers,
    [
      ["buffer", "w", ix => BUFFERS[ix].tag, ix => BUFFERS[ix].tag],
      ["verdict", "", ix => BUFFERS[ix].actual.verdict, ix => BUFFERS[ix].actual.verdict],
      ["planned", "n", ix => exact(BUFFERS[ix].bytes), ix => BUFFERS[ix].bytes],
      ["written", "n", ix => exact(BUFFERS[ix].actual.written_bytes), ix => BUFFERS[ix].actual.written_bytes],
      ["by others", "n", ix => exact(BUFFERS[ix].actual.outside_bytes), ix => BUFFERS[ix].actual.outside_bytes],
    ],
    rows,
    select,
  );
  const items_rows = [
    ...R.actual.planned_resident.map(row => ({ ...row, planned: "yes" })),
    ...R.actual.residual.map(row => ({ ...row, planned: "no" })),
  ];
  table(
    items,
    [
      ["resident", "w", row => row.what, null],
      ["bytes", "n", row => exact(row.bytes), row => row.bytes],
      ["planned", "", row => row.planned, null],
      ["source", "w", row => row.method, null],
    ],
    items_rows,
  );
  clear(
    target,
    el(
      "p",
      {},
      "The run compared with the plan: " +
        R.verdict +
        ". " +
        exact(R.actual.arena_written_bytes) +
        " of " +
        exact(R.actual.arena_planned_bytes) +
        " planned bytes were written, " +
        exact(R.actual.outside_bytes) +
        " outside; " +
        counted(R.actual.heap_allocations_in_run, "heap allocation") +
        " in a run. Buffers: " +
        verdicts.join(", ") +
        ".",
    ),
    items,
    el("p"),
    buffers,
  );
}
function steps() {
  if (!D.steps) return;
  byId("steps").hidden = false;
  const rows = D.steps.steps.map((row, ix) => ({ ...row, ix }));
  table(
    byId("stepsbody"),
    [
      ["step", "w", row => row.ix + " " + row.scope, row => row.ix],
      ["kernel", "", row => row.kernel, row => row.kernel],
      ["ms", "n", row => row.ms.toFixed(4), row => row.ms],
      ["share", "n", row => percent(row.share, 1), row => row.share],
      ["GFLOP/s", "n", row => row.gflop_per_s.toFixed(1), row => row.gflop_per_s],
      ["GB/s", "n", row => row.gb_per_s.toFixed(1), row => row.gb_per_s],
    ],
    rows.sort((a, b) => b.ms - a.ms),
    row => change({ step: row.ix }),
  );
}
