"use strict";

const { texts, episodes } = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

// A word, a run of spaces, or one other character: what a difference is made of.
const PIECES = /\s+|[\p{L}\p{N}_]+|[^]/gu;
const MOST_CELLS = 4000000;

const OUTCOMES = {
  shallow: "Shallow: the reasoning stays, the code is the correction's",
  deep: "Deep: the correction stands in place of the whole turn",
  failed: "Failed: no correction ran, so the last error stands",
  abandoned: "Abandoned: no further call was made, so the error stands",
  open: "Open: the episode ended before a correction",
};
const RESULTS = {
  correct: ["\u2713", "correct"],
  incorrect: ["\u2717", "wrong"],
  no_answer: ["\u2013", "no answer"],
  infrastructure_error: ["!", "infrastructure error"],
  unfinished: ["\u2026", "unfinished"],
  unknown: ["?", "unknown"],
};

/** Makes an element. Children are elements or texts; a text can never become markup. */
function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children.filter((child) => child !== null));
  return element;
}

const outcomeOf = (repair) => (Object.hasOwn(OUTCOMES, repair.outcome) ? repair.outcome : "open");
const resultOf = (episode) => RESULTS[Object.hasOwn(RESULTS, episode.result) ? episode.result : "unknown"];
const repairsOf = (episode) => episode.rows.filter((row) => row.repair).map((row) => outcomeOf(row.repair));
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

// ---------------------------------------------------------------- differences

/** Which pieces of two texts are common to both: two arrays of [text, isCommon]. */
function difference(before, after) {
  const a = before.match(PIECES) || [];
  const b = after.match(PIECES) || [];
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a.at(-1 - tail) === b.at(-1 - tail)) tail++;
  const kept = [new Uint8Array(a.length).fill(1, 0, head), new Uint8Array(b.length).fill(1, 0, head)];
  kept[0].fill(1, a.length - tail);
  kept[1].fill(1, b.length - tail);
  markCommon(a.slice(head, a.length - tail), b.slice(head, b.length - tail), head, kept);
  return [spans(a, kept[0]), spans(b, kept[1])];
}

/** Marks a longest common subsequence, where the table for it is not too large. */
function markCommon(a, b, head, kept) {
  const width = b.length + 1;
  if (!a.length || !b.length || (a.length + 1) * width > MOST_CELLS) return;
  const lengths = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      const here = i * width + j;
      lengths[here] =
        a[i] === b[j] ? lengths[here + width + 1] + 1 : Math.max(lengths[here + width], lengths[here + 1]);
    }
  }
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    const here = i * width + j;
    if (a[i] === b[j]) {
      kept[0][head + i++] = 1;
      kept[1][head + j++] = 1;
    } else if (lengths[here + width] >= lengths[here + 1]) i++;
    else j++;
  }
}

function spans(pieces, kept) {
  const joined = [];
  pieces.forEach((piece, position) => {
    const last = joined.at(-1);
    if (last && last[1] === kept[position]) last[0] += piece;
    else joined.push([piece, kept[position]]);
  });
  return joined;
}

const marked = (parts, tag) => parts.map(([text, common]) => (common ? text : make(tag, {}, text)));

// ---------------------------------------------------------------- one episode

/** What a turn says, as blocks: [kind, text]. */
function blocks(said, verbatim) {
  if (verbatim || said.length === 1) return [["prose", texts[said[0]]]];
  return [["prose", texts[said[1]]], ["code", texts[said[2]]]].filter(([kind, text]) => kind === "code" || text.trim());
}

/** Shows a turn. Where another one is given, what is not in that one is marked. */
function speech(said, other, tag, verbatim) {
  const otherBlocks = other ? new Map(blocks(other, verbatim)) : new Map();
  return blocks(said, verbatim).map(([kind, text]) => {
    const content = other ? marked(difference(text, otherBlocks.get(kind) || "")[0], tag) : [text];
    return make("pre", { className: kind }, ...content);
  });
}

function toolOutput(text, status, error) {
  const failed = status !== null && status !== "ok";
  const label = make("span", { className: failed ? "tool bad" : "tool" }, "tool");
  if (failed) label.append(` \u2717 ${error && error !== status ? `${error} (${status})` : status}`);
  return make("div", { className: "output" }, label, text === null ? null : make("pre", {}, text));
}

