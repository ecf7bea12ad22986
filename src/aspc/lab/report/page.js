// Charts, filters and the table of runs. They are in one file because they share the selected dataset and series.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const METRIC = { score: 0, scale: 1, q: 2, bc_loss: 3 };
  const shown = new Set(data.main.slice(0, data.maxDrawn));
  let dataset = 0, printing = false;

  const element = (tag, text, classes) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (classes) node.className = classes;
    return node;
  };
  // Plotly interprets some HTML in names, so names are escaped.
  const escapeHtml = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const withOpacity = (color, opacity) => color + Math.round(opacity * 255).toString(16).padStart(2, "0");
  const formatNumber = (value, digits = 4) => (value === null || value === undefined ? "–"
    : Number(value).toLocaleString("en", { maximumSignificantDigits: digits }).replace("-", "−"));

  // ── drawing ──────────────────────────────────────────────────────────────────────────────────────────────────────
  const layout = (more = {}) => {
    const axis = { gridcolor: css("--grid"), linecolor: css("--line"), zerolinecolor: css("--line"), automargin: true,
      tickfont: { size: 11 }, title: { font: { size: 12 }, standoff: 8 } };
    const axes = Object.fromEntries(Object.entries({ xaxis: {}, yaxis: {}, ...more })
      .filter(([name]) => /^[xy]axis[0-9]*$/.test(name)).map(([name, own]) => [name, { ...axis, ...own }]));
    return { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, dragmode: false,
      font: { family: "system-ui, sans-serif", size: 12, color: css("--muted") }, margin: { l: 48, r: 12, t: 10, b: 40 },
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), size: 12 },
        namelength: -1 },
      ...more, ...axes };
  };
  const draw = (container, traces, more, empty = "No data for this selection.") => {
    container.classList.toggle("empty", !traces.length);
    if (!traces.length) {
      if (container.data) Plotly.purge(container);
      container.textContent = empty;
      return;
    }
    if (!container.data) container.textContent = "";
    // When printing, there is no time for Plotly to measure the container, so its size is passed.
    const size = printing ? { width: container.clientWidth, height: container.clientHeight } : {};
    Plotly.react(container, traces, { ...layout(more), ...size }, { displayModeBar: false, responsive: true, scrollZoom: false });
  };

  const drawWithHeight = (container, height, traces, more) => {
    const isResized = container.style.height !== height;
    container.style.height = height;
    draw(container, traces, more);
    if (isResized && container.data && !printing) Plotly.Plots.resize(container);
  };
  // Draw a chart with one labeled row per name. Its height grows with the number of rows.
  const drawRows = (container, count, traces, more) =>
    drawWithHeight(container, count > data.maxDrawn ? `${1.3 * count + 4}rem` : "", traces, { ...more, yaxis: { dtick: 1 } });

  const steps = (packed) => (Array.isArray(packed) ? packed
    : Array.from({ length: packed.x[2] }, (_, i) => packed.x[0] + i * packed.x[1]));
  // A curve with its band. On a logarithmic axis, the band stays above zero.
  const band = (name, color, dash, curve, logarithmic) => {
    const [, , packed, mean, std, seeds] = curve;
    const x = steps(packed);
    const low = mean.map((m, i) => (logarithmic ? Math.max(m - std[i], m * 0.01) : m - std[i]));
    const high = mean.map((m, i) => m + std[i]);
    const traces = [];
    if (seeds > 1) {
      traces.push({ x: x.concat([...x].reverse()), y: high.concat([...low].reverse()), fill: "toself", mode: "lines",
        fillcolor: withOpacity(color, 0.14), line: { width: 0 }, hoverinfo: "skip", type: "scatter" });
    }
    traces.push({ x, y: mean, customdata: std, name: escapeHtml(name), mode: x.length < 3 ? "lines+markers" : "lines",
      line: { color: color, dash, width: 2 }, type: "scatter",
      hovertemplate: `${escapeHtml(name)}: %{y:.4g}${seeds > 1 ? " ± %{customdata:.3g}" : ""} (${seeds} seed${seeds > 1 ? "s" : ""})<extra></extra>` });
    return traces;
  };
  const onSteps = { title: { text: "steps" }, tickformat: "~s", rangemode: "tozero", nticks: 6 };

  // The axis is logarithmic, unless the values are so close together that it would have no ticks.
  const scaleAxis = (traces) => {
    const values = traces.filter((t) => t.hoverinfo !== "skip").flatMap((t) => t.y).filter((y) => y > 0);
    const isWide = values.length && values.reduce((a, b) => Math.max(a, b)) > 3 * values.reduce((a, b) => Math.min(a, b));
    return { title: { text: "scale" }, ...(isWide ? { type: "log", dtick: "D2", tickformat: "~g" } : {}) };
  };
  const onTop = { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11 } };

  const drawCurves = (metric) => (container) => {
    const logarithmic = metric === "scale";
    const found = (data.curves[dataset] || []).filter((c) => c[1] === METRIC[metric] && shown.has(c[0]));
    const traces = found.flatMap((c) => band(...data.series[c[0]], c, logarithmic));
    const [, , measure, behavior] = data.datasets[dataset];
    const more = { hovermode: "x unified", xaxis: onSteps,
      yaxis: logarithmic ? scaleAxis(traces) : { title: { text: { score: measure, q: "Q", bc_loss: "BC loss" }[metric] } } };
    if (metric === "score" && behavior !== null && traces.length) {
      more.shapes = [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: behavior, y1: behavior,
        line: { color: css("--muted"), width: 1, dash: "dot" } }];
      more.annotations = [{ xref: "paper", x: 1, xanchor: "right", y: behavior, yanchor: "bottom", showarrow: false,
        text: "data", font: { size: 11 } }];
    }
    draw(container, traces, more);
  };

  // Rows are [dataset, name, color, dash]. If two versions of a dataset have the same name, they share a legend entry.
  const drawScale = (chosen) => (container) => {
    const named = new Set();
    const traces = chosen.flatMap(([at, name, color, dash]) => (data.curves[at] || [])
      .filter((c) => c[0] === data.scale.series && c[1] === METRIC.scale)
      .flatMap((c) => band(name, color, dash, c, true))
      .map((trace) => {
        const first = trace.hoverinfo !== "skip" && !named.has(name);
        if (first) named.add(name);
        return { ...trace, name: escapeHtml(name), legendgroup: name, showlegend: first };
      }));
    draw(container, traces, { xaxis: onSteps, yaxis: scaleAxis(traces), showlegend: true, hovermode: "closest", legend: onTop });
  };
  const drawProfiles = (container) => {
    const x = data.overall.thresholds;
    const traces = data.overall.profiles.filter(([s]) => shown.has(s)).flatMap(([s, label, value, low, high]) => {
      const [, color, dash] = data.series[s];
      const ribbon = low[0] === null ? [] : [{ x: x.concat([...x].reverse()), y: high.concat([...low].reverse()),
        fill: "toself", fillcolor: withOpacity(color, 0.13), line: { width: 0 }, hoverinfo: "skip", mode: "lines" }];
      return [...ribbon, { x, y: value, name: escapeHtml(label), mode: "lines", line: { color: color, dash, width: 2 },
        hovertemplate: `${escapeHtml(label)}: %{y:.0%}<extra></extra>` }];
    });
    draw(container, traces, { hovermode: "x unified", xaxis: { title: { text: "score τ" } },
      yaxis: { title: { text: "fraction of runs above τ" }, tickformat: ".0%", range: [0, 1.02] } });
  };

  // Hatches distinguish bars of the same color, as dashes distinguish lines.
  const HATCH = { solid: "", dash: "/", dot: ".", dashdot: "x", longdash: "\\", longdashdot: "+" };
  const fill = ([, color, dash]) => ({ color: color,
    pattern: { shape: HATCH[dash], fillmode: "overlay", fgcolor: css("--card"), size: 7, solidity: 0.25 } });
  const errors = (values) => ({ type: "data", symmetric: false, array: values.map((v) => (v && v[2] !== null ? v[2] - v[0] : null)),
    arrayminus: values.map((v) => (v && v[1] !== null ? v[0] - v[1] : null)), color: css("--ink"), thickness: 1, width: 2 });

  // Horizontal bars with intervals; rows are [series, label, value, low, high].
  const drawBars = (container, rows, more, unit) => {
    const traces = [...rows].reverse().map(([s, label, ...three]) => ({ type: "bar", orientation: "h", y: [escapeHtml(label)],
      x: [three[0]], marker: fill(data.series[s]), error_x: errors([three]),
      customdata: [three[1] === null ? "" : ` (${formatNumber(three[1])} to ${formatNumber(three[2])})`],
      hovertemplate: `%{y}: %{x:.4g}${unit}%{customdata}<extra></extra>` }));
    drawRows(container, rows.length, traces, { barmode: "overlay", bargap: 0.35, ...more });
  };
  const drawImprovement = (container) => drawBars(container, data.overall.improvement.filter(([s]) => shown.has(s)), {
    xaxis: { range: [0, 1], title: { text: escapeHtml(`P(${data.overall.reference} scores higher)`) } },
    shapes: [{ type: "line", x0: 0.5, x1: 0.5, yref: "paper", y0: 0, y1: 1, line: { color: css("--muted"), width: 1, dash: "dot" } }],
  }, "");
  const drawSeconds = (container, rows) => drawBars(container, rows.map(([s, ...rest]) => [s, data.series[s][0], ...rest]),
    { xaxis: { title: { text: "seconds" }, rangemode: "tozero" } }, " s");
  const drawRuntime = (container) => drawSeconds(container, data.runtime.filter(([s]) => shown.has(s) || !data.main.includes(s)));
  const drawIntervals = (container) => drawSeconds(container, data.intervals);

  const drawRadar = (container) => {
    const { tasks, values } = data.radar;
    const around = (list) => [...list, list[0]];
    const traces = values.filter(([s]) => shown.has(s)).map(([s, label, scaled, raw]) => {
      const [, color, dash] = data.series[s];
      return { type: "scatterpolar", mode: "lines+markers", r: around(scaled), theta: around(tasks.map(escapeHtml)),
        customdata: around(raw), name: escapeHtml(label), line: { color: color, dash, width: 2 }, marker: { size: 4 },
        fill: "toself", fillcolor: withOpacity(color, 0.06),
        hovertemplate: `${escapeHtml(label)}, %{theta}: %{customdata:.1f}<extra></extra>` };
    });
    draw(container, traces, { margin: { l: 50, r: 50, t: 30, b: 30 }, polar: { bgcolor: "rgba(0,0,0,0)",
      radialaxis: { range: [0, 1.05], showticklabels: false, gridcolor: css("--grid"), linecolor: css("--line") },
      angularaxis: { rotation: 90, direction: "clockwise", gridcolor: css("--grid"), linecolor: css("--line"), tickfont: { size: 11 } } } });
  };

  const drawLastBest = (container) => {
    const rows = data.lastBest.filter(([s]) => shown.has(s));
    const names = rows.map((r) => escapeHtml(r[1]));
    const colors = rows.map((r) => data.series[r[0]][1]);
    const links = rows.map((r, i) => ({ type: "scatter", mode: "lines", x: [r[2], r[3]], y: [names[i], names[i]],
      line: { color: withOpacity(colors[i], 0.5), width: 3 }, hoverinfo: "skip" }));
    const dots = [[2, "last", "circle"], [3, "best", "circle-open"]].map(([at, what, symbol]) => ({ type: "scatter",
      mode: "markers", x: rows.map((r) => r[at]), y: names, marker: { size: 11, color: colors, symbol, line: { width: 2, color: colors } },
      hovertemplate: `%{y}, ${what}: %{x:.1f}<extra></extra>` }));
    drawRows(container, rows.length, rows.length ? [...links, ...dots] : [],
      { xaxis: { title: { text: rows.length ? escapeHtml(rows[0][4]) : "" } } });
  };

  // One panel per domain, each with its own axis: on a shared axis, differences on mazes would dwarf those on locomotion.
  const drawAblation = (found) => (container) => {
    const columns = Math.max(1, Math.min(found.domains.length, Math.floor(container.clientWidth / 170)));
    const rows = Math.ceil(found.domains.length / columns);
    const lines = Math.ceil(found.bars.length / Math.max(1, Math.floor(container.clientWidth / 230)));
    const traces = [];
    const more = { barmode: "group", scattermode: "group", bargap: 0.15, showlegend: true, legend: { ...onTop, traceorder: "normal" },
      margin: { l: 48, r: 12, t: 14 + 19 * lines, b: 40 }, grid: { rows, columns, pattern: "independent", xgap: 0.28, ygap: 0.3 } };
    found.domains.forEach((domain, d) => {
      const which = d ? String(d + 1) : "";
      more[`xaxis${which}`] = { title: { text: escapeHtml(domain) }, showticklabels: false };
      more[`yaxis${which}`] = { ticksuffix: " %", zerolinecolor: css("--muted"), nticks: 6 };
      const inPanel = { x: [escapeHtml(domain)], xaxis: `x${which}`, yaxis: `y${which}` };
      for (const [s, label, values, paper] of found.bars) {
        const value = values[d], printed = paper[d];
        const range = value && value[1] !== null ? ` (${formatNumber(value[1], 3)} to ${formatNumber(value[2], 3)})` : "";
        traces.push({ ...inPanel, type: "bar", name: escapeHtml(label), y: [value && value[0]], marker: fill(data.series[s]),
          error_y: errors([value]), offsetgroup: label, legendgroup: label, showlegend: d === 0,
          customdata: [range + (printed === null ? "" : `, paper ${formatNumber(printed, 3)} %`)],
          hovertemplate: `${escapeHtml(label)}, %{x}: %{y:.3g} %%{customdata}<extra></extra>` });
        if (printed !== null) {
          traces.push({ ...inPanel, type: "scatter", mode: "markers", y: [printed], offsetgroup: label, showlegend: false, hoverinfo: "skip",
            marker: { symbol: "diamond", size: 8, color: css("--card"), line: { color: data.series[s][1], width: 2 } } });
        }
      }
    });
    drawWithHeight(container, rows > 1 ? `${11 * rows + 1.2 * lines + 2}rem` : "", traces, more);
  };

  // Scores per dataset, with the percent differences above the tallest bar. The text is rotated if there is little space.
  const drawByDataset = (found) => (container) => {
    const x = found.datasets.map(escapeHtml);
    const traces = found.bars.map(([s, label, values]) => ({ type: "bar", name: escapeHtml(label), x, y: values.map((v) => v[0]),
      marker: fill(data.series[s]), error_y: errors(values), offsetgroup: label,
      customdata: values.map((v) => (v[1] === null ? "" : ` (${formatNumber(v[1], 3)} to ${formatNumber(v[2], 3)})`)),
      hovertemplate: `${escapeHtml(label)}, %{x}: %{y:.3g}%{customdata}<extra></extra>` }));
    const top = (i) => Math.max(0, ...found.bars.map(([, , values]) => values[i][2] ?? values[i][0] ?? 0));
    const [narrow, phone] = [container.clientWidth / x.length < 52, container.clientWidth < 600];
    const annotations = found.changes.map((text, i) => ({ x: x[i], y: top(i), text: escapeHtml(text), showarrow: false, yanchor: "bottom",
      font: { size: 10 }, textangle: narrow ? -90 : 0 }));
    draw(container, traces, { barmode: "group", bargap: 0.25, showlegend: true, legend: onTop, annotations,
      margin: { l: 48, r: 12, t: 10, b: phone ? 180 : 120 }, yaxis: { title: { text: found.unit } },
      xaxis: { type: "category", tickangle: phone ? -90 : -40, automargin: false } });
  };

  const charts = { profiles: drawProfiles, improvement: drawImprovement, radar: drawRadar, last_best: drawLastBest, runtime: drawRuntime,
    intervals: drawIntervals };
  for (const metric of Object.keys(METRIC)) charts[`curve-${metric}`] = drawCurves(metric);
  data.scale.qualities.forEach((chosen, i) => { charts[`quality-${i}`] = drawScale(chosen); });
  data.scale.tasks.forEach((chosen, i) => { charts[`task-${i}`] = drawScale(chosen); });
  data.ablations.forEach((found, i) => { charts[`ablation-${i}`] = drawAblation(found); });
  data.byDataset.forEach((found, i) => { charts[`dataset-${i}`] = drawByDataset(found); });

  // Charts are drawn when they come near the viewport, and redrawn when the selection changes.
  const visible = new Set();
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !visible.has(entry.target)) {
        visible.add(entry.target);
        charts[entry.target.dataset.chart](entry.target);
      }
    }
  }, { rootMargin: "400px" });
  $$(".plot").forEach((container) => watch.observe(container));
  const redraw = (which = () => true) => visible.forEach((container) => which(container.dataset.chart) && charts[container.dataset.chart](container));

  // ── dataset, algorithms, theme ───────────────────────────────────────────────────────────────────────────────────
  const picker = $("#dataset");
  for (const domain of data.domains) {
    const inside = data.datasets.map((d, i) => [d, i]).filter(([d]) => d[1] === domain);
    if (!inside.length) continue;
    const group = element("optgroup");
    group.label = domain;
    inside.forEach(([d, i]) => { const option = element("option", d[0]); option.value = i; group.append(option); });
    picker.append(group);
  }
  const pick = (i) => {
    dataset = i;
    picker.value = i;
    $$(".picked").forEach((container) => { container.textContent = data.datasets[i][0]; });
    redraw((name) => name.startsWith("curve-"));
  };
  picker.addEventListener("change", () => pick(Number(picker.value)));

  const chips = $("#chips");
  const hidden = element("style");
  document.head.append(hidden);
  const applySeries = () => {
    $$("button[data-series]", chips).forEach((chip) => chip.setAttribute("aria-pressed", shown.has(Number(chip.dataset.series))));
    const off = new Set(data.series.filter((_, i) => !shown.has(i)).map((s) => s[0]));
    // The chips hide columns of the first table and rows of the summary tables, but nothing in other tables.
    const table = $("table.scores");
    const columns = $$("th[data-series]", table);
    const some = columns.some((th) => !off.has(th.dataset.series));
    hidden.textContent = columns.filter((th) => some && off.has(th.dataset.series))
      .map((th) => `table.first [data-l="${th.dataset.l}"]{display:none}`).join("");
    $$("tr[data-series]").forEach((row) => { row.hidden = off.has(row.dataset.series); });
    const names = data.main.filter((i) => !shown.has(i)).map((i) => data.series[i][0]);
    const most = names.slice(0, data.maxDrawn).join("; ") + (names.length > data.maxDrawn ? ` and ${names.length - data.maxDrawn} more` : "");
    $$(".off").forEach((note) => {
      note.hidden = !names.length;
      $("span", note).textContent = `${data.main.length - names.length} of the ${data.main.length} algorithms in the first table are shown. Hidden: ${most}.`;
    });
    redraw((name) => !/^(quality|task|ablation|dataset)-|^intervals$/.test(name)); // these charts have fixed series
  };
  $("table.scores")?.classList.add("first");
  data.series.forEach(([name, color, dash], i) => {
    const chip = element("button");
    const dot = element("i", undefined, dash === "solid" ? "" : "striped");
    dot.style.backgroundColor = color;
    chip.append(dot, name);
    chip.dataset.series = i;
    chip.addEventListener("click", () => { shown.has(i) ? shown.delete(i) : shown.add(i); applySeries(); });
    chips.append(chip);
  });
  $$(".off button").forEach((button) => button.addEventListener("click", () => { data.main.forEach((i) => shown.add(i)); applySeries(); }));
  // The chips form one scrolling line. If they do not all fit, a button unfolds the line.
  const open = $("#open");
  const unfold = (all) => {
    chips.classList.toggle("unfolded", all);
    open.setAttribute("aria-expanded", all);
    open.textContent = all ? "▴" : `▾ ${data.series.length}`;
    open.title = open.ariaLabel = all ? "Show algorithms in one line" : `Show all ${data.series.length} algorithms`;
  };
  open.addEventListener("click", () => unfold(open.getAttribute("aria-expanded") === "false"));
  new ResizeObserver(() => { open.hidden = !chips.classList.contains("unfolded") && chips.scrollWidth <= chips.clientWidth; }).observe(chips);
  unfold(false);
  if (data.series.length > 3) {
    const all = element("button", "Main", "all");
    all.title = "Show only the algorithms in the first table";
    all.addEventListener("click", () => { shown.clear(); data.main.forEach((i) => shown.add(i)); applySeries(); });
    chips.prepend(all);
  }

  const root = document.documentElement;
  try { if (localStorage.getItem("aspc-theme")) root.dataset.theme = localStorage.getItem("aspc-theme"); } catch { /* no storage */ }
  $("#theme").addEventListener("click", () => {
    const dark = getComputedStyle(root).colorScheme === "dark";
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("aspc-theme", root.dataset.theme); } catch { /* no storage */ }
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());

  // ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────
  const which = () => (document.body.classList.contains("show-best") ? "best" : "last");
  const sortValue = (row, heading, column) => {
    if (heading.dataset.key === "name") return row.cells[0].textContent;
    const cell = heading.dataset.l !== undefined ? $(`td[data-l="${heading.dataset.l}"]`, row) : row.cells[column];
    return Number(cell?.dataset[which()] ?? cell?.dataset.value ?? NaN);
  };
  const compare = (a, b) => {
    if (typeof a === "string") return b.localeCompare(a);
    return (Number.isNaN(a) ? -Infinity : a) - (Number.isNaN(b) ? -Infinity : b);
  };
  for (const table of $$("table.sortable")) {
    const body = table.tBodies[0];
    const original = [...body.rows];
    $$("thead th", table).forEach((heading, column) => heading.firstElementChild?.addEventListener("click", () => {
      const before = heading.getAttribute("aria-sort");
      $$("thead th", table).forEach((th) => th.removeAttribute("aria-sort"));
      if (before === "ascending") { body.append(...original); return; } // the third click restores the order
      const direction = before === "descending" ? 1 : -1;
      heading.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
      const rows = original.filter((row) => !row.classList.contains("group") && !row.classList.contains("average"));
      rows.sort((a, b) => direction * compare(sortValue(a, heading, column), sortValue(b, heading, column)));
      body.replaceChildren(...rows);
    }));
  }
  const press = (group, button) => $$("button", group).forEach((b) => b.setAttribute("aria-pressed", b === button));
  $$("[data-which]").forEach((button) => button.addEventListener("click", () => {
    press(button.parentElement, button);
    document.body.classList.toggle("show-best", button.dataset.which === "best");
  }));
  // ── runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────
  const { columns, count, common } = data.runs;
  const value = (name, i) => (Array.isArray(columns[name]) ? columns[name][i] : columns[name].of[columns[name].at[i]]);
  const SHOWN = [["method", "Method", true], ["dataset", "Dataset", true], ["seed", "Seed"], ["steps", "Steps"], ["last", "Last"],
    ["best", "Best"], ["scale_last", "Scale"], ["seconds", "Seconds"], ["device", "Device", true], ["git_revision", "Revision", true],
    ["config_hash", "Config", true], ["folder", "Folder", true]];
  const PAGE = 25, MAX_PRINTED = 500;
  const all = Array.from({ length: count }, (_, i) => i);
  let filter = null, sort = null, first = 0, rows = all;
  const entriesOf = (i) => JSON.parse(value("entries", i));
  const matches = (i) => {
    if (!filter) return true;
    if (filter.datasets && !filter.datasets.has(value("dataset", i))) return false;
    if (filter.methods && !filter.methods.has(value("method", i))) return false;
    return !filter.suite || entriesOf(i).some(([suite, label]) => suite === filter.suite && label === filter.label);
  };
  const SEARCHED = ["run_id", "variant", "method", "dataset", "device", "machine", "git_revision", "config_hash", "settings", "folder", "status", "error"];
  const select = () => {
    const words = $("#search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = (i) => { const text = SEARCHED.map((name) => value(name, i) ?? "").join(" ").toLowerCase(); return words.every((w) => text.includes(w)); };
    rows = all.filter((i) => matches(i) && (!words.length || found(i)));
    if (sort) {
      const [name, direction] = sort;
      rows.sort((a, b) => {
        const [x, y] = [value(name, a), value(name, b)];
        return direction * (typeof x === "number" || typeof y === "number" ? (x ?? -Infinity) - (y ?? -Infinity) : String(x ?? "").localeCompare(String(y ?? "")));
      });
    }
    first = 0;
    showRuns();
  };
  const record = (i) => {
    const list = element("dl");
    const add = (name, text) => { if (text !== null && text !== undefined && text !== "") list.append(element("dt", name), element("dd", String(text))); };
    add("suites", entriesOf(i).map(([suite, label]) => `${suite}: ${label}`).join("; "));
    Object.keys(columns).filter((name) => !["entries", "config"].includes(name)).forEach((name) => add(name.replaceAll("_", " "), value(name, i)));
    const own = JSON.parse(value("config", i));
    const config = { ...common, ...own };
    const text = Object.keys(config).sort().map((key) => `${key} = ${config[key]}`).join("\n");
    if (text) {
      const dd = element("dd", text);
      dd.style.whiteSpace = "pre-wrap";
      list.append(element("dt", "config"), dd);
    }
    return list;
  };
  const shorter = (name, text) => (name === "git_revision" && text.length > 14 ? `${text.slice(0, 10)}${text.includes("+") ? "+" : ""}` : text);
  const showRuns = () => {
    const body = $("#runtable tbody");
    const shownRows = printing && rows.length <= MAX_PRINTED ? rows : rows.slice(first, first + PAGE);
    body.replaceChildren(...shownRows.map((i) => {
      const row = element("tr", undefined, `run${value("status", i) === "failed" ? " failed" : ""}`);
      row.tabIndex = 0;
      SHOWN.forEach(([name, , text]) => {
        const v = value(name, i);
        row.append(element("td", text ? shorter(name, v ?? "–") : formatNumber(v, name === "steps" || name === "seed" ? 12 : 4), text ? "text" : ""));
      });
      const open = () => {
        if (row.nextElementSibling?.classList.contains("detail")) { row.nextElementSibling.remove(); return; }
        const detail = element("tr", undefined, "detail");
        const cell = element("td");
        cell.colSpan = SHOWN.length;
        const box = element("div", undefined, "record");
        box.append(record(i));
        cell.append(box);
        detail.append(cell);
        row.after(detail);
      };
      row.addEventListener("click", open);
      row.addEventListener("keydown", (event) => { if (event.key === "Enter") open(); });
      return row;
    }));
    $("#count").textContent = `${rows.length.toLocaleString("en")} of ${count.toLocaleString("en")} runs`;
    $("#where").textContent = rows.length ? `${first + 1} to ${Math.min(first + PAGE, rows.length)}` : "none";
    $("#previous").disabled = first === 0;
    $("#next").disabled = first + PAGE >= rows.length;
    $("#clear").hidden = !filter;
  };
  const headings = element("tr");
  SHOWN.forEach(([name, title, text]) => {
    const heading = element("th", undefined, text ? "text" : "");
    const button = element("button", title);
    button.addEventListener("click", () => {
      sort = [name, sort && sort[0] === name ? -sort[1] : -1];
      $$("th", headings).forEach((th) => th.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", sort[1] === 1 ? "ascending" : "descending");
      select();
    });
    heading.append(button);
    headings.append(heading);
  });
  $("#runtable thead").append(headings);
  $("#search").addEventListener("input", select);
  $("#clear").addEventListener("click", () => { filter = null; $("#search").value = ""; select(); });
  $("#previous").addEventListener("click", () => { first -= PAGE; showRuns(); });
  $("#next").addEventListener("click", () => { first += PAGE; showRuns(); });
  // A click on a number shows its runs.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href="#runs"]');
    if (!link || link.closest("nav")) return;
    if (link.dataset.runs) {
      const { methods, datasets } = JSON.parse(link.dataset.runs);
      filter = { methods: new Set(methods), datasets: new Set(datasets) };
    } else {
      const cell = link.closest("td");
      const table = cell.closest("table");
      const heading = $(`thead th[data-l="${cell.dataset.l}"]`, table);
      filter = { suite: table.dataset.s, label: heading.dataset.label, datasets: new Set(JSON.parse(cell.parentElement.dataset.d)) };
    }
    $("#search").value = "";
    select();
  });

  // For printing, use the light theme, open all details, draw all charts at the width of the paper, and list all runs.
  let before = null;
  addEventListener("beforeprint", () => {
    const closed = $$("details:not([open])");
    before = { theme: root.dataset.theme, closed };
    closed.forEach((details) => { details.open = true; });
    root.dataset.theme = "light";
    printing = true;
    root.classList.add("printing");
    $$(".plot").forEach((container) => visible.add(container));
    redraw();
    showRuns();
  });
  addEventListener("afterprint", () => {
    if (!before) return;
    before.closed.forEach((details) => { details.open = false; });
    if (before.theme === undefined) delete root.dataset.theme; else root.dataset.theme = before.theme;
    printing = false;
    root.classList.remove("printing");
    redraw();
    visible.forEach((container) => { if (container.data) Plotly.Plots.resize(container); });
    showRuns();
    before = null;
  });

  select();
  applySeries();
  const hasCurves = (i) => (data.curves[i] || []).some((c) => shown.has(c[0]));
  pick(Math.max(0, data.datasets.findIndex((_, i) => hasCurves(i))));
})();
