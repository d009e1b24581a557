// The flame graph: boxes by scope, of which one can fill the width.

const flame = { tree: D.flame_peak, path: [], boxes: [], at: -1, unit: "" };
function flameDepth(node) {
  return 1 + Math.max(0, ...node.children.map(([, child]) => flameDepth(child)));
}
function drawFlame() {
  const canvas = byId("flame");
  const row = 21,
    levels = flameDepth(flame.tree);
  canvas.style.height = row * levels + 6 + "px";
  const { context, width } = surface(canvas);
  let root = flame.tree;
  const trail = [["all", root]];
  for (const name of flame.path) {
    const found = root.children.find(([child]) => child === name);
    if (!found) break;
    root = found[1];
    trail.push(found);
  }
  flame.boxes = [];
  const box = (name, node, x, wide, level, path, isLeaf) => {
    if (wide < 0.7) return;
    const style = isLeaf ? look(name) : layerLook(level % 2);
    fill(
      context,
      { color: style.color, pattern: isLeaf ? style.pattern : "plain" },
      x,
      row * level + 3,
      wide - 0.7,
      row - 1.5,
    );
    context.fillStyle = isLeaf ? inkOn(style) : "#111";
    context.textAlign = "left";
    if (26 < wide) context.fillText(fitted(context, name, wide - 6), x + 3, row * level + 17);
    flame.boxes.push({ name, total: node.total, x, y: row * level + 3, wide, path });
  };
  const walk = (name, node, x, wide, level, path) => {
    box(name, node, x, wide, level, path, !node.children.length);
    let at = x;
    for (const [child, below] of node.children) {
      const share = (wide * below.total) / (node.total || 1);
      if (0.7 <= share) walk(child, below, at, share, level + 1, path.concat(child));
      at += share;
    }
  };
  trail
    .slice(0, -1)
    .forEach(([name, node], level) => box(name, node, 3, width - 6, level, flame.path.slice(0, level), false));
  const [name] = trail[trail.length - 1];
  walk(name, root, 3, width - 6, trail.length - 1, flame.path.slice(0, trail.length - 1));
  const on = flame.boxes[flame.at];
  if (on) {
    context.strokeStyle = css("--peak");
    context.lineWidth = 2;
    context.strokeRect(on.x, on.y, on.wide - 1, row - 2);
  }
  byId("flameinfo").textContent = flameText(on || { path: flame.path, name, total: root.total });
}
function flameText(box) {
  return (
    (box.path.join("/") || "all") + ": " + bytes(box.total) + flame.unit + ", " + percent(box.total, flame.tree.total)
  );
}
function flameEvents() {
  const canvas = byId("flame");
  const hit = event =>
    flame.boxes.findIndex(
      box =>
        box.x <= event.offsetX &&
        event.offsetX < box.x + box.wide &&
        box.y <= event.offsetY &&
        event.offsetY < box.y + 20,
    );
  const open = ix => {
    if (flame.boxes[ix]) {
      flame.path = flame.boxes[ix].path;
      flame.at = -1;
      drawFlame();
    }
  };
  canvas.addEventListener("click", event => open(hit(event)));
  canvas.addEventListener("mousemove", event => {
    const ix = hit(event);
    ix < 0 ? hideTip() : showTip(event, flameText(flame.boxes[ix]));
  });
  canvas.addEventListener("mouseleave", hideTip);
  canvas.addEventListener("keydown", event => {
    const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (by) flame.at = Math.max(0, Math.min(flame.boxes.length - 1, flame.at + by));
    else if (event.key === "Escape") flame.path = flame.path.slice(0, -1);
    else if (event.key === "Enter" && flame.boxes[flame.at]) {
      flame.path = flame.boxes[flame.at].path;
      flame.at = -1;
    } else return;
    event.preventDefault();
    drawFlame();
  });
  document.querySelectorAll("input[name=measure]").forEach(input =>
    input.addEventListener("change", () => {
      flame.tree = input.value === "peak" ? D.flame_peak : D.flame_held;
      Object.assign(flame, { unit: input.value === "peak" ? "" : " steps", path: [], at: -1 });
      drawFlame();
    }),
  );
}
