// SPDX-License-Identifier: AGPL-3.0-or-later
// Keys for the page. What has data-key answers to that key: a link or button is clicked, a field is entered.
// Forms with data-swap are sent without leaving the page; without this script they work as plain forms.
"use strict";

let busy = false;

const status = (words) => {
  document.querySelector(".status").textContent = words;
};

async function swap(form, button) {
  if (busy) return; // what is pressed before the next trace is shown does not count
  busy = true;
  try {
    const fields = new URLSearchParams(new FormData(form, button));
    const answer = await fetch(form.action, { method: "POST", body: fields });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector("main");
    if (!fresh) throw new Error(`the page answered ${answer.status}`);
    document.querySelector("main").replaceWith(fresh);
    document.title = page.title;
    window.scrollTo(0, 0);
    status(answer.ok ? `${button.value || "undone"}` : "not kept");
  } catch (error) {
    status(`Not kept: ${error.message}. Is rusty web still running?`);
  } finally {
    busy = false;
  }
}

document.addEventListener("submit", (event) => {
  if (event.target.matches("[data-swap]")) {
    event.preventDefault();
    if (event.submitter) swap(event.target, event.submitter);
  }
});

function move(by) {
  const stops = [...document.querySelectorAll("[data-stop]")];
  const at = stops.indexOf(document.activeElement);
  const next = stops[Math.min(Math.max(at + by, 0), stops.length - 1)];
  if (next) {
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  }
}

function unfold() {
  const folds = [...document.querySelectorAll("main details")];
  const open = folds.some((fold) => !fold.open);
  for (const fold of folds) fold.open = open;
}

function mark(side) {
  const row = document.activeElement.closest("tr");
  row?.querySelector(`input[name=${side}]`)?.click();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const field = event.target.closest("input:not([type=radio], [type=checkbox]), textarea, select");
  if (field) {
    const done = event.key === "Escape" || (event.key === "Enter" && field.name === "note");
    if (done) {
      event.preventDefault();
      field.blur();
    }
    return;
  }
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const moves = { j: () => move(1), k: () => move(-1), o: unfold, a: () => mark("a"), b: () => mark("b") };
  const wanted = document.querySelector(`[data-key="${CSS.escape(key)}"]`);
  if (!wanted && !moves[key]) return;
  event.preventDefault();
  if (!wanted) moves[key]();
  else if (wanted.matches("input")) wanted.focus();
  else if (!event.repeat) wanted.click();
});

async function refresh() {
  const live = document.querySelector("#live[data-live]");
  if (!live || document.hidden) return;
  const asked = new URLSearchParams(location.search);
  asked.set("stamp", live.dataset.stamp);
  const answer = await fetch(`/run/live?${asked}`);
  if (answer.status !== 200) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.querySelector("#live");
  if (fresh) live.replaceWith(fresh);
}

async function watch() {
  await refresh().catch(() => status("rusty web does not answer"));
  setTimeout(watch, 2000);
}

watch();
