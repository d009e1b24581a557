// The packing map: one canvas with a window onto steps and offsets, and the card of the buffer that is looked at.

const ALL = { x0: 0, x1: STEPS, y0: 0, y1: Math.max(1, P.arena_bytes) };
const view = { ...ALL };
const map = byId("map");

function mapScale(width, height) {
  const left = 86,
    top = 20,
    wide = width - left - 10,
    high = height - top - 24;
  return {
    left,
    top,
    wide,
    high,
    x: step => left + (wide * (step - view.x0)) / (view.x1 - view.x0),
    y: offset => top + high * (1 - (offset - view.y0) / (view.y1 - view.y0)),
    step: x => view.x0 + ((x - left) / wide) * (view.x1 - view.x0),
    offset: y => view.y0 + (1 - (y - top) / high) * (view.y1 - view.y0),
  };
}

// For buffers whose bytes change their role: the spans with another one.
const ROLES = new Map();
for (const row of D.roles) {
  if (!ROLES.has(row[0])) ROLES.set(row[0], []);
  ROLES.get(row[0]).push(row);
}

let mapQueued = false;
function queueMap() {
  if (mapQueued) return;
  mapQueued = true;
  requestAnimationFrame(() => {
    mapQueued = false;
    drawMap();
  });
}
function drawMap() {
  const { context, width, height } = surface(map);
  const s = mapScale(width, height);
  map.scale = s;
  context.save();
  context.beginPath();
  context.rect(s.left, s.top, s.wide, s.high);
  context.clip();
  context.fillStyle = css("--free");
  context.fillRect(s.left, s.top, s.wide, s.high);
  const edge = css("--mark");
  context.textAlign = "left";
  for (let ix = 0; ix < BUFFERS.length; ix++) {
    const buffer = BUFFERS[ix];
    if (
      buffer.last_step + 1 < view.x0 ||
      view.x1 < buffer.first_step ||
      buffer.offset + buffer.padded_bytes < view.y0 ||
      view.y1 < buffer.offset
    )
      continue;
    // The name goes onto the largest piece.
    let [x, y, wide, high] = [0, 0, 0, 0];
    for (const piece of piecesOf(buffer)) {
      const [left, up, across, tall] = pieceRect(s, buffer, piece);
      const padding = up - s.y(buffer.offset + piece.offset + piece.padded_bytes);
      if (1 <= padding) fill(context, look("padding"), left, up - padding, across, padding);
      context.globalAlpha = state.matches && !state.matches.has(ix) ? 0.18 : 1;
      fill(context, look(buffer.role), left, up, across, tall);
      context.globalAlpha = 1;
      if (wide * high < across * tall) [x, y, wide, high] = [left, up, across, tall];
    }
    context.globalAlpha = state.matches && !state.matches.has(ix) ? 0.18 : 1;
    for (const [, first, last, offset, size, role] of ROLES.get(ix) || []) {
      const from = s.x(first),
        up = s.y(buffer.offset + offset + size);
      fill(context, look(role), from, up, s.x(last + 1) - from, s.y(buffer.offset + offset) - up);
    }
    if (6 <= wide && 6 <= high) {
      context.strokeStyle = edge;
      context.lineWidth = 0.6;
      for (const piece of piecesOf(buffer)) {
        const [left, up, across, tall] = pieceRect(s, buffer, piece);
        context.strokeRect(left + 0.3, up + 0.3, Math.max(0, across - 0.6), Math.max(0, tall - 0.6));
      }
    }
    if (46 < wide && 13 < high) {
      context.fillStyle = ROLES.has(ix) ? "#111" : inkOn(look(buffer.role));
      const shown = Math.max(x, s.left) + 3;
      context.fillText(
        fitted(context, buffer.scope, Math.min(x + wide, s.left + s.wide) - shown - 3),
        shown,
        y + Math.min(high / 2 + 4, 26),
      );
    }
    context.globalAlpha = 1;
  }
  const on = BUFFERS[state.buffer];
  if (on) {
    context.strokeStyle = css("--peak");
    context.lineWidth = 3;
    for (const piece of piecesOf(on)) {
      const [left, up, across, tall] = pieceRect(s, on, piece);
      context.strokeRect(left, up, Math.max(2, across), Math.max(2, tall));
    }
  }
  column(context, s, P.peak_step, css("--peak"));
  if (state.step !== P.peak_step) column(context, s, state.step, css("--accent"));
  context.restore();
  context.fillStyle = css("--peak");
  context.textAlign = "center";
  const peak = s.x(P.peak_step + 0.5);
  if (s.left <= peak && peak <= s.left + s.wide) context.fillText("peak", Math.min(peak, width - 22), 14);
  context.fillStyle = css("--soft");
  context.textAlign = "right";
  for (let part = 0; part <= 4; part++) {
    const offset = view.y0 + ((view.y1 - view.y0) * part) / 4;
    context.fillText(mark(offset, view.y1), s.left - 6, s.y(offset) + 4);
  }
  context.fillText("step " + Math.max(0, Math.ceil(view.x1) - 1), s.left + s.wide, height - 6);
  context.textAlign = "left";
  context.fillText("step " + Math.floor(view.x0), s.left, height - 6);
}
// Where a piece of a buffer is drawn: left, top, width and height.
function pieceRect(s, buffer, piece) {
  const low = buffer.offset + piece.offset,
    left = s.x(piece.first_step),
    up = s.y(low + ownBytes(buffer, piece));
  return [left, up, Math.max(0.6, s.x(piece.last_step + 1) - left), Math.max(0.6, s.y(low) - up)];
}
function column(context, s, step, color) {
  context.strokeStyle = color;
  context.lineWidth = 1.5;
  context.setLineDash([6, 3]);
  context.beginPath();
  context.moveTo(s.x(step + 0.5), s.top);
  context.lineTo(s.x(step + 0.5), s.top + s.high);
  context.stroke();
  context.setLineDash([]);
}

