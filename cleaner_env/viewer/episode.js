const { texts, episodes } = JSON.parse(document.getElementById("data").textContent);

const OUTCOMES = {
  shallow: ["Shallow", "the reasoning stays, the code is the correction's"],
  deep: ["Deep", "the correction stands in place of the whole turn"],
  failed: ["Failed", "no correction ran, so the last error stands"],
  abandoned: ["Abandoned", "no further call was made, so the error stands"],
  open: ["Open", "the episode ended before a correction"],
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
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

const marked = (parts, tag) => parts.map(([text, common]) => (common ? text : make(tag, {}, text)));

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
    else turn.append(toolOutput(texts[said[0]], null, null));
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
    make("div", { className: "purified" }, make("div", {}, make("h3", {}, "Purified"), purified)),
  );
  if (row.repair) article.prepend(decision(row));
  return article;
}

function decision(row) {
  const { similarity, attempts, hidden_tokens: tokens, logprob_gap: gap } = row.repair;
  const outcome = outcomeOf(row.repair);
  const [name, told] = OUTCOMES[outcome];
  const seconds = row.raw.map((turn) => turn[4]).filter((value) => value !== null);
  const numbers = [
    similarity === null ? "" : `similarity ${similarity.toFixed(3)}`,
    plural(attempts, "attempt"),
    tokens ? plural(tokens, "hidden token") : "",
    seconds.length ? `${seconds.reduce((sum, value) => sum + value, 0).toFixed(2)} s` : "",
    gap === null ? "" : `log-prob gap ${gap.toFixed(2)}`,
  ];
  return make(
    "p",
    { className: `decision ${outcome}` },
    make("b", {}, name),
    make("span", {}, `${told}.`),
    make("span", { className: "numbers" }, ...numbers.filter(Boolean).map((number) => make("span", {}, number))),
  );
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

/** Everything about an episode, to stand below the buttons. */
function episodeElements(episode, verbatim) {
  const [sign, name] = resultOf(episode);
  const start = episode.start.map(([role, text]) =>
    make("details", { open: role !== "system" }, make("summary", {}, role), make("pre", { className: "prose" }, texts[text])),
  );
  return [
    make(
      "header",
      {},
      make("h2", {}, episode.problem || "(no id)"),
      make(
        "p",
        { className: "badges" },
        make("span", { className: `badge ${episode.result}` }, `${sign} ${name}`),
        make("span", { className: "badge" }, episode.purified ? "purification on" : "purification off"),
      ),
      factList(episode),
    ),
    make("article", { className: "start" }, ...start),
    ...episode.rows.map((row) => rowElement(row, verbatim)),
  ];
}
