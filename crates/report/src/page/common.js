// What all parts of the page share: the data, numbers for eyes, elements, looks of roles, canvases, the selection.
const D = JSON.parse(document.getElementById("data").textContent);
const R = D.report,
  P = R.planned,
  BUFFERS = P.buffers;
const STEPS = Math.max(P.steps.length, 1);
const byId = id => document.getElementById(id);

function bytes(n) {
  const sign = n < 0 ? "-" : "";
  n = Math.abs(n);
  for (const [unit, name] of [
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
  ]) {
    if (unit <= n) return sign + (n / unit).toFixed(2) + " " + name;
  }
  return sign + n + " B";
}
// A mark of an axis that ends at `most`, in the unit of its end.
function mark(n, most) {
  const [unit, name] = [
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
  ].find(([unit]) => unit <= most) || [1, "B"];
  return (n / unit).toFixed(unit === 1 ? 0 : 2) + " " + name;
}
const counted = (n, noun) => n.toLocaleString("en") + " " + noun + (n === 1 ? "" : "s");
const exact = n => n.toLocaleString("en") + " B";
const percent = (part, whole) => ((100 * part) / (whole || 1)).toFixed(1) + " %";

// An element with attributes and children; texts are never read as HTML.
function el(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else if (value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined));
  return element;
}
// A name that may break behind its separators, so that no word of it is cut.
const breakable = name => String(name).split(/(?<=[/._:])(?=.)/).flatMap((part, ix) => (ix ? [el("wbr"), part] : [part]));
// A sentence with names and flags between backticks. A flag stays in one line, a name breaks like a name.
const prose = text =>
  text.split("`").map((part, ix) => {
    if (ix % 2 === 0) return part;
    return part.startsWith("--") ? el("code", { class: "flag" }, part) : el("code", {}, breakable(part));
  });
const clear = (element, ...children) => element.replaceChildren(...children.filter(child => child !== null));

const LOOKS = new Map(D.styles.map(style => [style.name, style]));
const look = role => LOOKS.get(role.toLowerCase()) || LOOKS.get("unknown");
const RANK = new Map(D.styles.map((style, ix) => [style.name, ix]));
const rank = role => (RANK.has(role) ? RANK.get(role) : 99);
// Layers and scopes have colors of their own, which no role has; their names always stand beside.
const layerLook = ix => ({ color: D.layers[ix % D.layers.length], pattern: "plain" });
const IS_PLAN = R.origin === "plan";

function swatch(style) {
  return el("span", {
    class: "swatch p-" + style.pattern,
    style: "background-color:" + style.color,
    "aria-hidden": "true",
  });
}
function legend(roles) {
  return roles.map(role => el("span", {}, swatch(look(role)), role));
}
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Sets a canvas to its size on the screen and returns what to draw with, in units of CSS pixels.
function surface(canvas) {
  // Paper has more dots than a screen.
  const least = document.documentElement.classList.contains("printing") ? 2 : 1;
  const ratio = Math.max(least, window.devicePixelRatio || 1);
  const box = canvas.getBoundingClientRect();
  const width = Math.max(1, Math.round(box.width - 2)),
    height = Math.max(1, Math.round(box.height - 2));
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  return { context, width, height };
}

// The pattern of a role as a canvas paints it, or nothing where it is plain.
const PATTERNS = new Map();
function pattern(context, name, color) {
  const key = name + color;
  if (!PATTERNS.has(key)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const c = tile.getContext("2d");
    c.strokeStyle = c.fillStyle = color;
    c.beginPath();
    if (name === "rising" || name === "crossed") {
      c.moveTo(-2, 10);
      c.lineTo(10, -2);
    }
    if (name === "falling" || name === "crossed") {
      c.moveTo(-2, -2);
      c.lineTo(10, 10);
    }
    if (name === "level") {
      c.moveTo(0, 4);
      c.lineTo(8, 4);
    }
    if (name === "upright") {
      c.moveTo(4, 0);
      c.lineTo(4, 8);
    }
    if (name === "dotted") c.fillRect(3, 3, 2, 2);
    c.stroke();
    PATTERNS.set(key, name === "plain" ? null : context.createPattern(tile, "repeat"));
  }
  return PATTERNS.get(key);
}
// Text on a role's color.
const inkOn = style => (["#0072b2", "#666666"].includes(style.color) ? "#fff" : "#111");
function fill(context, style, x, y, width, height) {
  context.fillStyle = style.color;
  context.fillRect(x, y, width, height);
  // In a thin shape a pattern would hide the color.
  const marks = 12 <= width && 12 <= height ? pattern(context, style.pattern, "rgba(0,0,0,.45)") : null;
  if (marks) {
    context.fillStyle = marks;
    context.fillRect(x, y, width, height);
  }
}

