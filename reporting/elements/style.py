"""The CSS style sheet of the report, for light and dark screens, for phones, and for print."""

CSS = """
:root {
  --paper: #ffffff; --panel: #f6f7f9; --ink: #1b2430; --muted: #566273; --rule: #dde2e8;
  --accent: #2a5db0; --second: #b4540a; --third: #2f7d4f; --good: #1d6b40; --warn: #9a4a00; --stop: #a3231b;
  --fourth: #7a3fa0; --fifth: #0b7a85; --sixth: #b0246b; --seventh: #7a6a12; --eighth: #566273;
  --stack-0: #1f4e9c; --stack-1: #e39a2d; --stack-2: #8cc3ea; --stack-3: #7a8594;
  color-scheme: light dark;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12161c; --panel: #1a2029; --ink: #e4e8ee; --muted: #9ba7b6; --rule: #2d3643;
    --accent: #7fb0ff; --second: #f0a35e; --third: #74c795; --good: #74c795; --warn: #f0a35e;
  --stop: #ff8f85;
  --fourth: #c79bf0; --fifth: #5fc9d4; --sixth: #f58ab8; --seventh: #d3c15c; --eighth: #9ba7b6;
    --stack-0: #4c86e0; --stack-1: #f2b45a; --stack-2: #b9dcf6; --stack-3: #8d98a7;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans",
  sans-serif;
}
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.015em; }
h2 { font-size: 1.3rem; margin: 0 0 .4rem; letter-spacing: -.005em; }
h3 { font-size: .875rem; font-weight: 600; margin: 0; }
p { margin: 0 0 .75rem; }
code { font: .92em ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace;
  overflow-wrap: anywhere; }
section { margin-top: 2.75rem; padding-top: 1.5rem; border-top: 1px solid var(--rule); }
footer { margin-top: 3rem; color: var(--muted); font-size: .8125rem; }
.overline { color: var(--muted); font-size: .875rem; margin-bottom: .25rem; }
.lead { max-width: 46rem; color: var(--muted); text-wrap: pretty; }
.lead strong, .lead code { color: var(--ink); }
.lead strong.good { color: var(--good); }
.lead strong.warn { color: var(--warn); }
.failure { border-left: 4px solid var(--stop); background: var(--panel); border-radius: 0 6px 6px 0;
  padding: .9rem 1rem; margin: .75rem 0 1rem; max-width: 46rem; }
.failure p { margin: 0 0 .5rem; }
.failure p:last-child { margin: 0; }
.failure strong.stop { color: var(--stop); }
.failure pre { margin: 0 0 .5rem; white-space: pre-wrap; overflow-wrap: anywhere;
  font: .875rem/1.45 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; }
.note { color: var(--muted); font-size: .8125rem; line-height: 1.4; margin: 0; }
.missing { color: var(--muted); font-style: italic; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: .75rem;
  margin-top: 1.5rem; }
.tile { min-width: 0; overflow-wrap: anywhere; background: var(--panel); border-radius: 6px;
  padding: .9rem 1rem 1rem; }
.tile h3 { color: var(--muted); }
.tile .value { font-size: 1.75rem; font-weight: 600; line-height: 1.25; margin: .15rem 0 .35rem;
  font-variant-numeric: tabular-nums; letter-spacing: -.01em; }
.meter { height: 4px; border-radius: 2px; background: var(--rule); margin: 0 0 .5rem; }
.meter i { display: block; height: 100%; border-radius: 2px; background: var(--accent); }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr));
  gap: 1.75rem 2rem;
  align-items: start; margin: 1.25rem 0; }
.grid > * { min-width: 0; margin: 0; }
figure { margin: 0; }
figcaption { font-size: .875rem; color: var(--muted); margin-bottom: .5rem; }
figcaption strong { display: block; color: var(--ink); }
.chart { display: block; width: 100%; height: auto; font: 12px system-ui, -apple-system, "Segoe UI", Roboto,
  "Liberation Sans", sans-serif; font-variant-numeric: tabular-nums; }
.chart text { fill: var(--muted); }
.chart .value { fill: var(--ink); }
.chart .axis { stroke: var(--muted); }
.chart .gridline { stroke: var(--rule); }
.chart .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.chart .bar { opacity: .9; }
.chart .bubble { fill-opacity: .55; stroke-width: 1.5; }
.chart .diagonal { stroke: var(--muted); stroke-dasharray: 4 4; }
.chart .reference { stroke: var(--muted); stroke-dasharray: 5 4; stroke-width: 1.5; }
.chart .reference-name { fill: var(--ink); stroke: var(--paper); stroke-width: 4; paint-order: stroke; }
.stack-0 { --series: var(--stack-0); }
.stack-1 { --series: var(--stack-1); }
.stack-2 { --series: var(--stack-2); }
.stack-3 { --series: var(--stack-3); }
.series-0 { --series: var(--accent); }
.series-1 { --series: var(--second); }
.series-2 { --series: var(--third); }
.series-3 { --series: var(--fourth); }
.series-4 { --series: var(--fifth); }
.series-5 { --series: var(--sixth); }
.series-6 { --series: var(--seventh); }
.series-7 { --series: var(--eighth); }
.chart .line, .chart .bubble { stroke: var(--series); }
.chart .line.series-1 { stroke-dasharray: 6 3; }
.chart .line.series-2 { stroke-dasharray: 2 3; }
.chart .line.series-4 { stroke-dasharray: 6 3; }
.chart .line.series-5 { stroke-dasharray: 2 3; }
.chart .line.series-7 { stroke-dasharray: 6 3; }
.chart .bar, .chart .part, .chart .dot, .chart .bubble { fill: var(--series); }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1rem; font-size: .8125rem; color: var(--muted);
  margin-bottom: .35rem; }
.swatch { display: inline-block; width: .7rem; height: .7rem; border-radius: 2px;
  background: var(--series); margin-right: .4rem; }
.scroll { overflow-x: auto; }
section > .scroll + .scroll { margin-top: 1.5rem; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .35rem; }
th, td { padding: .32rem .75rem .32rem 0; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top; }
th { color: var(--muted); font-weight: 600; font-size: .8125rem; vertical-align: bottom; }
th:last-child, td:last-child { padding-right: 0; }
.number { text-align: right; white-space: nowrap; }
th.number { white-space: normal; }
td:first-child { white-space: nowrap; }
td code { white-space: nowrap; }
td strong.warn { color: var(--warn); }
td strong.stop, .lead strong.stop { color: var(--stop); }
details { margin-top: 1rem; }
summary { cursor: pointer; font-size: .875rem; font-weight: 600; margin-bottom: .5rem; }
.compact td { padding-top: .12rem; padding-bottom: .12rem; }
dl { margin: 0; font-size: .875rem; }
dl div { display: flex; gap: 1rem; justify-content: space-between; padding: .32rem 0;
  border-bottom: 1px solid var(--rule); }
dt { color: var(--muted); flex: none; }
dd { margin: 0; text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.card { background: var(--panel); border-radius: 6px; padding: 1rem; }
.card table { margin-top: .5rem; }
.card caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.chips { display: flex; flex-wrap: wrap; gap: .35rem; list-style: none; margin: .3rem 0 0; padding: 0;
  font-size: .8125rem; }
.chips li { border: 1px solid var(--rule); border-radius: 4px; padding: .05rem .45rem;
  color: var(--muted); }
.chips code { color: var(--ink); }
@media screen and (max-width: 40rem) {
  main { padding-top: 1.5rem; }
  h1 { font-size: 1.6rem; }
  .tiles { grid-template-columns: repeat(2, 1fr); }
  .chart { font-size: 14px; }
}
@media print {
  :root { --paper: #fff; --panel: #fff; --ink: #000; --muted: #444; --rule: #ccc; --accent: #2a5db0;
  --second: #b4540a;
    --third: #2f7d4f; --good: #1d6b40; --warn: #9a4a00; --stop: #a3231b; }
  body { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  section { margin-top: 1.5rem; padding-top: 1rem; }
  .grid { grid-template-columns: 1fr 1fr; gap: 1rem 1.5rem; }
  .tiles { grid-template-columns: repeat(5, 1fr); }
  .tile .value { font-size: 1.4rem; }
  .scroll { overflow: visible; }
  table, th, dl, figcaption, .note, .chips { font-size: 8pt; }
  th, td, dl div { padding-top: .15rem; padding-bottom: .15rem; }
  .tile, .card { border: 1px solid var(--rule); }
  section, figure, .tile, .card, table, dl, .lead { break-inside: avoid; }
  h2, .lead { break-after: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