function rawTurn([said, observation, status, error, seconds], standing, verbatim, label) {
  const heading = make("h4", {}, label);
  if (seconds !== null) heading.append(make("small", {}, ` ${seconds.toFixed(2)} s`));
  const turn = make("section", { className: "turn" }, heading, ...speech(said, standing, "del", verbatim));
  if (observation !== -1) turn.append(toolOutput(texts[observation], status, error));
  else if (status !== null) turn.append(toolOutput(null, status, error));
  return turn;
}

function purifiedTurn(messages, failed, verbatim) {
  const turn = make("section", { className: "turn" }, make("h4", {}, "in the history"));
  for (const [role, said] of messages) {
    if (role === "assistant") turn.append(...speech(said, failed, "ins", verbatim));
    else turn.append(make("div", { className: "output" }, make("span", { className: "tool" }, role), make("pre", {}, texts[said[0]])));
  }
  if (!messages.length) turn.append(make("p", { className: "quiet" }, "Nothing of it."));
  return turn;
}

const assistantOf = (row) => (row.purified.find(([role]) => role === "assistant") || [null, null])[1];

/** A turn that is in the history as it was said is shown once, any other beside what became of it. */
function rowElement(row, verbatim) {
  const standing = assistantOf(row);
  const [first] = row.raw;
  if (!row.repair && first && standing && first[0][0] === standing[0]) {
    return make("article", {}, rawTurn(first, null, verbatim, first[2] === null && first[1] === -1 ? "answer" : "assistant"));
  }
  const labels = row.raw.map((_, number) => (number ? `correction ${number}` : row.repair ? "first attempt" : "said"));
  const raw = row.raw.map((turn, number) => rawTurn(turn, standing, verbatim, labels[number]));
  const purified = purifiedTurn(row.purified, first && row.repair ? first[0] : null, verbatim);
  const article = make(
    "article",
    { className: "pair" },
    make("div", { className: "raw" }, make("h3", {}, "Raw"), ...raw),
    make("div", { className: "purified" }, make("h3", {}, "Purified"), purified),
  );
  if (row.repair) article.prepend(decision(row.repair));
  return article;
}

function decision(repair) {
  const outcome = outcomeOf(repair);
  const [name, told] = OUTCOMES[outcome].split(": ");
  const line = make("p", { className: `decision ${outcome}` }, make("b", {}, name), ` ${told}.`);
  const numbers = [];
  if (repair.similarity !== null) numbers.push(`similarity ${repair.similarity.toFixed(2)}`);
  if (repair.attempts) numbers.push(plural(repair.attempts, "attempt"));
  line.append(make("span", { className: "numbers" }, numbers.join(", ")));
  return line;
}

function factList(episode) {
  const list = make("dl", { className: "facts" });
  const facts = { reward: episode.reward, ...episode.labels, ...episode.facts };
  for (const [name, value] of Object.entries(facts)) {
    if (value === null || value === "" || typeof value === "object") continue;
    list.append(make("div", {}, make("dt", {}, name.replaceAll("_", " ")), make("dd", {}, String(value))));
  }
  return list;
}

function show(index) {
  const main = byId("episode");
  const episode = episodes[index];
  if (!episode) {
    main.replaceChildren(make("p", { className: "quiet" }, "No episode fits these filters."));
    return;
  }
  const [sign, name] = resultOf(episode);
  const position = shown.indexOf(index);
  const step = (offset, label, text) =>
    make("button", { type: "button", onclick: () => go(offset), disabled: !(position + offset in shown), ariaLabel: label }, text);
  const toggle = make("button", { type: "button", onclick: toggleVerbatim, ariaPressed: String(state.verbatim) }, "Verbatim");
  const start = episode.start.map(([role, text]) =>
    make("details", { open: role !== "system" }, make("summary", {}, role), make("pre", {}, texts[text])),
  );
  main.replaceChildren(
    make(
      "header",
      {},
      make("div", { className: "bar" }, make("button", { type: "button", className: "back", onclick: back }, "\u2190 All episodes"), step(-1, "Previous episode", "\u2191"), step(1, "Next episode", "\u2193"), toggle),
      make("h2", {}, episode.problem || "(no id)"),
      make("p", { className: "badges" }, make("span", { className: `badge ${episode.result}` }, `${sign} ${name}`), make("span", { className: "badge" }, episode.purified ? "purification on" : "purification off")),
      factList(episode),
    ),
    make("article", { className: "start" }, ...start),
    ...episode.rows.map((row) => rowElement(row, state.verbatim)),
  );
  main.scrollTop = 0;
  document.body.dataset.episode = index;
}

