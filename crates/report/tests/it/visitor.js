// What a person would do on the page, and what is seen then; run beside the page's own scripts.
addEventListener("load", async () => {
  const frame = () => new Promise(done => setTimeout(done, 60));
  const seen = {};
  const canvas = document.getElementById("map");
  const colors = () => {
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data,
      set = new Set();
    for (let at = 0; at < data.length; at += 4 * 37) set.add(data[at] + "," + data[at + 1] + "," + data[at + 2]);
    return set.size;
  };
  const card = () => document.querySelector("#card h3").textContent;
  await frame();
  seen.title = document.getElementById("model").textContent;
  seen.colors = colors();
  seen.cards = [...document.querySelectorAll("#cards b")].map(number => number.textContent);
  seen.step = document.getElementById("stepinfo").textContent;
  const search = document.getElementById("search");
  search.value = window.words;
  search.dispatchEvent(new Event("input", { bubbles: true }));
  await new Promise(done => setTimeout(done, 250));
  seen.found = document.getElementById("found").textContent;
  seen.card = card();
  const timeline = document.getElementById("timeline"),
    box = timeline.getBoundingClientRect();
  timeline.dispatchEvent(new MouseEvent("click", { bubbles: true, clientX: box.left + 80, clientY: box.top + 50 }));
  await frame();
  seen.first = document.getElementById("alivetitle").textContent;
  document.getElementById("peak").click();
  await frame();
  seen.peak = document.getElementById("alivetitle").textContent;
  canvas.focus();
  seen.focus = document.activeElement.id;
  canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
  await frame();
  seen.next = card();
  seen.curves = document.querySelectorAll("svg.curve polyline.total").length;
  seen.answer = document.getElementById("whatifbody").textContent;
  seen.card_text = document.getElementById("card").textContent;
  seen.bars = document.querySelectorAll("#bars table").length;
  const head = () => [...document.querySelectorAll("#alivetable th")].find(th => th.textContent === "offset");
  if (head()) {
    const button = head().querySelector("button");
    button.focus();
    button.click();
    const first = head().getAttribute("aria-sort");
    change({ step: 0 });
    seen.sorted = [first, head().getAttribute("aria-sort")];
    seen.kept = document.activeElement.textContent;
  }
  seen.nameless = [...document.querySelectorAll("canvas")].filter(c => !c.getAttribute("aria-label")).map(c => c.id);
  const hides = [...document.styleSheets[0].cssRules]
    .filter(rule => rule.media && rule.media.mediaText === "print")
    .flatMap(rule => [...rule.cssRules].filter(own => own.style && own.style.display === "none"));
  seen.heads = [...document.querySelectorAll("th button")]
    .filter(button => hides.some(rule => button.matches(rule.selectorText)))
    .map(button => button.textContent);
  const whatIfRows = [...document.querySelectorAll("#whatifbody tbody tr")];
  seen.states = whatIfRows.map(row => row.cells[5].textContent);
  seen.unreached = [...document.querySelectorAll(".scroll")]
    .filter(one => one.querySelector("table") && one.offsetParent && !one.closest("#results"))
    .filter(one => one.tabIndex !== 0 || !one.getAttribute("aria-label"))
    .map(one => one.id || "scroll");
  const light = color => {
    const part = n => ((n /= 255) <= 0.03928 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = color.match(/[\d.]+/g).map(Number);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const shades = [getComputedStyle(search, "::placeholder").color, getComputedStyle(search).backgroundColor].map(light);
  seen.hint = (Math.max(...shades) + 0.05) / (Math.min(...shades) + 0.05);
  const sharp = () => canvas.width / canvas.getBoundingClientRect().width;
  const screen = sharp();
  dispatchEvent(new Event("beforeprint"));
  const paper = sharp();
  dispatchEvent(new Event("afterprint"));
  seen.printed = [document.documentElement.classList.contains("printing"), 1.5 * screen < paper || 2 <= screen];
  seen.breaks = !!document.querySelector("td.w wbr");
  search.value = "buffer";
  search.dispatchEvent(new Event("input", { bubbles: true }));
  await new Promise(done => setTimeout(done, 250));
  const lines = [...document.querySelectorAll("#resultlist tbody tr")];
  seen.rows = [lines.length, lines.filter(row => !row.classList.contains("unprinted")).length];
  seen.captions = [...document.querySelectorAll("caption")].map(caption => caption.textContent).join("; ");
  const before = performance.now();
  for (let turn = 0; turn < 10; turn++) {
    zoomMiddle(0.8);
    drawMap();
  }
  seen.ms = (performance.now() - before) / 10;
  seen.outside = performance.getEntriesByType("resource").map(entry => entry.name);
  seen.sections = [...document.querySelectorAll("nav a")].map(a => a.textContent);
  seen.wide = document.documentElement.scrollWidth <= innerWidth;
  seen.faults = faults;
  const out = document.createElement("pre");
  out.id = "seen";
  out.textContent = JSON.stringify(seen);
  document.body.append(out);
});
