const byId = (id) => document.getElementById(id);
const repairsOf = (episode) => episode.rows.filter((row) => row.repair).map((row) => outcomeOf(row.repair));

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

function show(index) {
  if (index < 0) {
    const reason = episodes.length ? "No episode fits these filters." : "No episode was recorded.";
    byId("episode").replaceChildren(make("p", { className: "quiet" }, reason));
    return;
  }
  const position = shown.indexOf(index);
  const button = (properties, text) => make("button", { type: "button", ...properties }, text);
  const step = (offset, ariaLabel, text) =>
    button({ onclick: () => go(offset), disabled: !(position + offset in shown), ariaLabel }, text);
  byId("episode").replaceChildren(
    make(
      "div",
      { className: "bar" },
      button({ className: "back", onclick: back }, "\u2190 All episodes"),
      step(-1, "Previous episode", "\u2191"),
      step(1, "Next episode", "\u2193"),
      button({ onclick: toggleVerbatim, ariaPressed: String(state.verbatim) }, "Verbatim"),
    ),
    ...episodeElements(episodes[index], state.verbatim),
  );
  byId("episode").scrollTop = 0;
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