function zoom(factor, step, offset) {
  const across = Math.min(STEPS, Math.max(1, (view.x1 - view.x0) * factor)),
    up = Math.min(ALL.y1, Math.max(64, (view.y1 - view.y0) * factor));
  const fx = (step - view.x0) / (view.x1 - view.x0),
    fy = (offset - view.y0) / (view.y1 - view.y0);
  show(step - fx * across, offset - fy * up, across, up);
}
function show(x0, y0, across, up) {
  view.x0 = Math.max(0, Math.min(STEPS - across, x0));
  view.y0 = Math.max(0, Math.min(ALL.y1 - up, y0));
  view.x1 = view.x0 + across;
  view.y1 = view.y0 + up;
  queueMap();
}
const middle = () => [(view.x0 + view.x1) / 2, (view.y0 + view.y1) / 2];
function zoomMiddle(factor) {
  const on = BUFFERS[state.buffer];
  if (on && factor < 1) zoom(factor, (on.first_step + on.last_step + 1) / 2, on.offset + on.bytes / 2);
  else zoom(factor, ...middle());
}
// Moves the window as little as makes a buffer visible.
function reveal(ix) {
  const buffer = BUFFERS[ix];
  if (!buffer) return;
  const across = view.x1 - view.x0,
    up = view.y1 - view.y0;
  let { x0, y0 } = view;
  if (buffer.first_step < view.x0 || view.x1 <= buffer.first_step) x0 = buffer.first_step - across / 4;
  if (buffer.offset < view.y0 || view.y1 <= buffer.offset) y0 = buffer.offset - up / 4;
  show(x0, y0, across, up);
}

