// The parts of the page below the charts, out of one answer of /status.json.

import { brief, bytes, count, duration, element, foreign, number, percent, plural, table } from "./words.js";

const SHOWN_PEERS = 100;
const SHOWN_ROWS = 50;

function short(id) {
  return element("span", { class: "id", text: String(id).slice(0, 12), title: id });
}

function more(shown, all, what) {
  return all > shown ? [element("p", { class: "quiet", text: `and ${plural(all - shown, what)} more: see status.json` })] : [];
}

// --- peers ---

const PEER_COLUMNS = [
  { name: "peer", class: "whole" },
  { name: "model", class: "model" },
  { name: "contact", class: "contact" },
  { name: "round trip", class: "number" },
  { name: "score", class: "number" },
  { name: "groups taken / refused", class: "number" },
  { name: "trained / filtered", class: "number" },
  { name: "agreement", class: "whole" },
  { name: "received", class: "number" },
  { name: "sent", class: "number" },
];

function contact(status, peer) {
  if (peer.banned_until_ms > status.at_ms) {
    return [element("span", { class: "banned", text: "banned" }), element("small", {}, brief(peer.ban_reason))];
  }
  if (peer.connected) {
    return [element("span", { class: "connected", text: peer.direction === "in" ? "dialled in" : "connected" })];
  }
  return [peer.last_contact_ms === 0 ? "through others" : `${duration(status.at_ms - peer.last_contact_ms)} ago`];
}

// The mean cosine between gradients from these samples and from own held-out prompts, and what may be said of it.
export function agreement(measured) {
  if (!measured.measured) return [element("span", { class: "quiet", text: "not measured" })];
  const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);
  const interval = measured.low === null ? "" : ` (${signed(measured.low)} to ${signed(measured.high)})`;
  return [
    element("span", { class: measured.verdict, text: measured.verdict }),
    element("small", { text: `${signed(measured.mean)}${interval}, ${plural(measured.measured, "round")}` }),
  ];
}

// The factor on the loss of a peer's samples, where peers are weighted by their usefulness.
function weight(factor) {
  return factor === null ? [] : [element("small", { text: `weighs ${factor.toFixed(2)}` })];
}

function peerModel(status, peer) {
  const parts = [peer.model ? brief(peer.model) : "relay"];
  const known = status.tokenizer_fingerprint && peer.tokenizer_fingerprint;
  if (known && peer.tokenizer_fingerprint !== status.tokenizer_fingerprint) {
    parts.push(element("small", { text: "other tokenizer" }));
  }
  return parts;
}

export function peers(status) {
  if (status.peers.length === 0) {
    const why = status.dials.length === 0 ? "None yet: others join by dialling this node." : "None yet; see below what is dialled.";
    return [element("p", { class: "quiet", text: why })];
  }
  const rows = status.peers.slice(0, SHOWN_PEERS).map((peer) => [
    [short(peer.peer_id), element("small", {}, brief(peer.address ?? ""))],
    peerModel(status, peer),
    contact(status, peer),
    peer.round_trip_ms === null ? "–" : `${Math.round(peer.round_trip_ms)} ms`,
    (peer.score >= 0 ? "+" : "−") + Math.abs(peer.score).toFixed(1),
    `${count(peer.accepted_groups)} / ${count(peer.rejected_groups)}`,
    `${count(peer.trained)} / ${count(peer.filtered)}`,
    [...agreement(peer.agreement), ...weight(peer.weight)],
    bytes(peer.bytes_in),
    bytes(peer.bytes_out),
  ]);
  return [table(PEER_COLUMNS, rows, "wide"), ...more(SHOWN_PEERS, status.peers.length, "peer")];
}

export function peersNote(status) {
  const connected = status.peers.filter((peer) => peer.connected);
  if (status.peers.length === 0) return "";
  const parts = [`${count(connected.length)} of ${count(status.peers.length)} connected`];
  const dialledIn = connected.filter((peer) => peer.direction === "in").length;
  if (connected.length > 0) parts.push(dialledIn ? `${count(dialledIn)} dialled in` : "nobody dialled in: normal behind a NAT");
  return parts.join(", ");
}

// --- sequences ---

const OUTCOMES = [
  ["arrived", "generated / accepted"],
  ["trained", "trained"],
  ["filtered", "filtered"],
  ["zero_advantage", "without advantage"],
];

