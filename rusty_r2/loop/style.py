# SPDX-License-Identifier: AGPL-3.0-or-later
"""How the report looks: one style sheet for light and dark screens, put into the page itself."""

STYLE = """
:root { --ink: #1d2129; --soft: #5b6472; --paper: #ffffff; --card: #f5f6f8; --rule: #d9dde3; --accent:
  #b4532a;
  --old: #9aa4b2; --new: #b4532a; --good: #1d7a46; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa4b2; --paper: #14171c; --card:
  #1d222a;
  --rule: #333b47; --accent: #e08a5b; --old: #65707f; --new: #e08a5b; --good: #5cc58a; --bad: #f2837b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, "DejaVu Sans",
  sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 24px 16px 64px; }
header { border-left: 6px solid var(--soft); background: var(--card); padding: 16px 20px; border-radius:
  4px; }
header.promoted { border-color: var(--good); } header.refused { border-color: var(--bad); }
header .kind { margin: 0; color: var(--soft); } h1 { margin: 0 0 6px; font-size: 26px; overflow-wrap:
  anywhere; }
h2 { font-size: 18px; margin: 36px 0 10px; padding-bottom: 4px; border-bottom: 1px solid var(--rule); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 6px 12px 6px 0; border-bottom: 1px solid
  var(--rule); }
th { color: var(--soft); font-weight: 600; font-size: 13px; } td { overflow-wrap: anywhere; min-width:
  4.5em; }
small { color: var(--soft); } pre { margin: 0; white-space: pre-wrap; font: 12.5px/1.45 "DejaVu Sans Mono",
  monospace; }
code { font: 13px "DejaVu Sans Mono", monospace; background: var(--card); padding: 1px 4px; border-radius:
  3px; }
.tag { display: inline-block; padding: 0 8px; border-radius: 9px; font-size: 13px; border: 1px solid
  var(--soft); color: var(--soft); white-space: nowrap; }
.tag.good { color: var(--good); border-color: var(--good); } .tag.bad { color: var(--bad); border-color:
  var(--bad); }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(280px, 1fr)); gap: 16px;
  margin-top: 12px; }
figure { margin: 0; background: var(--card); border-radius: 4px; padding: 8px; } figure svg { width: 100%;
  height: auto; display: block; }
figcaption { color: var(--soft); font-size: 13px; text-align: center; }
svg .grid { stroke: var(--rule); stroke-width: 1; } svg .tick { fill: var(--soft); font: 10px system-ui,
  sans-serif; }
svg .line { fill: none; stroke: var(--accent); stroke-width: 1.8; stroke-linejoin: round; } svg .dot, svg
  .bar { fill: var(--accent); }
svg.rate { display: block; width: 160px; height: 12px; margin-top: 3px; } svg .track { fill: var(--rule); }
svg .old { fill: var(--old); } svg .new { fill: var(--new); } svg .whisker { stroke: var(--ink);
  stroke-width: 1.5; }
.name { white-space: nowrap; color: var(--soft); }
.note { color: var(--soft); } footer { margin-top: 48px; color: var(--soft); font-size: 13px; overflow-wrap:
  anywhere; }
"""
