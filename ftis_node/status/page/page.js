// Asks the node for its state every two seconds while somebody looks, and shows it.

import { Chart } from "./charts.js";
import * as sections from "./sections.js";
import { bytes, count, duration, element, foreign, number, percent, printable, reward } from "./words.js";

const POLL_MS = 2000;
const HISTORY_MS = 10000;
const ANSWER_MS = 10000;
const LINES = 20;

const CHARTS = [
  {
    title: "Reward", format: reward, tick: number, top: 1,
    series: [{ key: "own_reward", name: "own", class: "own" }, { key: "peer_reward", name: "peers'", class: "peers" }],
  },
  {
    title: "Filtered and truncated", format: percent, tick: percent,
    series: [
      { key: "filtered_share", name: "filtered", class: "peers" },
      { key: "truncated_share", name: "truncated", class: "training" },
    ],
  },
  {
    title: "Importance weight", format: number, tick: number, zero: false,
    series: [{ key: "importance_weight", name: "mean", class: "own" }],
  },
  {
    title: "Divergence of the peers", format: number, log: true,
    series: [{ key: "peer_divergence", name: "mean", class: "peers" }],
  },
  {
    title: "Seconds per round", format: (value) => `${number(value)} s`, tick: (value) => `${number(value)} s`, stacked: true,
    series: [
      { key: "generating_seconds", name: "generating", class: "own" },
      { key: "scoring_seconds", name: "scoring", class: "scoring" },
      { key: "training_seconds", name: "training", class: "training" },
      { key: "measuring_seconds", name: "measuring", class: "measuring" },
      { key: "waiting_seconds", name: "waiting", class: "waiting" },
    ],
  },
  {
    title: "Generation", format: (value) => `${number(value)} tokens/s`, tick: number,
    series: [{ key: "tokens_per_second", name: "", class: "own" }],
  },
].map((spec) => new Chart({ ...spec, x: "round" }));

const TRAFFIC = new Chart({
  title: "Traffic with all peers, last hour", x: "time", format: (value) => `${bytes(value)}/s`, tick: (value) => `${bytes(value)}/s`,
  series: [
    { key: "bytes_in_per_second", name: "in", class: "own" },
    { key: "bytes_out_per_second", name: "out", class: "peers" },
  ],
});

const at = (id) => document.getElementById(id);
const shown = new Map();

// Rebuild a part only when what it is made of has changed: a selection or a focus in it survives.
function fill(id, parts) {
  const text = parts.map((part) => (part instanceof Element ? part.outerHTML : part)).join("\n");
  if (shown.get(id) === text) return;
  shown.set(id, text);
  at(id).replaceChildren(...parts);
}

let latest = null; // { health, fetchedAt } of the last good answer
let failingSince = null;

// --- the state ---

function stateText(health) {
  const { round } = health.status;
  return (round > 0 ? `Round ${count(round)}: ` : "") + printable(health.state);
}

// What isn't known yet has no tile.
function tiles(status) {
  const last = status.last_round;
  const connected = status.peers.filter((peer) => peer.connected).length;
  const relay = sections.isRelay(status);
  const known = [
    [relay ? null : last?.round ?? 0, count, "rounds finished"],
    [connected, count, connected === 1 ? "peer connected" : "peers connected"],
    [last?.own_reward, reward, "own reward, last round"],
    [last?.peer_reward, reward, "peers' reward, last round"],
    [status.last_round_at_ms, (ms) => duration(status.at_ms - ms), "since the last round"],
    [status.seconds_per_round, (seconds) => (seconds < 120 ? `${number(seconds)} s` : duration(1000 * seconds)), "per round, of late"],
  ].filter(([value]) => value !== null && value !== undefined);
  return known.map(([value, words, name]) =>
    element("div", { class: "tile" }, element("b", { text: words(value) }), element("span", { text: name })));
}

function subtitle(status) {
  const parts = [foreign(status.peer_id.slice(0, 12))];
  if (status.run_name) parts.push(" in run ", foreign(status.run_name));
  if (status.model) parts.push(" trains ", foreign(status.model));
  return parts;
}

