"use strict";
(() => {
  const $ = (s, of = document) => of.querySelector(s);
  const $$ = (s, of = document) => [...of.querySelectorAll(s)];
  const figures = JSON.parse($("#figures").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const nonce = document.currentScript.nonce;
  let ready = false;

  // -- plots ------------------------------------------------------------------------------------

  // Plotly is packed; an element runs it, under the policy of the page.
  async function load() {
    const packed = $("#plotly").textContent;
    const bytes = Uint8Array.from(atob(packed), c => c.charCodeAt(0));
    const script = document.createElement("script");
    script.nonce = nonce;
    if (typeof DecompressionStream === "undefined") throw new Error("this browser cannot unpack gzip; a newer one can");
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    script.textContent = await new Response(plain).text();
    document.head.append(script);
    if (!window.Plotly) throw new Error("the plots could not be loaded");
    ready = true;
  }

  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  function layoutOf(one) {
    const text = colour("--text"), soft = colour("--soft"), edge = colour("--edge");
    const axis = a => ({gridcolor: edge, zerolinecolor: edge, linecolor: edge, automargin: true, ...a,
      title: {standoff: 10, ...a?.title, font: {size: 12.5, color: soft}}, tickfont: {size: 11.5, color: soft}});
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: {l: 62, r: 14, t: 8, b: 44},
      font: {family: getComputedStyle(document.body).fontFamily, size: 12.5, color: text},
      legend: {orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: {size: 12, color: soft}},
      hoverlabel: {bgcolor: colour("--panel"), bordercolor: edge, font: {color: text, size: 12}, align: "left"},
      modebar: {bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: text, orientation: "v"}, bargap: 0.28, ...one, xaxis: axis(one.xaxis), yaxis: axis(one.yaxis),
    };
  }
  const config = {responsive: true, displaylogo: false, showSendToCloud: false, scrollZoom: false,
    modeBarButtons: [["resetScale2d", "toImage"]]};

  function draw(of) {
    if (!ready) return;
    for (const place of $$(".plot", of)) {
      if (place.dataset.drawn || !place.offsetParent) continue;
      const one = figures[+place.dataset.figure];
      for (const series of one.data) if (series.texts) {
        series.text = series.text_at.map(i => series.texts[i]);
        delete series.texts; delete series.text_at;
      }
      Plotly.newPlot(place, one.data, layoutOf(one.layout), config);
      place.dataset.drawn = "1";
    }
  }
  dark.addEventListener("change", () => {
    for (const place of $$(".plot[data-drawn]")) Plotly.relayout(place, layoutOf(figures[+place.dataset.figure].layout));
  });

  // -- one task of many -------------------------------------------------------------------------

  const choose = $("#choose");
  function show(number) {
    const wanted = $("#task-" + number);
    if (!wanted) return;
    for (const s of $$("section.task")) s.hidden = s !== wanted;
    for (const row of $$("table.tasks tbody tr")) row.classList.toggle("chosen", row.dataset.task === String(number));
    if (choose) choose.value = String(number);
    draw(wanted);
  }
  function fromAddress(jump) {
    const found = /^#task-(\d+)$/.exec(location.hash);
    show(found ? found[1] : "0");
    if (found && jump) $("#task").scrollIntoView();
  }
  addEventListener("hashchange", () => fromAddress(true));
  choose?.addEventListener("change", () => { history.replaceState(null, "", "#task-" + choose.value); show(choose.value); });
  $("table.tasks tbody")?.addEventListener("click", e => {
    const row = e.target.closest("tr");
    if (row && !e.target.closest("a")) location.hash = "task-" + row.dataset.task;
  });
  for (const link of $$("nav a[data-within]")) link.addEventListener("click", e => {
    e.preventDefault();
    const heads = $$("section.task:not([hidden]) > h4");
    heads.find(h => h.textContent === link.textContent)?.scrollIntoView();
  });

  // -- the table --------------------------------------------------------------------------------

  const body = $("table.tasks tbody");
  for (const head of $$("th.sorts")) {
    const sort = () => {
      const column = head.cellIndex, down = head.getAttribute("aria-sort") !== "descending" && head.classList.contains("number")
        || head.getAttribute("aria-sort") === "ascending";
      for (const other of $$("th.sorts")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = row => { const c = row.cells[column]; return c.dataset.v ?? c.textContent; };
      const numbers = $$("tr", body).every(r => key(r) !== "" && !Number.isNaN(Number(key(r))));
      const order = numbers ? (a, b) => Number(key(a)) - Number(key(b)) : (a, b) => key(a).localeCompare(key(b));
      body.append(...$$("tr", body).sort((a, b) => (down ? -1 : 1) * order(a, b)));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", e => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); sort(); } });
  }
  const filter = $("#filter");
  filter?.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of $$("tr", body)) {
      const has = row.textContent.toLowerCase() + " " + (row.cells[0].dataset.v || "").toLowerCase();
      row.hidden = !words.every(w => has.includes(w));
      count += !row.hidden;
    }
    $("#found").textContent = words.length ? `${count} found` : "";
  });

  // -- drawings of graphs -----------------------------------------------------------------------

  for (const tools of $$(".tools[data-drawing]")) {
    const home = $("#" + tools.dataset.drawing);
    let scale = 1;
    const zoom = by => {
      scale = Math.min(4, Math.max(0.1, by === 0 ? 1 : scale * by));
      for (const svg of $$("svg", home)) {
        svg.setAttribute("width", svg.viewBox.baseVal.width * scale);
        svg.setAttribute("height", svg.viewBox.baseVal.height * scale);
      }
    };
    for (const button of $$("button", tools)) button.addEventListener("click", () => zoom(Number(button.dataset.zoom)));
    $("select", tools)?.addEventListener("change", e => {
      for (const one of $$("[data-stage]", home)) one.hidden = one.dataset.stage !== e.target.value;
    });
  }

  // -- where the reader is ----------------------------------------------------------------------

  const links = $$("nav a:not([data-within])");
  const seen = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting)
      for (const link of links) {
        const id = entry.target.classList.contains("task") ? "task" : entry.target.id;
        link.classList.toggle("here", link.getAttribute("href") === "#" + id);
      }
  }, {rootMargin: "0px 0px -75% 0px"});
  for (const s of $$("main > section")) seen.observe(s);

  fromAddress(true);
  if (figures.length) load().then(() => { draw(document); document.documentElement.dataset.ready = "1"; }, error => {
    console.error(error);
    for (const place of $$(".plot")) { place.textContent = "This plot cannot be drawn: " + error.message; place.style.height = "auto"; }
  });
  else document.documentElement.dataset.ready = "1";
})();