function bufferAt(x, y) {
  const s = map.scale;
  if (!s || x < s.left || y < s.top) return -1;
  const step = s.step(x),
    offset = s.offset(y);
  return BUFFERS.findIndex(buffer =>
    piecesOf(buffer).some(piece => {
      const low = buffer.offset + piece.offset;
      return (
        piece.first_step <= step &&
        step < piece.last_step + 1 &&
        low <= offset &&
        offset < low + Math.max(ownBytes(buffer, piece), 1)
      );
    }),
  );
}
// The nearest buffer in a direction: sideways by birth, up and down by offset among those alive at the step.
function neighbour(key) {
  const on = BUFFERS[state.buffer];
  if (!on) return 0;
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const order = BUFFERS.map((_, ix) => ix).sort(
      (a, b) => BUFFERS[a].first_step - BUFFERS[b].first_step || BUFFERS[a].offset - BUFFERS[b].offset,
    );
    return order[order.indexOf(state.buffer) + (key === "ArrowLeft" ? -1 : 1)];
  }
  const step = isAlive(on, state.step) ? state.step : on.first_step;
  const alive = BUFFERS.map((_, ix) => ix)
    .filter(ix => isAlive(BUFFERS[ix], step))
    .sort((a, b) => BUFFERS[a].offset - BUFFERS[b].offset);
  return alive[alive.indexOf(state.buffer) + (key === "ArrowUp" ? 1 : -1)];
}
function select(ix) {
  if (ix === undefined || !BUFFERS[ix]) return;
  const buffer = BUFFERS[ix];
  change({ buffer: ix, step: isAlive(buffer, state.step) ? state.step : buffer.first_step });
  reveal(ix);
}

function mapEvents() {
  let drag = null;
  map.addEventListener("pointerdown", event => {
    drag = { x: event.offsetX, y: event.offsetY, x0: view.x0, y0: view.y0, moved: false };
    map.setPointerCapture(event.pointerId);
  });
  map.addEventListener("pointermove", event => {
    const s = map.scale;
    if (drag) {
      const dx = event.offsetX - drag.x,
        dy = event.offsetY - drag.y;
      drag.moved = drag.moved || 4 < Math.abs(dx) + Math.abs(dy);
      if (drag.moved)
        show(
          drag.x0 - (dx / s.wide) * (view.x1 - view.x0),
          drag.y0 + (dy / s.high) * (view.y1 - view.y0),
          view.x1 - view.x0,
          view.y1 - view.y0,
        );
      return;
    }
    const buffer = BUFFERS[bufferAt(event.offsetX, event.offsetY)];
    if (buffer)
      showTip(
        event,
        buffer.tag +
          "\n" +
          bytes(buffer.bytes) +
          " at " +
          buffer.offset.toLocaleString("en") +
          "\nsteps " +
          buffer.first_step +
          " to " +
          buffer.last_step,
      );
    else hideTip();
  });
  map.addEventListener("pointerup", event => {
    if (drag && !drag.moved) {
      const step = Math.max(0, Math.min(STEPS - 1, Math.floor(map.scale.step(event.offsetX))));
      const ix = bufferAt(event.offsetX, event.offsetY);
      change(ix < 0 ? { step } : { step, buffer: ix });
    }
    drag = null;
  });
  map.addEventListener("pointercancel", () => {
    drag = null;
  });
  map.addEventListener("pointerleave", hideTip);
  map.addEventListener(
    "wheel",
    event => {
      event.preventDefault();
      zoom(Math.exp(event.deltaY * 0.0015), map.scale.step(event.offsetX), map.scale.offset(event.offsetY));
    },
    { passive: false },
  );
  map.addEventListener("keydown", event => {
    const keys = {
      "+": () => zoomMiddle(0.6),
      "=": () => zoomMiddle(0.6),
      "-": () => zoomMiddle(1 / 0.6),
      0: () => show(0, 0, STEPS, ALL.y1),
      p: () => change({ step: P.peak_step }),
    };
    const act = keys[event.key] || (event.key.startsWith("Arrow") ? () => select(neighbour(event.key)) : null);
    if (!act) return;
    event.preventDefault();
    act();
  });
  byId("zoomin").addEventListener("click", () => zoomMiddle(0.6));
  byId("zoomout").addEventListener("click", () => zoomMiddle(1 / 0.6));
  byId("zoomall").addEventListener("click", () => show(0, 0, STEPS, ALL.y1));
}