export function sequences(status) {
  const last = status.last_round;
  if (last === null) return [element("p", { class: "quiet", text: "No round is finished yet." })];
  const reasons = new Set();
  for (const counts of [last.totals.own, last.totals.peers]) Object.keys(counts.excluded).forEach((reason) => reasons.add(reason));
  const columns = [
    { name: "" },
    { name: `own, round ${last.round}`, class: "number" },
    { name: "own, all", class: "number" },
    { name: `peers', round ${last.round}`, class: "number" },
    { name: "peers', all", class: "number" },
  ];
  const counted = [last.own, last.totals.own, last.peers, last.totals.peers];
  const rows = OUTCOMES.map(([key, name]) => [name, ...counted.map((counts) => count(counts[key]))]);
  for (const reason of [...reasons].sort()) {
    rows.push([foreign(reason.replaceAll("_", " ")), ...counted.map((counts) => count(counts.excluded[reason] ?? 0))]);
  }
  const steps = `${plural(last.totals.steps, "step")} taken, ${count(last.totals.skipped_steps)} skipped, ${count(last.totals.generated_tokens)} tokens generated`;
  return [table(columns, rows), element("p", { class: "quiet", text: steps })];
}

// --- the node ---

export function isRelay(status) {
  return status.learner.startsWith("none");
}

export function facts(status) {
  const inbox = Object.entries(status.inbox).sort().map(([state, groups]) => `${count(groups)} ${state}`).join(", ");
  const last = status.last_round;
  const rows = [
    ["node", [element("span", { class: "id" }, foreign(status.peer_id))]],
    ["version", [foreign(status.version)]],
    ["listens on", [status.listening ? foreign(status.listening) : "nothing yet"]],
    ["run", [status.run_id ? element("span", { class: "id" }, foreign(status.run_id)) : "none yet"]],
    ["model", [foreign(status.model)]],
    ["learner", [foreign(status.learner)]],
    ["memory", [foreign(status.memory)]],
    ["DHT", [foreign(status.dht)]],
    ["inbox", [inbox ? foreign(`groups: ${inbox}`) : "empty"]],
    ["published", [`${plural(status.published_batches, "batch", "batches")}, ${bytes(status.published_bytes)}`]],
    ["held of peers", [`${plural(status.received_batches, "batch", "batches")}, ${bytes(status.received_bytes)}`]],
    ["peers' samples", agreement(status.peers_agreement)],
  ];
  if (status.parameters) {
    rows.splice(5, 0, ["parameters", [`${count(status.parameters)}, ${count(status.trainable_parameters)} trained`]]);
  }
  const { pace } = status;
  const phases = ["generating", "scoring", "training", "waiting", "measuring"].filter((phase) => pace[phase] !== null);
  if (phases.length > 0) {
    const shares = phases.map((phase) => `${phase} ${percent(pace[phase])}`).join(", ");
    rows.push(["time", [`last ${plural(pace.rounds, "round")}: ${shares}`]]);
  }
  if (pace.own_informative !== null) {
    const own = number(pace.own_informative);
    rows.push(["informative groups", [`${own} own and ${number(pace.peer_informative)} peers' a minute`]]);
  }
  if (last !== null && last.own_logprob_mismatch !== null) {
    rows.push(["mismatch", [`${number(last.own_logprob_mismatch, 2)} between engine and trainer on own samples`]]);
  }
  return rows
    .filter(([, value]) => value[0] !== "" && value[0].textContent !== "")
    .flatMap(([name, value]) => [element("dt", { text: name }), element("dd", {}, ...value)]);
}

export function dials(status) {
  const columns = [{ name: "address" }, { name: "state" }, { name: "again in", class: "number" }];
  const rows = status.dials.slice(0, SHOWN_ROWS).map((dial) => [
    foreign(dial.address),
    foreign(dial.state),
    dial.retry_at_ms === null ? "–" : duration(dial.retry_at_ms - status.at_ms),
  ]);
  return [table(columns, rows), ...more(SHOWN_ROWS, status.dials.length, "address")];
}

export function rejections(status) {
  const columns = [{ name: "peer" }, { name: "reason" }, { name: "times", class: "number" }, { name: "the last of them", class: "whole" }];
  const rows = status.rejections.slice(0, SHOWN_ROWS).map((rejection) => [
    short(rejection.peer_id),
    foreign(rejection.reason.replaceAll("_", " ")),
    count(rejection.count),
    foreign(rejection.detail),
  ]);
  return [table(columns, rows, "wide"), ...more(SHOWN_ROWS, status.rejections.length, "row")];
}