// ---------------------------------------------------------------- filters

const FILTERS = {
  result: { label: "Result", of: (episode) => [resultOf(episode)[1]] },
  repairs: { label: "Purification", of: (episode) => (repairsOf(episode).length ? ["any repair", ...repairsOf(episode)] : ["no repair"]) },
  phase: { label: "Phase", of: (episode) => [episode.labels.phase] },
  step: { label: "Step", of: (episode) => [episode.labels.step] },
  purified: { label: "SAAR", of: (episode) => [episode.purified ? "on" : "off"] },
};
const state = { episode: 0, search: "", verbatim: false };
let shown = [];

/** Everything that an episode says, in lower case; made when it is first searched. */
function haystack(episode) {
  if (episode.haystack === undefined) {
    const numbers = new Set(episode.start.map(([, text]) => text));
    for (const row of episode.rows) {
      for (const [said, observation] of row.raw) numbers.add(said[0]).add(said.at(-1)).add(observation);
      for (const [, said] of row.purified) numbers.add(said[0]).add(said.at(-1));
    }
    numbers.delete(-1);
    const said = [...numbers].map((number) => texts[number]);
    const errors = episode.rows.flatMap((row) => row.raw.map((turn) => turn[3])).filter(Boolean);
    const facts = [...Object.values(episode.facts), ...Object.values(episode.labels)].filter((fact) => fact !== null);
    episode.haystack = [episode.problem, ...errors, ...facts, ...said].join("\n").toLowerCase();
  }
  return episode.haystack;
}

function fits(episode) {
  for (const [name, { of }] of Object.entries(FILTERS)) {
    if (state[name] && !of(episode).map(String).includes(state[name])) return false;
  }
  return !state.search || haystack(episode).includes(state.search.toLowerCase());
}

function makeFilters() {
  for (const [name, { label, of }] of Object.entries(FILTERS)) {
    const counts = new Map();
    for (const episode of episodes) {
      for (const value of new Set(of(episode))) if (value !== undefined) counts.set(value, (counts.get(value) || 0) + 1);
    }
    if (counts.size < 2) continue;
    const values = [...counts.keys()].sort((a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b))));
    const select = make("select", { id: `filter-${name}`, onchange: () => filter({ [name]: select.value }) });
    select.append(make("option", { value: "" }, "all"), ...values.map((value) => make("option", { value: String(value) }, `${value} (${counts.get(value).toLocaleString("en")})`)));
    byId("filters").append(make("label", {}, label, select));
  }
}

/** Takes new filters; the episode shown stays where it fits them. */
function filter(changes) {
  Object.assign(state, changes);
  shown = episodes.map((_, index) => index).filter((index) => fits(episodes[index]));
  const chosen = shown.includes(state.episode) ? state.episode : shown[0];
  byId("summary").textContent = summary();
  byId("list").scrollTop = 0;
  select(chosen === undefined ? -1 : chosen);
}

function summary() {
  const counted = shown.length === episodes.length ? plural(shown.length, "episode") : `${shown.length.toLocaleString("en")} of ${plural(episodes.length, "episode")}`;
  const valid = shown.filter((index) => ["correct", "incorrect", "no_answer"].includes(episodes[index].result));
  const correct = valid.filter((index) => episodes[index].result === "correct").length;
  const repairs = shown.reduce((sum, index) => sum + repairsOf(episodes[index]).length, 0);
  const rate = valid.length ? `, ${Math.round((100 * correct) / valid.length)} % correct` : "";
  return `${counted}${rate}, ${plural(repairs, "repair")}`;
}

