// The difference to another plan; then everything is drawn and kept drawn.

function difference() {
  const diff = D.diff;
  if (!diff) return;
  byId("diff").hidden = false;
  const parts = [
    el(
      "p",
      {},
      "From ",
      el("b", {}, diff.a.name),
      " to ",
      el("b", {}, diff.b.name),
      ". The rest of this page is about the second.",
    ),
  ];
  const sides = [
    ["arena", "arena_bytes"],
    ["lower bound", "lower_bound_bytes"],
    ["weights", "weights_bytes"],
  ].map(([name, key]) => ({ name, a: bytes(diff.a[key]), b: bytes(diff.b[key]), d: diff.b[key] - diff.a[key] }));
  for (const key of ["steps", "buffers"])
    sides.push({ name: key, a: diff.a[key], b: diff.b[key], d: diff.b[key] - diff.a[key], plain: true });
  const plus = (n, plain) => (0 < n ? "+" : "") + (plain ? n : bytes(n));
  const add = (title, columns, rows) => {
    if (!rows.length) return;
    const target = el("div", { class: "scroll" });
    table(target, columns, rows);
    parts.push(el("h3", {}, title), target);
    target.setAttribute("aria-label", title);
  };
  add(
    "Sizes",
    [
      ["what", "", row => row.name, null],
      ["before", "n", row => row.a, null],
      ["after", "n", row => row.b, null],
      ["change", "n", row => plus(row.d, row.plain), null],
    ],
    sides,
  );
  add(
    "By tag, at the peak",
    [
      ["tag", "w", row => row.tag, row => row.tag],
      ["before", "n", row => bytes(row.a_bytes), row => row.a_bytes],
      ["after", "n", row => bytes(row.b_bytes), row => row.b_bytes],
      ["change", "n", row => plus(row.b_bytes - row.a_bytes), row => row.b_bytes - row.a_bytes],
    ],
    diff.tags,
  );
  const one = [
    ["buffer", "w", row => row.tag, row => row.tag],
    ["bytes", "n", row => bytes(row.bytes), row => row.bytes],
  ];
  add("New buffers", one, diff.new);
  add("Gone buffers", one, diff.gone);
  const place = ([offset, size, first, last]) =>
    bytes(size) + " at " + offset.toLocaleString("en") + ", steps " + first + "–" + last;
  add(
    "Moved buffers",
    [
      ["buffer", "w", row => row.tag, row => row.tag],
      ["before", "", row => place(row.a), null],
      ["after", "", row => place(row.b), null],
    ],
    diff.moved,
  );
  const text = [["value", "w", row => row, row => row]];
  add("Aliases gained", text, diff.aliases_gained);
  add("Aliases lost", text, diff.aliases_lost);
  clear(byId("diffbody"), ...parts);
}

function redraw() {
  PATTERNS.clear();
  drawTimeline();
  drawResident();
  drawMap();
  drawFlame();
}
byId("model").textContent = R.model;
byId("subtitle").textContent =
  IS_PLAN
    ? "for " + R.target + ", batch " + R.batch + "; " + P.steps.length + " steps, " + BUFFERS.length + " buffers"
    : "imported from another profiler";
headline();
bars(byId("bylayer"), "layer", D.bars.by_layer, D.bars.total_bytes, true);
bars(byId("byrole"), "role", D.bars.by_role, D.bars.total_bytes, false);
opportunities();
savedValues();
residentWeights();
const arenaBytes = D.bars.arena.reduce((sum, row) => sum + row.bytes, 0);
if (arenaBytes && arenaBytes !== D.bars.total_bytes)
  bars(byId("inarena"), "arena alone", D.bars.arena, arenaBytes, false);
else byId("arenahint").hidden = true;
// An imported profile has neither releases nor addresses.
byId("time").hidden = byId("packing").hidden = !IS_PLAN;

clear(byId("timelegend"), ...legend(TIMED));
clear(
  byId("maplegend"),
  ...legend(
    [...new Set(BUFFERS.map(buffer => buffer.role).concat(D.roles.map(row => row[5])))]
      .sort((a, b) => rank(a) - rank(b))
      .concat("free"),
  ),
);
[weights, actual, steps, whatIf, difference, timelineEvents, mapEvents, flameEvents].forEach(part => part());
clear(
  byId("nav"),
  ...[...document.querySelectorAll("section[data-title]")]
    .filter(section => !section.hidden)
    .map(section => el("a", { href: "#" + section.id }, section.dataset.title)),
);
watch(() => {
  drawTimeline();
  queueMap();
  drawCard();
});
watch(what => {
  if ("step" in what) drawAlive();
  if ("buffer" in what) tables.forEach(mark => mark());
});
let typing = 0;
byId("search").addEventListener("input", event => {
  clearTimeout(typing);
  typing = setTimeout(() => search(event.target.value), 120);
});
byId("searchform").addEventListener("submit", event => {
  event.preventDefault();
  search(byId("search").value);
});
drawCard();
drawAlive();
redraw();
new ResizeObserver(redraw).observe(byId("main"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
const printing = isOn => {
  document.documentElement.classList.toggle("printing", isOn);
  redraw();
};
addEventListener("beforeprint", () => printing(true));
addEventListener("afterprint", () => printing(false));