function lines(texts) {
  const shown = texts.slice(0, LINES).map((text) => element("li", {}, foreign(text)));
  if (texts.length > LINES) shown.push(element("li", { text: `and ${count(texts.length - LINES)} more: see status.json` }));
  return shown;
}

function showHealth(health) {
  const { status } = health;
  at("level").className = `level ${health.level}`;
  fill("level", [health.level]);
  document.title = `${health.level}: ${status.peer_id.slice(0, 8)} – ftis-node`;
  fill("subtitle", subtitle(status));
  fill("reasons", lines(health.reasons));
  fill("notes", lines(health.notes));
  fill("tiles", tiles(status));
  fill("peers-note", [sections.peersNote(status)]);
  fill("peers", sections.peers(status));
  fill("sequences", sections.sequences(status));
  fill("facts", sections.facts(status));
  at("dials-section").hidden = status.dials.length === 0;
  fill("dials", sections.dials(status));
  at("rejections-section").hidden = status.rejections.length === 0;
  fill("rejections", sections.rejections(status));
  at("sequences-section").hidden = sections.isRelay(status);
  at("no-rounds").hidden = sections.isRelay(status) || status.last_round !== null;
}

function showHistory(history) {
  const { rounds, traffic } = history;
  const any = rounds.round.length > 0;
  for (const chart of CHARTS) {
    // Of a node that is alone, what is about peers stays away.
    chart.figure.hidden = !chart.spec.series.some(({ key }) => rounds[key].some((value) => value !== null));
    chart.show({ ...rounds, x: rounds.round });
  }
  const newest = traffic.at_ms[traffic.at_ms.length - 1];
  TRAFFIC.figure.hidden = newest === undefined;
  TRAFFIC.show({ ...traffic, x: traffic.at_ms.map((ms) => (ms - newest) / 60000) });
  const last = rounds.round[rounds.round.length - 1];
  const mean = history.rounds_per_point > 1 ? `, every point the mean of ${count(history.rounds_per_point)}` : "";
  fill("charts-note", [any ? `rounds ${count(rounds.round[0])} to ${count(last)}${mean}` : ""]);
}

// --- asking ---

async function ask(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(ANSWER_MS), cache: "no-store" });
  if (!response.ok) throw new Error(printable((await response.text()).trim()) || `HTTP ${response.status}`);
  return response.json();
}

// What went wrong in words, if the node answered at all: fetch itself only throws TypeErrors and timeouts.
function troubleOf(error) {
  return error instanceof TypeError || error.name === "TimeoutError" ? null : error.message;
}

function tick() {
  const now = Date.now();
  const silence = at("silence");
  silence.hidden = failingSince === null;
  if (failingSince !== null) {
    const seconds = duration(now - failingSince.at);
    const text = failingSince.trouble === null
      ? `The node does not answer since ${seconds}.` + (latest === null ? "" : " What is shown below is from before.")
      : `The node can't tell its state since ${seconds}: ${failingSince.trouble}`;
    if (silence.textContent !== text) silence.textContent = text;
    at("level").className = "level unreachable";
    fill("level", ["no answer"]);
  }
  if (latest !== null) fill("activity", [stateText(latest.health)]);
}

function failed(error) {
  failingSince = { at: failingSince?.at ?? latest?.fetchedAt ?? Date.now(), trouble: troubleOf(error) };
  tick();
}

async function poll() {
  let health;
  try {
    health = await ask("status.json");
  } catch (error) {
    failed(error);
    return;
  }
  latest = { health, fetchedAt: Date.now() };
  failingSince = null;
  showHealth(health);
  tick();
}

async function pollHistory() {
  let history;
  try {
    history = await ask("history.json");
  } catch (error) {
    failed(error);
    return;
  }
  showHistory(history);
}

// One request after the other, and none while nobody looks.
async function forever(work, pauseMs) {
  for (;;) {
    if (!document.hidden) await work().catch((error) => console.error(error)); // a mistake of this page's own
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, pauseMs);
      document.addEventListener("visibilitychange", () => { clearTimeout(timer); resolve(); }, { once: true });
    });
  }
}

at("charts").append(...CHARTS.map((chart) => chart.figure), TRAFFIC.figure);
setInterval(tick, 1000);
forever(poll, POLL_MS);
forever(pollHistory, HISTORY_MS);