// ---------------------------------------------------------------- the list

const ROW_HEIGHT = 58;

function itemElement(index) {
  const episode = episodes[index];
  const [sign, name] = resultOf(episode);
  const { step, phase } = episode.labels;
  const about = [phase, step === undefined ? "" : `step ${step}`, plural(episode.rows.length, "turn")].filter(Boolean).join(" \u00b7 ");
  const chips = repairsOf(episode).slice(0, 4).map((outcome) => make("span", { className: `chip ${outcome}` }, outcome));
  const button = make(
    "button",
    { type: "button", tabIndex: -1, onclick: () => open(index) },
    make("span", { className: `sign ${episode.result}`, title: name }, sign),
    make("span", { className: "name" }, episode.problem || "(no id)"),
    make("span", { className: "about" }, about),
    make("span", { className: "chips" }, ...chips),
  );
  button.setAttribute("aria-label", `${episode.problem}, ${name}, ${about}`);
  if (index === state.episode) button.setAttribute("aria-current", "true");
  return make("li", {}, button);
}

/** Makes only those items that can be seen. */
function drawList() {
  const list = byId("list");
  const first = Math.max(0, Math.floor(list.scrollTop / ROW_HEIGHT) - 8);
  const last = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW_HEIGHT) + 8);
  byId("spacer").style.height = `${shown.length * ROW_HEIGHT}px`;
  byId("items").style.transform = `translateY(${first * ROW_HEIGHT}px)`;
  byId("items").replaceChildren(...shown.slice(first, last).map(itemElement));
}

function select(index) {
  state.episode = index;
  const list = byId("list");
  const top = shown.indexOf(index) * ROW_HEIGHT;
  if (top < list.scrollTop) list.scrollTop = top;
  if (top + ROW_HEIGHT > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW_HEIGHT - list.clientHeight;
  drawList();
  show(index);
  writeAddress();
}

// ---------------------------------------------------------------- moving about

const narrow = () => matchMedia("(max-width: 860px)").matches;

function writeAddress() {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) if (name !== "verbatim" && value !== "" && value !== undefined && value !== -1) parts.set(name, value);
  if (document.body.dataset.screen === "list" && narrow()) parts.delete("episode");
  history.replaceState(history.state, "", `#${parts}`);
}

function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  document.body.dataset.screen = parts.has("episode") ? "episode" : "list";
  const changes = { episode: Number(parts.get("episode")) || 0, search: parts.get("search") || "" };
  for (const name of Object.keys(FILTERS)) {
    const select = byId(`filter-${name}`);
    if (!select) continue;
    select.value = parts.get(name) || "";
    changes[name] = select.value;
  }
  byId("search").value = changes.search;
  filter(changes);
}

function open(index) {
  if (narrow() && document.body.dataset.screen === "list") {
    document.body.dataset.screen = "episode";
    history.pushState({ opened: true }, "");
  }
  select(index);
  scrollTo(0, 0);
}

function back() {
  if (history.state && history.state.opened) history.back();
  else {
    document.body.dataset.screen = "list";
    drawList();
    writeAddress();
  }
}

function go(offset) {
  const position = shown.indexOf(state.episode) + offset;
  if (position in shown) {
    select(shown[position]);
    scrollTo(0, 0);
  }
}

function toggleVerbatim() {
  state.verbatim = !state.verbatim;
  show(state.episode);
}

const KEYS = {
  j: () => go(1),
  ArrowDown: () => go(1),
  k: () => go(-1),
  ArrowUp: () => go(-1),
  v: toggleVerbatim,
  "/": () => byId("search").focus(),
  Escape: back,
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input, select");
  if (typing && event.key === "Escape") event.target.blur();
  if (typing || !Object.hasOwn(KEYS, event.key)) return;
  if (event.key.startsWith("Arrow") && event.target.closest("main pre")) return;
  event.preventDefault();
  KEYS[event.key]();
});

let waiting;
byId("search").addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => filter({ search: byId("search").value }), 120);
});
byId("list").addEventListener("scroll", drawList, { passive: true });
addEventListener("resize", drawList);
addEventListener("popstate", readAddress);

makeFilters();
readAddress();