// A text cut in its middle to a number of pixels.
function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let keep = Math.floor((text.length * width) / context.measureText(text).width) - 2;
  if (keep < 3) return "";
  const tail = Math.ceil((keep * 2) / 3);
  return text.slice(0, keep - tail) + "…" + text.slice(text.length - tail);
}

const tip = byId("tip");
function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = !text;
  const right = event.clientX + 14 + tip.offsetWidth < innerWidth;
  tip.style.left = Math.max(4, right ? event.clientX + 14 : event.clientX - 14 - tip.offsetWidth) + "px";
  tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4) + "px";
}
const hideTip = () => {
  tip.hidden = true;
};

// The step and buffer that are looked at, and what was searched for; every part redraws when they change.
const state = { step: P.peak_step, buffer: P.alive_at_peak.length ? P.alive_at_peak[0].buffer : -1, matches: null };
const watchers = [];
const watch = redraw => watchers.push(redraw);
function change(what) {
  Object.assign(state, what);
  watchers.forEach(redraw => redraw(what));
}

// The bytes that a buffer occupies, by rising steps: all of it, unless the report says otherwise.
const piecesOf = buffer =>
  buffer.pieces || [
    {
      first_step: buffer.first_step,
      last_step: buffer.last_step,
      offset: 0,
      padded_bytes: buffer.padded_bytes,
    },
  ];
const pieceAt = (buffer, step) =>
  piecesOf(buffer).find(piece => piece.first_step <= step && step <= piece.last_step);
const isAlive = (buffer, step) => pieceAt(buffer, step) !== undefined;
// The bytes of a piece without those that round the buffer's size up.
const ownBytes = (buffer, piece) =>
  Math.max(0, Math.min(piece.offset + piece.padded_bytes, buffer.bytes) - piece.offset);
const stepName = step => (P.steps[step] ? P.steps[step].scope + " (" + P.steps[step].kernel + ")" : "");
const typeText = value => value.dtype + "[" + value.shape.join(",") + "]";

// The values whose bytes a buffer holds at a step, those included that are read later through a view.
const valuesAt = (buffer, step) =>
  buffer.values.filter(value => value.first_step <= step && step <= value.held_until);

// The role of a buffer's bytes at a step.
function roleAt(ix, step) {
  const now = valuesAt(BUFFERS[ix], step);
  return now.length ? now[now.length - 1].role : BUFFERS[ix].role;
}

// Why a buffer is alive at a step; at the peak the report has said it.
const WHY_AT_PEAK = new Map(P.alive_at_peak.map(row => [row.buffer, row.why.text]));
function why(ix, step) {
  if (step === P.peak_step && WHY_AT_PEAK.has(ix)) return WHY_AT_PEAK.get(ix);
  const buffer = BUFFERS[ix];
  if (buffer.persistence === "session") return "state: the next run reads it";
  if (buffer.role === "workspace" && !buffer.last_reader) return "scratch of this step";
  const held = valuesAt(buffer, step).sort((a, b) => b.held_until - a.held_until || b.first_step - a.first_step)[0];
  const next = buffer.values.filter(value => step < value.first_step).sort((a, b) => a.first_step - b.first_step)[0];
  if (!held && next) return "no value yet: `" + next.name + "` is written at step " + next.first_step;
  const last = held ? held.held_until : buffer.last_step;
  if ((held || buffer).role === "output" && last === buffer.last_step)
    return "a result: the caller reads it after the run";
  const at = last < buffer.last_step ? last : buffer.last_reader ? buffer.last_reader.step : -1;
  if (at < 0) return IS_PLAN ? "it is written and never read" : "it was allocated";
  return "last read at step " + at + " by `" + (P.steps[at] ? P.steps[at].scope : "") + "`";
}
